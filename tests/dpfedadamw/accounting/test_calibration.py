"""Calibration: never above the target, hardly below it, and honest about what is out of reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dpfedadamw.accounting import calibration
from dpfedadamw.accounting.calibration import (
    PlannedRun,
    solve_batch_size,
    solve_local_steps,
    solve_noise_multiplier,
    solve_rounds,
    solve_step_limit,
)
from dpfedadamw.accounting.pld import epsilon_pld, mixture_epsilon_pld
from dpfedadamw.accounting.worst_case import NoiseDecay
from dpfedadamw.errors import PrivacyError
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


def full(**changes: Any) -> PlannedRun:
    """Batches of all records: rounds of plain Gaussians, which are quick to compose."""
    return planned(1.0, 4, 3, records=(1000,), noise_multiplier=9.0, **changes)


def gaussian(noise: float, steps: int) -> float:
    return epsilon_pld(Composition(noise, 1.0, steps), DELTA)


def test_a_planned_run_costs_what_its_rounds_and_steps_do_towards_whom_it_is_asked() -> None:
    assert full().epsilon() == gaussian(9.0, 12)
    assert full(queries_per_step=4).epsilon() == pytest.approx(gaussian(4.5, 12), rel=1e-9)
    # The server's worst case does not know of participation.
    assert full(participation=0.3).epsilon() == gaussian(9.0, 12)
    third = full(view="third-party", participation=0.3).epsilon()
    assert third == mixture_epsilon_pld([(Composition(9.0, 1.0, 3), 4)], 0.3, DELTA)
    assert full(view="third-party").epsilon() == gaussian(9.0, 12)
    # The client of fewest records costs most, wherever it stands.
    for records in ((2000, 1000), (1000, 2000)):
        run = planned(0.5, 1, 2, records=records)
        assert run.epsilon() == epsilon_pld(Composition(1.0, 0.5, 2), DELTA)


def test_a_planned_run_whose_noise_falls_costs_its_fastest_fall() -> None:
    run = full(decay=NoiseDecay(0.5, 1, 0.25))
    # 9, 9, 4.5 and 2.25 in four rounds of three steps.
    variance = sum(3 / noise**2 for noise in (9.0, 9.0, 4.5, 2.25))
    assert run.epsilon() == pytest.approx(gaussian(variance**-0.5, 1), rel=1e-6)


@pytest.mark.parametrize("limit", [1, 7, 12, 500])
def test_the_limit_on_steps_is_the_most_that_the_target_affords(limit: int) -> None:
    target = (gaussian(9.0, 12) + gaussian(9.0, 13)) / 2
    # Rounds, view and falling noise of the run play no part.
    run = full(view="third-party", participation=0.1, decay=NoiseDecay(0.5, 1, 0.25))
    assert solve_step_limit(target, run, limit) == min(limit, 12)
    assert solve_step_limit(target, replace(run, rounds=99, local_steps=99), 500) == 12


def test_counts_are_the_last_that_fit_and_the_runs_own_plays_no_part() -> None:
    target = (gaussian(9.0, 12) + gaussian(9.0, 15)) / 2
    assert solve_rounds(target, full()) == solve_rounds(target, replace(full(), rounds=99)) == 4
    assert solve_rounds(gaussian(9.0, 12), full()) == 4
    assert solve_local_steps(target, full()) == 3
    assert solve_local_steps(target, replace(full(), local_steps=99)) == 3


@pytest.mark.parametrize(
    "solve",
    [
        solve_noise_multiplier,
        solve_batch_size,
        solve_rounds,
        solve_local_steps,
        lambda target, run: solve_step_limit(target, run, 10),
    ],
)
@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_every_solver_refuses_a_target_that_is_no_positive_number(solve, target: float) -> None:
    with pytest.raises(PrivacyError, match=f"a target epsilon is a positive number, not {target}"):
        solve(target, full())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Runs cost their noise's inverse square by their steps and the square of their rate."""
    found: list[tuple[float, int]] = []

    def epsilon(self: PlannedRun) -> float:
        size = self.sampling.rate(min(self.records)) * min(self.records)
        found.append((self.noise_multiplier, size))
        share = self.sampling.rate(min(self.records))
        return share**2 * self.rounds * self.local_steps / self.noise_multiplier**2

    monkeypatch.setattr(PlannedRun, "epsilon", epsilon)
    return found


@pytest.mark.parametrize("target", [1e-6, 0.01, 4.0, 1e3])
def test_noise_is_sought_from_a_twentieth_to_ten_thousand(target: float, asked) -> None:
    noise = solve_noise_multiplier(target, planned(1.0, 2, 2))
    assert noise == pytest.approx(2.0 / math.sqrt(target), rel=0.003)
    # From one on by fours, until the target is passed.
    assert [noise for noise, _ in asked[:2]] == [1.0, 4.0 if target < 4.0 else 0.25]
    for beyond, nearest in ((1e-8, "1e+04"), (1e5, "0.05")):
        with pytest.raises(PrivacyError) as caught:
            solve_noise_multiplier(beyond, planned(1.0, 2, 2))
        assert f"even at noise multiplier {float(nearest):g}" in str(caught.value)


def test_an_expected_batch_is_sought_down_to_a_thousandth_or_a_millionth_of_the_records(
    asked,
) -> None:
    for records, least in ((100, 1e-3), (10**6, 1.0)):
        run = planned(1.0, 1, 1, records=(records, 2 * records))
        for share in (0.5, 0.01, 1.5 * least / records):
            before = len(asked)
            size = solve_batch_size(share**2, run)
            # All records, which spend too much, and then quarters.
            sizes = [size for _, size in asked[before : before + 3]]
            assert sizes == pytest.approx([records, records, records / 4])
            assert size / records == pytest.approx(share, rel=0.003)
            assert size / records <= share
        with pytest.raises(PrivacyError, match=f"even at batch size {least:g};"):
            solve_batch_size((0.9 * least / records) ** 2, run)
        # All records are the most, and are enough where they keep to the target themselves.
        assert solve_batch_size(1.0, run) == records
        assert solve_batch_size(5.0, run) == records
        assert solve_batch_size(0.999, run) < records


def test_a_size_in_whole_records_is_the_last_that_fits() -> None:
    run = planned(1.0, 5, 2, noise_multiplier=20.0, sampling=FixedSizeSampling(3), records=(40, 50))

    def cost(size: int) -> float:
        return epsilon_pld(Composition(20.0, size / 40, 10, 1, "fixed-size"), DELTA)

    for size in (1, 7, 39):
        found = solve_batch_size(cost(size), run)
        assert (found, type(found)) == (float(size), float)
    assert solve_batch_size(cost(40), run) == 40.0
    with pytest.raises(PrivacyError, match="even with a single record in a batch"):
        solve_batch_size(cost(1) * 0.999, run)


def test_a_view_and_a_delta_are_asked_for_when_a_run_is_planned() -> None:
    for view in ("server", "third-party"):
        assert planned(0.5, 1, 1, view=view).view == view
    for delta in (0.0, 1e-11, 1.0):
        with pytest.raises(PrivacyError, match="delta must lie"):
            planned(0.5, 1, 1, delta=delta)
    assert calibration.PlannedRun.view == "server"
    assert calibration.PlannedRun.participation == 1.0
    assert calibration.PlannedRun.queries_per_step == 1
