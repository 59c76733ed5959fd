"""What the auditor says: verdicts, findings of single checks, and the whole.

A finding keeps two circles apart. Its public texts and `details` carry only numbers computed from
the spec and the ledger, post-processing of released values, or results on synthetic records; what
was measured on private evidence is in `private` and is written only into the evidence folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from audit.protection import Against, in_front

PACKAGE = "dpfedadamw audit 0.1.0"


class Verdict(Enum):
    """Outcome of one check, or (PASS, FAIL, NOT_VERIFIED, NO_CLAIM) of the audit."""

    PASS = "PASS"
    FAIL = "FAIL"
    NOT_VERIFIED = "NOT VERIFIED"
    NOT_APPLICABLE = "NOT APPLICABLE"
    NO_CLAIM = "NO CLAIM"


class Severity(Enum):
    """How much a failure would matter for privacy."""

    CRITICAL = "critical"
    THEORETICAL = "theoretical"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: short name, unique in an audit.
        title: the question the check answers.
        verdict: its outcome.
        severity: how much a failure would matter.
        claim: what the run claims.
        measurement: what was compared, in words without private numbers.
        tolerance: what difference is allowed and where that comes from.
        power: what the check would have detected.
        limits: what it cannot see.
        details: public numbers, JSON-ready.
        private: numbers measured on private evidence; never leaves the evidence folder.
        qualifications: sentences that must qualify the overall verdict.
    """

    name: str
    title: str
    verdict: Verdict
    severity: Severity
    claim: str
    measurement: str
    tolerance: str
    power: str
    limits: str
    details: Mapping[str, Any] = field(default_factory=dict)
    private: Mapping[str, Any] = field(default_factory=dict)
    qualifications: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding without its private part, ready for audit.json."""
        return {
            "name": self.name,
            "title": self.title,
            "verdict": self.verdict.value,
            "severity": self.severity.value,
            "claim": self.claim,
            "measurement": self.measurement,
            "tolerance": self.tolerance,
            "power": self.power,
            "limits": self.limits,
            "details": clean_numbers(dict(self.details)),
        }


@dataclass(frozen=True)
class Findings:
    """All findings about one run.

    Attributes:
        run: the run's identifier, "unknown" where the ledger cannot be read.
        unit: privacy unit ("record", "client" or "none"), None where it is unknown.
        findings: one a check, in the order of the checks.
        claims_privacy: whether the run claims any privacy at all.
        inputs: sha256 (hex) of the files that were judged.
        versions: versions of the numerical libraries used.
        unprotected: against whom the claim, true or not, gives no meaningful protection.
    """

    run: str
    unit: str | None
    findings: tuple[Finding, ...]
    claims_privacy: bool = True
    inputs: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    unprotected: Against | None = None

    @property
    def words(self) -> str:
        """The verdict in one line; that the claim protects nobody comes first."""
        return in_front(self.verdict.value, self.unprotected)

    @property
    def verdict(self) -> Verdict:
        """FAIL over NOT VERIFIED (critical checks) over NO CLAIM over PASS."""
        if any(finding.verdict is Verdict.FAIL for finding in self.findings):
            return Verdict.FAIL
        unverified = any(
            finding.verdict is Verdict.NOT_VERIFIED and finding.severity is Severity.CRITICAL
            for finding in self.findings
        )
        if unverified or not self.findings:
            return Verdict.NOT_VERIFIED
        return Verdict.PASS if self.claims_privacy else Verdict.NO_CLAIM

    @property
    def level(self) -> int | None:
        """The level of assurance that findings alone establish; None where nothing passed.

        1: nothing contradicts the claim. 2: participations were computed again, and agree. More
        depends on whose keys signed, which the auditor does not judge (docs/detection.md).
        """
        if self.verdict is not Verdict.PASS:
            return None
        again = any(
            finding.name == "reexecution" and finding.verdict is Verdict.PASS
            for finding in self.findings
        )
        return 2 if again else 1

    @property
    def qualifications(self) -> tuple[str, ...]:
        """Sentences that must qualify the verdict, without repeats."""
        texts = [text for finding in self.findings for text in finding.qualifications]
        return tuple(dict.fromkeys(texts))

    def named(self, name: str) -> Finding:
        """The finding of the check with this name; KeyError if there is none."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """The content of audit.json: nothing measured on private evidence, no time stamps."""
        return {
            "format": 1,
            "run": self.run,
            "verdict": self.verdict.value,
            **({} if self.unprotected is None else {"unprotected_against": self.unprotected}),
            "qualifications": list(self.qualifications),
            "auditor": {"package": PACKAGE, **self.versions},
            "checks": [finding.to_json() for finding in self.findings],
            "inputs": dict(self.inputs),
        }

    def private_json(self) -> dict[str, Any]:
        """The content of evidence/findings.json: numbers measured on private evidence."""
        return {
            "format": 1,
            "run": self.run,
            "verdict": self.verdict.value,
            "private": {
                finding.name: clean_numbers(dict(finding.private)) for finding in self.findings
            },
        }


def clean_numbers(value: Any) -> Any:
    """Make a value JSON-ready: nine significant digits, None for what is not finite.

    Nine digits are far below every tolerance here and hide differences between numerical
    libraries, so that the same run gives the same bytes.
    """
    if isinstance(value, Mapping):
        return {str(key): clean_numbers(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [clean_numbers(item) for item in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, Enum):
        return value.value
    number = float(value)
    if not math.isfinite(number):
        return None
    return float(f"{number:.9g}")
