"""The law of a sample of canaries' scores: its level, its power on both sides, and its bounds.

Samples are simulated, each test with a fixed seed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from audit.canaries.e_values import (
    ConfidenceSet,
    Scores,
    Sums,
    _largest_ratio_by_sums,
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


def test_correct_sums_are_contradicted_no_oftener_than_the_level():
    """500 sums; each reaches 20 with 5 % at most. The test fails by chance once in 10⁶ runs."""
    rng = np.random.default_rng(8)
    found = np.array([summed(rng, answers=20).log_e_value(1.0, 1.0) for _ in range(500)])
    assert np.count_nonzero(found >= np.log(20.0)) <= stats.binom.isf(1e-6, 500, 0.05)
    assert np.count_nonzero(found >= -np.log(LEVEL)) == 0
