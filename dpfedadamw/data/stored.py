"""Records that stay on disk: rows are looked up, scaled and enlarged a batch at a time.

Images are kept as the bytes they were published as and become float32 only in a batch: a quarter
of the space, and a data set larger than memory trains.

Augmentation is one random view of each record a step, so sensitivity stays. A record's view depends
only on fresh random numbers; every query of a step sees the same view, and each record still
contributes one clipped gradient to the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing
from dpfedadamw.storage.mapped import let_go

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dpfedadamw.data.learnt import Bounds

# Luma of ITU-R BT.601, as Pillow's grey conversion.
_LUMA = (0.299, 0.587, 0.114)
# Numbers that are finished at once where all records are gone through.
_AT_ONCE = 1 << 22


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


@dataclass(frozen=True)
class StoredRecords:
    """Records [n, …] in memory or on disk.

    Indexed by a tensor of row numbers it gives a lazy selection; by a slice, the tensor itself.

    Attributes:
        values: Stored records [m, …]: uint8 grey levels, float32, or int32 tokens.
        rows: Which of them belong here, in order; None for all.
        preprocessing: How images are finished; None for tokens.
        device: Where tensors go.
        augmentation: Of "flip" and "crop": what is drawn afresh for each record of a selection.
        stream: Where it is drawn from; None leaves records as they are.
        views: The views that were drawn, one a row.
        bounds: Bounds that the run learnt of some columns; None where it learnt none.
    """

    values: NDArray[Any]
    rows: NDArray[np.int64] | None = None
    preprocessing: ImagePreprocessing | None = None
    device: torch.device | str = "cpu"
    augmentation: tuple[str, ...] = ()
    stream: RandomBits | None = None
    views: Views | None = None
    bounds: Bounds | None = None

    def __len__(self) -> int:
        return len(self.values) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record as the model sees it."""
        shape = tuple(self.values.shape[1:])
        form = self.preprocessing
        if form is None or len(shape) != 3:
            return shape
        channels, height, width = shape
        side = form.size
        return (form.channels or channels, side or height, side or width)

    @overload
    def __getitem__(self, chosen: Tensor) -> StoredRecords: ...
    @overload
    def __getitem__(self, chosen: slice) -> Tensor: ...
    def __getitem__(self, chosen: Tensor | slice) -> StoredRecords | Tensor:
        """A lazy selection by row numbers, or the tensor [b, …] of a slice."""
        if isinstance(chosen, slice):
            return self._tensor(chosen)
        selection = self.select(chosen.cpu().numpy())
        if not self.augmentation or self.stream is None:
            return selection
        views = _draw_views(self.augmentation, self.stream, len(selection), self.values.shape[2:])
        return replace(selection, stream=None, views=views)

    def select(self, rows: NDArray[np.int64]) -> StoredRecords:
        """These rows, in this order."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def to(self, device: torch.device) -> StoredRecords:
        """The same records, whose tensors go to a device."""
        return replace(self, device=device)

    @property
    def numbers(self) -> int:
        """How many numbers `plain` gives."""
        return len(self) * self._numbers_each

    @property
    def _numbers_each(self) -> int:
        form = self.preprocessing
        if form is None:
            return 0
        return math.prod(replace(self, preprocessing=replace(form, size=None)).shape)

    def plain(self) -> Iterator[Tensor]:
        """The numbers that a model reads, float32 [b, …]: not resized, and without random views.

        They lie between bounds that are declared, not between those that the run learns. Tokens are
        no numbers, so there are none.
        """
        form = self.preprocessing
        if form is None:
            return
        unsized = replace(form, size=None)
        plain = replace(self, preprocessing=unsized, stream=None, views=None, bounds=None)
        step = max(1, _AT_ONCE // max(1, self._numbers_each))
        for start in range(0, len(self), step):
            yield plain[start : start + step]
            # Releasing all pages costs more than reading a few records. For a small client's
            # records, the code that reads many of them does it.
            if len(self) > step:
                self.let_go()

    def let_go(self) -> None:
        """Let go of what was read of a mapped file."""
        let_go(self.values)

    def stored(self, part: slice) -> NDArray[Any]:
        """Some records as they are stored, [b, …]; perhaps a view into a mapped file."""
        stored: NDArray[Any] = self.values[part if self.rows is None else self.rows[part]]
        return stored

    def viewed(self, batch: Tensor, views: Views, _part: slice) -> Tensor:
        """The random views of a part's images [b, channels, height, width]."""
        return views.apply(batch)

    def _tensor(self, part: slice) -> Tensor:
        # Records are counted and divided among clients where none becomes a tensor.
        import torch

        stored = self.stored(part)
        if not len(stored):
            kind = torch.float32 if self.preprocessing is not None else torch.int32
            return torch.empty((0, *self.shape), dtype=kind, device=self.device)
        # A copy, because a mapped file must not be written to and torch has no such notion; into
        # fresh memory, because odd strides of sides of length 1 would choose other kernels.
        fresh = np.empty(stored.shape, stored.dtype)
        fresh[...] = stored
        batch = torch.from_numpy(fresh).to(self.device)
        if self.preprocessing is None:
            return batch
        grey_levels = batch.dtype == torch.uint8
        batch = batch.float() / 255 if grey_levels else batch.float()
        if self.bounds is not None:
            batch = self.bounds.apply(batch)
        if self.views is not None:
            batch = self.viewed(batch, self.views.part(part), part)
        return finish(batch, self.preprocessing, grey_levels) if batch.dim() == 4 else batch


