"""Do noise vectors share noise? Correlations of pairs, near and far.

Statistics of the check "noise-scale" at both units. Vectors are the noise of single queries at the
sampled coordinates, in units of its claimed standard deviation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from audit.statistics.intervals import correlation_threshold

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
        worst = max(worst, float(cross.max(initial=0.0)))
    return worst


def any_repeated(rows: NDArray[np.float64], alpha: float) -> bool:
    """Whether two of the rows [n, m] are the same noise, whatever its sign and scale.

    Repeats of one noise vector have equal ratios of two coordinates, so they are neighbours in that
    order wherever in the run they are: a search of n rows instead of all pairs.
    """
    length = rows.shape[1]
    order = np.argsort(np.arctan(rows[:, 1] / _nonzero(rows[:, 0])), kind="stable")
    unit = _unit(rows[order])
    far = correlation_threshold(length, _NEIGHBOURS * max(1, len(unit)), alpha)
    # Neighbours in this order already agree in one direction of the space.
    far = max(far, 1.0 - 1e-6) if length < 16 else min(1.0 - 1e-6, far + (1.0 - far) * 0.5)
    return any(
        len(unit) > lag and bool(np.any(np.abs((unit[lag:] * unit[:-lag]).sum(axis=1)) > far))
        for lag in range(1, _NEIGHBOURS + 1)
    )


def _nonzero(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(values == 0.0, 1e-300, values)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0.0, 1.0, norms)
