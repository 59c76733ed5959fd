"""Calibration: never above the target, hardly below it, and honest about what is out of reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedadamw.accounting import calibration
from dpfedadamw.accounting.calibration import (
    PlannedRun,
    largest_count,
    round_down,
    round_up,
    solve_batch_size,
    solve_local_steps,
    solve_noise_multiplier,
    solve_number,
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(5)
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
        (lambda: planned(0.5, 5, 4, delta=0.0), "delta must be in"),
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
        with pytest.raises(PrivacyError, match="delta must be in"):
            planned(0.5, 1, 1, delta=delta)
    assert calibration.PlannedRun.view == "server"
    assert calibration.PlannedRun.participation == 1.0
    assert calibration.PlannedRun.queries_per_step == 1


def counted(function):
    """The function, and how often each argument was asked."""
    asked: list[float] = []

    def ask(value):
        asked.append(value)
        return function(value)

    return ask, asked


@given(st.integers(1, 5_000), st.one_of(st.none(), st.integers(1, 6_000)))
def test_the_largest_count_is_found_in_few_questions(answer, most):
    ask, asked = counted(float)
    found = largest_count(ask, float(answer), "round", most)
    assert found == (answer if most is None else min(answer, most))
    assert len(asked) <= 2 * 14 + 2
    assert most is None or max(asked) <= max(1, most)


def test_a_count_that_spends_the_target_itself_fits():
    assert largest_count(float, 1.0, "round") == 1
    assert largest_count(float, 1.0, "round", 1) == 1
    assert largest_count(float, 8.0, "round", 8) == 8
    with pytest.raises(PrivacyError, match="even with a single round; the nearest reachable is 1"):
        largest_count(float, 0.999, "round")


def test_more_than_a_million_is_more_than_is_looked_for():
    assert largest_count(lambda n: n / 1e6, 0.999999, "step") == 999_999
    with pytest.raises(PrivacyError, match="leaves room for more than 1000000 steps"):
        largest_count(lambda n: n / 1e6, 1.0, "step")


def solved(spent, target, start=1.0, limits=(0.01, 100.0), factor=2.0, safely=round_up):
    return solve_number(spent, start, factor, limits, target, safely, "noise multiplier")


@given(st.floats(0.05, 50.0), st.floats(0.02, 90.0), st.floats(0.5, 3.0))
def test_a_number_spends_nearly_the_target_and_no_more(answer, start, power):
    """ε = (answer/σ)^power is 1 at σ = answer."""
    found = solved(lambda sigma: (answer / sigma) ** power, 1.0, start=start)
    assert 0.995 <= (answer / found) ** power <= 1.0


def test_a_number_that_spends_more_as_it_grows_is_found_too():
    found = solved(lambda rate: rate**2, 0.25, factor=0.5, limits=(100.0, 0.01), safely=round_down)
    assert 0.995 * 0.25 <= found**2 <= 0.25


def test_few_questions_find_a_number_by_logarithms():
    ask, asked = counted(lambda sigma: 3.0 / sigma)
    solved(ask, 1.0)
    assert len(asked) <= 8


def test_what_lies_beyond_the_limits_is_refused_with_the_nearest():
    with pytest.raises(PrivacyError, match=r"0\.01 cannot be reached even at noise multiplier 100"):
        solved(lambda sigma: 3.0 / sigma, 0.01)
    with pytest.raises(PrivacyError, match=r"the nearest reachable is 300"):
        solved(lambda sigma: 3.0 / sigma, 1000.0)
    # The limits themselves may be the answer.
    assert solved(lambda sigma: 100.0 / sigma, 1.0) == pytest.approx(100.0, rel=5e-3)


def test_a_function_that_jumps_over_the_target_has_no_number():
    with pytest.raises(PrivacyError, match=r"no value spends 99\.5 % to 100 % of a target"):
        solved(lambda sigma: 3.0 if sigma < 2.0 else 0.1, 1.0)


@given(st.floats(1e-6, 1e6))
def test_six_digits_lie_on_the_side_that_is_asked_for(value):
    low, high = round_down(value), round_up(value)
    assert low <= value * (1 + 1e-15)
    assert value * (1 - 1e-15) <= high
    assert high - low <= 1.0001e-5 * value
    assert float(f"{low:.6g}") == low


def test_a_search_asks_by_factors_then_the_middle_then_where_a_line_of_logarithms_hits():
    """ε = 3/σ is 1 - 0.005/3 where the line is aimed, and six digits above it are the answer."""
    ask, asked = counted(lambda sigma: 3.0 / sigma)
    aimed = 3.0 / (1.0 - 0.005 / 3.0)
    found = solved(ask, 1.0)
    assert found == round_up(aimed) == pytest.approx(aimed, rel=1e-5)
    assert asked == pytest.approx([1.0, 2.0, 4.0, 4.0, 8.0**0.5, 4.0, aimed, found], rel=1e-12)


def test_a_search_from_a_value_that_spends_too_little_goes_the_other_way():
    ask, asked = counted(lambda sigma: 3.0 / sigma)
    solved(ask, 1.0, start=16.0, factor=4.0)
    assert asked[:3] == [16.0, 4.0, 1.0]
    # The target itself fits, and so does a first value that spends it.
    ask, asked = counted(lambda sigma: 4.0 / sigma)
    assert solved(ask, 1.0, start=4.0) == 4.0
    assert asked == [4.0, 2.0, 4.0]


def test_a_search_stays_within_its_limits_and_asks_for_them_once():
    for limits, ends in (((0.5, 3.0), 3.0), ((2.0, 0.3), 0.3)):
        factor = 2.0 if limits[1] > limits[0] else 0.5
        ask, asked = counted(lambda value: 9.0)
        with pytest.raises(PrivacyError, match=f"even at noise multiplier {ends:g}; .*is 9"):
            solved(ask, 1.0, limits=limits, factor=factor)
        assert asked == [1.0, factor, ends]
        ask, asked = counted(lambda value: 0.2)
        with pytest.raises(PrivacyError, match=f"even at noise multiplier {limits[0]:g}; .*is 0.2"):
            solved(ask, 1.0, limits=limits, factor=factor)
        assert asked == [1.0, limits[0]]


def test_where_logarithms_lead_nowhere_a_search_halves_and_gives_up_after_sixty_turns():
    # Nothing is spent from 2 on, so no line can be drawn: σ goes on by the geometric mean alone.
    ask, asked = counted(lambda sigma: 4.0 if sigma < 2.0 else 0.0)
    with pytest.raises(PrivacyError, match=r"a target epsilon of 1$"):
        solved(ask, 1.0, start=1.0, factor=16.0)
    assert asked[:2] == [1.0, 16.0]
    # A turn asks for the value that fits, rounded, and for a new one.
    assert len(asked) == 2 + 2 * 60
    assert asked[3::2][:4] == pytest.approx([4.0, 2.0, 2.0**0.5, 2.0**0.75])


def test_a_line_of_logarithms_never_leaves_the_bracket_and_every_third_turn_halves():
    # Steps of a staircase, on which a line from its ends leads astray.
    steps = ((1.5, 64.0), (2.5, 40.0), (3.5, 1.5), (5.0, 0.999), (9.0, 0.2), (1e9, 0.01))
    ask, asked = counted(lambda sigma: next(spent for ends, spent in steps if sigma < ends))
    found = solved(ask, 1.0, factor=16.0)
    assert 3.5 <= found < 5.0
    assert all(1.0 <= value <= 16.0 for value in asked)
    news = asked[3::2]
    assert news[0] == pytest.approx(4.0)
    assert found == 4.0


def test_answers_at_both_ends_of_what_is_near_enough_are_taken():
    for spent in (1.0, 0.995):
        assert solved(lambda sigma, spent=spent: 9.0 if sigma < 2.0 else spent, 1.0) == 2.0
    with pytest.raises(PrivacyError, match="no value spends"):
        solved(lambda sigma: 9.0 if sigma < 2.0 else 0.99499, 1.0)


@pytest.mark.parametrize(
    ("value", "below", "above"),
    [
        (1.0, 1.0, 1.0),
        (9.9999951, 9.99999, 10.0),
        (123456.7, 123456.0, 123457.0),
        (1234567.8, 1234560.0, 1234570.0),
        (0.0001234567, 0.000123456, 0.000123457),
    ],
)
def test_numbers_are_rounded_to_six_digits(value, below, above):
    assert (round_down(value), round_up(value)) == (below, above)


def test_a_count_is_looked_for_by_doubling_and_then_by_halves():
    ask, asked = counted(float)
    assert largest_count(ask, 11.0, "round") == 11
    assert asked == [1, 2, 4, 8, 16, 12, 10, 11]
    ask, asked = counted(float)
    assert largest_count(ask, 11.0, "round", 13) == 11
    assert asked == [1, 2, 4, 8, 13, 10, 11, 12]
    ask, asked = counted(float)
    assert largest_count(ask, 20.0, "round", 13) == 13
    assert asked == [1, 2, 4, 8, 13]


def test_every_third_turn_takes_the_middle_and_no_turn_leaves_the_bracket():
    ask, asked = counted(lambda sigma: 9.0 if sigma < 3.0 else 0.001)
    with pytest.raises(PrivacyError, match="no value spends"):
        solved(ask, 1.0)
    assert asked[:3] == [1.0, 2.0, 4.0]
    loose, tight = 2.0, 4.0
    for turn, value in enumerate(asked[4::2][:12]):
        assert loose <= value <= tight
        middle = (loose * tight) ** 0.5
        # By logarithms, ln 9 of the way from ln 9 to ln 1/1000 is a quarter of it, and not a half.
        aimed = loose * (tight / loose) ** (math.log(9 / (1 - 0.005 / 3)) / math.log(9000))
        assert value == pytest.approx(aimed if turn % 3 else middle, rel=1e-12)
        loose, tight = (value, tight) if value < 3.0 else (loose, value)


def test_a_value_that_spends_the_target_itself_is_taken_between_the_first_two_as_well():
    found = solved(lambda sigma: 9.0 if sigma < 2.5 else 1.0 if sigma < 3.9 else 0.5, 1.0)
    assert found == round_up(8.0**0.5)


def test_a_line_that_aims_behind_what_fits_asks_for_what_fits():
    """Rounded, what fits spends too little, so that it is asked for until the turns are over."""
    ask, asked = counted(lambda sigma: 9.0 if sigma < 3.0 else 0.999 if sigma < 3.9 else 0.5)
    with pytest.raises(PrivacyError, match="no value spends"):
        solved(ask, 1.0, safely=lambda value: float(math.ceil(value)))
    aimed = 8.0**0.5 * 2.0 ** (0.5 * math.log(9 / (1 - 0.005 / 3)) / math.log(18))
    assert [asked[6], asked[8]] == pytest.approx([aimed, aimed], rel=1e-12)
