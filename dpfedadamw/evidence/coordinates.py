"""How much noise every single coordinate has got: what no sum over a block would show.

Ten biases without noise among twenty thousand parameters change the sum of squares of all noise by
less than chance does. So that they are seen, the evidence has for each noised vector how many of
its coordinates were left exactly as they were and the largest noise on any, and over all of a run
the sum of squares at each coordinate (``coordinates.npz``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.foreign import read_arrays
from dpfedadamw.vectors.flat import Blocks, empty, in_pieces

FILE = "coordinates.npz"
# Coordinates of clipped sums, of all queries together, that are held for one look: a megabyte.
_GATHERED = 2**18


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
    return look.seen(look.numbers().tolist())


@dataclass(frozen=True)
class Look:
    """One clipped sum before and after noise, as it was seen.

    Attributes:
        seen: What the noise shows at single coordinates.
        noise_squares: Block sums of squares of the noise, float64 [B].
        clean_squares: Block sums of squares before noise, float64 [B].
        clean_sample: The sum before noise at the sampled coordinates, float64 [m].
        noise_sample: The noise there, subtracted in float64 as the auditor does, [m].
    """

    seen: NoiseSeen
    noise_squares: NDArray[np.float64]
    clean_squares: NDArray[np.float64]
    clean_sample: NDArray[np.float64]
    noise_sample: NDArray[np.float64]


def look_by_block(
    blocks: Blocks, noisy: Tensor, clean: Tensor, sample: Tensor, squares: Tensor | None = None
) -> Look:
    """As `look`, and in the same pass by block and at sampled coordinates.

    Args:
        blocks: The measuring partition.
        noisy: After noise, [d].
        clean: Before, [d].
        sample: The sampled coordinates, int64 [m].
        squares: Where the squares are added up, [d]; None where they are not.
    """
    look = _Look(noisy, clean, squares)
    noise, own = blocks.sums_of_squares(
        noisy, lambda part, memory: (look.at(part, memory), clean[part])
    )
    there = clean[sample].double()
    # One copy instead of five: an accelerator is waited for once.
    numbers = torch.cat((look.numbers(), noise, own, there, noisy[sample].double() - there))
    of_noise, *others = np.split(
        numbers.numpy(force=True), np.cumsum([2, len(noise), len(own), len(there)])
    )
    return Look(look.seen(of_noise.tolist()), *others)


@dataclass(frozen=True)
class Sums:
    """Clipped sums of several queries before and after noise, as they were seen together.

    Attributes:
        silent: Coordinates without noise, int64 [n].
        largest: The largest magnitude of noise, [n].
        noise_squares: Block sums of squares of the noise, float64 [n, B].
        clean_squares: Block sums of squares before noise, float64 [n, B].
        noise_sample: Noise at the sampled coordinates, float64 [n, m].
    """

    silent: NDArray[np.int64]
    largest: NDArray[np.floating]
    noise_squares: NDArray[np.float64]
    clean_squares: NDArray[np.float64]
    noise_sample: NDArray[np.float64]


class ShortSums:
    """Gathers clipped sums of a short model, so that a look at many costs one look's calls.

    A look at one vector of some hundred coordinates takes dozens of calls of some microseconds
    each, more than all else that is done to it.

    Args:
        blocks: The measuring partition.
        sample: The sampled coordinates, [m].
        squares: Where squared noise is added up coordinate by coordinate, [d], on a CPU.
    """

    def __init__(self, blocks: Blocks, sample: NDArray[np.int64], squares: Tensor) -> None:
        self._blocks, self._sample, self._squares = blocks, sample, squares
        shape = (max(1, _GATHERED // blocks.parameters), blocks.parameters)
        self._clean = np.empty(shape, squares.numpy().dtype)
        self._noisy = np.empty_like(self._clean)
        # Mapping memory for these at each use would take longer than the use itself.
        self._wide = np.empty(shape)
        self._count = 0

    @property
    def full(self) -> bool:
        """Whether no further query has room before a look."""
        return self._count == len(self._clean)

    def add(self, clean: Tensor, noisy: Tensor) -> NDArray[np.floating]:
        """Copy the sums of one query before and after noise, [d] each.

        Returns:
            The sums before noise at the sampled coordinates, [m].
        """
        own: NDArray[np.floating] = clean.numpy()
        self._clean[self._count] = own
        self._noisy[self._count] = noisy.numpy()
        self._count += 1
        return own[self._sample]

    def look(self) -> Sums:
        """Look at all that were added since the last look, in their order."""
        clean, noisy = self._clean[: self._count], self._noisy[: self._count]
        # In float64, as the auditor subtracts; the noise itself in the sums' own kind.
        sampled = noisy[:, self._sample].astype(np.float64) - clean[:, self._sample]
        noise = np.subtract(noisy, clean, out=noisy)
        squares = np.square(noise, out=self._wide[: self._count], dtype=np.float64)
        self._squares.add_(torch.from_numpy(squares.sum(0)))
        noise_squares = self._blocks.sums(squares)
        self._count = 0
        return Sums(
            silent=noise.shape[1] - np.count_nonzero(noise, axis=1),
            largest=np.maximum(noise.max(1), -noise.min(1)),
            noise_squares=noise_squares,
            clean_squares=self._blocks.sums(np.square(clean, out=squares, dtype=np.float64)),
            noise_sample=sampled,
        )


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

    def numbers(self) -> Tensor:
        """How many coordinates have noise, and the largest magnitude, float64 [2]."""
        changed, least, most = self._found[0]
        if len(self._found) > 1:
            counts, low, high = (torch.stack(one) for one in zip(*self._found, strict=True))
            changed, least, most = counts.sum(), low.min(), high.max()
        # Numbers below 2^53 are whole in float64.
        return torch.stack((changed.double(), torch.maximum(-least, most).double()))

    def seen(self, numbers: Sequence[float]) -> NoiseSeen:
        """What all pieces together showed, by their `numbers`."""
        changed, largest = numbers
        return NoiseSeen(len(self._noisy) - int(changed), largest)


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
        found = read_arrays(path)
        written, before, last = int(found["rounds"]), found["before"], found["last"]
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
