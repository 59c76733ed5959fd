"""Collects what an active probe measures, row by row, into the arrays that are stored.

Shared by `probing` (records) and `update_probing` (whole clients), so that both leave the same
arrays behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

REPEAT = "repeat"
REPLACED = "replaced"
# Each counts for itself: with others beside it, a sum is longer by just what it is alone.
ADDED = "added to others as it is alone"
# One more that takes no part: what the others get must not move at all.
NOT_DRAWN = "held but not drawn"
ABSENT = "of another client"
SILENT = "of a client that is not drawn"
# The same at other parameters, which must move it.
ELSEWHERE = "other parameters"
UNMOVED = (REPEAT, NOT_DRAWN, ABSENT, SILENT)
_MOST_STORED_BYTES = 1 << 25
_PIECE = 1 << 14


class ProbeTally:
    """Rows of neighbouring pairs.

    Args:
        clipping_norm: C of the probed step.
        parameters: d, length of a sum.
        rows: how many pairs there will be; decides whether the sums themselves are kept.
    """

    def __init__(self, clipping_norm: float, parameters: int, rows: int) -> None:
        """Start without rows."""
        self._clipping_norm = clipping_norm
        self._keep = 2 * rows * parameters * 8 <= _MOST_STORED_BYTES
        self._names: list[str] = []
        self._kinds: list[str] = []
        self._sizes: list[int] = []
        self._pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
        self._measured: list[tuple[float, float, float]] = []
        self._known: tuple[NDArray[np.float64], float] | None = None

    def add(
        self,
        name: str,
        kind: str,
        size: int,
        with_one: NDArray[np.float64],
        without: NDArray[np.float64],
    ) -> None:
        """Add one pair of sums [d]; `size` counts what both batches hold alike."""
        with np.errstate(all="ignore"):
            self._measured.append(
                (_distance(with_one, without), _norm(with_one), self._norm_again(without))
            )
        if self._keep:
            self._pairs.append((with_one, without))
        self._names.append(name)
        self._kinds.append(kind)
        self._sizes.append(size)

    def _norm_again(self, vector: NDArray[np.float64]) -> float:
        """The norm of a sum that most pairs of a batch share; it may have millions of numbers."""
        if self._known is None or self._known[0] is not vector:
            self._known = (vector, _norm(vector))
        return self._known[1]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of evidence/probe.npz, one row a pair."""
        numbers = np.asarray(self._measured, dtype=np.float64)
        arrays: dict[str, NDArray[Any]] = {
            "names": np.asarray(self._names),
            "kind": np.asarray(self._kinds),
            "clipping_norm": np.asarray(self._clipping_norm),
            "batch_size": np.asarray(self._sizes, dtype=np.int64),
            "difference_norm": numbers[:, 0].copy(),
            "norm_with": numbers[:, 1].copy(),
            "norm_without": numbers[:, 2].copy(),
        }
        if self._keep:
            arrays["sums_with"] = np.stack([pair[0] for pair in self._pairs])
            arrays["sums_without"] = np.stack([pair[1] for pair in self._pairs])
        return arrays


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The norm of a difference, which is formed piece by piece in a core's own memory."""
    squares = 0.0
    for start in range(0, len(one), _PIECE):
        difference = one[start : start + _PIECE] - other[start : start + _PIECE]
        squares += float(difference @ difference)
    return float(np.sqrt(squares))


def _norm(vector: NDArray[np.float64]) -> float:
    """The Euclidean norm; of float32 numbers in float64 no square overflows."""
    return float(np.sqrt(vector @ vector))
