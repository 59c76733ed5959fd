"""Losses on a grid: what composing and coarsening may do to them, and that it is cheap."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from numpy.testing import assert_allclose, assert_array_equal
from scipy import optimize, stats

from audit.accounting.budget import Steps, budget
from dpfedadamw.accounting.losses import (
    TILTS,
    Losses,
    LossPair,
    coarsenings_of,
    on_grid,
)
from dpfedadamw.accounting.pld import _composed, epsilon_pld, mixture_epsilon_pld
from dpfedadamw.accounting.step_losses import poisson_losses
from dpfedadamw.privacy.composition import Composition

WIDTH = 2.0**-10


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.02), (0.4, 0.3), (2.0, 1.0)])
def test_one_step_is_that_of_dp_accounting(noise: float, rate: float) -> None:
    ours = poisson_losses(noise, rate, WIDTH)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=WIDTH
    )
    for epsilon in (0.0, 0.01, 0.3, 1.0, 4.0):
        # Both round up on one grid; what is left is the cancellation in their differences.
        expected = theirs.get_delta_for_epsilon(epsilon)
        assert ours.delta(epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_coarser_grid_keeps_both_laws_and_only_adds_to_delta() -> None:
    fine = poisson_losses(1.0, 0.1, WIDTH).remove
    coarse = fine.coarser()
    assert coarse.interval == 2 * WIDTH
    for losses in (fine, coarse):
        grid = (losses.first + np.arange(len(losses.masses))) * losses.interval
        assert losses.masses.sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)
        # The other law's mass, E[e^-loss], is 1 save the finest tail.
        assert np.dot(losses.masses, np.exp(-grid)) == pytest.approx(1.0, abs=1e-9)
    epsilons = np.linspace(0.0, 3.0, 50)
    added = [coarse.delta(one) - fine.delta(one) for one in epsilons]
    assert min(added) >= -1e-15
    assert max(added) > 0.0


def test_the_moments_that_set_the_windows_bound_those_of_the_masses() -> None:
    one = poisson_losses(1.0, 0.1, WIDTH).remove
    composed = one.repeated(1000, coarsenings_of(1000), 1e-14)
    grid = (composed.first + np.arange(len(composed.masses))) * composed.interval
    for tilt in (0.25, 0.5, 1.0):
        index = int(np.log2(tilt)) + 24
        for sign, bounds in ((1.0, composed.rising), (-1.0, composed.falling)):
            moment = np.log(np.dot(composed.masses, np.exp(sign * tilt * grid)))
            # What rounding of a transform leaves in the tails is all that can exceed a bound.
            assert moment <= bounds[index] + 1e-6


@pytest.mark.parametrize("steps", [10**3, 10**6, 10**9, 10**11])
def test_any_number_of_gaussians_costs_what_the_closed_form_says(steps: int) -> None:
    # Composed one by one, and not as the single Gaussian that they are.
    noise = 0.7 * math.sqrt(steps)
    width = 2.0 ** -(6 + coarsenings_of(steps))
    one = poisson_losses(noise, 1.0, width)
    composed = one.repeated(steps, coarsenings_of(steps), 1e-14)

    def excess(epsilon: float) -> float:
        upper, lower = stats.norm.cdf(np.array([0.5, -0.5]) / 0.7 - epsilon * 0.7)
        return float(upper - math.exp(epsilon) * lower - 1e-5)

    exact = optimize.brentq(excess, 0.0, 30.0, xtol=1e-12)
    assert exact - 1e-9 <= composed.epsilon(1e-5) <= exact * 1.001
    # The cost does not grow with the steps: no window is longer than some thousand cells.
    assert len(composed.remove.masses) < 10_000


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("rate", "noise", "steps", "kind"),
    [
        (0.2, 1.0, 10**6, "poisson"),
        (0.01, 30.0, 10**7, "poisson"),
        (0.2, 0.05, 100, "poisson"),
        (0.2, 300.0, 10**7, "fixed-size"),
        (0.02, 2.5, 10**6, "fixed-size"),
    ],
)
def test_engine_and_auditor_agree_on_long_and_on_costly_runs(
    rate: float, noise: float, steps: int, kind: str
) -> None:
    ours = epsilon_pld(Composition(noise, rate, steps, 1, kind), 1e-5)
    fixed = kind == "fixed-size"
    theirs = budget([Steps(rate, noise / (2.0 if fixed else 1.0), steps, fixed)], 1e-5).headline
    # Each promises some 10^-4 of ε; the auditor's tolerance for claims is 5·10^-3.
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_a_run_of_any_length_is_composed_on_few_cells() -> None:
    for rounds, steps in ((20, 5), (10**6, 10**5)):
        part = Composition(3000.0, 0.4, steps)
        pair = _composed(((part, rounds),), 0.5, 1e-5)
        # Seconds follow from cells: a transform of 2^20 takes some hundredths.
        assert len(pair.remove.masses) < 2**20
        assert 0.0 < mixture_epsilon_pld([(part, rounds)], 0.5, 1e-5) < 1e4


# What follows holds small distributions against their definitions.


def losses_of(
    masses: list[float], first: int = 0, interval: float = 0.5, infinite: float = 0.0
) -> Losses:
    return on_grid(interval, first, np.asarray(masses), infinite)


def moments(masses: list[float], first: int, interval: float, sign: float) -> np.ndarray:
    """log E[exp(±t·loss)] at each tilt, by mpmath."""
    values = [(first + index) * interval for index in range(len(masses))]
    with mpmath.workdps(30):
        return np.asarray(
            [
                float(
                    mpmath.log(
                        mpmath.fsum(
                            mass * mpmath.exp(sign * tilt * value)
                            for mass, value in zip(masses, values, strict=True)
                            if mass > 0.0
                        )
                    )
                )
                for tilt in TILTS.tolist()
            ]
        )


SMALL = [0.125, 0.0, 0.5, 0.25, 0.0625]


def test_moments_are_those_of_the_masses() -> None:
    one = losses_of(SMALL, first=-2)
    assert_allclose(one.rising, moments(SMALL, -2, 0.5, 1.0), rtol=1e-10)
    assert_allclose(one.falling, moments(SMALL, -2, 0.5, -1.0), rtol=1e-10)
    assert list(TILTS) == [2.0**power for power in range(-24, 25)]


def test_moments_of_many_cells_are_taken_piece_by_piece() -> None:
    masses = np.full(20_000, 1.0 / 20_000)
    one = on_grid(2.0**-12, -5_000, masses, 0.0)
    grid = (np.arange(20_000) - 5_000) * 2.0**-12
    for index in (20, 24, 27):
        for sign, found in ((1.0, one.rising), (-1.0, one.falling)):
            expected = math.log(np.mean(np.exp(sign * TILTS[index] * grid)))
            assert found[index] == pytest.approx(expected, rel=1e-10)


def test_moments_of_a_coarser_grid_are_taken_where_they_bound() -> None:
    fine, coarse = losses_of(SMALL, -2, 0.25), losses_of([0.3, 0.7], -1)
    found = on_grid(0.25, -2, np.asarray(SMALL), 0.0, coarse)
    assert_array_equal(found.rising, coarse.rising)
    # Below 1 a coarser grid may have the smaller moment of minus the loss.
    assert_array_equal(found.falling[:24], fine.falling[:24])
    assert_array_equal(found.falling[24:], coarse.falling[24:])


def test_composing_adds_losses() -> None:
    one, other = losses_of(SMALL, -2, infinite=0.0625), losses_of([0.25, 0.5], 3, infinite=0.25)
    both = one.composed_with(other, 1e-300)
    assert (both.interval, both.first) == (0.5, 1)
    assert_allclose(both.masses, np.convolve(SMALL, [0.25, 0.5]), atol=1e-16)
    assert both.infinite == pytest.approx(1.0 - (1.0 - 0.0625) * (1.0 - 0.25), rel=1e-15)
    assert_array_equal(both.rising, one.rising + other.rising)
    assert_array_equal(both.falling, one.falling + other.falling)


def test_a_window_moves_what_is_above_it_to_infinity_and_what_is_below_it_to_its_least() -> None:
    # A loss of 8 has probability 2^-40 and one of -8 the same: neither is within reach of 10^-9.
    masses = [2.0**-40, *[0.0] * 7, 1.0 - 2.0**-39, *[0.0] * 7, 2.0**-40]
    one, tail = losses_of(masses, first=-8, interval=1.0), 1e-9
    none = losses_of([1.0], interval=1.0)
    cut = one.composed_with(none, tail)
    highest = math.ceil(min((one.rising - math.log(tail)) / TILTS))
    lowest = -math.ceil(min((one.falling - math.log(tail)) / TILTS))
    assert -8 < lowest < 0 < highest < 8
    assert (cut.first, len(cut.masses)) == (lowest, highest - lowest + 1)
    # All that the bound allows is counted as infinite, whatever it really was.
    assert cut.infinite == tail
    # What the transform rounds is up to 10^-16.
    assert cut.masses[0] == pytest.approx(2.0**-40, abs=1e-15)
    assert cut.masses.sum() == pytest.approx(1.0 - 2.0**-40, abs=1e-15)
    kept = one.composed_with(none, 1e-30)
    assert (kept.first, len(kept.masses), kept.infinite) == (-8, 17, 0.0)


def test_a_probability_of_infinity_is_one_at_most() -> None:
    one = losses_of([1e-6], infinite=1.0 - 1e-6)
    assert one.composed_with(one, 0.5).infinite <= 1.0


@pytest.mark.parametrize("times", [1, 2, 3, 4, 5, 7, 8, 13, 16, 21])
def test_repeating_is_composing_one_after_another(times: int) -> None:
    one = losses_of(SMALL, -2, infinite=0.0625)
    expected = np.asarray([1.0])
    for _ in range(times):
        expected = np.convolve(expected, SMALL)
    found = one.repeated(times, 0, 1e-300)
    assert (found.interval, found.first) == (0.5, -2 * times)
    assert_allclose(found.masses, expected, atol=1e-15)
    assert found.infinite == pytest.approx(1.0 - 0.9375**times, rel=1e-12)
    assert_allclose(found.rising, times * one.rising, rtol=1e-12)


@pytest.mark.parametrize("times", [1, 2, 3, 6, 7, 16, 21])
@pytest.mark.parametrize("coarsenings", [0, 1, 2, 4])
def test_a_grid_doubles_as_often_as_is_asked_for(times: int, coarsenings: int) -> None:
    one = losses_of([0.25, 0.5, 0.25], -1, 2.0**-6)
    found = one.repeated(times, coarsenings, 1e-300)
    assert found.interval == 2.0 ** (coarsenings - 6)
    assert found.masses.sum() == pytest.approx(1.0, abs=1e-12)
    plain = one.repeated(times, 0, 1e-300)
    for epsilon in (0.0, 0.01, 0.05, 0.2):
        assert found.delta(epsilon) >= plain.delta(epsilon) - 1e-15


def test_grids_double_after_every_second_squaring(monkeypatch: pytest.MonkeyPatch) -> None:
    intervals: list[float] = []
    plain = Losses.composed_with

    def noted(one: Losses, other: Losses, tail: float) -> Losses:
        intervals.append(one.interval)
        return plain(one, other, tail)

    monkeypatch.setattr(Losses, "composed_with", noted)
    losses_of([0.5, 0.5], interval=1.0).repeated(64, 9, 1e-300)
    assert intervals == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("times", [2, 3, 100, 127, 128, 1000])
def test_no_more_than_the_tail_is_moved_in_all(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: dict[int, float] = {}
    plain = Losses.composed_with

    def noted(one: Losses, other: Losses, tail: float) -> Losses:
        found = plain(one, other, tail)
        # What a loss that is used again has had moved counts each time.
        moved[id(found)] = moved.get(id(one), 0.0) + moved.get(id(other), 0.0) + tail
        kept.append(found)
        return found

    kept: list[Losses] = []
    monkeypatch.setattr(Losses, "composed_with", noted)
    one = losses_of([0.5, 0.5])
    found = one.repeated(times, 0, 1e-3)
    assert 1e-5 < moved[id(found)] <= 1e-3


def test_the_powers_of_numbers_of_as_many_bits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    count = [0]
    plain = Losses.composed_with

    def counted(one: Losses, other: Losses, tail: float) -> Losses:
        count[0] += 1
        return plain(one, other, tail)

    monkeypatch.setattr(Losses, "composed_with", counted)
    one = losses_of(SMALL)
    one.repeated(64, 3, 1e-20)
    assert count == [6]
    one.repeated(65, 3, 1e-20)
    assert count == [7]
    one.repeated(127, 3, 1e-20)
    assert count == [13]


@pytest.mark.parametrize("first", [-3, -2, 0, 1])
@pytest.mark.parametrize("masses", [[0.5], [0.25, 0.75], [0.1, 0.2, 0.7], SMALL])
def test_coarser_masses_are_divided_between_neighbours(first: int, masses: list[float]) -> None:
    one = losses_of(masses, first, infinite=0.25)
    found = one.coarser()
    expected: dict[int, float] = {}
    up = math.exp(0.5) / (1.0 + math.exp(0.5))
    for index, mass in enumerate(masses):
        place = first + index
        if place % 2 == 0:
            expected[place // 2] = expected.get(place // 2, 0.0) + mass
        else:
            below, above = (place - 1) // 2, (place + 1) // 2
            expected[below] = expected.get(below, 0.0) + mass * (1.0 - up)
            expected[above] = expected.get(above, 0.0) + mass * up
    assert (found.interval, found.infinite) == (1.0, 0.25)
    held = {found.first + index: mass for index, mass in enumerate(found.masses)}
    for place in expected.keys() | held.keys():
        assert held.get(place, 0.0) == pytest.approx(expected.get(place, 0.0), abs=1e-15)
    # The moments' bounds rise by as much as the division of one point can add.
    for sign, before, after in (
        (1.0, one.rising, found.rising),
        (-1.0, one.falling, found.falling),
    ):
        added = [
            max(0.0, math.log(up * math.exp(sign * t * 0.5) + (1 - up) * math.exp(-sign * t * 0.5)))
            for t in TILTS[TILTS < 500.0].tolist()
        ]
        assert_allclose((after - before)[TILTS < 500.0], added, rtol=1e-6, atol=1e-9)


def test_what_happens_with_a_probability_loses_nothing_otherwise() -> None:
    for first in (-2, 0, 3, -9):
        one = losses_of(SMALL, first, infinite=0.0625)
        found = one.happening(0.25)
        grid = found.first + np.arange(len(found.masses))
        held = dict(zip(grid.tolist(), found.masses.tolist(), strict=True))
        expected = {first + index: 0.25 * mass for index, mass in enumerate(SMALL)}
        expected[0] = expected.get(0, 0.0) + 0.75
        assert {place: mass for place, mass in held.items() if mass} == pytest.approx(
            {place: mass for place, mass in expected.items() if mass}
        )
        assert found.infinite == 0.25 * 0.0625
        for before, after in ((one.rising, found.rising), (one.falling, found.falling)):
            small = np.abs(before) < 600.0
            assert_allclose(after[small], np.log(0.75 + 0.25 * np.exp(before[small])), atol=1e-12)
    sure = losses_of(SMALL).happening(1.0)
    assert_allclose(sure.masses, SMALL)
    assert_allclose(sure.rising, losses_of(SMALL).rising)


def delta_by_hand(one: Losses, epsilon: float) -> float:
    """E[(1 - e^(ε - loss))+] with a loss at infinity, term by term."""
    total = one.infinite
    for index, mass in enumerate(one.masses.tolist()):
        loss = (one.first + index) * one.interval
        if loss > epsilon:
            total += mass * (1.0 - math.exp(epsilon - loss))
    return min(1.0, total)


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.5, 0.75, 1.0, 1.4, 1.5, 3.0])
@pytest.mark.parametrize("first", [-2, 0, 1, 5])
def test_delta_is_its_definition(first: int, epsilon: float) -> None:
    one = losses_of(SMALL, first, infinite=0.03125)
    assert one.delta(epsilon) == pytest.approx(delta_by_hand(one, epsilon), rel=1e-14)


@pytest.mark.parametrize("delta", [0.04, 0.05, 0.1, 0.2, 0.3, 0.4])
@pytest.mark.parametrize("first", [-2, 0, 1])
def test_epsilon_is_the_least_whose_delta_is_small_enough(first: int, delta: float) -> None:
    one = losses_of(SMALL, first, infinite=0.03125)
    found = one.epsilon(delta)
    assert delta_by_hand(one, found) <= delta + 1e-14
    if delta_by_hand(one, 0.0) > delta:
        assert delta_by_hand(one, found - 1e-9) > delta
    else:
        assert found == 0.0


def test_there_is_no_epsilon_below_the_probability_of_an_infinite_loss() -> None:
    one = losses_of(SMALL, infinite=0.03125)
    assert one.epsilon(0.031) == math.inf
    assert math.isfinite(one.epsilon(0.03125))
    # Exactly as much as is lost at worst: the largest loss of all.
    assert one.epsilon(0.03125) == pytest.approx(4 * 0.5)


def test_a_pair_is_as_costly_as_the_costlier_of_the_two() -> None:
    low, high = losses_of(SMALL), losses_of(SMALL, first=1)
    for pair in (LossPair(low, high), LossPair(high, low)):
        assert pair.delta(0.3) == high.delta(0.3) > low.delta(0.3)
        assert pair.epsilon(0.2) == high.epsilon(0.2) > low.epsilon(0.2)
        twice = pair.composed_with(pair, 1e-300)
        assert twice.delta(0.3) == pytest.approx(high.composed_with(high, 1e-300).delta(0.3))
        assert {twice.remove.first, twice.add.first} == {0, 2}
        thrice = pair.repeated(3, 1, 1e-300)
        assert thrice.remove.interval == thrice.add.interval == 1.0
        assert thrice.remove.first != thrice.add.first
        perhaps = pair.happening(0.5)
        assert perhaps.remove is not perhaps.add


def test_a_symmetric_pair_is_worked_out_once() -> None:
    low, high = losses_of(SMALL), losses_of(SMALL, first=1)
    same, other = LossPair(low, low), LossPair(low, high)
    for pair in (same.repeated(3, 0, 1e-9), same.happening(0.5), same.composed_with(same, 1e-9)):
        assert pair.remove is pair.add
    for pair in (same.composed_with(other, 1e-300), other.composed_with(same, 1e-300)):
        assert (pair.remove.first, pair.add.first) == (0, 1)


@pytest.mark.parametrize(
    ("times", "often"), [(1, 0), (3, 0), (4, 1), (15, 1), (16, 2), (63, 2), (64, 3), (10**6, 9)]
)
def test_a_grid_doubles_once_for_every_factor_of_four(times: int, often: int) -> None:
    assert coarsenings_of(times) == often
