"""Intervals of the checks against their definitions: each holds its level from both sides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from audit.statistics.intervals import (
    FALSE_ALARM,
    binomial_interval,
    binomial_p_value,
    chi_square_interval,
    correlation_threshold,
    gamma_interval,
    kolmogorov_p_value,
    relative_difference,
    sigma_half_width,
    skewed_upper_end,
    uniform_p_value,
)


def test_a_check_accuses_a_correct_run_once_in_a_thousand_times_at_most():
    assert FALSE_ALARM == 1e-3


@pytest.mark.parametrize("degrees", [1.0, 7.5, 1e4, 1e7, 1.01e7, 3e8])
def test_a_ratio_of_variances_leaves_its_interval_with_alpha_half_of_it_on_each_side(degrees):
    low, high = chi_square_interval(degrees, 0.02)
    # Wilson-Hilferty from 10^7 on: off by far less than a hundredth of the level.
    assert stats.chi2.cdf(low * degrees, degrees) == pytest.approx(0.01, rel=1e-3)
    assert stats.chi2.sf(high * degrees, degrees) == pytest.approx(0.01, rel=1e-3)


def test_the_wider_side_of_an_interval_is_its_half_width():
    assert sigma_half_width((0.81, 1.44)) == pytest.approx(0.2)
    assert sigma_half_width((0.25, 1.44)) == pytest.approx(0.5)


def test_a_sum_of_squares_is_matched_in_mean_and_variance():
    # 3·χ² with 10 degrees: mean 30, variance 180.
    low, high = gamma_interval(30.0, 180.0, 0.05)
    assert low == pytest.approx(3.0 * stats.chi2.ppf(0.025, 10))
    assert high == pytest.approx(3.0 * stats.chi2.isf(0.025, 10))
    assert gamma_interval(30.0, 0.0, 0.05) == (30.0, 30.0)


def test_the_upper_end_of_a_skewed_sum_is_exact_for_one_chi_square():
    # Of 2·χ² with 5 degrees the cumulants are 10, 40 and 320.
    assert skewed_upper_end(10.0, 40.0, 320.0, 1e-3) == pytest.approx(2 * stats.chi2.isf(1e-3, 5))
    # And moved by 7: the mean alone changes.
    moved = skewed_upper_end(17.0, 40.0, 320.0, 1e-3)
    assert moved == pytest.approx(7.0 + 2 * stats.chi2.isf(1e-3, 5))
    # More skewed than one square is no sum of squares; as good as not skewed is normal.
    assert skewed_upper_end(10.0, 1.0, 3.0, 1e-3) == 10.0
    assert skewed_upper_end(10.0, 1.0, 2.9999, 1e-3) > 14.0
    assert skewed_upper_end(10.0, 1.0, 0.99e-6, 1e-3) == 10.0
    assert skewed_upper_end(10.0, 1.0, 1.01e-6, 1e-3) == pytest.approx(
        10.0 + stats.norm.isf(1e-3), rel=1e-3
    )


def test_a_correlation_reaches_its_threshold_with_the_level_that_all_tests_share():
    threshold = correlation_threshold(50, 10, 0.01)
    # With known means, t = r·√(n − 1)/√(1 − r²) has n − 1 degrees.
    t = threshold * math.sqrt(49) / math.sqrt(1 - threshold**2)
    assert 2 * stats.t.sf(t, 49) == pytest.approx(0.001)
    assert correlation_threshold(50, 0, 0.01) == correlation_threshold(50, 1, 0.01)


def test_a_binomial_p_value_is_twice_the_smaller_tail():
    law = stats.binom(20, 0.3)
    assert binomial_p_value(2, 20, 0.3) == pytest.approx(2 * sum(law.pmf(k) for k in range(3)))
    assert binomial_p_value(11, 20, 0.3) == pytest.approx(
        2 * sum(law.pmf(k) for k in range(11, 21))
    )
    assert binomial_p_value(6, 20, 0.3) == 1.0


@pytest.mark.parametrize("count", [1, 40, 5000, 5001])
def test_a_law_is_told_by_the_largest_distance_of_its_steps(count):
    values = np.random.default_rng(count).random(count) ** 1.02
    expected = stats.kstest(values, "uniform").pvalue
    assert uniform_p_value(values) == pytest.approx(expected, rel=0.05)
    normal = stats.norm.ppf(values)
    assert kolmogorov_p_value(normal) == pytest.approx(expected, rel=0.05)
    law = stats.kstwo.sf if count <= 5000 else lambda d, n: stats.kstwobign.sf(d * n**0.5)
    distance = stats.ks_1samp(values, stats.uniform.cdf).statistic
    assert uniform_p_value(values) == pytest.approx(law(distance, count), rel=1e-9)
    # From either side: all too small, or all too large.
    for shifted in (values * 0.5, 0.5 + values * 0.5):
        other = stats.kstest(shifted, "uniform").pvalue
        assert uniform_p_value(shifted) == pytest.approx(other, rel=0.05, abs=1e-300)


def test_numbers_differ_by_a_share_of_the_larger_one():
    assert relative_difference(3.0, -4.0) == 7.0 / 4.0
    assert relative_difference(-4.0, 3.0) == 7.0 / 4.0
    assert relative_difference(-4.0, -5.0) == 0.2
    assert relative_difference(0.0, 2.0) == 1.0
    assert relative_difference(0.0, 0.0) == 0.0


def test_of_many_degrees_the_interval_is_scipys_too():
    """The cube root of Wilson and Hilferty takes the place of an inverse that loses digits."""
    degrees, alpha = 3e7, 1e-3
    due = [pick(alpha / 2, degrees) / degrees for pick in (stats.chi2.ppf, stats.chi2.isf)]
    assert chi_square_interval(degrees, alpha) == pytest.approx(due, rel=1e-8)


def test_a_rate_leaves_its_interval_with_alpha_half_of_it_on_each_side():
    alpha, trials = 0.04, 10
    # Of none, and of all, the whole power of one chance is known.
    assert binomial_interval(0, trials, alpha) == pytest.approx((0.0, 1.0 - 0.02**0.1))
    assert binomial_interval(trials, trials, alpha) == pytest.approx((0.02**0.1, 1.0))
    low, high = binomial_interval(3, trials, alpha)
    assert stats.binom.sf(2, trials, low) == pytest.approx(0.02)
    assert stats.binom.cdf(3, trials, high) == pytest.approx(0.02)
