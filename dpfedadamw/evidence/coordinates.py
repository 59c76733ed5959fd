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
from dpfedadamw.vectors.flat import empty, in_pieces

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
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def measure(part: slice, memory: Tensor) -> None:
        noise = torch.sub(noisy[part], clean[part], out=memory)
        if squares is not None:
            squares[part].addcmul_(noise, noise)
        found.append((torch.count_nonzero(noise), *torch.aminmax(noise)))

    if not len(noisy):
        return NoiseSeen(0, 0.0)
    in_pieces(noisy, measure)
    noised = sum(int(count) for count, _, _ in found)
    largest = max(max(-float(least), float(most)) for _, least, most in found)
    return NoiseSeen(len(noisy) - noised, largest)


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
