"""Clipped sums of linear layers one after another, written out: small models are all overhead.

Through autograd a clipped sum of a softmax regression takes some four hundred calls, which cost six
times a plain step; its arithmetic costs next to nothing. But where a layer's inputs a_j and output
gradients δ_j are one vector a record, the gradient of its weight is δ_j a_jᵀ and that of its bias
δ_j, so that ‖g_j‖² = ‖δ_j‖² (‖a_j‖² + 1) (Goodfellow 2015, section 4), and the sum Σ_j c_j g_j is
one product, (diag(c) δ)ᵀ a.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from dpfedadamw.privacy.clipped_sum import Loss, record_losses

# How such a layer's norms are found, in words for the user.
METHOD = "in closed form"


@dataclass(frozen=True)
class Used:
    """A linear layer's part in one batch.

    Attributes:
        layer: The layer.
        name: Its name in the model.
        inputs: a, [b, n].
        gradients: δ, [b, m].
    """

    layer: nn.Linear
    name: str
    inputs: Tensor
    gradients: Tensor


@dataclass(frozen=True)
class Chain:
    """Linear layers with ReLU between them, all of whose parameters are trained.

    Attributes:
        layers: Every module of the forward pass, in its order, with its name.
    """

    layers: tuple[tuple[str, nn.Module], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Self | None:
        """The model as a chain; None where it is none.

        A model says what it is made of by a method ``chain``, which gives the modules that its
        forward pass applies one after another, and nothing else; `nn.Sequential` says so itself.
        """
        names = {module: name for name, module in model.named_modules()}
        layers = tuple((names.get(module, ""), module) for module in _modules_of(model))
        trained = {id(parameter) for _, layer in layers for parameter in layer.parameters()}
        every = list(model.parameters())
        whole = {id(parameter) for parameter in every} == trained
        if not every or not whole or not all(parameter.requires_grad for parameter in every):
            return None
        if len({module for _, module in layers}) < len(layers):
            return None
        return cls(layers) if all(_is_known(module) for _, module in layers) else None

    @property
    def methods(self) -> dict[str, str]:
        """How each layer's norms are found, by name."""
        return {name: METHOD for name, layer in self.layers if isinstance(layer, nn.Linear)}

    def follows(self, inputs: Tensor) -> bool:
        """Whether a batch [b, …] passes as one vector a record, and nobody watches it pass."""
        first = self.layers[self._first][1]
        assert isinstance(first, nn.Linear)
        flat = inputs.dim() == 2 or self._flattens
        alike = inputs.dtype == first.weight.dtype
        return flat and alike and not any(_is_watched(layer) for _, layer in self.layers)

    @cached_property
    def _first(self) -> int:
        """The place of the first linear layer."""
        return next(place for place, (_, layer) in enumerate(self.layers) if _is_linear(layer))

    @cached_property
    def _flattens(self) -> bool:
        """Whether records of any shape are vectors once they come to it."""
        return any(isinstance(layer, nn.Flatten) for _, layer in self.layers[: self._first])

    def backward(self, inputs: Tensor, targets: Tensor, loss: Loss) -> list[Used]:
        """Both passes over a batch: what each linear layer got, and the gradients of its outputs.

        Args:
            inputs: Records [b, …] that the chain `follows`.
            targets: Their targets.
            loss: Outputs and targets to one loss a record.

        Raises:
            ClippingError: If the loss is not one value a record.
        """
        values: list[Tensor] = []
        with torch.no_grad():
            current = inputs
            for _, layer in self.layers:
                values.append(current)
                current = layer.forward(current)
        outputs = current.requires_grad_()
        with torch.enable_grad():
            losses = record_losses(loss, outputs, targets)
        if losses.requires_grad:
            (gradients,) = torch.autograd.grad(losses.sum(), outputs)
        else:
            gradients = torch.zeros_like(outputs)
        used: list[Used] = []
        for place in reversed(range(self._first, len(self.layers))):
            name, layer = self.layers[place]
            if isinstance(layer, nn.Linear):
                used.append(Used(layer, name, values[place], gradients))
                if place > self._first:
                    gradients = torch.mm(gradients, layer.weight.detach())
            elif isinstance(layer, nn.ReLU):
                after = values[place + 1] if place + 1 < len(values) else outputs.detach()
                gradients = torch.ops.aten.threshold_backward(gradients, after, 0)
        return used


def squared_norms(used: list[Used]) -> Tensor:
    """‖g_j‖² over all layers, float64 [b]; not finite where a gradient is not."""
    parts = []
    for one in used:
        inputs = _norms(one.inputs).square_()
        if one.layer.bias is not None:
            inputs.add_(1.0)
        parts.append(inputs.mul_(_norms(one.gradients).square_()))
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def weighted_sum(
    used: list[Used], factors: Tensor, rows: Tensor | None, out: Mapping[str, Tensor]
) -> None:
    """Write Σ_j c_j g_j over records whose gradient is finite.

    Args:
        used: What each layer got and gave.
        factors: c_j of the records in ``rows``, [n], in the gradients' kind.
        rows: Those records, [n]; None for all.
        out: Where to write, by parameter's full name, each a flat view into the total.
    """
    for one in used:
        inputs = one.inputs if rows is None else one.inputs[rows]
        gradients = one.gradients if rows is None else one.gradients[rows]
        prefix = f"{one.name}." if one.name else ""
        weighted = (gradients * factors.unsqueeze(1)).t()
        torch.mm(weighted, inputs, out=out[f"{prefix}weight"].view(one.layer.weight.shape))
        if one.layer.bias is not None:
            torch.sum(weighted, 1, out=out[f"{prefix}bias"])


def _norms(rows: Tensor) -> Tensor:
    """The norm of each row [b, n], in float64 [b]."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def _modules_of(model: nn.Module) -> Iterator[nn.Module]:
    own = getattr(model, "chain", None)
    if type(model) is nn.Sequential:
        for module in model:
            yield from _modules_of(module)
    elif callable(own):
        yield from own()
    else:
        yield model


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear


def _is_known(module: nn.Module) -> bool:
    if "forward" in vars(module):
        return False
    if type(module) is nn.Flatten:
        return (module.start_dim, module.end_dim) == (1, -1)
    return _is_linear(module) or type(module) is nn.ReLU


def _is_watched(module: nn.Module) -> bool:
    """Whether a hook wants to see what passes, which only the module's own call would show it."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
