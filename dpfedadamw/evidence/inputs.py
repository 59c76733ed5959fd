"""What the engine writes down of the records themselves: whose they are, and how they were scaled.

No record is written, only where each lies in the data set, and the mean and deviation of each
client's numbers as the model reads them. Private, like all evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.profiling import part
from dpfedadamw.rundir import write_arrays

# Moments of more numbers than these would delay a run by seconds; they are then left out.
_MOST_NUMBERS = 1 << 28
# Columns of which it is told how far they reach.
_MOST_COLUMNS, _MOST_ROWS = 64, 1 << 16
# Numbers of small clients that are read between two times that a mapped file is let go of.
_AT_ONCE = 1 << 22


class HeldRecords(Protocol):
    """One client's records, in memory or on disk."""

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Which rows of the data set they are, [R]; None for all."""
        ...

    @property
    def numbers(self) -> int:
        """How many numbers `plain` gives."""
        ...

    def __len__(self) -> int:
        """How many they are."""
        ...

    def plain(self) -> Iterator[Tensor]:
        """The numbers that a model reads, before resizing, [b, …]; none for tokens."""
        ...

    def let_go(self) -> None:
        """Let go of what was read of a mapped file."""
        ...


class _Moments:
    """Sums over records, and the range of each column, one place of a record."""

    def __init__(self) -> None:
        self.records = 0
        self.total = self.squares = 0.0
        self.least: Tensor | None = None
        self.greatest: Tensor | None = None

    def add(self, batch: Tensor) -> None:
        """Add numbers [b, …]."""
        rows = batch.reshape(len(batch), -1)
        self.records += len(rows)
        self.total += float(rows.sum(dtype=torch.float64))
        # A square rounds by 2^-24 of itself, up as often as down: far below what a check allows.
        squares = float(rows.square().sum(dtype=torch.float64))
        # Of a number beyond 10^19 float32 holds no square.
        finite = math.isfinite(squares)
        self.squares += squares if finite else float(rows.double().square().sum())
        self._widen(rows.amin(0), rows.amax(0))

    def merge(self, other: _Moments) -> None:
        """Add what another one has gathered."""
        self.records += other.records
        self.total += other.total
        self.squares += other.squares
        if other.least is not None and other.greatest is not None:
            self._widen(other.least, other.greatest)

    def _widen(self, least: Tensor, greatest: Tensor) -> None:
        self.least = least if self.least is None else torch.minimum(self.least, least)
        known = self.greatest
        self.greatest = greatest if known is None else torch.maximum(known, greatest)

    def row(self) -> tuple[int, float, float, int]:
        """Numbers, mean, deviation, and how many of the numbers lie in columns that vary."""
        if self.least is None or self.greatest is None:
            return 0, 0.0, 0.0, 0
        numbers = self.records * len(self.least)
        mean = self.total / numbers
        variance = max(0.0, self.squares / numbers - mean * mean)
        varying = self.records * int((self.greatest > self.least).sum())
        return numbers, mean, math.sqrt(variance), varying


class _Range:
    """How far the numbers of some columns reach, and how many of them are different.

    Scaled by their own least and greatest numbers, columns of continuous numbers reach from exactly
    0 (or -1) to exactly 1. Grey levels do so by themselves, which is why it counts whether a
    column's numbers differ.
    """

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._kept = 0
        self._columns: list[tuple[Tensor, Tensor]] = []
        self._ends: list[tuple[float, float, int, int]] = []

    def add(self, batch: Tensor) -> None:
        """Add numbers [b, …]."""
        rows = batch.reshape(len(batch), -1).cpu()
        least, greatest = float(rows.min()), float(rows.max())
        reached = int((rows == least).sum()), int((rows == greatest).sum())
        self._ends.append((least, greatest, *reached))
        columns = rows.shape[1]
        some = rows[:, torch.arange(0, columns, max(1, columns // _MOST_COLUMNS))]
        self._columns.append((some.amin(0), some.amax(0)))
        # The first are enough to tell whether numbers differ.
        self._keep(some)

    def merge(self, other: _Range) -> None:
        """Add what another one has gathered."""
        for rows in other._parts:
            self._keep(rows)
        self._columns = _extremes([*self._columns, *other._columns])
        self._ends.extend(other._ends)

    def _keep(self, rows: Tensor) -> None:
        left = _MOST_ROWS - self._kept
        if left > 0:
            self._parts.append(rows[:left].clone())
            self._kept += len(self._parts[-1])

    def row(self) -> tuple[float, float, int, int, int, int]:
        """Least and greatest number, how often each is reached, columns, and those that span."""
        if not self._parts:
            return 0.0, 0.0, 0, 0, 0, 0
        least = min(end[0] for end in self._ends)
        greatest = max(end[1] for end in self._ends)
        lowest = sum(end[2] for end in self._ends if end[0] == least)
        highest = sum(end[3] for end in self._ends if end[1] == greatest)
        values = np.sort(torch.cat(self._parts)[:_MOST_ROWS].numpy(), axis=0)
        different = 1 + (np.diff(values, axis=0) != 0.0).sum(axis=0)
        continuous = (2 * different > len(values)) & (len(values) > 2)
        ((lowest_of, highest_of),) = _extremes(self._columns)
        low, high = lowest_of.numpy(), highest_of.numpy()
        spans = continuous & np.isin(low, (0.0, -1.0)) & (high == 1.0)
        return least, greatest, lowest, highest, int(continuous.sum()), int(spans.sum())


def _extremes(columns: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The least and the greatest number of each column over several, as one; none of none."""
    if len(columns) < 2:
        return columns
    low, high = zip(*columns, strict=True)
    return [(torch.stack(low).amin(0), torch.stack(high).amax(0))]


