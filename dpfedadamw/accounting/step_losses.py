"""The privacy loss of one Gaussian query on a sample of the records, by how the sample is drawn.

A Poisson sample, under add/remove: with one record more, the noised sum of a batch follows
P = (1-q)·N(0, σ²) + q·N(1, σ²), and without it Q = N(0, σ²), both in units of the clipping norm.
The loss log(P/Q) grows with the output, so each cell of a grid of losses is an interval of outputs,
whose masses under P and Q are differences of the normal distribution. They are divided between the
cell's two ends so that both are kept, which dominates the pair (Doroshenko et al. 2022, "connect
the dots").

The same distribution comes from dp-accounting, which forms the masses as second differences of the
profile δ(ε): their rounding errors grow as the grid gets finer, and a million compositions show
them. Tests compare the two.

A batch of fixed size, drawn without replacement, under replace-one: dp-accounting composes such by
Rényi divergences alone, which cost far more. What is missing, the distribution of a single step, is
here: `pld` composes it like any other.

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

__all__ = ["fixed_size_losses", "fixed_size_profile", "poisson_losses", "poisson_range"]

# Outputs of less probability than this count as an infinite loss, even times 10^12 compositions.
_TAIL = 1e-27
_REACH = -float(ndtri(_TAIL))


def poisson_range(noise_multiplier: float, rate: float) -> tuple[float, float]:
    """Return the least and the greatest loss that count as finite, for removing a record."""
    rest = math.log1p(-rate) if rate < 1.0 else -math.inf
    least, greatest = (
        float(np.logaddexp(rest, math.log(rate) + (2.0 * output - 1.0) / 2.0 / noise_multiplier**2))
        for output in (-_REACH * noise_multiplier, 1.0 + _REACH * noise_multiplier)
    )
    return least, greatest


def poisson_losses(
    noise_multiplier: float, rate: float, interval: float, coarser: LossPair | None = None
) -> LossPair:
    """Return the privacy loss of one step, rounded up to a grid.

    Args:
        noise_multiplier: σ over how far one record moves the sum, above 0.
        rate: q in (0, 1].
        interval: Width of the grid of losses, above 0.
        coarser: The same on a coarser grid, if it is known; see `losses.on_grid`.
    """
    least, greatest = poisson_range(noise_multiplier, rate)
    first, last = math.floor(least / interval), math.ceil(greatest / interval)
    grid = np.arange(first, last + 1, dtype=np.float64) * interval
    outputs = _outputs(grid, noise_multiplier, rate)
    bounds = np.concatenate(([-np.inf], outputs, [np.inf]))
    without = _normal_masses(bounds / noise_multiplier)
    shifted = _normal_masses((bounds - 1.0) / noise_multiplier)
    with_it = (1.0 - rate) * without + rate * shifted
    remove = _between_ends(with_it, without, grid[:-1], interval)
    add = _between_ends(without[::-1], with_it[::-1], -grid[:0:-1], interval)
    moments = (coarser.remove, coarser.add) if coarser else (None, None)
    return LossPair(
        on_grid(interval, first, remove, float(with_it[-1]), moments[0]),
        on_grid(interval, -last, add, float(without[0]), moments[1]),
    )


def _outputs(grid: NDArray[np.float64], sigma: float, rate: float) -> NDArray[np.float64]:
    """The output at which the loss of removing a record has each value; -∞ where none has."""
    if rate == 1.0:
        return sigma**2 * grid + 0.5
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        near = np.log1p(np.expm1(np.minimum(grid, 30.0)) / rate)
        far = grid + np.log1p(-(1.0 - rate) * np.exp(-grid)) - math.log(rate)
    inner = np.where(grid < 30.0, near, far)
    return sigma**2 * np.where(np.isnan(inner), -np.inf, inner) + 0.5


def _normal_masses(bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mass of the standard normal between neighbouring bounds, exact in both tails."""
    low, high = bounds[:-1], bounds[1:]
    differences = np.where(low > 0.0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    masses: NDArray[np.float64] = np.maximum(differences, 0.0)
    return masses


def _between_ends(
    upper: NDArray[np.float64],
    lower: NDArray[np.float64],
    starts: NDArray[np.float64],
    interval: float,
) -> NDArray[np.float64]:
    """Divide the masses of cells between their ends; what lies below the grid moves up to it.

    Args:
        upper: Masses under the law that losses are drawn from: below the grid, each cell, above.
        lower: The same under the other law.
        starts: The loss at which each cell begins.
        interval: Width of a cell.
    """
    here = upper[1:-1]
    # Beyond a loss of 700 the other law has no mass that a float could hold.
    rest = lower[1:-1] * np.exp(np.minimum(starts, 700.0))
    up = np.clip((here - rest) / -math.expm1(-interval), 0.0, here)
    masses = np.zeros(len(here) + 1)
    masses[1:] += up
    masses[:-1] += here - up
    masses[0] += upper[0]
    return masses


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
        small = np.log1p(np.expm1(size) / rate)
        large = size + np.log1p(-(1.0 - rate) * np.exp(-size)) - math.log(rate)
    inner = np.where(size < 30.0, small, large)
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
