"""The privacy loss of one batch of fixed size, drawn without replacement, under replace-one.

dp-accounting composes Poisson batches by privacy loss distributions, and fixed-size ones by Rényi
divergences alone, which cost far more. What is missing, the distribution of a single step, is here:
`pld` composes it like any other.

With q = B/R the replaced record is in the batch with probability q, and every batch without it can
be turned into one with it by exchanging one record. Joint convexity then bounds a step's privacy
profile (Balle, Barthe & Gaboardi 2018, theorem 9) by

    δ(log(1 + q(e^ε - 1))) ≤ q·δ_G(ε),   ε ≥ 0,

where δ_G is the profile of a Gaussian mechanism whose neighbours lie 2C apart. Replacing is
symmetric, so the same bound holds for the pair the other way round, which gives the profile at
negative ε. Both halves together are a convex function, and so the profile of a pair of
distributions, which dominates every step: it may be composed (Zhu, Dong & Wang 2022; it is the
subsampling operator of Dong, Roth & Su 2022).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from dpfedadamw.accounting.losses import LossPair, on_grid

__all__ = ["fixed_size_losses", "fixed_size_profile"]

# Outputs of less probability than this count as an infinite loss.
_TAIL = 1e-27


def fixed_size_profile(
    noise_over_sensitivity: float, rate: float, epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the bound on δ(ε) of one step, for ε of either sign.

    Args:
        noise_over_sensitivity: σ/2, the noise over the 2C by which a replaced record moves the sum.
        rate: q = B/R in (0, 1].
        epsilons: ε [n].

    Returns:
        δ [n] in [0, 1].
    """
    size = np.abs(epsilons)
    # ε of the mechanism that the batch is fed to: log1p(expm1(ε)/q), without overflow.
    with np.errstate(over="ignore", divide="ignore"):
        inner = np.where(size < 30.0, np.log1p(np.expm1(np.minimum(size, 30.0)) / rate), 0.0)
        large = size + np.log1p(-(1.0 - rate) * np.exp(-size)) - math.log(rate)
    inner = np.where(size < 30.0, inner, large)
    shift = 1.0 / noise_over_sensitivity
    positive = rate * (
        ndtr(shift / 2.0 - inner / shift) - np.exp(inner + log_ndtr(-shift / 2.0 - inner / shift))
    )
    positive = np.maximum(positive, 0.0)
    # Mirrored: δ(-ε) = 1 - e^(-ε) + e^(-ε)·δ(ε) of the pair the other way round.
    mirrored = -np.expm1(-size) + np.exp(-size) * positive
    profile: NDArray[np.float64] = np.where(epsilons >= 0.0, positive, mirrored)
    return profile


def fixed_size_losses(
    noise_over_sensitivity: float, rate: float, interval: float, coarser: LossPair | None = None
) -> LossPair:
    """Return the privacy loss of one step, rounded up to a grid; the same for both neighbours.

    Args:
        noise_over_sensitivity: σ/2.
        rate: q = B/R in (0, 1].
        interval: width of the grid of losses, above 0.
        coarser: the same on a coarser grid, if it is known; see `losses.on_grid`.
    """
    shift = 1.0 / noise_over_sensitivity
    largest = shift * (shift / 2.0 - float(ndtri(_TAIL)))
    top = float(
        np.logaddexp(math.log1p(-rate) if rate < 1.0 else -math.inf, math.log(rate) + largest)
    )
    points = max(1, math.ceil(top / interval))
    epsilons = np.arange(-points, points + 1, dtype=np.float64) * float(interval)
    # Rounding errors of the last bits must not make the profile rise.
    deltas = np.minimum.accumulate(fixed_size_profile(noise_over_sensitivity, rate, epsilons))
    # The profile is a straight line in e^ε between two points of the grid: its bends are masses.
    falls = np.diff(deltas)
    masses = np.concatenate(([1.0 - deltas[0]], falls / math.expm1(-interval)))
    # 1/(e^h - 1), which is 0 where e^h is beyond all numbers.
    masses[:-1] += falls * (math.exp(-interval) / -math.expm1(-interval))
    known = coarser.remove if coarser else None
    one = on_grid(interval, -points, np.maximum(masses, 0.0), float(deltas[-1]), known)
    return LossPair(one, one)
