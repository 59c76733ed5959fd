"""Plain sums of gradients for runs without privacy: no per-record work at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dpfedadamw.clipping.engines import ClippedSum
from dpfedadamw.vectors.precision import FLOAT32, computing_in, wide


class PlainSum:
    """Σ_j g_j by ordinary automatic differentiation; clips nothing and measures no record.

    Attributes:
        name: "plain".
        layers: Empty: no layer needs a method of its own.
    """

    name = "plain"

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        precision: str = FLOAT32,
    ) -> None:
        self._model = model
        self._loss = loss
        self._precision = precision
        self.layers: Mapping[str, str] = {}

    def explain(self) -> str:
        """One line for the run's summary."""
        return "plain: ordinary gradients, nothing is clipped"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The sum of the gradients of a batch; norms are left empty."""
        trainable = [p for p in self._model.parameters() if p.requires_grad]
        none = torch.zeros(0, device=inputs.device)
        if not len(targets):
            total = torch.cat([torch.zeros_like(p).reshape(-1) for p in trainable])
            return ClippedSum(total.detach(), none, none, 0)
        with computing_in(self._precision, inputs.device):
            outputs = self._model(inputs)
        loss = self._loss(wide(outputs), targets).sum()
        gradients = torch.autograd.grad(loss, trainable, allow_unused=True)
        total = torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).reshape(-1)
                for p, g in zip(trainable, gradients, strict=True)
            ]
        )
        return ClippedSum(total.detach(), none, none, 0)
