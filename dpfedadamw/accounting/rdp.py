"""Rényi differential privacy: the accountants that check the tight one, one for each conversion.

They share only the mechanism with the privacy loss distributions of `pld`, and are therefore
reported with each claim as a check. The divergences of batches of fixed size are those of
dp-accounting.

Those of Poisson batches are computed here: with one record more, the noised sum of a batch follows
(1-q)·N(0, σ²) + q·N(1, σ²), and without it N(0, σ²), both in units of the clipping norm. The
divergence of order α between them is log(A_α)/(α-1), and A_α a binomial sum (Mironov, Talwar &
Zhang 2019, section 3.3). dp-accounting computes the same sums, a term after the other, and takes a
second to load. Tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr

from dpfedadamw.accounting.registry import ACCOUNTANTS, Accountant
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import (
    SAMPLINGS,
    Composition,
    Compositions,
    check_delta,
    merge,
)

__all__ = [
    "ORDERS",
    "Conversion",
    "divergence",
    "epsilon_rdp",
    "improved_epsilon",
    "poisson_divergence",
]

Conversion = Literal["improved", "classic"]
# Those of dp-accounting, for batches of any kind.
ORDERS: tuple[float, ...] = (
    *(1.0 + tenth / 10.0 for tenth in range(1, 100)),
    *map(float, (*range(11, 64), 128, 256, 512, 1024)),
)
# Terms of the series of a fractional order: the first look, and the most.
_FIRST_TERMS, _MOST_TERMS = 64, 1000
# The series ends where its terms are this small relative to their sum, as a logarithm.
_SMALL = 30.0
# Kinds of steps for which orders between the whole ones are worth their time.
_FEW = 4
_WHOLE = tuple(order for order in ORDERS if order == round(order))
_BETWEEN = tuple(order for order in ORDERS if order != round(order))


def epsilon_rdp(
    composition: Compositions, delta: float, conversion: Conversion = "improved"
) -> float:
    """Return an ε for a δ, by Rényi differential privacy (Mironov 2017; Mironov et al. 2019).

    Args:
        composition: one composition, or several on the same records after one another.
        delta: δ in [1e-10, 1).
        conversion: "improved" is ε_α + log1p(-1/α) - log(δα)/(α-1) (Canonne, Kamath & Steinke
            2020); "classic" is ε_α + log(1/δ)/(α-1) (Mironov 2017), for reproducing papers that use
            it.

    Raises:
        PrivacyError: if δ or the conversion is out of range.
    """
    check_delta(delta)
    if conversion not in ("improved", "classic"):
        raise PrivacyError(f"the conversion is 'improved' or 'classic', not '{conversion}'")
    return _epsilon_rdp(merge(composition), delta, conversion)


@lru_cache(maxsize=1024)
def _epsilon_rdp(parts: tuple[Composition, ...], delta: float, conversion: Conversion) -> float:
    def converted(order: float, rdp: float) -> float:
        if conversion == "classic":
            return rdp + math.log(1.0 / delta) / (order - 1.0)
        return improved_epsilon(order, rdp, delta)

    def at(order: float) -> float:
        return converted(order, divergence(parts, order))

    best = _valley(at, _WHOLE)
    # Between whole orders the divergence is a slow series, so it is computed only next to the best
    # whole order, where the least value lies, and for few kinds of steps.
    beside = (
        []
        if len(parts) > _FEW
        else [order for order in _BETWEEN if abs(order - _WHOLE[best]) < 1.0]
    )
    least = min(at(order) for order in (_WHOLE[best], *beside))
    # Where next to nothing is drawn, the improved conversion knows at the least order that ε is 0.
    # Its divergence takes long too, and is left out where no value that it can have is smaller.
    if converted(ORDERS[0], _least_rdp(parts)) < least:
        least = min(least, at(ORDERS[0]))
    return least


def divergence(parts: Sequence[Composition], order: float) -> float:
    """Return the Rényi divergence of an order α > 1 of compositions after one another."""
    return sum(part.steps * _step_rdp(part.key, order) for part in parts)


def _least_rdp(parts: Sequence[Composition]) -> float:
    """A bound from below on the divergence of any order, from total variation (Pinsker).

    Taking a record from a Poisson sample has the total variation q·(2Φ(1/2σ) - 1), and no Rényi
    divergence of an order above 1 is less than twice its square.
    """
    known = (part for part in parts if part.sampling in ("poisson", "full"))
    bound = sum(
        2.0
        * part.steps
        * (part.sampling_rate * math.erf(1.0 / (math.sqrt(8.0) * part.step_noise_multiplier))) ** 2
        for part in known
    )
    # Below, rounding errors of the divergence itself would show.
    return bound if bound > 1e-6 else 0.0


def _valley(value: Callable[[float], float], orders: Sequence[float]) -> int:
    """Where the least value lies of a function that first falls and then rises.

    Both conversions are such functions of α, since (α-1)·ε_α is convex in α.
    """
    low, high = 0, len(orders) - 1
    while low < high:
        middle = (low + high) // 2
        if value(orders[middle]) <= value(orders[middle + 1]):
            high = middle
        else:
            low = middle + 1
    return low


@lru_cache(maxsize=1 << 16)
def _step_rdp(key: tuple[float, float, str], order: float) -> float:
    noise_multiplier, rate, sampling = key
    if sampling == "fixed-size":
        return _fixed_size_rdp(noise_multiplier, rate, order)
    # Replacing a record moves the sum by up to 2C.
    sensitivity = 2.0 if sampling == "shuffled" else 1.0
    return poisson_divergence(noise_multiplier / sensitivity, rate, order)


def _fixed_size_rdp(noise_multiplier: float, rate: float, order: float) -> float:
    """The divergence of a batch drawn without replacement (Wang, Balle & Kasiviswanathan 2019)."""
    # It takes a second to load, and nothing else needs it.
    import dp_accounting

    # dp-accounting's RDP takes noise over SENSITIVITY, and replacing a record moves the sum by up
    # to 2C. (Its PLD takes noise over C and doubles by itself.)
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier / 2.0)
    event = dp_accounting.SampledWithoutReplacementDpEvent(1, rate, gaussian)
    neighbours = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.rdp.RdpAccountant([order], neighbours)
    with np.errstate(all="ignore"):
        accountant.compose(event)
    return float(accountant.rdp[0])


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
    for terms in (_FIRST_TERMS, _MOST_TERMS):
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


ACCOUNTANTS.register(
    Accountant(
        name="rdp",
        label="RDP",
        source="Mironov 2017; Canonne, Kamath & Steinke 2020",
        samplings=frozenset(SAMPLINGS),
        epsilon=epsilon_rdp,
    )
)
ACCOUNTANTS.register(
    Accountant(
        name="rdp-classic",
        label="RDP, classic",
        source="Mironov 2017, Proposition 3",
        samplings=frozenset(SAMPLINGS),
        epsilon=partial(epsilon_rdp, conversion="classic"),
    )
)
