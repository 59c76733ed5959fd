"""Rényi differential privacy: the accountants beside the tight one, one for each conversion.

They share nothing with the privacy loss distributions of `pld` but the mechanism, and so stand
beside each claim as a check. The divergences of batches of fixed size are those of dp-accounting,
those of Poisson batches are in `divergences`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from dpfedadamw.accounting.divergences import (
    ORDERS,
    improved_epsilon,
    poisson_divergence,
)
from dpfedadamw.accounting.registry import ACCOUNTANTS, Accountant
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import (
    SAMPLINGS,
    Composition,
    Compositions,
    check_delta,
    merge,
)

__all__ = ["Conversion", "divergence", "epsilon_rdp"]

Conversion = Literal["improved", "classic"]
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
    # Between whole orders the divergence is a series that takes long, so it is asked for beside the
    # best one alone, where the least value lies, and for few kinds of steps.
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
