"""Every trainable parameter is in the ONE flat vector exactly once, and nothing else is.

Every algorithm works on flat tensors, every clipped sum is flat, every upload is flat. This is the
one place that knows how the vector maps to a module's parameters and into which blocks the second
moment is averaged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.vectors.memory import recycled
from dpfedadamw.vectors.parameter_roles import NO_ROLES, block_labels
from dpfedadamw.vectors.workers import share_out

BLOCK_KINDS = ("heads", "hessian", "tensor", "layer", "full", "none")


class ParameterError(DpfedadamwError):
    """A module's parameters cannot be used as asked."""


@dataclass(frozen=True)
class ParameterSlice:
    """Where one parameter lies in the flat vector.

    Attributes:
        name: The parameter's name in ``module.named_parameters()``.
        shape: Its shape.
        start: First coordinate in the flat vector.
        stop: One past the last coordinate.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The order of all trainable parameters in the flat vector.

    Attributes:
        slices: One entry a trainable parameter, in ``named_parameters()`` order; at least one.
    """

    slices: tuple[ParameterSlice, ...]

    @property
    def size(self) -> int:
        """Number of trainable coordinates, d."""
        return self.slices[-1].stop


def layout_of(module: nn.Module) -> Layout:
    """The layout of a module's trainable parameters.

    Raises:
        ParameterError: If nothing is trainable.
    """
    slices: list[ParameterSlice] = []
    start = 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            stop = start + parameter.numel()
            slices.append(ParameterSlice(name, tuple(parameter.shape), start, stop))
            start = stop
    if not slices:
        raise ParameterError("the model has no trainable parameter; unfreeze at least its head")
    return Layout(tuple(slices))


class FlatParameters:
    """A module whose trainable parameters are views into one flat tensor.

    Writing to :attr:`vector` in place changes the module, without a copy.

    Attributes:
        module: The module, changed in place.
        layout: The order of its parameters in the vector.
        vector: The flat vector, shape [d], the parameters' dtype and device.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = layout_of(module)
        parameters = dict(module.named_parameters())
        self.vector = torch.cat(
            [parameters[part.name].detach().reshape(-1) for part in self.layout.slices]
        )
        self._parameters = [(part, parameters[part.name]) for part in self.layout.slices]
        self._is_own = True
        self._point()

    def assign(self, vector: Tensor) -> None:
        """Write a flat vector of shape [d] into the module."""
        if self._is_own:
            self.vector.copy_(vector)
            return
        self.vector, self._is_own = copy_of(vector.to(self.vector)), True
        self._point()

    def hold(self, vector: Tensor) -> None:
        """Let the module compute at a flat vector of shape [d], without a copy if it is long.

        Changing the vector afterwards may change the module's parameters; code that relies on these
        must assign or hold them first.
        """
        alike = vector.dtype == self.vector.dtype and vector.device == self.vector.device
        if vector.nbytes < _LEAST_HELD_BYTES or not alike or not vector.is_contiguous():
            self.assign(vector)
        elif vector.data_ptr() != self.vector.data_ptr():
            self.vector, self._is_own = vector.detach(), False
            self._point()

    def let_go(self, vector: Tensor) -> None:
        """Hold another vector [d] in place of one that somebody handed over, so that it can go.

        A vector of the module's own is kept as it is.
        """
        if not self._is_own:
            self.hold(vector)

    @contextlib.contextmanager
    def in_float64(self) -> Iterator[None]:
        """Let the module compute in float64 meanwhile, at the same values.

        Afterwards parameters and buffers are bit for bit what they were, but for integer buffers
        that the module itself counts up meanwhile.
        """
        before = self.vector, self._is_own
        weights = [(weight, weight.data) for weight in self.module.parameters()]
        buffers = [
            (module, name, buffer)
            for module in self.module.modules()
            for name, buffer in module._buffers.items()
        ]
        try:
            self.module.double()
            self.vector, self._is_own = before[0].double(), True
            self._point()
            yield
        finally:
            for weight, values in weights:
                weight.data = values
            for module, name, buffer in buffers:
                module._buffers[name] = buffer
            self.vector, self._is_own = before
            self._point()

    def _point(self) -> None:
        for part, parameter in self._parameters:
            parameter.data = self.vector[part.start : part.stop].view(part.shape)


def empty(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a flat vector [size], not yet written.

    On a CPU it may be another vector's of the same size, to which nothing refers any more.

    Args:
        size: d.
        dtype: Floating point.
        device: Where it lies.
    """
    if device.type != "cpu" or dtype not in _NUMPY_KINDS:
        return torch.empty(size, dtype=dtype, device=device)
    return torch.from_numpy(recycled(size, _NUMPY_KINDS[dtype]))


