"""Augmentation of single records: one random view of each record a step, so sensitivity stays.

A record's view depends on nothing but fresh random numbers; every query of a step sees the same
view, and each record still contributes one clipped gradient to the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


class RandomBits(Protocol):
    """What augmentation needs of a stream of random numbers."""

    def integers(self, high: int, n: int) -> NDArray[np.int64]:
        """N whole numbers in 0…high-1."""
        ...


@dataclass(frozen=True)
class Views:
    """One view of each of b images.

    Attributes:
        flipped: Whether it is mirrored left to right, [b].
        shifts: Pixels by which it is moved down and right, [b, 2], within ±reach.
        reach: Pixels of zeros (black) around the image that shifts may bring in.
    """

    flipped: NDArray[np.bool_]
    shifts: NDArray[np.int64]
    reach: int

    def part(self, part: slice) -> Views:
        """The views of some rows."""
        return Views(self.flipped[part], self.shifts[part], self.reach)

    def apply(self, batch: Tensor) -> Tensor:
        """The views of images [b, channels, height, width], a new tensor."""
        import torch
        from torch.nn.functional import pad

        height, width = batch.shape[2:]
        padded = pad(batch, (self.reach,) * 4)
        moved = torch.stack(
            [
                image[:, down : down + height, right : right + width]
                for image, (down, right) in zip(
                    padded, (self.shifts + self.reach).tolist(), strict=True
                )
            ]
        )
        flipped = torch.from_numpy(self.flipped).to(batch.device)
        return torch.where(flipped[:, None, None, None], moved.flip(3), moved)


def draw_views(kinds: Sequence[str], stream: RandomBits, count: int, size: Sequence[int]) -> Views:
    """Fresh views of images.

    Args:
        kinds: Of "flip" (mirrored with probability ½) and "crop" (moved by up to an eighth of the
            side, uniformly in each direction).
        stream: The run's random numbers for one client and round.
        count: Images.
        size: Their height and width.
    """
    reach = max(1, min(size) // 8) if "crop" in kinds else 0
    flipped = np.zeros(count, bool)
    shifts = np.zeros((count, 2), np.int64)
    if "flip" in kinds:
        flipped = stream.integers(2, count).astype(bool)
    if reach:
        shifts = stream.integers(2 * reach + 1, 2 * count).reshape(count, 2) - reach
    return Views(flipped, shifts, reach)
