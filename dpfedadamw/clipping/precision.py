"""Layers in bfloat16, gradients in float32, and a record's gradient that is its own all the same.

In bfloat16 (torch's autocast) linear layers, convolutions and attention multiply numbers of 8
significant bits; weights stay in float32. What clipping needs stays in float32 too: a layer's
inputs A and output gradients G are widened before either the norm or the weighted sum is taken of
them, so both are of the same gradient to float32's rounding.

One thing is new at 8 bits. A processor chooses its multiplication routine by the size of a batch,
and adds up in another order if there is one record more. In float32 a record's gradient then moves
by 1e-7 of itself, here by up to 1e-2, and so would the gradients of all others in a neighbouring
data set, which no clipping norm bounds. So batches are cut and filled up to one public size. Before
the first of them a rehearsal checks that on this device a record's gradient does not depend on the
other records. If it does, bfloat16 is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    ClippedSumEngine,
    ClippingError,
    Loss,
    cut,
    joined,
    summed,
)

# What rounding in float32 leaves between sums of the same gradients, as a share of C.
_TOLERANCE = 1e-5


def narrow(values: Tensor) -> Tensor:
    """Values as autocast multiplies them, where it is on; themselves elsewhere."""
    device = values.device.type
    if torch.is_autocast_enabled(device) and values.dtype == torch.float32:
        return values.to(torch.get_autocast_dtype(device))
    return values


class EngineMaker(Protocol):
    """Makes the engine that answers for a loss."""

    def __call__(self, loss: Loss) -> ClippedSumEngine:
        """The engine."""
        ...


class EvenBatches:
    """Clipped sums from batches of one size, filled up with records that count for nothing.

    Args:
        make: Makes the engine that answers, from a loss.
        loss: Outputs and targets to one loss a record.
        size: Records of every batch that the engine sees: a public number, at least as many as one
            person may have in a batch.
        clipping_norm: C.
    """

    def __init__(self, make: EngineMaker, loss: Loss, size: int, clipping_norm: float) -> None:
        self._engine = make(_without_absent(loss))
        self._size = size
        self._clipping_norm = clipping_norm
        self._rehearsed = False

    @property
    def name(self) -> str:
        """The engine in use."""
        return self._engine.name

    @property
    def layers(self) -> Mapping[str, str]:
        """How each layer's norms are found, by module name."""
        return self._engine.layers

    def explain(self) -> str:
        """One line for the run's summary."""
        return f"{self._engine.explain()}; layers in bfloat16, {self._size} records at a time"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets [b, …]; b may be 0.

        Raises:
            ClippingError: If on this device a record's gradient depends on who shares its batch.
        """
        if not len(targets):
            return self._engine(inputs, targets)
        self._rehearse_once(inputs, targets, people=False)
        sums = [
            self._filled(inputs[start : start + self._size], targets[start : start + self._size])
            for start in range(0, len(targets), self._size)
        ]
        return joined(sums)

    def of_people(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> ClippedSum:
        """The clipped sum of people's mean gradients, of whom none has more records than a batch.

        Raises:
            ClippingError: As for records.
        """
        if not len(targets):
            return self._engine(inputs, targets)
        self._rehearse_once(inputs, targets, people=True)
        return joined(
            [self._filled(inputs[part], targets[part], own) for part, own in cut(sizes, self._size)]
        )

    def _filled(
        self, inputs: Tensor, targets: Tensor, sizes: Sequence[int] | None = None
    ) -> ClippedSum:
        absent = self._size - len(targets)
        count = len(targets) if sizes is None else len(sizes)
        # The filling is a copy of a record, so that no layer meets anything unheard of. Among
        # people each of these copies is somebody, who brings nothing.
        one = summed(
            self._engine,
            torch.cat([inputs, inputs[:1].expand(absent, *inputs.shape[1:])]),
            torch.cat([targets, targets.new_full((absent, *targets.shape[1:]), _absent(targets))]),
            None if sizes is None else [*sizes, *[1] * absent],
        )
        norms = one.raw_norms[:count]
        nonfinite = int((~torch.isfinite(norms)).sum())
        return ClippedSum(one.total, norms, one.clipped_norms[:count], nonfinite)

    def _rehearse_once(self, inputs: Tensor, targets: Tensor, people: bool) -> None:
        if not self._rehearsed:
            self._rehearse(inputs, targets, people)
            self._rehearsed = True

    def _rehearse(self, inputs: Tensor, targets: Tensor, people: bool) -> None:
        """Put a record in front of made-up others, and check that it affects only itself."""

        def filled(chosen: slice) -> Tensor:
            own = labels[chosen]
            found = self._filled(records[chosen], own, [1] * len(own) if people else None)
            return found.total.double()

        count = self._size
        if count == 1:
            # Nobody shares its batch.
            return
        generator = torch.Generator().manual_seed(0)
        if inputs.is_floating_point():
            records = torch.randn(count, *inputs.shape[1:], generator=generator).to(inputs)
        else:
            last = inputs.dim() - 1
            records = torch.cat([inputs[:1].roll(shift, last) for shift in range(count)])
        labels = targets[torch.arange(count) % len(targets)]
        others, alone, together = filled(slice(1, None)), filled(slice(1)), filled(slice(None))
        moved = float((together - others - alone).norm())
        if not moved <= _TOLERANCE * count * self._clipping_norm:
            raise ClippingError(
                "compute.precision: bfloat16 cannot be used here. On this device a record's "
                "gradient depends on the other records of its batch: a neighbour moved others' "
                f"clipped gradients by {moved / self._clipping_norm:.1g} of the clipping norm. So "
                "clipping would not bound one record's effect. Use float32"
            )


def _absent(targets: Tensor) -> float | int:
    """What stands in the targets of filling: no target is that."""
    return math.nan if targets.is_floating_point() else torch.iinfo(targets.dtype).min


def _without_absent(loss: Loss) -> Loss:
    def of_present(outputs: Tensor, targets: Tensor) -> Tensor:
        mark = targets.isnan() if targets.is_floating_point() else targets == _absent(targets)
        filling = mark if mark.dim() == 1 else mark.flatten(1).all(1)
        return torch.where(filling, 0.0, loss(outputs, targets.masked_fill(mark, 0)))

    return of_present
