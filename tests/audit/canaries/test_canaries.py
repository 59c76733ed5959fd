"""Lower bounds on ε from canaries: against independent references, for coverage, and for power.

Coverage: mechanisms whose ε is known are simulated, and a bound at level α may lie above the truth
in at most α of the simulations. Each test of that kind says how many it makes and how likely it is
to fail if the bound holds with nothing to spare; the bounds are conservative, so that in truth it
is far less.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize, stats

from audit.accounting.budget import Steps, privacy_profile
from audit.canaries import bounds, secrets
from audit.canaries.bounds import any_mechanism, canaries_needed, judge, lower_bound, scaled
from audit.canaries.guessing import (
    PLANS,
    Guesses,
    TradeOff,
    approximate_dp,
    guess,
    is_excluded,
    largest_excluded,
    of_losses,
    one_run_p_value,
    perfect,
    plans,
)
from audit.canaries.views import _worst, log_likelihood_ratio, loss_reduction, noise_shown
from audit.reading.canary_evidence import read_canaries
from audit.reading.units import PERSON
from audit.statistics.intervals import FALSE_ALARM, binomial_interval
from audit.untrusted.fields import FieldError

LEVEL = 0.05
DELTA = 1e-5


def gaussian_delta(epsilon, sigma):
    """δ(ε) of the Gaussian mechanism with sensitivity 1 (Balle & Wang 2018, Theorem 8)."""
    half, whole = 0.5 / sigma, epsilon * sigma
    return stats.norm.cdf(half - whole) - np.exp(epsilon) * stats.norm.cdf(-half - whole)


def gaussian_epsilon(sigma, delta):
    """ε(δ) of the Gaussian mechanism."""
    return optimize.brentq(lambda epsilon: gaussian_delta(epsilon, sigma) - delta, 0.0, 80.0)


def most_above(simulations, level):
    """How many of the simulations may exceed the truth; a test fails by chance once in 10⁶."""
    return int(stats.binom.isf(1e-6, simulations, level))


# References


def of_one_run(canaries, guesses, correct, level):
    """The largest ε that the guesses exclude at a level, by the theorem on one run alone."""
    return largest_excluded(
        lambda epsilon: one_run_p_value(canaries, guesses, correct, epsilon, DELTA) < level
    )


def test_perfect_guesses_have_the_known_ceilings():
    assert of_one_run(100, 100, 100, LEVEL) == pytest.approx(3.5, abs=0.05)
    assert of_one_run(1000, 1000, 1000, LEVEL) == pytest.approx(5.8, abs=0.05)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct"), [(20, 20, 15), (50, 30, 24), (9, 9, 9)]
)
def test_the_one_run_p_value_is_the_theorem_written_out(canaries, guesses, correct):
    epsilon, delta = 0.8, 1e-3
    binomial = stats.binom(guesses, np.exp(epsilon) / (1.0 + np.exp(epsilon)))
    tail = binomial.sf(correct - 1)
    slope = max((binomial.sf(correct - i - 1) - tail) / i for i in range(1, correct + 1))
    expected = min(1.0, tail + 2.0 * canaries * delta * slope)
    assert one_run_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected)


def largest_tail(canaries, guesses, correct, allowed):
    """Max of P[C ≥ c] under the inequalities of `is_excluded`: a linear program."""
    rows, limits = [], []
    for least in range(1, guesses + 1):
        right = np.array([j / canaries if j >= least else 0.0 for j in range(guesses + 1)])
        wrong = np.array(
            [(guesses - j) / canaries if j >= least - 1 else 0.0 for j in range(guesses + 1)]
        )
        for slope, intercept in zip(allowed.slopes, allowed.intercepts, strict=True):
            rows.append(right - slope * wrong)
            limits.append(intercept)
    wanted = np.array([-1.0 if j >= correct else 0.0 for j in range(guesses + 1)])
    found = optimize.linprog(
        wanted, np.array(rows), np.array(limits), np.ones((1, guesses + 1)), [1.0], method="highs"
    )
    return -found.fun


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct"), [(12, 12, 10), (30, 12, 11), (25, 25, 18), (40, 8, 8)]
)
@pytest.mark.parametrize(
    "allowed",
    [
        approximate_dp(1.0, 1e-2),
        approximate_dp(2.0, 0.0),
        of_losses([(1.0, privacy_profile([Steps(1.0, 1.2, 1)], 1e-5))]),
    ],
    ids=["approximate", "pure", "gaussian"],
)
def test_the_f_dp_bound_is_the_optimum_of_its_linear_program(canaries, guesses, correct, allowed):
    largest = min(1.0, largest_tail(canaries, guesses, correct, allowed))
    assert not is_excluded(canaries, guesses, correct, largest * (1.0 - 1e-4), allowed)
    above = min(1.0, largest * (1.0 + 1e-4))
    assert largest == 1.0 or is_excluded(canaries, guesses, correct, above, allowed)


def test_an_envelope_of_a_profile_lies_just_above_the_gaussian_trade_off():
    sigma = 1.3
    allowed = of_losses([(1.0, privacy_profile([Steps(1.0, sigma, 1)], DELTA))])
    for false in (1e-4, 1e-2, 0.2, 0.5, 0.9):
        true = stats.norm.cdf(stats.norm.ppf(false) + 1.0 / sigma)
        assert true <= allowed.most(false) <= true * 1.01 + 1e-4
        assert allowed.least(allowed.most(false)) <= false * (1.0 + 1e-9)


def test_clients_that_spend_less_lower_the_envelope_in_proportion():
    large, small = (privacy_profile([Steps(1.0, s, 1)], DELTA) for s in (1.0, 4.0))
    both = of_losses([(0.25, large), (0.75, small)])
    alone = of_losses([(1.0, large)])
    # Each client's canaries at the same false positive rate are one way to reach the average.
    point = stats.norm.ppf(0.01)
    equal = 0.25 * stats.norm.cdf(point + 1.0) + 0.75 * stats.norm.cdf(point + 0.25)
    assert equal <= both.most(0.01) < 0.7 * alone.most(0.01)


def losses_up_to(furthest, infinite=0.0):
    """Losses whose profile ends at an ε, but for some mass that no ε comes below."""
    sides = {name: SimpleNamespace(infinite=infinite) for name in ("remove", "add")}
    return SimpleNamespace(
        epsilon=lambda delta: furthest if delta > infinite else np.inf,
        delta=lambda epsilon: max(0.1 * (1.0 - epsilon / furthest), infinite),
        **sides,
    )


@pytest.mark.parametrize("infinite", [0.0, 1e-7])
def test_points_of_an_envelope_reach_as_far_as_any_share_leaks(infinite):
    shares = [(0.25, losses_up_to(3.0, infinite)), (0.75, losses_up_to(1.0))]
    for given in (shares, shares[::-1]):
        found = of_losses(given)
        assert np.log(found.slopes.max()) == pytest.approx(3.0)
        assert len(found.slopes) == 2 * 160
        # At ε = 0 both leak a tenth.
        assert found.most(0.0) == pytest.approx(0.25 * infinite)
        assert found.intercepts[0] == pytest.approx(0.1)
    far = of_losses([(1.0, losses_up_to(5000.0))])
    assert np.log(far.slopes.max()) == pytest.approx(600.0)
    none = of_losses([(1.0, losses_up_to(0.0 + 1e-9))])
    assert np.log(none.slopes.max()) == pytest.approx(1e-6)


def test_an_event_is_no_likelier_than_certain():
    assert TradeOff(np.array([2.0, 3.0]), np.array([0.5, 0.0])).most(0.9) == 1.0
    assert TradeOff(np.array([2.0, 3.0]), np.array([0.5, 0.0])).most(0.1) == pytest.approx(0.3)


def test_a_group_of_clients_counts_as_its_worst():
    first, second = (Steps(0.1, 2.0, 30), Steps(0.1, 1.0, 5)), (Steps(0.3, 2.0, 10),)
    worst = privacy_profile(_worst([first, second]), DELTA).epsilon(DELTA)
    assert worst >= max(privacy_profile(one, DELTA).epsilon(DELTA) for one in (first, second))


# Coverage

RESPONSES = [(0.0, 0.0), (1.0, 0.0), (2.5, 0.0), (1.0, 1e-2)]


@pytest.mark.parametrize(("epsilon", "delta"), RESPONSES)
def test_bounds_cover_randomised_response(epsilon, delta):
    """2,000 simulations of 300 coins at level 5 %; false alarm of the test below 1e-6.

    With probability δ a coin is told as it is, else as randomised response at ε tells it.
    """
    simulations, canaries = 2000, 300
    rng = np.random.default_rng(int(10 * epsilon) + int(1000 * delta))
    truth = rng.random((simulations, canaries)) < np.exp(epsilon) / (1.0 + np.exp(epsilon))
    told = truth | (rng.random((simulations, canaries)) < delta)
    counts, times = np.unique(told.sum(1), return_counts=True)
    allowed = approximate_dp(epsilon, delta)
    for excluded in (
        lambda count: one_run_p_value(canaries, canaries, count, epsilon, delta) < LEVEL,
        lambda count: is_excluded(canaries, canaries, count, LEVEL, allowed),
    ):
        above = sum(int(n) for count, n in zip(counts, times, strict=True) if excluded(int(count)))
        assert above <= most_above(simulations, LEVEL)


def test_bounds_cover_a_mechanism_that_tells_all_coins_at_once():
    """4,000 simulations at level 5 %; false alarm of the test below 1e-6.

    With probability δ everything is told, else nothing: right guesses depend on each other.
    """
    simulations, canaries, delta = 4000, 100, 0.02
    rng = np.random.default_rng(5)
    right = np.where(
        rng.random(simulations) < delta, canaries, rng.binomial(canaries, 0.5, simulations)
    )
    allowed = approximate_dp(0.0, delta)
    above = [
        (one_run_p_value(canaries, canaries, int(count), 0.0, delta) < LEVEL)
        or is_excluded(canaries, canaries, int(count), LEVEL, allowed)
        for count in right
    ]
    assert sum(above) <= most_above(simulations, LEVEL)


def simulated(rng, canaries, rate, sigma, steps, noise=1.0):
    """Scores and coins of one run of Poisson-subsampled Gaussian steps, each canary by itself."""
    included = rng.random(canaries) < 0.5
    drawn = (rng.random((steps, canaries)) < rate) & included
    released = noise * sigma * rng.standard_normal((steps, canaries)) + drawn
    return log_likelihood_ratio(released, sigma, rate).sum(0), included


@pytest.mark.parametrize("sigma", [0.8, 2.0])
def test_bounds_cover_the_gaussian_mechanism_over_all_plans_together(sigma):
    """600 simulations of 200 canaries at level 5 %; false alarm of the test below 1e-6.

    The bound of these steps knows the true profile: only chance is between it and the truth.
    """
    simulations, canaries = 600, 200
    truth = gaussian_epsilon(sigma, DELTA)
    profile = of_losses([(1.0, privacy_profile([Steps(1.0, sigma, 1)], DELTA))])
    pure = approximate_dp(truth, DELTA)
    above_any = above_steps = 0
    for seed in range(simulations):
        rng = np.random.default_rng([seed, int(10 * sigma)])
        made = guess(*simulated(rng, canaries, 1.0, sigma, 1))
        share = LEVEL / len(made)
        numbers = [(one.canaries, one.made, one.correct) for one in made]
        above_any += any(
            one_run_p_value(*one, truth, DELTA) < share or is_excluded(*one, share, pure)
            for one in numbers
        )
        above_steps += any(is_excluded(*one, share, profile) for one in numbers)
    assert above_any <= most_above(simulations, LEVEL)
    assert above_steps <= most_above(simulations, LEVEL)


def test_where_nothing_leaks_a_printed_bound_is_above_zero_in_one_of_twenty_audits_at_most():
    """800 simulations at level 5 %; false alarm of the test below 1e-6.

    Were the level not shared by the plans, one in seven would be above zero.
    """
    simulations = 800

    def mechanism(factor):
        return [(1.0, privacy_profile(scaled([Steps(1.0, 1.0, 1)], factor), DELTA))]

    allowed = cache(lambda factor: of_losses(mechanism(factor)))
    above_any = above_steps = 0
    for seed in range(simulations):
        rng = np.random.default_rng([seed, 11])
        made = guess(rng.standard_normal(100), rng.random(100) < 0.5)
        found = lower_bound(made, mechanism, DELTA, allowed)
        above_any += found.any_mechanism > 0.0
        above_steps += found.these_steps > 0.0
    assert above_any <= most_above(simulations, LEVEL)
    assert above_steps <= most_above(simulations, LEVEL)


def test_the_level_of_a_contradiction_is_shared_by_all_plans_and_all_views():
    """One plan tells something, five others tell nothing, and so do two other views."""

    def mechanism(factor):
        return [(1.0, privacy_profile(scaled([Steps(1.0, 2.0, 1)], factor), DELTA))]

    def contradicted(correct):
        guesses = [Guesses(300, 120, correct), *[Guesses(300, 120, 60)] * 5]
        return judge(guesses, mechanism, DELTA, views=3).contradicted

    claimed = of_losses(mechanism(1.0))
    shared, whole = (
        next(c for c in range(60, 121) if is_excluded(300, 120, c, level, claimed))
        for level in (FALSE_ALARM / 6 / 3, FALSE_ALARM)
    )
    # Fewer right guesses would do if each had the whole level.
    assert whole < shared
    assert (contradicted(shared - 1), contradicted(shared)) == (False, True)


def test_a_true_claim_is_contradicted_no_oftener_than_its_level():
    """400 simulations of subsampled steps at level 0.1 %; false alarm of the test below 1e-6."""
    steps = Steps(0.2, 1.0, 20)
    claimed = of_losses([(1.0, privacy_profile([steps], DELTA))])
    contradicted = 0
    for seed in range(400):
        rng = np.random.default_rng([seed, 77])
        made = guess(*simulated(rng, 250, 0.2, 1.0, 20))
        contradicted += any(
            is_excluded(one.canaries, one.made, one.correct, FALSE_ALARM / len(made), claimed)
            for one in made
        )
    assert contradicted <= most_above(400, FALSE_ALARM)


# Power


def test_bounds_on_many_canaries_are_a_good_part_of_the_truth():
    """One simulation with a fixed seed; the figures move by about a tenth with the seed."""
    steps = Steps(1.0, 1.0, 1)
    truth = gaussian_epsilon(1.0, DELTA)
    made = guess(*simulated(np.random.default_rng(3), 20_000, 1.0, 1.0, 1))
    found = lower_bound(
        made, lambda factor: [(1.0, privacy_profile(scaled([steps], factor), DELTA))], DELTA
    )
    assert 0.4 * truth < found.any_mechanism < truth
    assert 0.55 * truth < found.these_steps < truth
    assert found.any_mechanism < found.these_steps


@pytest.mark.parametrize(("noise", "canaries"), [(0.0, 200), (0.25, 400), (0.4, 4000)])
def test_noise_that_is_too_small_contradicts_the_claim(noise, canaries):
    """One simulation each with a fixed seed, of a mechanism that claims ε = 2.75."""

    def mechanism(factor):
        return [(1.0, privacy_profile(scaled([Steps(1.0, 1.5, 1)], factor), DELTA))]

    rng = np.random.default_rng(8)
    outcome = judge(guess(*simulated(rng, canaries, 1.0, 1.5, 1, noise)), mechanism, DELTA)
    assert outcome.contradicted
    assert outcome.bound.noise_share < 1.0
    claimed = mechanism(1.0)[0][1].epsilon(DELTA)
    assert claimed < outcome.bound.these_steps <= outcome.ceiling.these_steps


def test_too_few_canaries_are_known_beforehand():
    def mechanism(factor):
        return [(1.0, privacy_profile(scaled([Steps(1.0, 0.8, 1)], factor), DELTA))]

    needed = canaries_needed(mechanism)
    level = FALSE_ALARM / len(PLANS)
    claimed = of_losses(mechanism(1.0))
    assert any(
        is_excluded(one.canaries, one.made, one.correct, level, claimed) for one in perfect(needed)
    )
    assert judge(perfect(needed), mechanism, DELTA).can_contradict
    few = judge(perfect(max(1, needed // 2)), mechanism, DELTA)
    assert not few.can_contradict
    assert not few.contradicted


# Parts


def test_guesses_take_the_highest_and_the_lowest_scores():
    scores = np.arange(100.0)
    included = scores >= 50
    assert all(one.made == one.correct for one in guess(scores, included))
    assert all(one.correct == 0 for one in guess(-scores, included))
    assert [inside + outside for inside, outside in plans(100)] == [80, 30, 10, 40, 15, 5]


def test_scores_that_are_not_numbers_count_as_nothing():
    scores = np.array([np.nan, 2.0, np.nan, -1.0, 1.0])
    found = guess(scores, np.array([False, True, False, False, True]))
    assert found[0] == Guesses(5, 4, 4)


def test_a_log_likelihood_ratio_is_that_of_the_two_laws():
    values = np.linspace(-3.0, 4.0, 9)
    rate, sigma = 0.3, 1.4
    inside = rate * stats.norm.pdf(values, 1.0, sigma) + (1.0 - rate) * stats.norm.pdf(
        values, 0.0, sigma
    )
    expected = np.log(inside / stats.norm.pdf(values, 0.0, sigma))
    np.testing.assert_allclose(log_likelihood_ratio(values, sigma, rate), expected)
    # Two answers on one batch: their sum has shift 2 and variance 2 sigma^2.
    spread = sigma * np.sqrt(2.0)
    twice = stats.norm.logpdf(values, 2.0, spread) - stats.norm.logpdf(values, 0.0, spread)
    np.testing.assert_allclose(log_likelihood_ratio(values, sigma, 1.0, 2), twice)
    opposed = stats.norm.logpdf(values, 1.0, sigma) - stats.norm.logpdf(values, -1.0, sigma)
    np.testing.assert_allclose(log_likelihood_ratio(values, sigma, 1.0, opposed=True), opposed)


def test_noise_is_taken_for_what_is_shown_where_less_is_shown():
    noise = np.random.default_rng(1).standard_normal(20_000)
    assert noise_shown(noise) == pytest.approx(1.0, abs=0.02)
    assert noise_shown(noise / 4.0) == pytest.approx(0.25, abs=0.01)
    assert noise_shown(noise * 3.0) == 1.0
    assert noise_shown(np.zeros(50)) == 0.02
    assert noise_shown(np.zeros(0)) == 1.0


def test_losses_that_are_not_finite_tell_nothing():
    before = np.array([1.0, np.inf, np.nan, np.inf, 2.0])
    found = loss_reduction(before, np.array([0.25, np.inf, 0.0, 1.0, np.inf]))
    np.testing.assert_array_equal(found, [0.75, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("seed", range(5))
def test_the_inverse_of_an_envelope_is_that_of_its_largest_line(seed):
    rng = np.random.default_rng(seed)
    slopes = np.round(np.exp(rng.normal(size=40)), 1) + 0.1
    allowed = TradeOff(slopes, np.round(rng.random(40), 2))
    for rate in np.linspace(0.0, 1.0, 101):
        expected = max(0.0, float(np.max((rate - allowed.intercepts) / slopes)))
        assert allowed.least(float(rate)) == pytest.approx(expected, abs=1e-12)


def test_a_true_positive_rate_above_one_needs_more_than_everything():
    assert TradeOff(np.array([1.0]), np.array([0.0])).least(1.1) == np.inf


def test_any_mechanism_takes_the_better_of_both_theorems():
    one = Guesses(300, 120, 118)
    level = 0.01
    single = of_one_run(300, 120, 118, level)
    assert any_mechanism(one, DELTA, level) >= single


@pytest.mark.parametrize(
    ("least", "share"),
    [(1.0, 1.0), (0.3, 0.3), (1 / 32, 1 / 32), (0.0, 1 / 32), (20.0, 20.0), (32.0, 32.0)],
)
def test_the_noise_that_is_excluded_is_found_within_a_hundredth(least, share, monkeypatch):
    """From 1/32 of the ledger's noise to 32 times it; the share is rounded up."""
    monkeypatch.setattr(bounds, "_excluded", lambda one, level, factor: factor >= least)
    found = bounds._noise_share(perfect(9), lambda factor: factor, 0.05)
    assert share <= found <= 1.01 * share


