"""What a check is: fixed texts and one function from a run to a judgement.

Each check of this folder is registered in its own file; `auditor` runs those of the run's unit and
joins texts and judgement into a finding. The fixed texts exist before anything is read, so that a
check that cannot be carried out still says what it would have shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from audit.reading.bundle import Bundle
from audit.reading.ledger import Header
from audit.reading.units import CLIENT, NONE, PERSON, RECORD, Unit
from audit.verdict import Finding, Severity, Verdict

_MOST_REASONS = 6
# A person takes a record's place. A run that claims nothing is looked at as one of single records,
# whose checks say so.
AT_RECORD_LEVEL = (RECORD, PERSON, NONE)
AT_CLIENT_LEVEL = (CLIENT,)


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


def _every_run(header: Header | None) -> bool:
    del header
    return True


@dataclass(frozen=True, kw_only=True)
class Check:
    """A named question to a run, with its fixed texts and the function that answers it.

    Attributes:
        name: short name, one check a unit.
        title: the question.
        place: where the check stands among the others, which run and are reported by rising place.
        meaning: what a failure would mean, for a reader of the report, which has this sentence
            from a table (`tests.reports.check_meanings`) and not from the auditor's file.
        claim: what the run claims.
        tolerance: what difference is allowed and where that comes from.
        power: what the check would have detected.
        limits: what it cannot see.
        rule: judges a run.
        units: units of protection for which the question is asked like this.
        severity: how much a failure would matter.
        judges_no_claim: whether there is something to judge in a run that claims no privacy.
        concerns: whether the question arises for a run with this header.
    """

    name: str
    title: str
    place: int
    meaning: str
    claim: str
    tolerance: str
    power: str
    limits: str
    rule: Callable[[Bundle], Judgement]
    units: tuple[Unit, ...] = (*AT_RECORD_LEVEL, *AT_CLIENT_LEVEL)
    severity: Severity = Severity.CRITICAL
    judges_no_claim: bool = False
    concerns: Callable[[Header | None], bool] = _every_run

    def judge(self, bundle: Bundle) -> Judgement:
        """Judge one run.

        Raises:
            AuditError: what the judgement needs cannot be read.
        """
        if self.judges_no_claim or bundle.header.unit.claims_privacy:
            return self.rule(bundle)
        return Judgement(
            Verdict.NOT_APPLICABLE, "the run makes no privacy claim, so there is nothing to judge"
        )

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


_REGISTERED: dict[tuple[str, str], Check] = {}


def register(check: Check) -> None:
    """Enter a check for each of its units; the file that defines it calls this, at its end.

    Raises:
        ValueError: a unit has a check of this name, or one in this place.
    """
    for unit in check.units:
        for (name, of), other in _REGISTERED.items():
            if of == unit.name and (name == check.name or other.place == check.place):
                raise ValueError(f"{check.name} and {name} share a name or a place")
        _REGISTERED[check.name, unit.name] = check


def registered(unit: Unit) -> tuple[Check, ...]:
    """The checks entered for a unit so far, in their order."""
    own = (check for (_, name), check in _REGISTERED.items() if name == unit.name)
    return tuple(sorted(own, key=lambda check: check.place))


def conclude(
    passed: str, reasons: Sequence[str], unreadable: Sequence[str] = (), **rest: Any
) -> Judgement:
    """FAIL for any reason, else NOT VERIFIED for whatever is unreadable, else PASS.

    Args:
        passed: what a pass says.
        reasons: what is wrong.
        unreadable: why something could not be judged.
        **rest: further fields of the judgement.
    """
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), **rest)
    if unreadable:
        return Judgement(Verdict.NOT_VERIFIED, listed(unreadable), **rest)
    return Judgement(Verdict.PASS, passed, **rest)


def listed(reasons: Sequence[str]) -> str:
    """Reasons as one text; the first few are spelled out."""
    unique = list(dict.fromkeys(reasons))
    shown = "; ".join(unique[:_MOST_REASONS])
    more = len(unique) - _MOST_REASONS
    return f"{shown}; and {more} more" if more > 0 else shown
