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
_MOST_STORED_BYTES = 1 << 25


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
                (
                    float(np.linalg.norm(with_one - without)),
                    float(np.linalg.norm(with_one)),
                    float(np.linalg.norm(without)),
                )
            )
        if self._keep:
            self._pairs.append((with_one, without))
        self._names.append(name)
        self._kinds.append(kind)
        self._sizes.append(size)

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