def test_no_share_of_the_noise_is_named_where_no_factor_is_excluded(monkeypatch):
    monkeypatch.setattr(bounds, "_excluded", lambda one, level, factor: factor > 32.0)
    assert bounds._noise_share(perfect(9), lambda factor: factor, 0.05) is None
    monkeypatch.undo()

    def mechanism(factor):
        return [(1.0, privacy_profile(scaled([Steps(1.0, 1.0, 1)], factor), DELTA))]

    found = lower_bound([Guesses(9, 6, 3)], mechanism, DELTA)
    assert (found.these_steps, found.noise_share) == (0.0, np.inf)


def test_no_number_of_canaries_contradicts_a_claim_that_allows_everything(monkeypatch):
    asked = []
    monkeypatch.setattr(bounds, "_excluded", lambda one, level, claimed: asked.append(one) or False)
    monkeypatch.setattr(bounds, "of_losses", lambda losses: None)
    assert canaries_needed(lambda factor: []) is None
    numbers = list(dict.fromkeys(one.canaries for one in asked))
    assert (numbers[0], numbers[1]) == (8, 9)
    assert 95_000 < numbers[-1] < 100_000
    # Each number is a twentieth more than the one before, so that the answer is within that.
    assert all(later <= 1.05 * earlier + 1 for earlier, later in pairwise(numbers))


