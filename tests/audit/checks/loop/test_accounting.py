"""What a loop states beside what its steps cost, at each boundary; costs may be made up here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.accounting.budget import Budget, Steps, budget
from audit.accounting.comparison import Comparison
from audit.accounting.registry import Range
from audit.checks import checks_of
from audit.checks.loop.ledger import _counted, _stated, over_steps
from audit.checks.loop.ledger import _judge_accounting as _judge
from audit.errors import UnverifiedError
from audit.reading.ledger_lines import Spend
from audit.reading.units import LOOP
from audit.untrusted.fields import FieldError


def charge(
    noise: float = 1.1, rate: float = 0.2, steps: int = 1, sampling: str = "poisson"
) -> Spend:
    return Spend(
        line=2, round=0, client=0, attempt=1, records=150, sampling=sampling, sampling_rate=rate,
        expected_batch_size=30.0, clipping_norm=0.8, noise_multiplier=noise, steps=steps,
        queries_per_step=1, rate_stated=True,
    )  # fmt: skip


def a_ledger(*charges: Spend, claim: Any = None) -> Any:
    return SimpleNamespace(spends=charges, claim=claim)


SPENT = Budget({"pld": Range(2.0, 2.5), "rdp": Range(3.0, 3.5)})


def stated(name: str, epsilon: float, spent: Budget = SPENT) -> tuple[list[str], list[str]]:
    found = Comparison()
    claim = {"server": {"epsilon": {name: epsilon}}}
    assert _stated(claim, spent, found) == (name, epsilon)
    return found.reasons, found.high


@pytest.mark.parametrize(
    ("name", "costs"), [("prv", 2.5), ("pld", 2.5), ("rdp", 3.5), ("gdp", None), ("xrdp", None)]
)
def test_a_number_is_too_high_beside_the_auditor_s_accountant_of_that_name(
    name: str, costs: float | None
) -> None:
    if costs is None:
        assert stated(name, 99.0) == ([], [])
        return
    at = costs * (1.0 + 0.05) + 0.01
    assert stated(name, at) == ([], [])
    above = float(np.nextafter(at, 9.0))
    said = f"epsilon by {name} is overstated ({above:.4g} for {costs:.4g})"
    assert stated(name, above) == ([], [said])


@pytest.mark.parametrize("name", ["pld", "rdp", "gdp"])
def test_a_number_by_whatever_accountant_is_not_below_the_leading_one(name: str) -> None:
    at = 2.0 * (1.0 - 1e-4) - 1e-9
    assert stated(name, at) == ([], [])
    below = float(np.nextafter(at, 0.0))
    assert stated(name, below) == (
        [f"epsilon by {name} is stated as {below:.4g}, but the steps cost 2"], []
    )  # fmt: skip


def test_the_number_of_the_accountant_that_is_named_is_the_loop_s() -> None:
    two = {"by-hand": 95.0, "rdp": 3.1}
    claim = {"server": {"epsilon": two, "accountant": "rdp"}}
    assert _stated(claim, SPENT, Comparison()) == ("rdp", 3.1)
    for wrong in ({"epsilon": two}, {"epsilon": two, "accountant": "pld"}):
        with pytest.raises(FieldError, match=r"(accountant|pld) is missing"):
            _stated({"server": wrong}, SPENT, Comparison())


def test_every_other_number_of_a_loop_is_compared_with_its_own_accountant_s() -> None:
    found = Comparison()
    view = {"epsilon": {"pld": 2.0, "rdp": 2.5, "by-hand": 95.0, "gdp": 0.5}, "accountant": "pld"}
    assert _stated({"server": view}, SPENT, found) == ("pld", 2.0)
    assert found.reasons == [
        "epsilon by rdp is stated as 2.5, but the steps cost 3",
        "epsilon by gdp is stated as 0.5, but the steps cost 2",
    ]
    assert found.unknown == {"by-hand"}


def test_a_third_party_s_epsilon_of_a_loop_is_compared_as_the_server_s() -> None:
    view = {"epsilon": {"pld": 2.0}, "accountant": "pld"}
    low = {"epsilon": {"pld": 0.1}, "accountant": "pld"}
    said = ["epsilon by pld is stated as 0.1, but the steps cost 2"]
    for party, reasons in ((view, []), ({}, []), (low, said)):
        found = Comparison()
        assert _stated({"server": view, "third_party": party}, SPENT, found) == ("pld", 2.0)
        assert found.reasons == reasons


def test_a_loop_without_a_number_states_none() -> None:
    with pytest.raises(UnverifiedError, match="the loop states no epsilon"):
        _stated({"server": {}}, SPENT, Comparison())
    for wrong in ({}, {"server": 3.0}, {"server": {"epsilon": {"pld": "3"}}}):
        with pytest.raises(FieldError):
            _stated(wrong, SPENT, Comparison())


TWO = a_ledger(charge(), charge(), charge(noise=2.0, rate=0.5, steps=3))
OTHER = ["the loop's accountant counted a noise or rate that was not used"]


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([[1.1, 0.2, 2], [2.0, 0.5, 3]], []),
        ([[2.0, 0.5, 3], [1.1, 0.2, 1], [1.1, 0.2, 1]], []),
        # Nine digits are compared.
        ([[1.1 * (1 + 4e-10), 0.2, 2], [2.0, 0.5 * (1 - 4e-10), 3]], []),
        ([[1.1 * (1 + 6e-9), 0.2, 2], [2.0, 0.5, 3]], OTHER),
        ([[1.1, 0.2 * (1 + 6e-9), 2], [2.0, 0.5, 3]], OTHER),
        ([[0.2, 1.1, 2], [0.5, 2.0, 3]], OTHER),
        ([[1.1, 0.2, 3], [2.0, 0.5, 2]], OTHER),
        ([[1.1, 0.2, 2]], ["the loop's accountant counted 2 steps, but 5 were made"]),
        (
            [[1.1, 0.2, 2], [2.0, 0.5, 3], [0.0, 0.0, 1]],
            ["the loop's accountant counted 6 steps, but 5 were made"],
        ),
    ],
)
def test_the_loop_s_accountant_counted_each_noise_and_rate_as_often_as_it_was_charged(
    history: Any, said: list[str]
) -> None:
    reasons: list[str] = []
    _counted({"accountant_history": history}, TWO, reasons)
    assert reasons == said
    _counted({}, TWO, reasons)
    assert reasons == said


ENTRY = "accountant_history has an entry that is not three numbers"


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([[1.1, 0.2]], ENTRY),
        ([[1.1, 0.2, 2, 2]], ENTRY),
        ([(1.1, 0.2, 2)], ENTRY),
        (["1.1"], ENTRY),
        ([["1.1", 0.2, 2]], "accountant_history is not a number"),
        ([[1.1, None, 2]], "accountant_history is not a number"),
        ([[-1e-9, 0.2, 2]], "accountant_history is not a number from 0"),
        ([[1.1, -1e-9, 2]], "accountant_history is not a number from 0"),
        ([[1.1, 0.2, 2.0]], "accountant_history is not a whole number from 0"),
        ([[1.1, 0.2, -1]], "accountant_history is not a whole number from 0"),
        ("none", "accountant_history is not a list"),
    ],
)
def test_a_history_that_is_none_is_refused(history: Any, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        _counted({"accountant_history": history}, TWO, [])


def test_the_curve_is_what_the_steps_so_far_cost() -> None:
    charges = [charge(), charge(noise=2.0), charge(), charge(noise=2.0), charge(steps=2)]
    curve = over_steps(a_ledger(*charges), 1e-5)
    assert [point["round"] for point in curve] == [1, 2, 3, 4, 5]
    for made, point in enumerate(curve, start=1):
        taken = charges[:made]
        counts = {noise: sum(one.steps for one in taken if one.noise_multiplier == noise)
                  for noise in (1.1, 2.0)}  # fmt: skip
        so_far = [Steps(0.2, noise, steps) for noise, steps in counts.items() if steps]
        assert set(point) == {"round", "server", "third_party"}
        assert point["server"] == point["third_party"]
        assert point["server"] == pytest.approx(budget(so_far, 1e-5).headline, rel=2e-3)


@pytest.mark.parametrize(
    ("steps", "points"),
    [
        (1, [1]),
        (39, list(range(1, 40))),
        (40, list(range(1, 41))),
        (41, [*range(2, 41, 2), 41]),
        (80, list(range(2, 81, 2))),
        (81, list(range(3, 82, 3))),
    ],
)
def test_the_curve_has_forty_points_at_most_and_ends_with_the_last_step(
    steps: int, points: list[int]
) -> None:
    curve = over_steps(a_ledger(*[charge(noise=50.0)] * steps), 1e-5)
    assert [point["round"] for point in curve] == points


def judged(delta: float = 1e-5, **ledger: Any) -> Any:
    paid = tuple(charge() for _ in range(3))
    cost = budget([Steps(0.2, 1.1, 3)], 1e-5).headline
    claim = {"server": {"epsilon": {"pld": cost}}, "accountant_history": [[1.1, 0.2, 3]]}
    made = {"spends": paid, "claim": claim}
    bundle: Any = SimpleNamespace(
        header=SimpleNamespace(
            declared=lambda name: {"delta": delta}[name], mechanism="gaussian", unit=LOOP
        ),
        readable_ledger=SimpleNamespace(**{**made, **ledger}),
    )
    return _judge(bundle), cost, claim


def test_what_the_loop_states_is_told_with_all_that_was_composed() -> None:
    found, cost, claim = judged()
    assert found.verdict.value == "PASS"
    assert set(found.details) == {
        "delta", "epsilon", "steps", "stated", "accountant", "by_accountant", "over_rounds",
    }  # fmt: skip
    assert found.details["delta"] == 1e-5
    assert found.details["epsilon"] == found.details["stated"] == cost
    assert (found.details["steps"], found.details["accountant"]) == (3, "pld")
    assert found.details["by_accountant"] == budget([Steps(0.2, 1.1, 3)], 1e-5).epsilon
    assert [one["round"] for one in found.details["over_rounds"]] == [1, 2, 3]
    assert found.measurement.startswith("3 charged steps cost epsilon = ")
    assert found.measurement.endswith(", which is not less, and its accountant counted these steps")
    silent, _, _ = judged(claim={"server": claim["server"]})
    assert silent.measurement.endswith(" by pld, which is not less")


def test_nothing_is_composed_at_a_delta_of_one_or_without_charges_and_a_claim() -> None:
    for delta in (1.0, 1.5):
        with pytest.raises(UnverifiedError, match="delta is not below 1"):
            judged(delta)
    assert judged(float(np.nextafter(1.0, 0.0)))[0].verdict.value == "PASS"
    for missing in ({"spends": ()}, {"claim": None}):
        with pytest.raises(UnverifiedError, match="no claim or no charges"):
            judged(**missing)


def test_a_damaged_claim_is_a_reason_and_one_without_a_number_is_not_verified() -> None:
    wrong, _, _ = judged(claim={"server": {"epsilon": {}}})
    assert (wrong.verdict.value, wrong.measurement) == (
        "FAIL",
        "claim: epsilon holds no accountant's number, or too many",
    )
    with pytest.raises(UnverifiedError, match="the loop states no epsilon"):
        judged(claim={"server": {}})
    # That another number of steps was counted is told all the same.
    both, _, _ = judged(claim={"server": {}, "accountant_history": []})
    assert both.measurement == "the loop's accountant counted 0 steps, but 3 were made"
    assert (both.details["stated"], both.details["accountant"]) == (0.0, "")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"gaussian_dp": {"mu": 0.01}}, "the claim states gaussian_dp, which no check"),
        ({"person": {"records": 1000}}, "the claim states person, which no check"),
        ({"server_worst_case": {}}, "the claim states server_worst_case, which no check"),
        ({"view_headline": "third-party"}, "the headline is not the server's view"),
    ],
)
def test_what_no_check_of_a_loop_reads_must_not_be_claimed(more: Any, said: str) -> None:
    _, _, claim = judged()
    found, _, _ = judged(claim={**claim, "view_headline": "server", **more})
    assert found.verdict.value == "FAIL"
    assert found.measurement.startswith(said)
    view = {**claim["server"], "clients": [{"client": 0, "epsilon": {"pld": 0.1}}]}
    of_clients, _, _ = judged(claim={**claim, "server": view})
    assert of_clients.measurement.startswith("the claim states server.clients, which no check")


def test_the_check_is_asked_of_loops_by_its_name() -> None:
    (check,) = (one for one in checks_of(LOOP) if one.name == "accounting")
    assert check.rule.__module__ == "audit.checks.loop.ledger"
