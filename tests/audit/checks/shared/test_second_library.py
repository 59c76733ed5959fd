"""dp-accounting's number in a claim: it bears the claim out, or one of the two fails the run."""

from __future__ import annotations

from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from audit.accounting.budget import budget
from audit.accounting.sampling import most_spent
from audit.checks.shared.claimed import due_of_records
from audit.reading.bundle import Bundle, open_bundle
from tests.audit.checks.opened import changed, says
from tests.audit.synthetic_run import Settings, build_run

VIEWS = {"of_records": "server_worst_case", "of_clients": "third_party"}


def claimed_of(bundle: Bundle, view: str) -> float:
    return float((bundle.readable_ledger.claim or {})[view]["epsilon"]["pld"])


def noted(bundle: Bundle, view: str, number: Any, **more: Any) -> tuple[str, str]:
    """What "views" says of a run whose claim has such a number."""
    record = {"version": "0.6.0", "view": view, "accountant": "pld", "epsilon": number, **more}
    return says(changed(bundle, claim=lambda c: c.update(dp_accounting=record)), "views")


@pytest.fixture(params=sorted(VIEWS))
def run(request: pytest.FixtureRequest) -> tuple[Bundle, str]:
    return request.getfixturevalue(request.param), VIEWS[request.param]


def test_a_run_without_a_number_is_judged_as_before_and_it_is_said(run: tuple[Bundle, str]) -> None:
    verdict, text = says(run[0], "views")
    assert verdict == "PASS"
    assert "no number by dp-accounting was recorded" in text


@pytest.mark.parametrize(
    ("share", "verdict", "said"),
    [
        (1.0, "PASS", "dp-accounting 0.6.0 gives"),
        (1.0009, "PASS", "dp-accounting 0.6.0 gives"),
        # The claim is too low: what the auditor's own tolerance of 0.5 % lets pass.
        (1.0025, "FAIL", "the headline is claimed"),
        # The number is none that dp-accounting can have given, in either direction.
        (1.02, "FAIL", "is said to give"),
        (0.98, "FAIL", "is said to give"),
    ],
)
def test_a_claim_below_the_number_and_an_impossible_number_fail(
    run: tuple[Bundle, str], share: float, verdict: str, said: str
) -> None:
    bundle, view = run
    found = noted(bundle, view, claimed_of(bundle, view) * share)
    assert found[0] == verdict
    assert said in found[1]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"view": "server"}, "not of the view that leads the claim"),
        ({"version": "0.6.0; and more"}, "version is not a text of the expected form"),
        ({"accountant": "opacus"}, "accountant is not one of pld, rdp"),
        ({"bound": "lower"}, "not said to be what it is"),
        ({"number": None, "reason": "nobody knows"}, "reason is not one of no event, too fine"),
        ({"number": None, "reason": "no event"}, "is said to have no event for what was composed"),
        ({"number": "7"}, "epsilon is not a"),
        ({"number": -1.0}, "epsilon is not"),
    ],
)
def test_a_record_that_says_something_else_fails(
    run: tuple[Bundle, str], record: dict[str, Any], said: str
) -> None:
    bundle, view = run
    found = noted(bundle, **{"view": view, "number": claimed_of(bundle, view), **record})
    assert found[0] == "FAIL"
    assert said in found[1]


def test_that_the_grid_would_be_too_fine_is_told_and_no_failure(run: tuple[Bundle, str]) -> None:
    bundle, view = run
    verdict, text = noted(bundle, view, None, reason="too fine")
    assert verdict == "PASS"
    assert "for which the steps are said to be too many" in text


def test_of_batches_of_fixed_size_it_is_a_bound_from_below(tmp_path: Any) -> None:
    bundle = open_bundle(build_run(tmp_path / "run", Settings(sampling="fixed-size")))
    accountant = PLDAccountant()
    step = PoissonSampledDpEvent(12.0 / min(bundle.header.records), GaussianDpEvent(1.5 / 2.0))
    number = accountant.compose(step, 4 * 3).get_epsilon(1e-5)
    assert number < 0.98 * claimed_of(bundle, "server_worst_case")
    verdict, text = noted(bundle, "server_worst_case", number, bound="lower")
    assert verdict == "PASS"
    assert "a bound from below" in text
    assert noted(bundle, "server_worst_case", number)[0] == "FAIL"


def test_under_a_limit_it_is_that_of_the_rounds_that_fit(of_records: Bundle) -> None:
    most = most_spent(of_records.readable_ledger, of_records.header)
    costs = [budget(most.everything(count), 1e-5).headline for count in (1, 2, 3, 4)]
    limit = (costs[1] + costs[2]) / 2
    header = changed(of_records, header={"max_epsilon": limit}).header
    due = due_of_records(header, most, most.everything(1), 1e-5)
    # Two fit; by another accountant it may be one or three.
    assert (due.least, due.most) == pytest.approx((costs[0], costs[2]))