def test_all_right_guesses_are_excluded_where_no_false_positive_makes_them_likely_enough():
    """An envelope through (0, δ) alone: P ≤ δ whatever Q is."""
    allowed = TradeOff(np.array([1e-9]), np.array([1e-3]))
    assert is_excluded(10, 10, 10, 0.5, allowed)
    assert not is_excluded(10, 10, 10, 1e-4, allowed)


def test_a_number_of_guesses_is_refused_that_cannot_be():
    for numbers in ((9, 10, 5), (9, 5, 6), (9, 5, -1)):
        with pytest.raises(ValueError, match=f"{numbers[2]} correct of {numbers[1]} guesses on 9"):
            one_run_p_value(*numbers, 1.0, 0.0)
        with pytest.raises(ValueError, match=f"{numbers[2]} correct of {numbers[1]} guesses on 9"):
            is_excluded(*numbers, 0.05, approximate_dp(1.0, 0.0))


@pytest.mark.parametrize(
    ("limit", "found"), [(0.3, 0.3), (1.0, 1.0), (37.2, 37.2), (1e9, 128.0), (-1.0, 0.0)]
)
def test_the_largest_excluded_value_is_found_to_a_ten_thousandth(limit, found):
    assert largest_excluded(lambda one: one <= limit) == pytest.approx(found, abs=1e-4)


