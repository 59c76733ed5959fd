"""The law of a sample of canaries' scores: its level, its power on both sides, and its bounds.

Samples are simulated, each test with a fixed seed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from audit.canaries import e_values
from audit.canaries.e_values import (
    ALTERNATIVES,
    ConfidenceSet,
    Law,
    Likelihood,
    Scores,
    Sums,
    _edge,
    _largest_ratio_by_sums,
    _log_mean,
    collected,
    judge_scores,
    log_e_value,
    noise_seen,
    of_one_draw,
)
from audit.statistics.intervals import FALSE_ALARM

LEVEL = 0.1 * FALSE_ALARM


def sample(rng, *, canaries, answers, rate, sigma, dependent=False, **wrong):
    """Scores of canaries in Poisson-subsampled Gaussian steps, right or with something wrong.

    `noise`, `contribution` and `drawn` are over the ledger's.
    """
    included = rng.random(canaries) < 0.5
    drawn = rng.random((answers, canaries)) < rate * wrong.get("drawn", 1.0)
    moved = wrong.get("contribution", 1.0) * (drawn & included) / sigma
    values = wrong.get("noise", 1.0) * rng.standard_normal((answers, canaries)) + moved
    rates = np.where(included, rate, 0.0)
    shifts = np.full(canaries, 1.0 / sigma)
    return collected(
        [one for row in values for one in of_one_draw(row[None], rates, shifts, not dependent)]
    )


def found(rng, **setting):
    return judge_scores(sample(rng, **setting), LEVEL, 0.05)


QUICKSTART = {"answers": 100, "rate": 0.23, "sigma": 2.5}
CLIENTS = {"answers": 10, "rate": 0.3, "sigma": 1.2}


@pytest.mark.parametrize(
    ("dependent", "samples"),
    [
        (False, 400),
        (True, 100),
        *(pytest.param(one, 20_000, marks=pytest.mark.slow) for one in (False, True)),
    ],
)
def test_correct_samples_are_contradicted_no_oftener_than_the_level(dependent, samples):
    """Samples of 60 canaries in ten answers; their e-values have mean 1 at most.

    By Markov each is contradicted with probability at most 1e-4, and reaches 20 with 5 %; the test
    fails by chance once in 10⁶ runs at most.
    """
    rng = np.random.default_rng(7)
    logs = []
    for _ in range(samples):
        drawn = sample(rng, canaries=60, dependent=dependent, **CLIENTS)
        logs.append(log_e_value(drawn))
    values = np.exp(logs)
    for level in (LEVEL, FALSE_ALARM, 0.05):
        above = np.count_nonzero(values >= 1.0 / level)
        assert above <= stats.binom.isf(1e-6, samples, level)


@pytest.mark.parametrize(
    ("canaries", "wrong"),
    [
        (100, {"noise": 0.5}),
        (100, {"noise": 0.75}),
        (300, {"noise": 0.95}),
        (100, {"noise": 2.0}),
        (300, {"noise": 1.05}),
        (100, {"contribution": 10.0}),
        (300, {"contribution": 0.0}),
        (300, {"drawn": 2.0}),
    ],
)
def test_faults_on_either_side_are_found_with_few_canaries(canaries, wrong):
    one = found(np.random.default_rng(3), canaries=canaries, **QUICKSTART, **wrong)
    assert one.contradicted, one
    if "noise" in wrong:
        assert one.noise == pytest.approx(wrong["noise"], rel=0.03)
        low, high = one.noise_interval
        assert low < wrong["noise"] < high
    if wrong.get("contribution") == 10.0:
        assert one.contribution == pytest.approx(10.0, rel=0.05)
        assert one.noise_interval is None
        assert one.largest_ratio < 0.2


def test_half_the_noise_is_found_where_draws_are_not_known_to_be_independent():
    one = found(np.random.default_rng(3), canaries=100, dependent=True, noise=0.5, **QUICKSTART)
    assert one.contradicted
    correct = found(np.random.default_rng(4), canaries=100, dependent=True, **QUICKSTART)
    assert not correct.contradicted
    low, high = correct.noise_interval
    assert 0.9 < low < 1.0 < high < 1.1


def test_bounds_hold_the_truth_and_are_near_it():
    """12 samples at 95 %: more than six are wrong with probability below 1e-5."""
    rng = np.random.default_rng(11)
    missed = 0
    for _ in range(12):
        one = found(rng, canaries=60, noise=0.8, **CLIENTS)
        low, high = one.noise_interval or (1.0, 1.0)
        missed += not low <= 0.8 <= high or one.largest_ratio < 0.8
    assert missed <= 6
    many = found(rng, canaries=1000, **QUICKSTART)
    assert many.noise_interval == pytest.approx((1.0, 1.0), abs=0.02)
    assert 1.0 <= many.largest_ratio < 1.5


def noise_alone(values):
    """Scores that no canary moves."""
    none = np.zeros(len(values))
    return Scores(values, none, none, none, none, np.full(len(values), True))


def test_an_e_value_against_the_truth_has_mean_one_at_most():
    """Cut off at 20, its variance is at most 20: the test fails by chance once in 10⁶ runs.

    Where a half is held against what makes itself most likely, that mean is 2.2, and intervals that
    are said to hold with 95 % have no level.
    """
    rng, samples = np.random.default_rng(9), 1000
    found = [
        ConfidenceSet(noise_alone(rng.standard_normal(40)))._log_e_value(1.0, 1.0)
        for _ in range(samples)
    ]
    most = 1.0 + stats.norm.isf(1e-6) * np.sqrt(20.0 / samples)
    assert np.minimum(np.exp(found), 20.0).mean() <= most


def test_where_noise_and_contribution_are_bounded_apart_each_has_half_of_the_level():
    rng = np.random.default_rng(10)
    known = ConfidenceSet(noise_alone(rng.standard_normal(60)))
    sums = summed(rng, contribution=3.0)
    noise = known.noise_interval(0.025)[1]
    assert noise > 1.02 * known.noise_interval(0.05)[1]
    added = np.geomspace(0.5, 3.0, 400)
    left = added[[sums.log_e_value(noise, one) < np.log(40.0) for one in added]].min()
    assert _largest_ratio_by_sums(known, sums, 3.0, 0.05) == pytest.approx(noise / left, rel=0.01)


def test_the_noise_that_is_said_to_be_seen_is_seen():
    """200 samples at the stated share; one in a thousand may be missed."""
    rng = np.random.default_rng(5)
    share = noise_seen(600, LEVEL)
    assert 0.6 < share < 0.9
    none = np.zeros(600)
    for _ in range(200):
        values = share * rng.standard_normal(600)
        still = Scores(values, none, none, none, none, np.full(600, True))
        assert log_e_value(still) >= -np.log(LEVEL)
    assert noise_seen(0, LEVEL) == 0.0
    assert noise_seen(2, LEVEL) == 0.0
    assert noise_seen(100_000, LEVEL) > 0.97


def test_answers_on_one_batch_share_a_draw_and_have_independent_contrasts():
    rng = np.random.default_rng(2)
    sigma, rate, queries = 1.5, 0.4, 3
    drawn = rng.random(4000) < rate
    answers = rng.standard_normal((queries, 4000)) + drawn / sigma
    parts = of_one_draw(answers, np.full(4000, rate), np.full(4000, 1.0 / sigma))
    together, *contrasts = parts
    assert len(contrasts) == queries - 1
    shift = np.sqrt(queries) / sigma
    np.testing.assert_allclose(together.shifts, shift)
    assert together.values[drawn].mean() == pytest.approx(shift, abs=0.1)
    for one in contrasts:
        assert one.noise_alone.all()
        assert one.values.std() == pytest.approx(1.0, abs=0.05)
        assert one.values[drawn].mean() == pytest.approx(0.0, abs=0.1)
    stacked = np.array([one.values[~drawn] for one in parts])
    np.testing.assert_allclose(np.cov(stacked), np.eye(queries), atol=0.1)


def test_no_score_says_nothing():
    one = judge_scores(collected([]), LEVEL, 0.05)
    assert (one.scores, one.contradicted, one.seen) == (0, False, 0.0)
    assert one.largest_ratio == np.inf


def test_values_without_any_noise_contradict_the_ledger():
    none = np.zeros(30)
    still = Scores(none, none, none, none, none, np.full(30, True))
    assert judge_scores(still, LEVEL, 0.05).contradicted


def summed(rng, *, contribution=1.0, answers=200, canaries=20, rate=0.2, sigma=2.0):
    """The sum of scores whose canaries move several of them."""
    totals = rng.uniform(0.2, 1.2, (answers, canaries)) / sigma
    drawn = rng.random((answers, canaries)) < rate
    noise = np.sqrt(answers * canaries) * rng.standard_normal()
    value = float(contribution * (drawn * totals).sum() + noise)
    return Sums(value, answers * canaries, totals.ravel(), np.full(answers * canaries, rate))


def test_the_sum_of_scores_tells_what_canaries_add():
    rng = np.random.default_rng(6)
    for contribution in (0.0, 3.0, 10.0):
        one = summed(rng, contribution=contribution, answers=1000)
        assert one.log_e_value(1.0, 1.0) > -np.log(LEVEL)
        assert one.log_e_value(1.0, contribution) < np.log(20.0)


def test_a_sums_e_value_is_that_of_its_own_law_averaged_over_slopes():
    """E exp(λT) = Π (1 − q + q exp(λ s c)) · exp(λ² f² n/2), λ from 1 to 1/1024 on both sides."""
    sums = Sums(4.5, 6, np.array([0.5, 0.8, 0.2]), np.array([0.3, 0.1, 1.0]))
    for noise, added in ((1.0, 1.0), (0.7, 2.0)):
        each = []
        for slope in (sign * 2.0**-power for power in range(11) for sign in (1.0, -1.0)):
            moment = np.prod(1.0 - sums.rates + sums.rates * np.exp(slope * added * sums.totals))
            each.append(np.exp(slope * 4.5 - (slope * noise) ** 2 * 3.0) / moment)
        assert sums.log_e_value(noise, added) == pytest.approx(np.log(np.mean(each)))


def test_correct_sums_are_contradicted_no_oftener_than_the_level():
    """500 sums; each reaches 20 with 5 % at most. The test fails by chance once in 10⁶ runs."""
    rng = np.random.default_rng(8)
    found = np.array([summed(rng, answers=20).log_e_value(1.0, 1.0) for _ in range(500)])
    assert np.count_nonzero(found >= np.log(20.0)) <= stats.binom.isf(1e-6, 500, 0.05)
    assert np.count_nonzero(found >= -np.log(LEVEL)) == 0


def test_the_ledger_is_held_against_faults_of_noise_clipping_and_rate_on_both_sides():
    """Fixed before any score is seen: E-values of other alternatives are other numbers."""
    less = [1 / 64, 1 / 16, 0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9]
    less += [0.94, 0.97, 0.985, 0.99]
    noise = {Law(one) for one in less} | {Law(1 / one) for one in less}
    added = {Law(1.0, one) for one in (0.0, 0.5, 0.8, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)}
    rates = {Law(rate=one) for one in (0.5, 2.0, 4.0)}
    both = {Law(1 / 64, 10.0), Law(0.5, 10.0), Law(0.5, 2.0), Law(0.5, 0.5)}
    assert set(ALTERNATIVES) == noise | added | rates | both
    assert len(ALTERNATIVES) == 46


def of_unknown_draws(values, low, high):
    """Scores whose means are only known to lie between two numbers."""
    many = len(values)
    return Scores(
        np.array(values),
        np.full(many, 0.3),
        np.full(many, 0.5),
        np.full(many, low),
        np.full(many, high),
        np.full(many, False),
    )


def test_where_draws_are_not_known_the_density_is_that_at_the_nearest_mean():
    one = of_unknown_draws([-2.0, 0.1, 3.0], -0.5, 0.8)
    for law in (Law(), Law(0.5, 2.0)):
        low, high = -0.5 * law.contribution, 0.8 * law.contribution
        nearest = [max(-2.0, low), 0.1, min(3.0, high)]
        expected = stats.norm.logpdf([-2.0, 0.1, 3.0], nearest, law.noise) + 0.5 * np.log(2 * np.pi)
        assert Likelihood(one).log_density_bound(law) == pytest.approx(expected.sum())


def test_a_density_is_that_of_the_mixture_over_draws():
    values, rates, shifts = np.array([0.3, -1.2, 2.0]), np.array([0.4, 0.0, 0.1]), np.full(3, 0.7)
    (one,) = of_one_draw(values[None], rates, shifts)
    for law in (Law(), Law(0.5, 2.0, 2.0), Law(2.0, 0.5, 4.0)):
        drawn = np.minimum(rates * law.rate, 1.0)
        out = stats.norm.pdf(values, 0.0, law.noise)
        put_in = stats.norm.pdf(values, 0.7 * law.contribution, law.noise)
        expected = np.log((1 - drawn) * out + drawn * put_in) + 0.5 * np.log(2 * np.pi)
        assert Likelihood(one).log_density(law) == pytest.approx(expected.sum())
    whole = np.log(np.mean([np.exp(Likelihood(one).log_density(law)) for law in ALTERNATIVES]))
    assert log_e_value(one) == pytest.approx(whole - Likelihood(one).log_density_bound(Law()))


def test_where_draws_are_not_known_three_e_values_share_the_level():
    """What cannot be computed counts as 1, whose logarithm is 0, so that the mean stays below 1."""
    dependent = of_unknown_draws([0.5, -0.25, 2.0], -0.5, 1.0)
    alone = noise_alone(np.array([0.2, -4.0]))
    own, known = Likelihood(dependent).log_e_value(), Likelihood(alone).log_e_value()
    assert log_e_value(dependent) == pytest.approx(_log_mean([own, 0.0, 0.0]))
    both = collected([dependent, alone])
    together = Likelihood(both).log_e_value()
    assert log_e_value(both) == pytest.approx(_log_mean([together, known, known]))
    sums = Sums(30.0, 8, np.full(8, 0.4), np.full(8, 0.3))
    told = sums.log_e_value(1.0, 1.0)
    assert told > 1.0
    with_sums = Scores(**{**both.__dict__, "sums": (sums,)})
    assert log_e_value(with_sums) == pytest.approx(_log_mean([together, known, told]))


def test_a_bound_ends_where_the_exclusion_begins_and_is_rounded_outwards():
    assert 7.3 <= _edge(lambda one: one >= 7.3, 1.0, 128.0) <= 7.3 * 1.005
    assert 0.03 / 1.005 <= _edge(lambda one: one <= 0.03, 1.0, 1 / 128) <= 0.03
    # Where nothing is excluded it is the limit, and what lies beyond a gap is not looked for.
    assert _edge(lambda one: False, 0.9, 128.0) == 128.0
    assert _edge(lambda one: False, 0.9, 1 / 128) == 1 / 128
    assert _edge(lambda one: 3.0 <= one <= 5.0 or one > 100.0, 1.0, 128.0) < 3.1
    assert _edge(lambda one: 0.2 <= one <= 0.3 or one < 0.01, 1.0, 1 / 128) > 0.29


def test_nothing_is_bounded_where_nothing_explains_the_scores(monkeypatch):
    """A ledger whose steps cannot be these is contradicted; a number would be about other steps."""
    rng = np.random.default_rng(12)
    several = ConfidenceSet(noise_alone(rng.standard_normal(40)))
    sums = summed(rng, contribution=3.0)
    assert np.isfinite(_largest_ratio_by_sums(several, sums, 3.0, 0.05))
    # Two scores are held against each other, one against nothing.
    assert ConfidenceSet(noise_alone(np.array([0.5, -1.0]))).noise_interval(0.05)[1] <= 128.0
    unbounded = ConfidenceSet(noise_alone(rng.standard_normal(1)))
    assert unbounded.noise_interval(0.05) == (0.0, np.inf)
    assert unbounded.largest_ratio(0.05) == np.inf
    assert _largest_ratio_by_sums(unbounded, sums, 1.0, 0.05) == np.inf
    # Of a sum that no contribution makes: 40 deviations above what all draws together add.
    beyond = Sums(sums.value + 40.0 * np.sqrt(sums.count), sums.count, sums.totals, 0 * sums.rates)
    assert _largest_ratio_by_sums(several, beyond, 1.0, 0.05) == np.inf
    monkeypatch.setattr(ConfidenceSet, "_log_e_value", lambda *_: 100.0)
    assert several.noise_interval(0.05) is None
    assert several.largest_ratio(0.05) == np.inf
    assert _largest_ratio_by_sums(several, sums, 1.0, 0.05) == np.inf


def test_the_smallest_e_value_of_a_ratio_is_found_between_the_points_of_a_grid(monkeypatch):
    several = ConfidenceSet(noise_alone(np.random.default_rng(12).standard_normal(40)))
    for middle in (0.01, 0.7, 3.0, 90.0):
        seen = []

        def e_value(self, noise, contribution, middle=middle, seen=seen):
            seen.append(noise / contribution)
            return np.log(contribution / middle) ** 2

        monkeypatch.setattr(ConfidenceSet, "_log_e_value", e_value)
        least = max(np.log(1 / 16 / middle), np.log(middle / 64), 0.0) ** 2
        assert several._smallest_log_e_value(1.5) == pytest.approx(least, abs=1e-2)
        assert seen == pytest.approx([1.5] * len(seen))


def test_a_long_sample_is_thinned_by_its_number_alone(monkeypatch):
    monkeypatch.setattr(e_values, "_MOST_SCORES", 10)
    values = np.arange(1.0, 32.0)
    halves = ConfidenceSet(noise_alone(values))._halves
    # Every fourth of 31, cut in two: each half is held against what makes the other likeliest.
    assert [half.count for half, _ in halves] == [4, 4]
    first, second = (np.mean(values[::4][part] ** 2) for part in (slice(4), slice(4, None)))
    for (half, best), squares, other in zip(halves, (second, first), (first, second), strict=True):
        assert best == pytest.approx(-4 * 0.5 * np.log(other) - 0.5 * 4 * squares / other)
        assert half.log_density_bound(Law()) == pytest.approx(-0.5 * 4 * squares)


def test_where_directions_depend_on_the_past_only_the_second_half_is_judged():
    one = of_unknown_draws(np.linspace(-1.0, 1.0, 9).tolist(), -0.5, 0.5)
    assert len(ConfidenceSet(one)._halves) == 1
    assert ConfidenceSet(one)._halves[0][0].count == 5
    some = collected([one, noise_alone(np.array([0.5, -0.5]))])
    assert len(ConfidenceSet(some)._halves) == 1


def test_what_is_found_of_a_sample_is_told_in_its_own_terms():
    rng = np.random.default_rng(4)
    dependent = sample(rng, canaries=20, answers=5, rate=0.3, sigma=1.2, dependent=True)
    one = judge_scores(dependent, LEVEL, 0.05)
    assert one.scores == 100
    assert one.log10_e_value == pytest.approx(log_e_value(dependent) / np.log(10.0))
    # Of unknown draws those of canaries that are out are sure.
    sure = int(dependent.noise_alone.sum())
    assert 0 < sure < 100
    assert one.seen == noise_seen(sure, LEVEL)
    sums = summed(rng, contribution=3.0)
    with_sums = Scores(**{**dependent.__dict__, "sums": (sums,)})
    known = ConfidenceSet(dependent.where(dependent.noise_alone))
    ratio = _largest_ratio_by_sums(known, sums, one.contribution, 0.05)
    assert judge_scores(with_sums, LEVEL, 0.05).largest_ratio == ratio
    assert one.noise_interval == known.noise_interval(0.05)
    assert Sums(3.0, 0, np.zeros(0), np.zeros(0)).log_e_value(1.0, 1.0) == 0.0
    loud = noise_alone(np.full(30, 2.0))
    e_value = log_e_value(loud)
    assert judge_scores(loud, np.exp(-e_value) * 1.0001, 0.05).contradicted
    assert not judge_scores(loud, np.exp(-e_value) * 0.9999, 0.05).contradicted
