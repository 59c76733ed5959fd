"""Which candidate of a search is best, and whether its grid was wide enough.

Every candidate counts by the mean of its scores over the seeds of the search. Where the best value
of an axis is the smallest or the largest that was tried, a better one may lie beyond, and that is
said.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpfedadamw.spec.matrix import Axis, Cell

_FEWEST = 2


@dataclass(frozen=True)
class Best:
    """The best candidate of one search.

    Attributes:
        cells: Its trials, one a seed.
        score: The mean of their scores; of losses the negative.
        candidates: How many there were.
        edges: Axes of the grid on whose edge it lies.
    """

    cells: tuple[Cell, ...]
    score: float
    candidates: int
    edges: tuple[str, ...]

    @property
    def reported(self) -> tuple[Cell, ...]:
        """The cells that it is reported as: its trials, or the runs that take their place."""
        return self.cells[0].released or self.cells


def best_of(
    cells: Sequence[Cell], grid: Sequence[Axis], scores: Mapping[str, float]
) -> Best | None:
    """Return the best candidate, the first of equals; None while a cell has no score.

    Args:
        cells: All cells of the search.
        grid: Its axes.
        scores: Scores by the cells' digests; the higher, the better.
    """
    if any(cell.digest not in scores for cell in cells):
        return None
    found: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        found.setdefault(tuple(cell.candidate.values()), []).append(cell)
    means = {
        labels: statistics.fmean(scores[cell.digest] for cell in own)
        for labels, own in found.items()
    }
    best = max(means, key=lambda labels: means[labels])
    chosen = found[best]
    edges = tuple(axis.name for axis in grid if _on_edge(axis, chosen[0].candidate[axis.name]))
    return Best(tuple(chosen), means[best], len(found), edges)


def _on_edge(axis: Axis, label: str) -> bool:
    """Whether a value is the smallest or the largest of an axis of numbers."""
    values = [change.value for (change, *_) in axis.changes]
    if len(values) < _FEWEST or not all(_is_number(value) for value in values):
        return False
    return values[axis.labels.index(label)] in (min(values), max(values))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
