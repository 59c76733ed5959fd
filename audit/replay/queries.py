"""The gradients that were handed to a rule, and the public grid on which its results are written.

Two recorders write evidence: one notes noise and norms, the other what passed between rule and
oracle. `noise_faults` holds the one against the other, so that neither can show each check what it
likes.

The engine's float32 has 24 significant bits, of which a run with privacy writes fewer and says in
its ledger how many. What is written in the others was not left there by the algorithm. Between the
values that rounding errors allow, few are on the grid, most often one: what a trainer could choose
among them is counted, in bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from audit.reading.evidence import RoundEvidence
from audit.reading.exchanges import Exchange
from audit.reading.ledger import Header
from audit.reading.ledger_lines import Grid
from audit.replay.base import Partition
from audit.replay.rounding import ROUNDING
from audit.untrusted.archives import Floats, Integers

_OF_GRADIENTS = Grid(update=12, vectors=16, summaries=20, weights=16)
# The finest grids that are taken for one: what the engine states at each unit.
_FINEST = {
    "record": _OF_GRADIENTS,
    "person": _OF_GRADIENTS,
    "client": Grid(update=16, vectors=16, summaries=20, weights=16),
}
NOT_STATED = (
    "the run states no public grid: low-order bits of uploads and weights, below the rounding of "
    "float32, were not searched for hidden content"
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
    """Where the grid that a ledger states would leave room."""
    finest = _FINEST.get(header.unit.name)
    if header.grid is None or finest is None:
        return []
    return [
        f"the ledger states a grid of {found} significant bits for {what}, but only {most} or "
        "fewer leave no room"
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


# Recorded noise and norms are float32; their products and sums are a few roundings off.
RECORDED = 16.0 * ROUNDING


def block_sums(exchange: Exchange, partition: Partition) -> Floats:
    """Block sums of squares of each gradient handed out, [Q, B]."""
    if exchange.square_sums is not None:
        return exchange.square_sums
    index, count = partition.of_coordinate, len(partition.sizes)
    sums = np.zeros((len(exchange.gradients), count))
    for query, gradient in enumerate(exchange.gradients):
        sums[query] = np.bincount(index, weights=np.square(gradient), minlength=count)
    return sums


def carries(noise: Floats, clean: Floats, total: Floats, bits: int | None = None) -> bool:
    """Whether a total is a clean sum and its recorded noise, at each sampled coordinate.

    Args:
        noise: as it was recorded.
        clean: the same.
        total: what was released.
        bits: significant bits of the public grid that it was rounded to; None for none.
    """
    room = RECORDED * (np.abs(total) + np.abs(clean) + np.abs(noise))
    if not np.isfinite(room).all():
        # Infinite numbers would allow anything.
        return False
    if bits is None:
        return bool(np.all(np.abs(total - clean - noise) <= room))
    low, high = on_grid(clean + noise - room, bits), on_grid(clean + noise + room, bits)
    return bool(np.all((low <= total) & (total <= high)))


def noise_faults(
    exchange: Exchange,
    sums: Floats,
    evidence: RoundEvidence,
    row: int,
    clip: float,
    sampled: Integers,
) -> list[str]:
    """How the gradients used contradict the evidence of their noise.

    Args:
        exchange: what was handed out.
        sums: block sums of squares of it, [Q, B].
        evidence: the round's noise and norms.
        row: the client's row in it.
        clip: C.
        sampled: where the coordinates of the sampled noise stand among the recorded ones.
    """
    divisor = evidence.divisor[row][:, None]
    if len(exchange.gradients) != len(divisor):
        return ["the queries used are not those whose noise was noted"]
    faults = []
    handed = exchange.gradients[:, sampled] * divisor
    if not carries(evidence.noise_sample[row] * clip, exchange.clean_sample, handed):
        faults.append("the gradients used do not carry the noise recorded for them")
    total, noise = sums * divisor**2, evidence.noise_sum_squares[row]
    clean = evidence.clean_sum_squares[row] * divisor**2
    # |Σ(c+z)² − Σc² − Σz²| = 2|Σcz| ≤ 2·√(Σc²·Σz²) in every block (Cauchy-Schwarz).
    room = 2.0 * np.sqrt(noise * clean) + RECORDED * (total + noise + clean)
    if not np.all((np.abs(total - noise - clean) <= room) & np.isfinite(room)):
        faults.append("the size of the gradients used does not fit the noise recorded")
    starts = evidence.record_offsets[row * len(divisor) : (row + 1) * len(divisor) + 1]
    for query, (start, stop) in enumerate(pairwise(starts)):
        longest = float(evidence.clipped_norms[start:stop].sum())
        # Norms in float32, sums over a batch in float32: far within a thousandth.
        if not math.sqrt(float(clean[query].sum())) <= longest * 1.001 + 1e-6 * clip:
            faults.append("the stated clean sum is longer than its clipped gradients")
            break
    return faults
