"""Calibration: never above the target, hardly below it, and honest about what is out of reach."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.calibration import (
    solve_expected_batch_size,
    solve_local_steps,
    solve_noise_multiplier,
    solve_rounds,
)
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.pld import epsilon_pld, mixture_epsilon_pld

DELTA = 1e-5


@pytest.mark.parametrize(
    ("target", "rates", "rounds", "steps"),
    [
        (8.0, [0.1, 0.22], 20, 5),
        (1.0, [0.016], 100, 20),
        (0.05, [0.05], 10, 5),
        (90.0, [1.0], 5, 4),
    ],
)
def test_noise_for_a_target_lands_within_half_a_percent_below(
    target: float, rates: list[float], rounds: int, steps: int
) -> None:
    noise = solve_noise_multiplier(target, DELTA, rates, rounds, steps)
    spent = epsilon_pld(Composition(noise, max(rates), rounds * steps), DELTA)
    assert 0.995 * target <= spent <= target
    assert noise == float(f"{noise:.6g}")


def test_noise_for_two_queries_is_more_by_their_square_root() -> None:
    one = solve_noise_multiplier(2.0, DELTA, [0.05], 10, 5)
    two = solve_noise_multiplier(2.0, DELTA, [0.05], 10, 5, queries_per_step=2)
    # Each solution is within 0.5 % of ε of the exact one, and ε moves about as fast as the noise.
    assert two / one == pytest.approx(math.sqrt(2), rel=0.01)


def test_noise_for_the_third_partys_view_is_less() -> None:
    server = solve_noise_multiplier(2.0, DELTA, [0.05], 20, 5)
    third = solve_noise_multiplier(2.0, DELTA, [0.05], 20, 5, view="third-party", participation=0.2)
    assert third < server
    spent = mixture_epsilon_pld([(Composition(third, 0.05, 5), 20)], 0.2, DELTA)
    assert 0.995 * 2.0 <= spent <= 2.0


def test_batch_size_for_a_target() -> None:
    size = solve_expected_batch_size(4.0, DELTA, [300, 100], 2.0, 20, 5)
    assert 0.995 * 4.0 <= epsilon_pld(Composition(2.0, size / 100, 100), DELTA) <= 4.0
    # Where even full batches keep to the target, the smallest client is the limit.
    assert solve_expected_batch_size(1000.0, DELTA, [300, 100], 2.0, 20, 5) == 100.0


def test_rounds_and_local_steps_are_the_largest_that_fit() -> None:
    rounds = solve_rounds(4.0, DELTA, [0.02], 1.0, 5)
    assert epsilon_pld(Composition(1.0, 0.02, 5 * rounds), DELTA) <= 4.0
    assert epsilon_pld(Composition(1.0, 0.02, 5 * (rounds + 1)), DELTA) > 4.0
    steps = solve_local_steps(4.0, DELTA, [0.02], 1.0, 20, view="third-party", participation=0.5)
    assert mixture_epsilon_pld([(Composition(1.0, 0.02, steps), 20)], 0.5, DELTA) <= 4.0
    assert mixture_epsilon_pld([(Composition(1.0, 0.02, steps + 1), 20)], 0.5, DELTA) > 4.0


@pytest.mark.parametrize(
    ("solve", "reason"),
    [
        (lambda: solve_noise_multiplier(1e-6, DELTA, [0.5], 500, 20), "nearest reachable is 0.0"),
        (lambda: solve_noise_multiplier(1e6, DELTA, [0.5], 5, 4), "nearest reachable is"),
        (lambda: solve_rounds(0.1, DELTA, [0.2], 1.0, 20), "even with a single round"),
        (lambda: solve_local_steps(0.1, DELTA, [0.2], 1.0, 20), "even with a single local step"),
        (
            lambda: solve_expected_batch_size(1e-3, 1e-9, [100], 0.3, 100, 10),
            "even at batch size",
        ),
        (lambda: solve_noise_multiplier(-1.0, DELTA, [0.5], 5, 4), "positive number"),
        (lambda: solve_noise_multiplier(math.nan, DELTA, [0.5], 5, 4), "positive number"),
        (lambda: solve_noise_multiplier(1.0, 0.0, [0.5], 5, 4), "delta must lie"),
        (lambda: solve_noise_multiplier(1.0, DELTA, [0.5], 5, 4, view="god"), "not 'god'"),
        (lambda: solve_noise_multiplier(1.0, DELTA, [1.5], 5, 4), "sampling rate"),
    ],
)
def test_what_is_out_of_reach_is_refused_with_the_nearest(
    solve: Callable[[], float], reason: str
) -> None:
    with pytest.raises(PrivacyError, match=reason):
        solve()
