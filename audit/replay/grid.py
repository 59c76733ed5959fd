"""The public grid: how many significant bits uploads and published weights are written with.

The engine's float32 has 24, of which a run with privacy writes fewer and says in its ledger how
many. What is written in the others was not left there by the algorithm. Between the values that
rounding errors allow, few are on the grid, most often one: what a trainer could choose among them
is counted, in bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.reading.ledger import Grid, Header
from audit.untrusted.arrays import Floats

# The finest grids that are taken for one: what the engine states at each unit.
_FINEST = {
    "record": Grid(update=12, vectors=16, summaries=20, weights=16),
    "client": Grid(update=16, vectors=16, summaries=20, weights=16),
}
NOT_STATED = (
    "the run states no public grid: what is hidden in low-order bits of uploads and weights, below "
    "the rounding of float32, was not looked for"
)


@dataclass(frozen=True)
class Places:
    """Grids of the tensors of one participation.

    Attributes:
        grid: as the ledger states it; None where it states none.
        size: numbers of a recorded vector of all coordinates.
    """

    grid: Grid | None
    size: int

    def bits(self, name: str, update: str, numbers: int) -> int | None:
        """Significant bits of a tensor; None for any.

        Args:
            name: the tensor's.
            update: what the update is called.
            numbers: how many it has.
        """
        if self.grid is None:
            return None
        if name == update:
            return self.grid.update
        return self.grid.vectors if numbers == self.size else self.grid.summaries


def too_fine(header: Header) -> list[str]:
    """What of the grid that a ledger states would leave room."""
    finest = _FINEST.get(header.unit.name)
    if header.grid is None or finest is None:
        return []
    return [
        f"the ledger states a grid of {found} significant bits for {what}, where at most {most} "
        "leave no room"
        for what, most in vars(finest).items()
        if (found := getattr(header.grid, what)) > most
    ]


def grid_notes(header: Header) -> tuple[str, ...]:
    """Why uploads of a run without a grid do not pass; nobody may pose as an older version."""
    return () if header.grid is not None or header.unit.name not in _FINEST else (NOT_STATED,)


def on_grid(values: Floats, bits: int) -> Floats:
    """Values rounded to so many significant bits, a half to the even neighbour."""
    fractions, exponents = np.frexp(values)
    rounded: Floats = np.ldexp(np.rint(np.ldexp(fractions, bits)), exponents - bits)
    return rounded


def off_grid(values: Floats, bits: int) -> NDArray[np.bool_]:
    """Which values have more significant bits; never one that is not finite."""
    finite = np.isfinite(values)
    found: NDArray[np.bool_] = finite & (on_grid(np.where(finite, values, 0.0), bits) != values)
    return found


def choices(low: Floats, high: Floats, bits: int) -> float:
    """Bits that the choice among all grid points from low to high could tell, of all coordinates.

    Args:
        low: [n], on the grid.
        high: [n], on the grid.
        bits: of the grid.
    """
    largest = np.maximum(np.abs(low), np.abs(high))
    spacing = np.ldexp(1.0, np.frexp(largest)[1] - bits)
    # Of numbers around 0 there are more, by their exponents; float32 has 256 of these.
    points = np.minimum((high - low) / spacing, 2.0**bits * 256.0)
    return float(np.log2(1.0 + points).sum())
