"""Collects what an active probe measures, row by row, into the arrays that are stored.

Shared by `probing` (records) and `update_probing` (whole clients), so that both leave the same
arrays behind.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

REPEAT = "repeat"
REPLACED = "replaced"
# Each counts for itself: with others beside it, a sum is longer by just what it is alone.
ADDED = "added to others as it is alone"
# The same among records of other lengths: all that shorter ones have in common ends in zeros, which
# is padding to a model that reads texts.
UNEQUAL = "added to shorter ones as it is alone"
# The same where everything is computed in float64: asked for where float32 gives more than ALONE.
ADDED_PRECISELY = "added to others as it is alone, in float64"
# As a share of C. Batches of different sizes are computed in another order, and a unit that is
# nearly at a kink may fall on its other side; a record that really moves another's gradient moves
# it by far more.
ALONE = 1e-3
# One more that takes no part: what the others get must not move at all.
NOT_DRAWN = "held but not drawn"
ABSENT = "of another client"
SILENT = "of a client that is not drawn"
# The same at other parameters, which must move it.
ELSEWHERE = "other parameters"
# How a row of that kind is named where the step is asked again, at parameters further away.
FAR_OFF = "parameters further away"
# Somebody with several records, where people are protected.
MANY = "a person with several records"
UNMOVED = (REPEAT, NOT_DRAWN, ABSENT, SILENT)
_MOST_STORED_BYTES = 1 << 25
_PIECE = 1 << 15

Numbers = NDArray[np.float64] | NDArray[np.float32]
"""A sum [d], in the precision in which it was told."""


class ProbeTally:
    """Rows of neighbouring pairs.

    Args:
        clipping_norm: C of the probed step, which is told again.
        parameters: d, length of a sum.
        rows: how many pairs there will be; decides whether the sums themselves are kept.
    """

    def __init__(self, clipping_norm: float, parameters: int, rows: int) -> None:
        """Start without rows."""
        self.clipping_norm = clipping_norm
        self._keep = 2 * rows * parameters * 8 <= _MOST_STORED_BYTES
        self._names: list[str] = []
        self._kinds: list[str] = []
        self._sizes: list[int] = []
        self._pairs: list[tuple[Numbers, Numbers]] = []
        self._measured: list[tuple[float, float, float]] = []
        self._known: list[tuple[weakref.ref[Numbers], float]] = []

    def add(
        self,
        name: str,
        kind: str,
        size: int,
        with_one: Numbers,
        without: Numbers,
    ) -> None:
        """Add one pair of sums [d]; `size` counts what both batches hold alike."""
        self._note(name, kind, size, with_one, (without,))
        if self._keep:
            self._pairs.append((with_one, without))

    def add_parts(
        self,
        name: str,
        kind: str,
        size: int,
        together: Numbers,
        parts: tuple[Numbers, Numbers],
    ) -> None:
        """Add a pair of a sum [d] and the sum of two others [d], which should be the same."""
        if self._keep:
            with np.errstate(all="ignore"):
                self.add(name, kind, size, together, parts[0] + parts[1])
            return
        # Long sums are not added up as a whole, which memory would be asked for each time.
        self._note(name, kind, size, together, parts)

    @property
    def last_difference(self) -> float:
        """‖difference‖₂ of the pair that was added last."""
        return self._measured[-1][0]

    def _note(
        self, name: str, kind: str, size: int, with_one: Numbers, without: Sequence[Numbers]
    ) -> None:
        """Measure a pair, whose second sum may come in parts, in one pass over both."""
        norm_with = self._known_norm(with_one)
        norm_without = self._known_norm(without[0]) if len(without) == 1 else None
        squares = [0.0, 0.0, 0.0]
        with np.errstate(all="ignore"):
            for start in range(0, len(with_one), _PIECE):
                part = slice(start, start + _PIECE)
                one, other = with_one[part].astype(np.float64), _sum(without, part)
                # Of float32 numbers in float64 no square overflows.
                if norm_with is None:
                    squares[0] += float(one @ one)
                if norm_without is None:
                    squares[1] += float(other @ other)
                other -= one
                squares[2] += float(other @ other)
            found = [float(np.sqrt(value)) for value in squares]
        if norm_with is None:
            norm_with = self._remember(with_one, found[0])
        if norm_without is None:
            norm_without = found[1]
            if len(without) == 1:
                self._remember(without[0], found[1])
        self._measured.append((found[2], norm_with, norm_without))
        self._names.append(name)
        self._kinds.append(kind)
        self._sizes.append(size)

    def _known_norm(self, vector: Numbers) -> float | None:
        """The norm of a sum that an earlier pair has; it may have millions of numbers."""
        self._known = [(seen, norm) for seen, norm in self._known if seen() is not None]
        return next((norm for seen, norm in self._known if seen() is vector), None)

    def _remember(self, vector: Numbers, norm: float) -> float:
        self._known.append((weakref.ref(vector), norm))
        return norm

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of evidence/probe.npz, one row a pair."""
        numbers = np.asarray(self._measured, dtype=np.float64)
        arrays: dict[str, NDArray[Any]] = {
            "names": np.asarray(self._names),
            "kind": np.asarray(self._kinds),
            "clipping_norm": np.asarray(self.clipping_norm),
            "batch_size": np.asarray(self._sizes, dtype=np.int64),
            "difference_norm": numbers[:, 0].copy(),
            "norm_with": numbers[:, 1].copy(),
            "norm_without": numbers[:, 2].copy(),
        }
        if self._keep:
            arrays["sums_with"] = _stored(pair[0] for pair in self._pairs)
            arrays["sums_without"] = _stored(pair[1] for pair in self._pairs)
        return arrays


def shortened(records: NDArray[Any]) -> NDArray[Any]:
    """Records [n, …] of which a quarter, three eighths or half of each axis is left before zeros.

    So they are short whichever axis counts places. Neighbours differ in length.
    """
    short = np.zeros_like(records)
    for row, record in enumerate(records):
        kept = tuple(slice(max(1, side * (row % 3 + 2) // 8)) for side in record.shape)
        short[row][kept] = record[kept]
    return short


def _stored(sums: Iterable[Numbers]) -> NDArray[np.float64]:
    return np.stack([one.astype(np.float64) for one in sums])


def _sum(vectors: Sequence[Numbers], part: slice) -> NDArray[np.float64]:
    total = vectors[0][part].astype(np.float64)
    for vector in vectors[1:]:
        total += vector[part]
    return total
