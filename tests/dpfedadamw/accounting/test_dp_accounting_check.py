"""What dp-accounting is asked about a claim, and how near our accountant is to its answer."""

from __future__ import annotations

import random
from typing import Any

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from dpfedadamw.accounting import dp_accounting_check as check
from dpfedadamw.accounting.dp_accounting_check import (
    NO_EVENT,
    TOO_FINE,
    TOO_LARGE,
    Composed,
    checked,
    disagrees,
)
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.selection import Trials, epsilon_of_selection
from dpfedadamw.privacy.composition import Composition

DELTA = 1e-5
VIEW = "server_worst_case"


def claim_of(epsilon: float, delta: float = DELTA, by: str = "pld") -> dict[str, Any]:
    return {"delta": delta, VIEW: {"epsilon": {by: epsilon}, "accountant": by}}


def asked(*parts: Composition, delta: float = DELTA) -> tuple[float, dict[str, Any]]:
    """Our ε, and what is recorded beside it."""
    ours = epsilon_pld(parts, delta)
    return ours, checked(claim_of(ours, delta), Composed(VIEW, parts))


def drawn(seed: int, kind: str) -> tuple[Composition, float]:
    draw = random.Random(seed)
    rate = 1.0 if kind in ("full", "shuffled") else 10 ** draw.uniform(-3, -0.05)
    steps = int(10 ** draw.uniform(0, 4))
    noise = 10 ** draw.uniform(-0.3, 1.3)
    return Composition(noise, rate, steps, sampling=kind), 10 ** draw.uniform(-8, -3)


def agree(ours: float, theirs: float) -> bool:
    # 0.1 % and 0.0001 below is what the auditor allows; above, ours is coarser where ε is tiny.
    return theirs * (1 - 1e-3) - 1e-4 <= ours <= theirs * (1 + 1e-3) + 1e-3


@pytest.mark.parametrize("kind", ["poisson", "full", "shuffled"])
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_it_agrees_with_our_accountant(seed: int, kind: str) -> None:
    part, delta = drawn(seed, kind)
    ours, found = asked(part, delta=delta)
    assert agree(ours, found["epsilon"])
    assert found["accountant"] == "pld"
    assert "bound" not in found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["poisson", "full", "shuffled", "fixed-size"])
@pytest.mark.parametrize("seed", range(100, 160))
def test_it_agrees_with_our_accountant_over_a_wide_grid(seed: int, kind: str) -> None:
    part, delta = drawn(seed, kind)
    ours, found = asked(part, delta=delta)
    if found["epsilon"] is None:
        assert found["reason"] == (TOO_FINE if ours < 600.0 else TOO_LARGE)
    elif "bound" in found:
        assert found["epsilon"] * (1 - 1e-3) - 1e-4 <= ours
    else:
        assert agree(ours, found["epsilon"])


def test_steps_of_many_kinds_are_composed_after_one_another() -> None:
    ours, found = asked(*(Composition(4.0 * 0.95**k, 0.1, 5) for k in range(8)))
    assert agree(ours, found["epsilon"])


def test_two_queries_on_one_batch_are_one_of_less_noise() -> None:
    _, found = asked(Composition(2.0, 0.1, 50, queries_per_step=2))
    accountant = dp_accounting.pld.PLDAccountant()
    step = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0 / 2**0.5))
    direct = accountant.compose(step, 50).get_epsilon(DELTA)
    # The direct call's grid allows for 1e-4.
    assert found["epsilon"] == pytest.approx(direct, rel=2e-4)


def test_of_replaced_records_it_knows_itself_that_they_move_a_sum_by_twice_the_norm() -> None:
    _, found = asked(Composition(3.0, 1.0, 7, sampling="shuffled"))
    # δ(ε) of one Gaussian of multiplier σ/(2√7) (Balle & Wang 2018), exact.
    sigma, epsilon = 3.0 / 2.0 / np.sqrt(7), found["epsilon"]
    upper, lower = stats.norm.cdf(np.array([0.5, -0.5]) / sigma - epsilon * sigma)
    assert upper - np.exp(epsilon) * lower == pytest.approx(DELTA, rel=0.01)


def test_a_batch_of_fixed_size_costs_no_less_than_two_neighbours_that_can_be_told_apart() -> None:
    ours, found = asked(Composition(2.0, 0.5, 1, sampling="fixed-size"))
    assert found["bound"] == "lower"
    # All others at -C, the replaced record at C before and -C after: the sum is moved by 2C = 1σ
    # with probability 1/2. Hockey-stick divergence by a sum, of both orders.
    grid = np.linspace(-12.0, 13.0, 1_000_001)
    after = stats.norm.pdf(grid)
    before = 0.5 * after + 0.5 * stats.norm.pdf(grid - 1.0)
    width = grid[1] - grid[0]

    def delta(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.maximum(one - np.exp(found["epsilon"]) * other, 0.0).sum() * width)

    assert max(delta(before, after), delta(after, before)) == pytest.approx(DELTA, rel=0.01)
    assert found["epsilon"] <= ours


def test_the_best_of_a_random_number_of_trials_has_an_event() -> None:
    part, law = Composition(2.5, 0.2, 100), Trials(10.0, 1.0)
    ours = epsilon_of_selection([(part, 1)], 1.0, DELTA, law)
    found = checked(claim_of(ours, by="rdp"), Composed(VIEW, (part,), law))
    assert found["accountant"] == "rdp"
    assert found["epsilon"] == pytest.approx(ours, rel=1e-8)


@pytest.mark.parametrize(
    ("parts", "trials"),
    [((), Trials(3.0, 1.0)), ((Composition(3.0, 1.0, 9, sampling="shuffled"),), Trials(3.0, 1.0))],
)
def test_where_it_has_no_event_none_is_invented(
    parts: tuple[Composition, ...], trials: Trials
) -> None:
    found = checked(claim_of(3.0, by="rdp"), Composed(VIEW, parts, trials))
    assert (found["epsilon"], found["reason"]) == (None, NO_EVENT)
    assert not disagrees({**claim_of(3.0), "dp_accounting": found})


def test_what_needs_too_fine_a_grid_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_epsilon", lambda *_: pytest.fail("it was asked"))
    _, found = asked(Composition(20.0, 0.01, 10**9))
    assert (found["epsilon"], found["reason"]) == (None, TOO_FINE)


def test_an_epsilon_near_the_end_of_double_precision_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, found = asked(Composition(0.15, 0.3, 20))
    assert ours > 300.0
    assert agree(ours, found["epsilon"])
    # The library says 994.6, and of a rate of 0.11 infinity. Quadrature and a Fourier transform in
    # cells of 0.002 give 993.60.
    monkeypatch.setattr(check, "_epsilon", lambda *_: pytest.fail("it was asked"))
    ours, found = asked(Composition(0.1, 0.2, 40))
    assert ours == pytest.approx(993.60, abs=0.1)
    assert (found["epsilon"], found["reason"]) == (None, TOO_LARGE)


@pytest.mark.parametrize(
    ("ours", "refuted"), [(1.0, False), (0.99895, False), (0.9987, True), (1.5, False)]
)
def test_only_a_claim_below_it_by_more_than_rounding_is_refuted(ours: float, refuted: bool) -> None:
    found = {"version": "0.6.0", "view": VIEW, "accountant": "pld", "epsilon": 1.0}
    assert disagrees({**claim_of(ours), "dp_accounting": found}) is refuted
    assert not disagrees(claim_of(ours))
