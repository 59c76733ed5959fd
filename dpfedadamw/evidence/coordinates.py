"""How much noise every single coordinate has got: what no sum over a block would show.

Ten biases without noise among twenty thousand parameters change the sum of squares of all noise by
less than chance does. So that they are seen, the evidence has for each noised vector how many of
its coordinates were left exactly as they were and the largest noise on any, and over all of a run
the sum of squares at each coordinate (``coordinates.npz``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.rundir import write_arrays
from dpfedadamw.vectors.flat import Blocks, empty, in_pieces

FILE = "coordinates.npz"


@dataclass(frozen=True)
class NoiseSeen:
    """What a look at the noise on one vector shows.

    Attributes:
        silent: Coordinates on which it is exactly 0.
        largest: The largest magnitude; 0 for no coordinate.
    """

    silent: int
    largest: float


def look(noisy: Tensor, clean: Tensor, squares: Tensor | None = None) -> NoiseSeen:
    """Look at every coordinate of noisy − clean, [d], whatever was drawn.

    Args:
        noisy: After noise.
        clean: Before.
        squares: Where the squares are added up, [d]; None where they are not.
    """
    look = _Look(noisy, clean, squares)
    if not len(noisy):
        return NoiseSeen(0, 0.0)
    in_pieces(noisy, look.at)
    return look.seen()


def look_by_block(
    blocks: Blocks, noisy: Tensor, clean: Tensor, squares: Tensor | None = None
) -> tuple[NoiseSeen, Tensor, Tensor]:
    """As `look`, and in the same pass the block sums of squares of noise and of ``clean``.

    Args:
        blocks: The measuring partition.
        noisy: After noise, [d].
        clean: Before, [d].
        squares: Where the squares are added up, [d]; None where they are not.

    Returns:
        What was seen; sums of squares of the noise, and of ``clean``, float64 [B] each.
    """
    look = _Look(noisy, clean, squares)
    noise, own = blocks.sums_of_squares(
        noisy, lambda part, memory: (look.at(part, memory), clean[part])
    )
    return look.seen(), noise, own


class _Look:
    """Looks at noise a piece at a time, from any thread and in any order."""

    def __init__(self, noisy: Tensor, clean: Tensor, squares: Tensor | None) -> None:
        self._noisy, self._clean, self._squares = noisy, clean, squares
        self._found: list[tuple[Tensor, Tensor, Tensor]] = []

    def at(self, part: slice, memory: Tensor) -> Tensor:
        """The noise on a piece, in ``memory``."""
        noise = torch.sub(self._noisy[part], self._clean[part], out=memory)
        if self._squares is not None:
            self._squares[part].addcmul_(noise, noise)
        self._found.append((torch.count_nonzero(noise), *torch.aminmax(noise)))
        return noise

    def seen(self) -> NoiseSeen:
        """What all pieces together showed."""
        counts, least, most = (torch.stack(one) for one in zip(*self._found, strict=True))
        largest = max(-float(least.min()), float(most.max()))
        return NoiseSeen(len(self._noisy) - int(counts.sum()), largest)


@dataclass
class CoordinateSums:
    """Sums of squared noise at each coordinate, in units of the variance charged for it.

    The file holds the last round apart from those before it: a round that was cut off after its
    evidence was written is run again, and must not count twice.

    Attributes:
        directory: The run's ``evidence/``.
        before: Of all rounds that were written, float32 [d]; None where earlier ones are not known,
            so that no file is written.
        current: Of the round that is running, in the noise's own units squared.
    """

    directory: Path
    before: Tensor | None
    current: Tensor
    _rounds: int = field(default=0)

    @classmethod
    def start(cls, directory: Path, like: Tensor) -> CoordinateSums:
        """Sums of a run that begins; ``like`` [d] tells length and device."""
        zeros = torch.zeros(len(like), dtype=torch.float32, device=like.device)
        return cls(directory, zeros, zeros.clone())

    def restore(self, completed: int) -> None:
        """Go on after so many completed rounds, of which the last may have been written twice."""
        if not completed:
            return
        path = self.directory / FILE
        if not path.is_file():
            # A run of a version that wrote no sums: half of them would mislead.
            self.before = None
            return
        with np.load(path) as file:
            written, before, last = int(file["rounds"]), file["before"], file["last"]
        total = before if written > completed else before + last
        self.before = torch.from_numpy(total).to(self.current.device)
        self._rounds = completed

    def close_round(self, variance: float) -> None:
        """Write the sums with those of a round whose noise was charged with this variance."""
        if self.before is not None:
            last = self._in_units_of(variance)
            self._rounds += 1
            arrays: dict[str, NDArray[np.generic]] = {
                "rounds": np.asarray(self._rounds, dtype=np.int64),
                "before": self.before.cpu().numpy(),
                "last": last.cpu().numpy(),
            }
            write_arrays(self.directory / FILE, arrays)
            self.before.add_(last)
        self.current.zero_()

    def _in_units_of(self, variance: float) -> Tensor:
        """The current sums over a variance, divided in float64."""
        quotients = empty(len(self.current), self.current.dtype, self.current.device)

        def divide(part: slice, _memory: Tensor) -> None:
            quotients[part] = self.current[part].double().div_(variance)

        in_pieces(self.current, divide)
        return quotients
