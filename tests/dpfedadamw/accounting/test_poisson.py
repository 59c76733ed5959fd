"""Losses of one Poisson-sampled step: their range, and their masses against the normal law."""

from __future__ import annotations

import math

import mpmath
import pytest
from scipy.stats import norm

from dpfedadamw.accounting.poisson import poisson_losses, poisson_range

# P(Z > reach) = 1e-27 for a standard normal Z.
REACH = -norm.ppf(1e-27)


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("rate", [1e-3, 0.2, 1.0])
def test_the_range_is_that_of_outputs_up_to_the_reach_of_either_law(noise, rate):
    """The loss at x is log(1 - q + q·exp((2x - 1)/2σ²)); x is N(0, σ²) or N(1, σ²)."""
    with mpmath.workdps(40):

        def loss(output):
            weight = rate * mpmath.exp((2 * mpmath.mpf(output) - 1) / (2 * noise**2))
            return float(mpmath.log(1 - mpmath.mpf(rate) + weight))

        expected = loss(-REACH * noise), loss(1 + REACH * noise)
    assert poisson_range(noise, rate) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.2), (0.7, 1.0), (4.0, 0.01)])
def test_what_lies_beyond_the_range_is_an_infinite_loss(noise, rate):
    pair = poisson_losses(noise, rate, 2.0**-8)
    for losses in (pair.remove, pair.add):
        assert 0.0 <= losses.infinite < 3e-27
        assert losses.masses.sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)
    least, greatest = poisson_range(noise, rate)
    cells = (math.ceil(greatest * 256) - math.floor(least * 256)) + 1
    assert abs(len(pair.remove.masses) - cells) <= 1
