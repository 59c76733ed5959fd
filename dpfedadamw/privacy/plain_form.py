"""The plain form defines a clipped sum: one record, one gradient, one norm, one factor.

Where people are protected, a person with all records that were drawn stands in a record's place,
and the gradient is that of the mean of their losses.

This is the definition. Whatever computes clipped sums faster is compared with it before its first
batch, and again in every participation (`spot_check`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    Clipping,
    Loss,
    empty_sum,
    exact_squared_norms,
    record_losses,
    refuse_mixing,
    trainable_parameters,
)
from dpfedadamw.vectors.precision import FLOAT32, computing_in, wide


class LoopEngine:
    """One forward and one backward pass a record: slow, plain, and right for any model.

    Attributes:
        name: "loop".
        layers: Empty: no layer has a method of its own.
    """

    name = "loop"

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
        return "loop: one forward and backward pass for each record"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets [b, …]; b may be 0."""
        return self.of_people(inputs, targets, [1] * len(targets))

    def of_people(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> ClippedSum:
        """The clipped sum of people's mean gradients: see `clipped_sum.PeopleEngine`."""
        refuse_mixing(self._model)
        parameters = trainable_parameters(self._model)
        empty = empty_sum(parameters)
        if not len(targets):
            return empty
        total = empty.total
        squared_norms = []
        start = 0
        for size in sizes:
            part, start = slice(start, start + size), start + size
            gradient = self._gradient(list(parameters.values()), inputs[part], targets[part])
            squared_norms.append(exact_squared_norms(gradient[None])[0])
            weights = self._clipping.weights(squared_norms[-1].reshape(1), total.dtype)
            if weights.all_finite:
                total += gradient * weights.factors.to(gradient.dtype)
        return self._clipping.weights(torch.stack(squared_norms), total.dtype).summed(total)

    def _gradient(self, parameters: list[nn.Parameter], inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad():
            with computing_in(self._precision, inputs.device):
                outputs = self._model(inputs)
            losses = record_losses(self._loss, wide(outputs), targets)
        if not losses.requires_grad:
            return torch.cat([torch.zeros_like(p).reshape(-1) for p in parameters]).detach()
        gradients = torch.autograd.grad(losses.mean(), parameters, allow_unused=True)
        return torch.cat(
            [dense(p, g).detach().reshape(-1) for p, g in zip(parameters, gradients, strict=True)]
        )


def dense(parameter: nn.Parameter, gradient: Tensor | None) -> Tensor:
    """A gradient as torch gives it, in full: none is zero, and embeddings may have sparse ones."""
    if gradient is None:
        return torch.zeros_like(parameter)
    return gradient.to_dense() if gradient.is_sparse else gradient
