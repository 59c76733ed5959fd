"""A comparison's judgement: what fails, what is not verified, and what stands beside a pass."""

from __future__ import annotations

import pytest

from audit.accounting.comparison import Comparison
from audit.checks.shared.claimed import judgement_on
from audit.verdict import Severity

UNKNOWN = "epsilon by {} is claimed, which no accountant of the auditor recomputes"


@pytest.mark.parametrize(
    ("found", "verdict", "measurement", "severity"),
    [
        (Comparison(), "PASS", "fits", None),
        (Comparison(high=["a", "b"]), "PASS", "fits; but a; b", Severity.THEORETICAL),
        (Comparison(reasons=["wrong"]), "FAIL", "wrong", None),
        (Comparison(reasons=["wrong"], high=["a"]), "FAIL", "wrong", None),
        (Comparison(reasons=["wrong"], unknown={"x"}), "FAIL", "wrong", None),
        (Comparison(unknown={"x"}, high=["a"]), "NOT VERIFIED", UNKNOWN.format("x"), None),
        (
            # A set has no order of its own; whoever reads the finding again finds the same.
            Comparison(unknown={"f", "e", "d", "c", "b", "a"}),
            "NOT VERIFIED",
            "; ".join(UNKNOWN.format(name) for name in "abcdef"),
            None,
        ),
    ],
)
def test_losses_that_were_compared_are_judged(
    found: Comparison, verdict: str, measurement: str, severity: Severity | None
) -> None:
    judged = judgement_on(found, "fits", {"delta": 1e-5}, ("beside",))
    assert (judged.verdict.value, judged.measurement) == (verdict, measurement)
    assert judged.severity is severity
    assert judged.details == {"delta": 1e-5}
    assert judged.qualifications == ("beside",)