def test_one_canary_is_guessed_at_least_once():
    assert plans(1) == ((1, 0),)
    assert plans(10) == ((4, 4), (1, 1), (1, 0), (4, 0))
    assert [one.made for one in perfect(10)] == [8, 2, 1, 4]


def evidence():
    """A small correct archive: three canaries of two clients, two answers."""
    return {
        "client": np.array([0, 0, 2]),
        "included": np.array([1, 0, 1], dtype=np.uint8),
        "opposed": np.array(0, dtype=np.uint8),
        "row_round": np.array([0, 1]),
        "row_step": np.array([0, 0]),
        "row_first": np.array([0, 2]),
        "row_count": np.array([2, 1]),
        "projections": np.array([0.5, -1.0, np.inf], dtype=np.float32),
        "loss_before": np.zeros(3),
        "loss_after": np.zeros(3),
    }


def test_evidence_is_read_row_by_row():
    rows = read_canaries(evidence(), 3).rows()
    assert [(number, step, canaries) for number, step, canaries, _ in rows] == [
        (0, 0, slice(0, 2)),
        (1, 0, slice(2, 3)),
    ]
    np.testing.assert_array_equal(np.concatenate([row[3] for row in rows]), [0.5, -1.0, 0.0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client", np.array([0, 2, 0])),
        ("client", np.array([0, 0, 3])),
        ("client", np.zeros(0, np.int64)),
        ("included", np.array([1, 2, 0])),
        ("included", np.array([1, 0])),
        ("opposed", np.array(7)),
        ("row_first", np.array([0, 3])),
        ("row_first", np.array([1, 2])),
        ("row_count", np.array([2, 2])),
        ("row_count", np.array([2**40, 2**41])),
        ("row_step", np.array([0])),
        ("projections", np.zeros(4, np.float32)),
        ("loss_after", np.zeros(2)),
    ],
)
def test_evidence_that_does_not_fit_together_is_refused(name, value):
    with pytest.raises(FieldError):
        read_canaries({**evidence(), name: value}, 3)


