"""Laws of noise: of single values, of quantiles, and of pairs of vectors.

Statistics of the check "noise-scale" for what no sum over many values shows. Every function takes
noise in units of the standard deviation charged for it; p-values are those that a correct run has
with no more than their own probability.

Noise that is known is noise that can be subtracted, so where a quantile lies is private. What may
be told is the interval in which the Kolmogorov-Smirnov test accepts it, which depends on the number
of values alone, and on which side it left that interval, if it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from audit.statistics.intervals import correlation_threshold, uniform_p_value
from audit.untrusted.archives import Floats, Integers

_CHUNK = 2048
_NEIGHBOURS = 3


def largest_correlation(rows: NDArray[np.float64]) -> float:
    """Largest |correlation| of two different rows of [n, m]; 0 for fewer than two."""
    unit = _unit(rows)
    worst = 0.0
    for start in range(0, len(unit), _CHUNK):
        cross = np.abs(unit[start : start + _CHUNK] @ unit.T)
        here = np.arange(start, min(start + _CHUNK, len(unit)))
        cross[here - start, here] = 0.0
        worst = max(worst, float(cross.max()))
    return worst


def any_repeated(rows: NDArray[np.float64], alpha: float) -> bool:
    """Whether two of the rows [n, m] are the same noise, whatever its sign and scale.

    Repeats of one noise vector have equal ratios of two coordinates, so they are neighbours in that
    order wherever in the run they are: a search of n rows instead of all pairs.
    """
    length = rows.shape[1]
    # Modulo a half turn: a vector and its negative have one direction.
    order = np.argsort(np.arctan2(rows[:, 1], rows[:, 0]) % np.pi, kind="stable")
    unit = _unit(rows[order])
    far = correlation_threshold(length, _NEIGHBOURS * max(1, len(unit)), alpha)
    # Neighbours in this order already agree in one direction of the space.
    far = max(far, 1.0 - 1e-6) if length < 16 else min(1.0 - 1e-6, far + (1.0 - far) * 0.5)
    return any(
        len(unit) > lag and bool(np.any(np.abs((unit[lag:] * unit[:-lag]).sum(axis=1)) > far))
        for lag in range(1, _NEIGHBOURS + 1)
    )


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0.0, 1.0, norms)


_LEVELS = (
    0.005, 0.01, 0.02, 0.035, 0.05, 0.075, *(0.1 + 0.05 * step for step in range(17)),
    0.925, 0.95, 0.965, 0.98, 0.99, 0.995,
)  # fmt: skip
_EXACT_LAW = 5000


def kolmogorov_distance(count: int, alpha: float) -> float:
    """Distance of distribution functions that `count` values of the true law exceed with alpha."""
    if count <= _EXACT_LAW:
        return float(stats.kstwo.isf(alpha, count))
    return float(stats.kstwobign.isf(alpha)) / float(np.sqrt(count))


def quantile_verdicts(values: NDArray[np.float64], alpha: float) -> dict[str, Any]:
    """Judge quantiles of values that should be standard normal.

    If the Kolmogorov-Smirnov test at level alpha accepts the values, each quantile is inside: the
    level-p quantile then lies in [Φ⁻¹(p − c), Φ⁻¹(p + c)], c being the test's critical distance.
    The verdicts so spend no false alarms of their own.

    Args:
        values: Recorded noise in units of its charged standard deviation, any shape, not empty.
        alpha: The test's level.

    Returns:
        levels p, the normal law's quantiles at them (expected), the accepted interval (low, high)
        and "inside", "below" or "above" for each (verdicts), at levels at least 2c from 0 and
        1. Nothing in it but the verdicts depends on the values.
    """
    ordered = np.sort(values, axis=None)
    count = len(ordered)
    # scipy's inverse is good to 1e-5 of the distance; what the test accepts must be inside.
    reach = (1.0 + 1e-4) * kolmogorov_distance(count, alpha)
    # Nearer to 0 and 1 the intervals are so wide that they say nothing.
    levels = [level for level in _LEVELS if 2.0 * reach < min(level, 1.0 - level)]
    rows = []
    for level in levels:
        low, high = (float(special.ndtri(level + side * reach)) for side in (-1.0, 1.0))
        found = ordered[min(count - 1, max(0, int(np.ceil(level * count - 1e-9)) - 1))]
        verdict = "below" if found < low else "inside" if found <= high else "above"
        rows.append((float(special.ndtri(level)), low, high, verdict))
    return {
        "levels": [round(level, 4) for level in levels],
        "expected": [row[0] for row in rows],
        "low": [row[1] for row in rows],
        "high": [row[2] for row in rows],
        "verdicts": [row[3] for row in rows],
    }


# Noise is rounded to a grid of at most this spacing, and float32 to this share of a sum.
_GRID, _FLOAT32 = 2.0**-20, 2.0**-22
# A clean sum that was rounded to 16 significant bits together with its noise.
_PUBLIC_GRID = 2.0**-15
# Values are moved by chance within this width before those alike are counted: eight times the grid
# that noise is rounded to, so that the grid itself makes no pairs (one in 16,000 more at most).
_JITTER = 2.0**-17
# Quantiles of sums by coordinate at which those beyond are counted; the last is divided by d.
_TAILS = (1e-2, 1e-3, 1e-4, 1e-6)
_FURTHEST_TAIL = 1e-6
_MOST_COMPARED = 100_000


def zeros_expected(
    coordinates: Floats, clean: Floats, *, gridded: bool = False
) -> NDArray[np.float64]:
    """At most how many coordinates of each vector have noise that vanishes in rounding, [n].

    Noise z is lost where |z| is below half the grid's spacing and half a unit in the last place of
    the sum; its density is at most 0.4, and Σ|c_i| at most √d·‖c‖.

    Args:
        coordinates: [n] how many carry noise.
        clean: [n] norm of the vector without noise, in units of the noise's standard deviation.
        gridded: whether the sum was rounded to the public grid of uploads as well.
    """
    lost = _FLOAT32 + (_PUBLIC_GRID if gridded else 0.0)
    return np.asarray(coordinates * _GRID + lost * np.sqrt(coordinates) * clean)


def silent_p_values(silent: Integers, expected: Floats) -> tuple[Floats, float]:
    """How likely so many zeros are: in each vector [n], and in all together."""
    each = np.asarray(stats.poisson.sf(silent - 1, expected), dtype=np.float64)
    return each, float(stats.poisson.sf(int(silent.sum()) - 1, float(expected.sum())))


@dataclass(frozen=True)
class Extremes:
    """P-values of the largest magnitudes of many vectors.

    Attributes:
        too_small: of the largest of all, were it smaller by chance.
        too_large: were it larger by chance.
        shape: of all of them against their law.
        lightness: of their probabilities' product being so small: tails that are cut a little.
    """

    too_small: float
    too_large: float
    shape: float
    lightness: float


def extremes(largest: Floats, coordinates: Floats) -> Extremes:
    """Judge the largest magnitude of each of n independent Gaussian vectors.

    P(max |z| ≤ m) = (2Φ(m) − 1)^k exactly, so each turns into a uniform number, and minus the sum
    of their logarithms follows a gamma law of shape n.

    Args:
        largest: [n], of standard normal numbers.
        coordinates: [n] how many numbers each is the largest of, k.
    """
    logs = coordinates * np.log1p(-np.minimum(2.0 * special.ndtr(-largest), 1.0))
    most = float(largest.max())
    whole = float(coordinates.sum() * np.log1p(-min(2.0 * float(special.ndtr(-most)), 1.0)))
    return Extremes(
        too_small=float(np.exp(whole)),
        too_large=float(-np.expm1(whole)),
        shape=uniform_p_value(np.exp(logs)),
        lightness=float(stats.gamma.sf(-logs.sum(), len(logs))),
    )


def pairs_alike(count: int, resolution: float = 0.0) -> tuple[float, float, float]:
    """The tolerance, and mean and variance of how many pairs of `count` values are closer.

    P(|z − z'| < w) = 2w·∫φ², and ∫φ³ is what triples have in common (a U-statistic).
    """
    width = max(_JITTER, 8.0 * resolution)
    chance = width / np.sqrt(np.pi)
    shared = 4.0 * width**2 / (2.0 * np.pi * np.sqrt(3.0)) - chance**2
    pairs = count * (count - 1.0) / 2.0
    mean = pairs * chance
    return width, mean, mean * (1.0 - chance) + pairs * 2.0 * (count - 2.0) * shared


def coincidence_p_value(values: Floats, resolution: float = 0.0) -> float:
    """How likely so many pairs of values alike are: a coarse grid or a table repeats its own.

    The pairs closer than a tolerance are counted (`pairs_alike`); the upper tail is that of the
    gamma law of the same mean and variance.

    Args:
        values: [n] standard normal numbers, independent.
        resolution: width to which any of them was rounded, beyond the grid of the noise.
    """
    count = values.size
    if count < 2:
        return 1.0
    width, mean, variance = pairs_alike(count, resolution)
    moved = values.ravel() + np.random.default_rng(count).uniform(-width / 2, width / 2, count)
    ordered = np.sort(moved)
    alike = np.searchsorted(ordered, ordered + width) - np.arange(count) - 1
    return float(stats.gamma.sf(float(alike.sum()), mean**2 / variance, scale=variance / mean))


@dataclass(frozen=True)
class Spread:
    """P-values of the sums of squares of d coordinates.

    Attributes:
        shape: of all against the law of χ².
        low: the least of those of how many lie in a lower tail, times their number.
        high: the same of upper tails.
    """

    shape: float
    low: float
    high: float


def tail_levels(count: int) -> tuple[float, ...]:
    """Shares of `count` coordinates beyond which tails are counted, on either side."""
    return (*_TAILS, _FURTHEST_TAIL / count)


def coordinate_p_values(squares: Floats, degrees: Integers) -> Spread:
    """Judge the sum of squares of every coordinate, by itself and together with the others.

    How many of d independent sums lie beyond a quantile is binomial, so a few that are far too
    small are found as well as many that are a little. Bonferroni over the quantiles.

    Args:
        squares: [d] sums of squares of standard normal numbers.
        degrees: [d] of how many each, at least 1.
    """
    count = len(squares)
    levels = tail_levels(count)
    least = {"low": 1.0, "high": 1.0}
    for level in levels:
        low, high = 0, 0
        for number in np.unique(degrees):
            own = squares[degrees == number]
            low += int(np.count_nonzero(own < stats.chi2.ppf(level, number)))
            high += int(np.count_nonzero(own > stats.chi2.isf(level, number)))
        for side, found in (("low", low), ("high", high)):
            least[side] = min(least[side], float(stats.binom.sf(found - 1, count, level)))
    # As many as decide; the stride is fixed, and the others have been counted above.
    stride = -(-count // _MOST_COMPARED)
    chances = np.asarray(stats.chi2.cdf(squares[::stride], degrees[::stride]))
    return Spread(
        shape=uniform_p_value(chances),
        low=min(1.0, len(levels) * least["low"]),
        high=min(1.0, len(levels) * least["high"]),
    )


def halves_p_value(squares: Floats, degrees: Floats) -> float:
    """Two-sided p-value of the scale of a first half of rounds or steps against the second.

    x/(x + y) of two independent sums of squares follows a beta law exactly. The middle one of an
    odd number belongs to neither.

    Args:
        squares: [n] sums of squares, in order.
        degrees: [n] of how many numbers.
    """
    half = len(squares) // 2
    if not half:
        return 1.0
    first, second = float(squares[:half].sum()), float(squares[-half:].sum())
    shapes = 0.5 * float(degrees[:half].sum()), 0.5 * float(degrees[-half:].sum())
    if first + second <= 0.0 or min(shapes) <= 0.0:
        return 1.0
    share = first / (first + second)
    lower, upper = (float(stats.beta.cdf(share, *shapes)), float(stats.beta.sf(share, *shapes)))
    return min(1.0, 2.0 * min(lower, upper))
