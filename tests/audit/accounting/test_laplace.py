"""The auditor's ε of Laplace noise, against closed forms and against what dp-accounting gives."""

from __future__ import annotations

import math

import pytest

from audit.accounting.comparison import understates
from audit.accounting.laplace import laplace_budget, laplace_curve
from audit.accounting.registry import Steps
from audit.errors import UnverifiedError

# q, b, steps, δ, and ε of dp-accounting 0.6.0: PLDAccountant with cells of 1e-5, LaplaceDpEvent.
GOLDEN = [
    (0.1, 1.1, 70, 1e-5, 3.0453538875576656),
    (1.0, 1.0, 1, 1e-5, 0.9999799999000013),
    (1.0, 2.0, 10, 1e-5, 4.989962311196528),
    (0.05, 1.0, 100, 1e-5, 1.918383850296266),
    (0.01, 0.5, 1000, 1e-6, 3.0395500474257973),
    (0.2, 4.0, 50, 1e-3, 0.8577311247394896),
    (1.0, 10.0, 400, 1e-5, 9.73920687251226),
    (0.05, 20.0, 100, 1e-5, 0.07394027057646681),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("rate", "scale", "steps", "delta", "due"), GOLDEN)
def test_it_agrees_with_dp_accounting(
    rate: float, scale: float, steps: int, delta: float, due: float
) -> None:
    spent = laplace_budget([Steps(rate, scale, steps)], delta)
    # From above on its first grid, and to five digits on a finer one.
    assert due * (1 - 1e-5) <= spent.at(0) <= due * (1 + 5e-4)
    assert spent.at(2) == pytest.approx(due, rel=1e-5)
    assert not understates(due, spent.at)
    assert understates(due * (1 - 1e-3), spent.at)


@pytest.mark.parametrize(("scale", "delta"), [(0.5, 1e-6), (1.0, 1e-3), (3.0, 0.05)])
def test_one_step_is_the_closed_form(scale: float, delta: float) -> None:
    """δ(ε) = 1 − e^((ε − 1/b)/2) of the Laplace mechanism (Balle & Wang 2018)."""
    due = 1 / scale + 2 * math.log1p(-delta)
    spent = laplace_budget([Steps(1.0, scale, 1)], delta)
    assert spent.at(3) == pytest.approx(due, rel=1e-5)


def test_no_composition_costs_more_than_the_pure_one() -> None:
    for rate, scale, steps in ((1.0, 2.0, 30), (0.1, 1.0, 30)):
        pure = steps * math.log1p(rate * math.expm1(1 / scale))
        spent = laplace_budget([Steps(rate, scale, steps)], 1e-12).at(2)
        assert 0.5 * pure < spent < pure


def test_noise_of_two_scales_composes_to_more_than_either() -> None:
    both = [Steps(0.1, 1.0, 20), Steps(0.1, 2.0, 20)]
    alone = [laplace_budget([one], 1e-5).headline for one in both]
    assert max(alone) < laplace_budget(both, 1e-5).headline < sum(alone)


def test_the_curve_ends_at_the_whole() -> None:
    history = (Steps(0.1, 1.1, 70),)
    curve = laplace_curve(history, [(10,), (70,)], 1e-5)
    assert curve[0] < curve[1]
    assert curve[1] == pytest.approx(laplace_budget(history, 1e-5).headline, rel=1e-9)


def test_nothing_made_costs_nothing() -> None:
    assert laplace_budget([], 1e-5).headline == 0.0


def test_batches_of_fixed_size_have_no_accountant_unless_they_hold_all_records() -> None:
    with pytest.raises(UnverifiedError, match="Laplace noise on batches of fixed size"):
        laplace_budget([Steps(0.1, 1.0, 5, fixed_size=True)], 1e-5)
    assert laplace_budget([Steps(1.0, 1.0, 1)], 1e-5).headline > 0.9