def zeros_like(vector: Tensor) -> Tensor:
    """Zeros like a flat vector [d]."""
    return empty(len(vector), vector.dtype, vector.device).zero_()


def copy_of(vector: Tensor) -> Tensor:
    """A copy of a flat vector [d]."""
    return empty(len(vector), vector.dtype, vector.device).copy_(vector)


# A shorter vector is copied sooner than every parameter is told where to look.
_LEAST_HELD_BYTES = 2**20
_NUMPY_KINDS = {torch.float32: np.float32, torch.float64: np.float64}

# Coordinates that are worked on at once: a few vectors of them together fit the cache that cores
# share, and are long enough that threads seldom wait for the interpreter.
_PIECE = 262_144
# Coordinates that are summed at once: in float32 a longer sum of squares is less exact.
_SUMMED = 32_768

# Rows that an accelerator measures in one call, which takes a view of each.
_MOST_AT_ONCE = 1024


def is_short(size: int) -> bool:
    """Whether a vector [size] takes less time than to have another thread or call look at it."""
    return size < _SUMMED


def pieces(vector: Tensor) -> list[slice]:
    """Cut a flat vector [d] into pieces, so that a chain of operations on one stays in cache.

    On an accelerator it is one piece: there, launching an operation costs more than memory.
    """
    size = len(vector)
    piece = _PIECE if vector.device.type == "cpu" else max(1, size)
    return [slice(start, min(start + piece, size)) for start in range(0, size, piece)]


def scratch(vector: Tensor) -> Tensor:
    """Memory for one piece of a flat vector [d], to be reused from piece to piece.

    Several threads that ask the system for such temporaries again and again wait for each other.
    """
    size = len(vector)
    return torch.empty_like(vector[: min(size, _PIECE) if vector.device.type == "cpu" else size])


def in_pieces(vector: Tensor, work: Callable[[slice, Tensor], object]) -> None:
    """Do elementwise work on every piece of a flat vector [d], on as many threads as torch uses.

    Args:
        vector: Tells size and device.
        work: Called with each piece and memory of its size, from any thread and in any order; it
            must not touch coordinates outside its piece.
    """
    if is_short(vector.shape[0]):
        # One piece; to cut and share it out would take longer than most work on it.
        work(slice(0, vector.shape[0]), torch.empty_like(vector))
        return
    cuts = pieces(vector)

    def of_worker(own: range) -> None:
        memory = scratch(vector)
        for index in own:
            part = cuts[index]
            work(part, memory[: part.stop - part.start])

    _shared_out(len(vector), len(cuts), of_worker)


def _shared_out(size: int, tasks: int, work: Callable[[range], None]) -> None:
    """Share tasks out among threads, unless the vector [size] is done before another thread wakes.

    Below this size torch itself takes one thread for an operation, so that sums are the same.
    """
    if is_short(size):
        work(range(tasks))
    else:
        share_out(tasks, work)


@dataclass(frozen=True)
class Runs:
    """One parameter, cut into equal runs of coordinates, each of one block.

    Attributes:
        name: The parameter's.
        start: First coordinate of the parameter in the flat vector.
        stop: One past its last.
        blocks: The block of each run, int64 [r]; a run has (stop − start)/r coordinates.
    """

    name: str
    start: int
    stop: int
    blocks: Tensor

    @property
    def width(self) -> int:
        """Coordinates of one run."""
        return (self.stop - self.start) // len(self.blocks)


