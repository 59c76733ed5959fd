"""Trade-off curves and μ, held to the Gaussian's own and to dp-accounting's distributions."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from dpfedadamw.accounting.pld import privacy_profile
from dpfedadamw.accounting.trade_off import (
    FALSE_ALARMS,
    _gaussian_delta,
    f_dp,
    gaussian_bound,
    least_misses,
)
from dpfedadamw.privacy.composition import SMALLEST_DELTA, Composition

# σ, q, steps: ε from below 1 to above 5 at δ = 1e-5.
SAMPLED = [(1.0, 0.02, 2000), (2.8, 0.2, 100), (0.6, 0.01, 100), (0.95, 0.1, 300)]


@functools.cache
def reference(sigma: float, rate: float, steps: int) -> pld.PrivacyLossDistribution:
    """The same mechanism by Google's library, which is pessimistic too."""
    one = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=1e-3)
    return one.self_compose(steps)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_without_sampling_mu_is_exact_and_the_curve_is_the_gaussians(mu):
    whole = Composition(2.0 / mu, 1.0, 4, sampling="full")
    assert gaussian_bound(whole).mu == pytest.approx(mu, rel=1e-12)
    found = f_dp(whole)
    assert (found["exact"], found["misses_smaller_by"]) == (True, 0.0)
    for rate, misses in found["trade_off"]:
        truth = stats.norm.cdf(stats.norm.ppf(1 - rate) - mu)
        # Nowhere above the truth; lines on a grid of 400 lie below it by far less than this.
        assert truth - 2e-3 < misses <= truth + 1e-9


def test_unlike_gaussians_add_up_by_their_squares_and_two_queries_count_twice():
    parts = [Composition(2.0, 1.0, 4, sampling="full"), Composition(1.0, 1.0, 3, 2, "full")]
    assert gaussian_bound(parts).mu == pytest.approx(math.sqrt(4 / 4 + 6 / 1), rel=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("sigma", "rate", "steps"), SAMPLED)
def test_a_subsampled_curve_is_that_of_dp_accountings_distribution(sigma, rate, steps):
    theirs = reference(sigma, rate, steps)
    whole = Composition(sigma, rate, steps)
    grid = np.linspace(0.0, privacy_profile(whole)[-1][0], 300)
    points = [(e, d) for e, d in zip(grid, theirs.get_delta_for_epsilon(grid), strict=True)]
    for alarms, misses in f_dp(whole)["trade_off"]:
        assert misses == pytest.approx(least_misses(points, alarms), abs=2e-3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("sigma", "rate", "steps"), SAMPLED)
def test_the_gaussian_covers_the_whole_profile_and_a_smaller_one_does_not(sigma, rate, steps):
    theirs, whole = reference(sigma, rate, steps), Composition(sigma, rate, steps)
    bound = gaussian_bound(whole)
    assert not bound.exact
    assert bound.mu < math.sqrt(steps) / sigma
    # Between the points of our grid as well, and beyond its end up to what may be missed there.
    epsilon = np.linspace(0.0, 1.5 * privacy_profile(whole)[-1][0], 371)
    deltas = np.array(theirs.get_delta_for_epsilon(epsilon))
    assert np.all(_gaussian_delta(bound.mu, epsilon) + SMALLEST_DELTA >= deltas * (1 - 1e-3))
    within = epsilon < privacy_profile(whole)[-1][0]
    smaller = _gaussian_delta(0.97 * bound.mu, epsilon)
    assert np.any(smaller[within] < deltas[within])


def test_a_curve_starts_at_certain_misses_and_never_rises():
    profile = privacy_profile(Composition(1.0, 0.02, 2000))
    misses = [least_misses(profile, rate) for rate in (0.0, *FALSE_ALARMS, 1.0)]
    assert misses[0] == pytest.approx(1.0, abs=1e-9)
    assert misses[-1] == 0.0
    assert misses == sorted(misses, reverse=True)
    # A test that guesses has α + β = 1, so no bound may be above.
    assert all(m <= 1 - rate for rate, m in zip(FALSE_ALARMS, misses[1:-1], strict=True))
