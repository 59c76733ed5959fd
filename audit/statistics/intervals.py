"""Small statistical helpers of the checks: exact intervals and false-alarm arithmetic.

Every statistical check spends at most `FALSE_ALARM` on a correct run, shared out among its tests
(Bonferroni), and prints the interval's half-width as its power.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

FALSE_ALARM = 1e-3


def chi_square_interval(degrees: float, alpha: float) -> tuple[float, float]:
    """Two-sided interval of χ²/degrees that a correct value leaves with probability alpha."""
    if degrees > 1e7:
        # Wilson-Hilferty; its error is far below the interval's width here.
        spread = 2.0 / (9.0 * degrees)
        reach = float(special.ndtri(1.0 - alpha / 2.0)) * np.sqrt(spread)
        return float((1.0 - spread - reach) ** 3), float((1.0 - spread + reach) ** 3)
    low = stats.chi2.ppf(alpha / 2.0, degrees) / degrees
    high = stats.chi2.isf(alpha / 2.0, degrees) / degrees
    return float(low), float(high)


def sigma_half_width(interval: tuple[float, float]) -> float:
    """Half-width on a standard deviation of an interval on the variance's ratio."""
    return float(max(np.sqrt(interval[1]) - 1.0, 1.0 - np.sqrt(interval[0])))


def gamma_interval(mean: float, variance: float, alpha: float) -> tuple[float, float]:
    """Two-sided interval of a positive sum of squares with this mean and variance.

    A weighted sum of χ² variables is matched by the gamma law of the same two moments
    (Satterthwaite); it is exact for equal weights and normal for many terms.
    """
    if variance <= 0.0:
        return mean, mean
    scale = variance / mean
    shape = mean / scale
    low, high = chi_square_interval(2.0 * shape, alpha)
    return mean * low, mean * high


def skewed_upper_end(mean: float, variance: float, third: float, alpha: float) -> float:
    """What a sum of squares with these three cumulants exceeds with probability alpha.

    A gamma law that is moved matches all three (Hall 1983; Buckley & Eagleson 1988). With weights
    that are far from equal the upper tail of a weighted sum of χ² is heavier than that of the gamma
    law of its first two moments alone.

    Args:
        mean: first cumulant.
        variance: second.
        third: third.
        alpha: of the upper tail.

    Returns:
        That end; the mean where nothing is skewed, for which a normal law is the better one.
    """
    if not (variance > 0.0 and third > 0.0):
        return mean
    deviation = float(np.sqrt(variance))
    skewness = third / variance / deviation
    # No sum of squares is more skewed than one square, by sqrt(8).
    if not 1e-6 < skewness < 3.0:
        return mean
    shape = 4.0 / skewness**2
    reach = chi_square_interval(2.0 * shape, 2.0 * alpha)[1] - 1.0
    return mean + deviation * (skewness / 2.0) * shape * reach


def correlation_threshold(length: int, tests: int, alpha: float) -> float:
    """|correlation| of two independent Gaussian vectors that `tests` pairs exceed with alpha.

    Means are known to be zero, so r² ~ Beta(1/2, (length − 1)/2) exactly.
    """
    tail = alpha / max(1, tests)
    return float(np.sqrt(stats.beta.isf(tail, 0.5, (length - 1) / 2.0)))


def binomial_interval(successes: int, trials: int, alpha: float) -> tuple[float, float]:
    """Exact two-sided interval of a rate (Clopper & Pearson 1934), which it leaves with alpha."""
    low = stats.beta.ppf(alpha / 2.0, successes, trials - successes + 1) if successes else 0.0
    failures = trials - successes
    high = stats.beta.isf(alpha / 2.0, successes + 1, failures) if failures else 1.0
    return float(low), float(high)


def binomial_p_value(successes: int, trials: int, rate: float) -> float:
    """Exact two-sided p-value: twice the smaller tail."""
    lower = float(stats.binom.cdf(successes, trials, rate))
    upper = float(stats.binom.sf(successes - 1, trials, rate))
    return min(1.0, 2.0 * min(lower, upper))


def kolmogorov_p_value(values: NDArray[np.float64]) -> float:
    """P-value of the Kolmogorov-Smirnov statistic of values against the standard normal law."""
    return uniform_p_value(special.ndtr(values))


def uniform_p_value(values: NDArray[np.float64]) -> float:
    """P-value of the Kolmogorov-Smirnov statistic of values against the uniform law on [0, 1]."""
    ordered = np.sort(values)
    count = len(ordered)
    steps = np.arange(count + 1) / count
    distance = max(float(np.max(steps[1:] - ordered)), float(np.max(ordered - steps[:-1])))
    return (
        float(stats.kstwo.sf(distance, count))
        if count <= 5000
        else float(stats.kstwobign.sf(distance * np.sqrt(count)))
    )


def relative_difference(left: float, right: float) -> float:
    """|left − right| over the larger magnitude; 0 for two zeros."""
    scale = max(abs(left), abs(right))
    return 0.0 if scale == 0.0 else abs(left - right) / scale