@dataclass(frozen=True)
class Blocks:
    """A partition of the flat vector's coordinates: each lies in exactly one block.

    Attributes:
        kind: One of :data:`BLOCK_KINDS`.
        names: One name a block, [B].
        runs: The partition, parameter by parameter, in the flat vector's order.
        sizes: Number of coordinates of each block, float64 [B].
    """

    kind: str
    names: tuple[str, ...]
    runs: tuple[Runs, ...]
    sizes: Tensor

    @property
    def parameters(self) -> int:
        """Number of coordinates, d."""
        return self.runs[-1].stop

    @property
    def index(self) -> Tensor:
        """The block of each coordinate, int64 [d]."""
        return torch.cat([run.blocks.repeat_interleave(run.width) for run in self.runs])

    def pieces(self) -> Iterator[tuple[int, int, Tensor]]:
        """Cut the flat vector into pieces of rows that are short enough to be summed in float32.

        Yields:
            First coordinate, one past the last, and the block of each of the equal rows in between.
        """
        for run in self.runs:
            width = run.width
            if width >= _SUMMED:
                part = _even_part(width)
                for row, start in enumerate(range(run.start, run.stop, width)):
                    yield from _cut(start, start + width, part, run.blocks[row : row + 1])
            else:
                rows = _SUMMED // width
                for row in range(0, len(run.blocks), rows):
                    blocks = run.blocks[row : row + rows]
                    first = run.start + row * width
                    yield first, first + len(blocks) * width, blocks

    def sum_of_squares(self, values: Tensor, minus: Tensor | None = None) -> Tensor:
        """Sum of (values − minus)² over each block, float64 [B], from float32.

        Relative errors are below 1e-6 in the root mean square; 1.5e-6 was seen in a long row.

        Args:
            values: [d].
            minus: [d], or None for zeros.
        """

        def difference(part: slice, memory: Tensor) -> tuple[Tensor]:
            if minus is None:
                return (values[part],)
            return (torch.sub(values[part], minus[part], out=memory),)

        (found,) = self.sums_of_squares(values, difference)
        return found

    def sums_of_squares(
        self, like: Tensor, look: Callable[[slice, Tensor], tuple[Tensor, ...]]
    ) -> list[Tensor]:
        """Sums of squares over each block of several vectors at once, float64 [B] each.

        Args:
            like: Tells size and device.
            look: Called with each piece and memory of its size, from any thread and in any order;
                the vectors' values there, [n] each. Whatever else is to be seen of a piece is best
                looked at there, while it is in the processor's cache.
        """
        if not self._in_cache:
            return self._squares_at_once(look(slice(0, len(like)), scratch(like)))
        cuts = self._cuts
        parts: list[list[Tensor]] = [[]] * len(cuts)

        def measure(own: range) -> None:
            memory = scratch(like)
            for index in own:
                start, stop, rows = cuts[index]
                values = look(slice(start, stop), memory[: stop - start])
                parts[index] = [
                    torch.linalg.vector_norm(one.view(len(rows), -1), dim=1) for one in values
                ]

        _shared_out(len(like), len(cuts), measure)
        return [
            self._gathered(torch.cat(norms).double().square()) for norms in zip(*parts, strict=True)
        ]

    def _squares_at_once(self, vectors: tuple[Tensor, ...]) -> list[Tensor]:
        """Sums of squares over each block [B] in as few operations as an accelerator allows."""
        if len(self._rows) <= _MOST_AT_ONCE:
            rows = [row for values in vectors for row in values.split_with_sizes(self._widths)]
            norms = torch.stack(torch._foreach_norm(rows))
        else:
            norms = torch.cat(
                [
                    torch.linalg.vector_norm(values[start:stop].view(len(rows), -1), dim=1)
                    for values in vectors
                    for start, stop, rows in self._cuts
                ]
            )
        squares = norms.view(len(vectors), -1).double().square()
        sums = squares.new_zeros(len(vectors), len(self.sizes))
        return list(sums.index_add_(1, self._rows, squares))

    def sum(self, values: Tensor) -> Tensor:
        """Sum of values [d] over each block, float64 [B]."""
        cuts = self._cuts
        if not self._in_cache:
            sums = [
                values[start:stop].view(len(rows), -1).sum(1, dtype=torch.float64)
                for start, stop, rows in cuts
            ]
            return self._gathered(torch.cat(sums))
        # Piece by piece: many times faster than an indexed addition over the whole vector.
        parts = [self.sizes] * len(cuts)

        def add(own: range) -> None:
            longest = max(stop - start for start, stop, _ in cuts)
            memory = torch.empty(longest, dtype=torch.float64, device=values.device)
            for index in own:
                start, stop, rows = cuts[index]
                wide = memory[: stop - start].copy_(values[start:stop])
                parts[index] = wide.view(len(rows), -1).sum(1)

        _shared_out(len(values), len(cuts), add)
        return self._gathered(torch.cat(parts))

    def mean(self, values: Tensor) -> Tensor:
        """Mean of values [d] over each block, float64 [B] (DP-FedAdamW eq. (7))."""
        return self.sum(values) / self.sizes

    def spread(self, values: Tensor) -> Tensor:
        """Give every coordinate its block's value: [B] becomes [d]."""
        spread = empty(self.parameters, values.dtype, values.device)
        cuts = self._cuts

        def fill(own: range) -> None:
            for index in own:
                start, stop, rows = cuts[index]
                spread[start:stop].view(len(rows), -1).copy_(values[rows].unsqueeze(1))

        _shared_out(self.parameters, len(cuts), fill)
        return spread

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums of several short vectors [n, d] at once over each block, [n, B], on a CPU.

        A handful of calls, where one for each vector and parameter would take longer than the sums.
        """
        starts, order, firsts = self._row_starts
        of_rows = np.add.reduceat(values, starts, axis=1)
        return np.add.reduceat(of_rows[:, order], firsts, axis=1)

    @cached_property
    def _row_starts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Where rows begin [r]; rows by their blocks [r], and the first of each [B]."""
        starts = np.concatenate([np.arange(run.start, run.stop, run.width) for run in self.runs])
        blocks = torch.cat([run.blocks for run in self.runs]).cpu().numpy()
        order = np.argsort(blocks, kind="stable")
        return starts, order, np.searchsorted(blocks[order], np.arange(len(self.names)))

    def _gathered(self, sums: Tensor) -> Tensor:
        """Sums over the rows of all pieces, float64, added up by block [B]."""
        return torch.zeros_like(self.sizes).index_add_(0, self._rows, sums)

    @property
    def _in_cache(self) -> bool:
        """Whether short pieces are quicker than few operations: not on an accelerator."""
        return self.sizes.device.type == "cpu"

    @cached_property
    def _cuts(self) -> tuple[tuple[int, int, Tensor], ...]:
        if self._in_cache:
            return tuple(self.pieces())
        # An accelerator adds up in a tree, so that a long row is as exact as a short one.
        return tuple((run.start, run.stop, run.blocks) for run in self.runs)

    @cached_property
    def _widths(self) -> list[int]:
        """Coordinates of each row of all cuts."""
        return [
            (stop - start) // len(rows)
            for start, stop, rows in self._cuts
            for _ in range(len(rows))
        ]

    @cached_property
    def _rows(self) -> Tensor:
        return torch.cat([rows for _, _, rows in self._cuts])

    def to(self, device: torch.device) -> Blocks:
        """The same partition on another device."""
        runs = tuple(replace(run, blocks=run.blocks.to(device)) for run in self.runs)
        return Blocks(self.kind, self.names, runs, self.sizes.to(device))