def test_evidence_without_an_array_is_refused():
    for name in evidence():
        rest = {key: value for key, value in evidence().items() if key != name}
        with pytest.raises(FieldError, match=name):
            read_canaries(rest, 3)


def known():
    """What an archive of three secret texts says besides."""
    return {
        **evidence(),
        "candidates": np.array(256),
        "rank": np.array([1, 200, 2]),
        "nats": np.array([0.5, np.nan, 40.0]),
        "repeated": np.array([1, 0, 0], dtype=np.uint8),
    }


def test_of_secret_texts_a_chance_that_is_no_number_counts_as_none():
    found = read_canaries(known(), 3).known
    assert found.candidates == 256
    assert found.rank.tolist() == [1, 200, 2]
    assert found.nats.tolist() == [0.5, np.inf, 40.0]
    assert found.repeated.tolist() == [True, False, False]
    assert read_canaries(evidence(), 3).known is None


def test_parts_of_a_person_have_one_secret():
    arrays = {**known(), "client": np.array([0, 1, 2]), "included": np.array([1, 1, 0])}
    arrays |= {"row_first": np.array([0, 2]), "row_count": np.array([1, 1])}
    arrays |= {"projections": np.zeros(2, np.float32), "person": np.array([0, 0, 1])}
    arrays |= {"rank": np.array([3, 3, 7]), "repeated": np.zeros(3, np.uint8)}
    assert read_canaries(arrays, 3, PERSON).known.rank.tolist() == [3, 7]
    with pytest.raises(FieldError, match="different secrets"):
        read_canaries({**arrays, "rank": np.array([3, 4, 7])}, 3, PERSON)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", np.array([0, 1, 1])),
        ("rank", np.array([1, 257, 1])),
        ("rank", np.array([1, 1])),
        ("repeated", np.array([2, 0, 0])),
        ("nats", np.array([-0.1, 0.0, 0.0])),
        ("nats", np.array([1, 1, 1])),
        ("candidates", np.array([256])),
    ],
)
def test_what_secret_texts_cannot_say_is_refused(name, value):
    with pytest.raises(FieldError):
        read_canaries({**known(), name: value}, 3)


