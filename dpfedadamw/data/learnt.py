"""Bounds of columns that a run learns from noised histograms, and what they make of records.

Such a column is stored as it lies between its declared bounds, from -1 to 1, which is public. Cells
of equal width divide that range. The clients' noised histograms are added up, which is
post-processing, and the new bounds are two edges of cells. From then on each batch is held to them
and scaled to -1 to 1 again, in training, evaluation and prediction alike, so that what is stored
and committed to does not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.features import Preparation
from dpfedadamw.errors import DataError
from dpfedadamw.spec.column_section import NumberColumn, learns

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Learnable:
    """A column whose bounds are learnt.

    Attributes:
        name: The column's.
        place: Where its number stands in a record.
        low: The lower bound that is declared, in the column's unit.
        high: The upper one.
        log: Whether numbers between them are scaled by their logarithms.
        bins: Cells between the two.
        quantiles: Between which the records are to lie, two numbers.
    """

    name: str
    place: int
    low: float
    high: float
    log: bool
    bins: int
    quantiles: tuple[float, float]

    def edge(self, number: int) -> float:
        """An edge between cells in the column's unit, from 0 (low) to bins (high)."""
        if number in (0, self.bins):
            return self.high if number else self.low
        low, high = (_bent(one) if self.log else one for one in (self.low, self.high))
        at = low + number / self.bins * (high - low)
        return math.copysign(math.expm1(abs(at)), at) if self.log else at


@dataclass(frozen=True)
class Bounds:
    """What was learnt: for each column the edges of cells that became its bounds.

    Attributes:
        places: Where each column's number stands in a record.
        bins: Cells of each.
        first: The edge that becomes -1, from 0.
        last: The edge that becomes 1, larger.
    """

    places: tuple[int, ...]
    bins: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]

    def apply(self, batch: Tensor) -> Tensor:
        """Hold stored numbers [b, features] to the bounds and scale them, in place."""
        for place, bins, first, last in zip(
            self.places, self.bins, self.first, self.last, strict=True
        ):
            cells = (batch[:, place] + 1.0) * (bins / 2.0)
            held = (cells - first).clamp(0.0, float(last - first))
            batch[:, place] = held * (2.0 / (last - first)) - 1.0
        return batch

    def to_plain(self) -> list[dict[str, int]]:
        """As JSON types, a mapping a column."""
        rows = zip(self.places, self.bins, self.first, self.last, strict=True)
        return [{"place": p, "bins": b, "first": f, "last": e} for p, b, f, e in rows]


def learnable(data: Any) -> tuple[Learnable, ...]:
    """The columns of a spec's section `data` whose bounds are learnt, in their order."""
    preparation = Preparation.of(data)
    if preparation is None:
        return ()
    found, place = [], 0
    for column in preparation.columns:
        if isinstance(column, NumberColumn) and learns(column):
            low, high = column.learn_quantiles
            found.append(
                Learnable(
                    name=column.name,
                    place=place,
                    low=column.low,
                    high=column.high,
                    log=column.scale == "log",
                    bins=column.learn_bins,
                    quantiles=(low, high),
                )
            )
        place += len(replace(preparation, columns=(column,)).features)
    return tuple(found)


def bounds_of(
    columns: Sequence[Learnable], noised: NDArray[np.float64], noise_multiplier: float
) -> Bounds:
    """Read the bounds off the clients' noised histograms.

    Args:
        columns: The columns, in order.
        noised: Each client's noised counts of all of them, [clients, sum of bins].
        noise_multiplier: σ of each count's noise.
    """
    deviation = noise_multiplier * math.sqrt(len(noised))
    ends, start = [], 0
    for column in columns:
        part = noised[:, start : start + column.bins]
        start += column.bins
        # Sums that are rounded once, whatever the order of the clients.
        total = [math.fsum(one) for one in part.T.tolist()]
        # About what the largest of so many empty cells has of noise alone: one that has no more
        # counts as empty, or noise far from all records would be taken for their tail.
        least = deviation * math.sqrt(2.0 * math.log(2.0 * column.bins))
        ends.append(_edges([one if one >= least else 0.0 for one in total], column.quantiles))
    return Bounds(
        tuple(column.place for column in columns),
        tuple(column.bins for column in columns),
        tuple(first for first, _ in ends),
        tuple(last for _, last in ends),
    )


def _edges(counts: Sequence[float], quantiles: tuple[float, float]) -> tuple[int, int]:
    """The last edge below which lies at most one share of all, the first below which the other."""
    whole = math.fsum(counts)
    if not whole > 0.0:
        return 0, len(counts)
    below = [math.fsum(counts[:edge]) for edge in range(len(counts) + 1)]
    low, high = (share * whole for share in quantiles)
    first = max(edge for edge, mass in enumerate(below) if mass <= low)
    last = min(edge for edge, mass in enumerate(below) if mass >= high)
    return first, last


def from_plain(plain: Any, shape: Sequence[int]) -> Bounds | None:
    """The bounds that model.json states (`Bounds.to_plain`); None where there are none.

    Args:
        plain: What stands there.
        shape: Of a record as the model reads it.

    Raises:
        DataError: If it is not what a run writes.
    """
    if plain is None:
        return None
    try:
        rows = [[one[key] for key in ("place", "bins", "first", "last")] for one in plain]
    except (TypeError, KeyError):
        rows = []
    features = shape[0] if len(shape) == 1 else 0
    for row in rows or [[None] * 4]:
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in row)
        if not whole or not (0 <= row[0] < features and 0 <= row[2] < row[3] <= row[1]):
            raise DataError("model.json: learnt: not in the form that a run writes")
    places, bins, first, last = (tuple(one) for one in zip(*rows, strict=True))
    return Bounds(places, bins, first, last)


def to_plain(columns: Sequence[Learnable], bounds: Bounds) -> list[dict[str, Any]]:
    """What ledger and model.json say of the bounds, a mapping a column."""
    return [
        {"column": column.name, "low": column.edge(row["first"]), "high": column.edge(row["last"])}
        | row
        for column, row in zip(columns, bounds.to_plain(), strict=True)
    ]


def _bent(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)