def _even_part(width: int) -> int:
    """A length below which sums are exact enough, of which a row has a whole number if it can."""
    least = -(-width // _SUMMED)
    return next((width // n for n in range(least, 2 * least) if width % n == 0), _SUMMED)


def _cut(start: int, stop: int, part: int, block: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Cut a row of one block [1] into pieces of whole parts, and one of what is left."""
    step = part * (_PIECE // part)
    for first in range(start, stop, step):
        last = min(first + step, stop)
        parts = (last - first) // part
        whole = first + parts * part
        if parts:
            yield first, whole, block.expand(parts)
        if whole < last:
            yield whole, last, block


def blocks_of(module: nn.Module, kind: str) -> Blocks:
    """Partition the trainable coordinates of a module into blocks.

    ``heads`` (DP-FedAdamW section 5.1): each head's slice of Q, of K and of V, every other layer
    one block. ``hessian`` (FedAdamW appendix D): embeddings and outputs by token or class row, Q
    and K by head, all other matrices by output neuron. ``tensor``: one block a parameter.
    ``layer``: one block a module. ``full`` and ``none`` have no blocks to average over and are
    measured by ``tensor``. Of a low-rank pair the factor at the outputs is split like the matrix
    that it corrects; the factor at the inputs is one block.

    Args:
        module: The model; its ``parameter_roles`` are honoured.
        kind: One of :data:`BLOCK_KINDS`.

    Raises:
        ParameterError: If the kind is unknown.
    """
    if kind not in BLOCK_KINDS:
        raise ParameterError(f"block partition {kind!r} is unknown; use one of {BLOCK_KINDS}")
    roles = getattr(module, "parameter_roles", NO_ROLES)
    layout = layout_of(module)
    names: list[str] = []
    position: dict[str, int] = {}
    runs: list[Runs] = []
    for part in layout.slices:
        labels, repeats = block_labels(part.name, part.shape, kind, roles)
        for label in labels:
            if label not in position:
                position[label] = len(names)
                names.append(label)
        of_rows = torch.tensor([position[label] for label in labels], dtype=torch.int64)
        runs.append(Runs(part.name, part.start, part.stop, of_rows.repeat(repeats)))
    sizes = torch.zeros(len(names), dtype=torch.float64)
    for run in runs:
        sizes.index_add_(0, run.blocks, torch.full((len(run.blocks),), float(run.width)).double())
    return Blocks(kind, tuple(names), tuple(runs), sizes)
