"""What a check is: fixed texts and one function from a run to a judgement.

Each check of this folder defines one `Check`; `auditor` runs it and joins texts and judgement into
a finding. The fixed texts exist before anything is read, so that a check that cannot be carried
out still says what it would have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from audit.reading.bundle import Bundle
from audit.reading.evidence import ProbeResults
from audit.verdict import Finding, Severity, Verdict

_MOST_REASONS = 6


@dataclass(frozen=True)
class Context:
    """What a check may use besides the bundle.

    Attributes:
        probe: results of a live probe; None where the recorded ones are to be read.
    """

    probe: ProbeResults | None = None


@dataclass(frozen=True)
class Judgement:
    """Outcome of one check on one run; texts left None keep the check's fixed ones."""

    verdict: Verdict
    measurement: str
    details: Mapping[str, Any] = field(default_factory=dict)
    private: Mapping[str, Any] = field(default_factory=dict)
    qualifications: tuple[str, ...] = ()
    tolerance: str | None = None
    power: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True)
class Check:
    """A named question to a run, with its fixed texts and the function that answers it."""

    name: str
    title: str
    severity: Severity
    claim: str
    tolerance: str
    power: str
    limits: str
    judge: Callable[[Bundle, Context], Judgement]

    def finding(self, judgement: Judgement) -> Finding:
        """Join the fixed texts with a judgement."""
        return Finding(
            name=self.name,
            title=self.title,
            verdict=judgement.verdict,
            severity=judgement.severity or self.severity,
            claim=self.claim,
            measurement=judgement.measurement,
            tolerance=judgement.tolerance or self.tolerance,
            power=judgement.power or self.power,
            limits=self.limits,
            details=judgement.details,
            private=judgement.private,
            qualifications=judgement.qualifications,
        )


def no_claim(bundle: Bundle) -> Judgement | None:
    """NOT APPLICABLE for a run that makes no privacy claim, None for any other."""
    if bundle.header.unit != "none":
        return None
    return Judgement(
        Verdict.NOT_APPLICABLE, "the run makes no privacy claim, so there is nothing to judge"
    )


def listed(reasons: Sequence[str]) -> str:
    """Reasons as one text; the first few are spelled out."""
    unique = list(dict.fromkeys(reasons))
    shown = "; ".join(unique[:_MOST_REASONS])
    more = len(unique) - _MOST_REASONS
    return f"{shown}; and {more} more" if more > 0 else shown