def batchwise(preprocessing: Preprocessing) -> ImagePreprocessing | None:
    """What is left to do in each batch; None for tokens."""
    return None if isinstance(preprocessing, TextPreprocessing) else preprocessing


def check_shape(shape: tuple[int, ...], form: ImagePreprocessing, place: str) -> None:
    """Check that records of a stored shape can be finished.

    Raises:
        DataError: If the model asks for images and these are none, or for other channels.
    """
    if len(shape) != 3:
        if form != ImagePreprocessing():
            raise DataError(
                f"{place}: records have shape {shape}, but the model reads images (channels, "
                "height, width); use another model"
            )
        return
    if form.channels not in (None, shape[0]) and (shape[0], form.channels) not in ((1, 3), (3, 1)):
        raise DataError(
            f"{place}: images have {shape[0]} channels, the model reads {form.channels}; only "
            "grey (1) and colour (3) can be turned into one another"
        )


def finish(batch: Tensor, form: ImagePreprocessing, bounded: bool) -> Tensor:
    """Images [b, channels, height, width] as the model reads them, each by itself.

    Args:
        batch: float32 images.
        form: Size, channels, mean and deviation.
        bounded: Whether values lie in [0, 1] and are to stay there; numbers of somebody's own
            may lie anywhere.
    """
    import torch
    from torch.nn.functional import interpolate

    side = form.size
    if side is not None and tuple(batch.shape[2:]) != (side, side):
        # Bicubic curves overshoot. Pillow cuts that off after each of its two passes, across and
        # down; so must this, to give the same images.
        for target in ((batch.shape[2], side), (side, side)):
            batch = interpolate(
                batch, target, mode=form.interpolation, align_corners=False, antialias=True
            )
            batch = batch.clamp(0, 1) if bounded else batch
    if form.channels is not None and form.channels != batch.shape[1]:
        if form.channels == 1:
            weights = torch.tensor(_LUMA, device=batch.device)
            batch = (batch * weights[:, None, None]).sum(1, keepdim=True)
        else:
            batch = batch.expand(-1, form.channels, -1, -1)
    if form.mean:
        batch = batch - torch.tensor(form.mean, device=batch.device)[:, None, None]
    if form.deviation:
        batch = batch / torch.tensor(form.deviation, device=batch.device)[:, None, None]
    return batch.contiguous()


def _draw_views(kinds: Sequence[str], stream: RandomBits, count: int, size: Sequence[int]) -> Views:
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
