"""Calibration: never above the target, hardly below it, and honest about what is out of reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting.calibration import (
    PlannedRun,
    solve_batch_size,
    solve_local_steps,
    solve_noise_multiplier,
    solve_rounds,
)
from dpfedadamw.privacy.accounting.pld import epsilon_pld, mixture_epsilon_pld
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledEpochs,
)

DELTA = 1e-5


def planned(rate: float, rounds: int, local_steps: int, **changes: Any) -> PlannedRun:
    """Poisson batches at a rate, from clients of 1000 and 2000 records."""
    sampling = PoissonSampling(1000 * rate)
    whole = PlannedRun(
        sampling=sampling,
        records=(2000, 1000),
        noise_multiplier=1.0,
        rounds=rounds,
        local_steps=local_steps,
        delta=DELTA,
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("target", "rate", "rounds", "steps"),
    [(8.0, 0.22, 20, 5), (1.0, 0.016, 100, 20), (0.05, 0.05, 10, 5), (90.0, 1.0, 5, 4)],
)
def test_noise_for_a_target_lands_within_half_a_percent_below(
    target: float, rate: float, rounds: int, steps: int
) -> None:
    noise = solve_noise_multiplier(target, planned(rate, rounds, steps))
    spent = epsilon_pld(Composition(noise, rate, rounds * steps), DELTA)
    assert 0.995 * target <= spent <= target
    assert noise == float(f"{noise:.6g}")


@pytest.mark.parametrize("target", [0.7, 3.0, 20.0])
@pytest.mark.parametrize("sampling", [FixedSizeSampling(50), ShuffledEpochs(300)])
@pytest.mark.parametrize("view", ["server", "third-party"])
def test_noise_for_samplers_under_replace_one_lands_as_near(
    target: float, sampling: Sampling, view: str
) -> None:
    run = planned(1.0, 10, 7, sampling=sampling, view=view, participation=0.4)
    noise = solve_noise_multiplier(target, run)
    # 1000 records in batches of 300 are epochs of 4 batches: 7 steps meet a record twice.
    fixed = isinstance(sampling, FixedSizeSampling)
    one = (
        Composition(noise, 0.05, 7, 1, "fixed-size")
        if fixed
        else Composition(noise, 1.0, 2, 1, "shuffled")
    )
    share = 1.0 if view == "server" else 0.4
    assert 0.995 * target <= mixture_epsilon_pld([(one, 10)], share, DELTA) <= target


def test_noise_for_two_queries_is_more_by_their_square_root() -> None:
    one = solve_noise_multiplier(2.0, planned(0.05, 10, 5))
    two = solve_noise_multiplier(2.0, planned(0.05, 10, 5, queries_per_step=2))
    # Each solution is within 0.5 % of ε of the exact one, and ε moves about as fast as the noise.
    assert two / one == pytest.approx(math.sqrt(2), rel=0.01)


def test_noise_for_the_third_partys_view_is_less() -> None:
    server = solve_noise_multiplier(2.0, planned(0.05, 20, 5))
    third = solve_noise_multiplier(2.0, planned(0.05, 20, 5, view="third-party", participation=0.2))
    assert third < server
    spent = mixture_epsilon_pld([(Composition(third, 0.05, 5), 20)], 0.2, DELTA)
    assert 0.995 * 2.0 <= spent <= 2.0


def test_batch_size_for_a_target() -> None:
    run = planned(1.0, 20, 5, noise_multiplier=2.0, records=(300, 100))
    size = solve_batch_size(4.0, run)
    assert 0.995 * 4.0 <= epsilon_pld(Composition(2.0, size / 100, 100), DELTA) <= 4.0
    # Where even full batches keep to the target, the smallest client is the limit.
    assert solve_batch_size(1000.0, run) == 100.0


def test_a_batch_size_is_solved_for_by_the_reference_size_and_not_where_the_rate_is_stated() -> (
    None
):
    run = planned(1.0, 20, 5, noise_multiplier=2.0, records=(300, 100))
    by_reference = PoissonSampling(1.0, reference_size=1000.0)
    size = solve_batch_size(4.0, replace(run, sampling=by_reference))
    assert 0.995 * 4.0 <= epsilon_pld(Composition(2.0, size / 1000, 100), DELTA) <= 4.0
    assert solve_batch_size(1000.0, replace(run, sampling=by_reference)) == 1000.0
    with pytest.raises(PrivacyError, match=r"the spec states the rate"):
        solve_batch_size(4.0, replace(run, sampling=PoissonSampling(1.0, stated_rate=0.1)))


def test_exact_batch_sizes_are_the_largest_that_fit() -> None:
    run = planned(1.0, 20, 5, noise_multiplier=6.0, sampling=FixedSizeSampling(1))
    size = solve_batch_size(2.0, run)
    assert replace(run, sampling=FixedSizeSampling(int(size))).epsilon() <= 2.0
    assert replace(run, sampling=FixedSizeSampling(int(size) + 1)).epsilon() > 2.0
    epochs = planned(1.0, 20, 6, noise_multiplier=30.0, sampling=ShuffledEpochs(1))
    # 20 rounds cost one use each up to six batches an epoch, and two from five batches on.
    one, two = (epsilon_pld(Composition(30.0, 1.0, n, 1, "shuffled"), DELTA) for n in (20, 40))
    assert solve_batch_size((one + two) / 2, epochs) == 199.0


def test_rounds_and_local_steps_are_the_largest_that_fit() -> None:
    rounds = solve_rounds(4.0, planned(0.02, 1, 5))
    assert epsilon_pld(Composition(1.0, 0.02, 5 * rounds), DELTA) <= 4.0
    assert epsilon_pld(Composition(1.0, 0.02, 5 * (rounds + 1)), DELTA) > 4.0
    run = planned(0.02, 20, 1, view="third-party", participation=0.5)
    steps = solve_local_steps(4.0, run)
    assert mixture_epsilon_pld([(Composition(1.0, 0.02, steps), 20)], 0.5, DELTA) <= 4.0
    assert mixture_epsilon_pld([(Composition(1.0, 0.02, steps + 1), 20)], 0.5, DELTA) > 4.0


def test_steps_that_fill_an_epoch_are_free() -> None:
    run = planned(1.0, 10, 1, noise_multiplier=30.0, sampling=ShuffledEpochs(300))
    two = epsilon_pld(Composition(30.0, 1.0, 20, 1, "shuffled"), DELTA)
    assert solve_local_steps(two * 1.001, run) == 8


@pytest.mark.parametrize(
    ("solve", "reason"),
    [
        (lambda: solve_noise_multiplier(1e-6, planned(0.5, 500, 20)), "nearest reachable is 0.0"),
        (lambda: solve_noise_multiplier(1e6, planned(0.5, 5, 4)), "nearest reachable is"),
        (lambda: solve_rounds(0.1, planned(0.2, 1, 20)), "even with a single round"),
        (lambda: solve_local_steps(0.1, planned(0.2, 20, 1)), "even with a single local step"),
        (
            lambda: solve_batch_size(
                1e-3, planned(0.1, 100, 10, delta=1e-9, noise_multiplier=0.3, records=(100,))
            ),
            "even at batch size",
        ),
        (lambda: solve_noise_multiplier(-1.0, planned(0.5, 5, 4)), "positive number"),
        (lambda: solve_noise_multiplier(math.nan, planned(0.5, 5, 4)), "positive number"),
        (lambda: planned(0.5, 5, 4, delta=0.0), "delta must lie"),
        (lambda: planned(0.5, 5, 4, view="god"), "not 'god'"),
        (lambda: solve_noise_multiplier(1.0, planned(1.5, 5, 4)), "sampling rate"),
    ],
)
def test_what_is_out_of_reach_is_refused_with_the_nearest(
    solve: Callable[[], object], reason: str
) -> None:
    with pytest.raises(PrivacyError, match=reason):
        solve()
