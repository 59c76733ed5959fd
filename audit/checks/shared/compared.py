"""The judgement that comes of comparing claimed losses with recomputed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.accounting.comparison import Comparison
from audit.checks.base import Judgement, conclude, listed
from audit.verdict import Severity


def judgement_on(
    found: Comparison,
    measurement: str,
    details: Mapping[str, Any],
    qualifications: tuple[str, ...] = (),
) -> Judgement:
    """FAIL for a reason, NOT VERIFIED for an accountant that the auditor lacks, else PASS.

    Args:
        found: the comparison.
        measurement: what a PASS says; what is a little too high is added to it.
        details: the judgement's numbers.
        qualifications: what must stand beside the verdict.
    """
    unknown = [
        f"epsilon by {name} is claimed, which no accountant of the auditor recomputes"
        for name in sorted(found.unknown)
    ]
    passes = not found.reasons and not unknown
    note = f"; but {listed(found.high)}" if found.high else ""
    severity = Severity.THEORETICAL if passes and found.high else None
    return conclude(
        f"{measurement}{note}",
        found.reasons,
        unknown,
        details=details,
        qualifications=qualifications,
        severity=severity,
    )
