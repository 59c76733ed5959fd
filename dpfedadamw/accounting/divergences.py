"""Rényi divergences of one Gaussian query on a Poisson sample, and what they mean for ε.

With one record more, the noised sum of a batch follows (1-q)·N(0, σ²) + q·N(1, σ²), and without it
N(0, σ²), both in units of the clipping norm. The divergence of order α between them is
log(A_α)/(α-1), and A_α a binomial sum (Mironov, Talwar & Zhang 2019, section 3.3).

dp-accounting computes the same sums, a term after the other, and takes a second to load. Tests
compare the two.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

__all__ = ["ORDERS", "improved_epsilon", "poisson_divergence"]

# Those of dp-accounting, for batches of any kind.
ORDERS: tuple[float, ...] = (
    *(1.0 + tenth / 10.0 for tenth in range(1, 100)),
    *map(float, (*range(11, 64), 128, 256, 512, 1024)),
)
# Terms of the series of a fractional order: the first look, and the most.
_FEW, _MOST = 64, 1000
# The series ends where its terms are this small beside their sum, as a logarithm.
_SMALL = 30.0


def poisson_divergence(noise_multiplier: float, rate: float, order: float) -> float:
    """Return the Rényi divergence of one step, of the direction in which it is larger.

    Args:
        noise_multiplier: σ over how far one record moves the sum, above 0.
        rate: q in (0, 1].
        order: α > 1.

    Returns:
        The divergence; infinite where the series of a fractional order converges too slowly, which
        can only raise ε.
    """
    with np.errstate(over="ignore", divide="ignore"):
        if rate == 1.0:
            return order / (2.0 * noise_multiplier**2)
        if order == round(order):
            moment = _whole(noise_multiplier, rate, int(order))
        else:
            moment = _between(noise_multiplier, rate, order)
    return moment / (order - 1.0)


def improved_epsilon(order: float, divergence: float, delta: float) -> float:
    """Return the ε of a divergence at a δ: ε_α + log1p(-1/α) - log(δα)/(α-1).

    That is Proposition 12 of Canonne, Kamath & Steinke 2020. It is 0 where the divergence of any
    order already bounds the total variation by δ (Bretagnolle & Huber 1979).
    """
    if delta**2 + math.expm1(-divergence) > 0.0:
        return 0.0
    # Near order 1 the conversion is not stable, and not useful.
    if order <= 1.01:
        return math.inf
    return max(0.0, divergence + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0))


@lru_cache(maxsize=256)
def _binomials(order: float, terms: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The numbers 0 … terms-1, and the logarithms of order over each, without their signs."""
    index = np.arange(terms, dtype=np.float64)
    return index, gammaln(order + 1.0) - gammaln(index + 1.0) - gammaln(order - index + 1.0)


def _whole(sigma: float, rate: float, order: int) -> float:
    """The logarithm of A_α for a whole order."""
    index, binomials = _binomials(float(order), order + 1)
    terms = binomials + index * math.log(rate) + (order - index) * math.log1p(-rate)
    terms += (index * index - index) / (2.0 * sigma**2)
    largest = float(terms.max())
    if not math.isfinite(largest):
        return largest
    return largest + math.log(float(np.exp(terms - largest).sum()))


def _between(sigma: float, rate: float, order: float) -> float:
    """The logarithm of A_α for a fractional order, bounded from above.

    The integral is divided where both parts of the mixture are equal; each side is a binomial
    series of its own. Beyond the order its signs alternate, and are left out.
    """
    for terms in (_FEW, _MOST):
        index, binomials = _binomials(order, terms)
        rest = order - index
        middle = sigma**2 * math.log(1.0 / rate - 1.0) + 0.5
        drawn, left = math.log(rate), math.log1p(-rate)
        below = binomials + index * drawn + rest * left
        below += (index * index - index) / (2.0 * sigma**2) + log_ndtr((middle - index) / sigma)
        above = binomials + rest * drawn + index * left
        above += (rest * rest - rest) / (2.0 * sigma**2) + log_ndtr((rest - middle) / sigma)
        sums = np.logaddexp.accumulate(np.logaddexp(below, above))
        falling = (np.diff(below) < 0.0) & (np.diff(above) < 0.0)
        small = np.maximum(below, above)[1:] < sums[1:] - _SMALL
        ends = np.flatnonzero(falling & small)
        if len(ends):
            return float(sums[1 + ends[0]])
    return math.inf