@part("evidence")
def write_partition(
    directory: Path,
    client_of_record: NDArray[np.int64],
    held: Sequence[HeldRecords],
    contents: Sequence[NDArray[np.uint8]] = (),
) -> None:
    """Write which client each training record was given to, and which rows each really works on.

    Args:
        directory: The run's ``evidence/``.
        client_of_record: The client of each training record by the partition, [n].
        held: The records that each client trains on, by client.
        contents: Keyed digests of these, [R, 16] each; none where contents are not told apart.
    """
    rows = [np.arange(len(one)) if one.rows is None else one.rows for one in held]
    write_arrays(
        directory / "partition.npz",
        {
            "client_of_record": client_of_record,
            "held": np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64),
            "held_offsets": np.cumsum([0, *map(len, rows)]).astype(np.int64),
            **({"held_contents": np.concatenate(contents)} if contents else {}),
        },
    )


@part("evidence")
def write_inputs(directory: Path, held: Sequence[HeldRecords]) -> None:
    """Write the moments of the clients' numbers as the model reads them, before resizing.

    Where bounds of columns are learnt, before these too: their counts are evidence of their own.

    One row a client, and a last one for all together. Records scaled by statistics of their own
    show there: their mean is 0, and their variance 1 in every column that is not constant; or they
    reach from exactly 0 to exactly 1.

    Args:
        directory: The run's ``evidence/``.
        held: The records that each client trains on, by client.
    """
    numbers = sum(one.numbers for one in held)
    together, rows = _Moments(), []
    reach, reaches = _Range(), []
    read = 0
    for one in held:
        own, ends = _Moments(), _Range()
        for batch in one.plain() if numbers <= _MOST_NUMBERS else ():
            own.add(batch)
            ends.add(batch)
        together.merge(own)
        rows.append(own.row())
        reach.merge(ends)
        reaches.append(ends.row())
        read += one.numbers
        if read > _AT_ONCE:
            one.let_go()
            read = 0
    counts, means, deviations, varying = zip(*rows, together.row(), strict=True)
    least, greatest, lowest, highest, columns, spanning = zip(*reaches, reach.row(), strict=True)
    write_arrays(
        directory / "inputs.npz",
        {
            "numbers": np.asarray(counts, np.int64),
            "mean": np.asarray(means, np.float64),
            "deviation": np.asarray(deviations, np.float64),
            "varying": np.asarray(varying, np.int64),
            "least": np.asarray(least, np.float64),
            "greatest": np.asarray(greatest, np.float64),
            "lowest": np.asarray(lowest, np.int64),
            "highest": np.asarray(highest, np.int64),
            "continuous": np.asarray(columns, np.int64),
            "spanning": np.asarray(spanning, np.int64),
        },
    )
