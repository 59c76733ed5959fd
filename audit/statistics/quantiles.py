"""Quantiles of the recorded noise against the normal law's: a verdict a quantile, never a value.

Noise that is known is noise that can be subtracted, so where a quantile lies is private. What may
be told is the interval in which the Kolmogorov-Smirnov test accepts it, which depends on the number
of values alone, and on which side it left that interval, if it did.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

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