def test_exposure_and_extraction_are_told_for_secrets_that_were_there_and_for_others():
    found = secrets.details(read_canaries(known(), 3).known, np.array([True, False, True]))
    there, other = found["there"], found["not_there"]
    # log2(256) and log2(128): of ranks 1 and 2.
    assert there["exposure"] == pytest.approx(7.5)
    assert (there["secrets"], there["repeated"], other["repeated"]) == (2, 1, 0)
    assert there["chance"] == pytest.approx(np.exp(-0.5) / 2)
    assert other["chance"] == 0.0
    # Exactly: the intervals of Clopper and Pearson of 1 in 2 and of 0 in 1.
    assert there["interval"] == pytest.approx((1 - 0.975**0.5, 0.975**0.5))
    assert other["interval"] == pytest.approx((0.0, 0.975))
    said = secrets.words(found)
    assert "secrets that were there (2), the final model gives an exposure of 7.50 of 8.00" in said
    assert "Greedy decoding repeats 1 (1% to 99%), and one sample repeats one with a" in said
    assert "secrets that were not (1), the final model gives an exposure of 0.36 of 8.00" in said
    none = secrets.details(read_canaries(known(), 3).known, np.ones(3, bool))
    assert none["not_there"] is None
    assert "were not" not in secrets.words(none)


def test_a_secret_that_no_model_saw_has_an_exposure_of_a_bit_and_a_half():
    # The limit of many candidates is log2 e.
    assert secrets.unseen_exposure(2) == pytest.approx(0.5)
    assert secrets.unseen_exposure(100_000) == pytest.approx(np.log2(np.e), abs=1e-3)


@pytest.mark.parametrize(("right", "trials"), [(0, 5), (3, 7), (5, 5)])
def test_an_interval_of_a_rate_leaves_out_what_the_data_make_unlikely(right, trials):
    low, high = binomial_interval(right, trials, 0.05)
    if right:
        assert stats.binom.sf(right - 1, trials, low) == pytest.approx(0.025)
    if right < trials:
        assert stats.binom.cdf(right, trials, high) == pytest.approx(0.025)
    assert 0.0 <= low <= right / trials <= high <= 1.0
