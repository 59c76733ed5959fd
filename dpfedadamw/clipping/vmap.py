"""Clipped sums by ``torch.func.vmap``: for models with layers that book-keeping does not know."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpfedadamw.clipping.people import means
from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    Clipping,
    Loss,
    cut,
    empty_sum,
    record_losses,
    refuse_mixing,
    trainable_parameters,
)
from dpfedadamw.vectors.precision import FLOAT32, computing_in, wide

# Entries of per-record gradients that vmap holds at once: 256 MiB in float32.
_CHUNK_ENTRIES = 2**26


class VmapEngine:
    """Per-record gradients of the whole model by ``torch.func``, a chunk of records at a time.

    Dropout draws a fresh mask for each record.

    Attributes:
        name: "vmap".
        layers: Empty: no layer has a method of its own.
    """

    name = "vmap"

    def __init__(
        self, model: nn.Module, loss: Loss, clipping: Clipping, precision: str = FLOAT32
    ) -> None:
        self._model = model
        self._loss = loss
        self._clipping = clipping
        self._precision = precision
        self.layers: Mapping[str, str] = {}

    def explain(self) -> str:
        """One line for the run's summary."""
        return "vmap: every record's gradient is formed in full, in chunks"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets [b, …]; b may be 0."""
        return self._summed(inputs, targets, [1] * len(targets), people=False)

    def of_people(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> ClippedSum:
        """The clipped sum of people's mean gradients: see `clipped_sum.PeopleEngine`."""
        return self._summed(inputs, targets, sizes, people=True)

    def _summed(
        self, inputs: Tensor, targets: Tensor, sizes: Sequence[int], people: bool
    ) -> ClippedSum:
        refuse_mixing(self._model)
        parameters = {name: p.detach() for name, p in trainable_parameters(self._model).items()}
        empty = empty_sum(parameters)
        if not len(targets):
            return empty
        total = empty.total

        def loss_of(values: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
            with computing_in(self._precision, record.device):
                outputs = functional_call(self._model, values, (record[None],))
            return record_losses(self._loss, wide(outputs), target[None]).sum()

        gradients_of = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")
        chunk = max(1, _CHUNK_ENTRIES // len(total))
        squared_norms = []
        for part, own in cut(sizes, chunk):
            with warnings.catch_warnings():
                # It is slow where torch computes a layer record by record; the sum is the same.
                warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                gradients = gradients_of(parameters, inputs[part], targets[part])
            flat = torch.cat([gradients[name].detach().flatten(1) for name in parameters], dim=1)
            if people:
                flat = means(flat, own)
            squared_norms.append(torch.stack([row.double().square().sum() for row in flat]))
            weights = self._clipping.weights(squared_norms[-1], total.dtype)
            # 0 · NaN is NaN: a record that is not finite is left out, not multiplied by zero.
            chosen = flat if weights.all_finite else flat[weights.finite]
            factors = weights.factors[weights.finite].to(flat.dtype)
            total += factors @ chosen
        return self._clipping.weights(torch.cat(squared_norms), total.dtype).summed(total)
