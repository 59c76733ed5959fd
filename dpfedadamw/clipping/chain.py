"""Clipped sums of linear layers one after another, written out: small models are all overhead.

Through autograd a clipped sum of a softmax regression takes some four hundred calls, which cost six
times a plain step; its arithmetic costs next to nothing. But where a layer's inputs a_j and output
gradients δ_j are one vector a record, the gradient of its weight is δ_j a_jᵀ and that of its bias
δ_j, so that ‖g_j‖² = ‖δ_j‖² (‖a_j‖² + 1) (Goodfellow 2015, section 4), and the sum Σ_j c_j g_j is
one product, (diag(c) δ)ᵀ a.

`Chain` does so in torch. `SmallChain` does it in numpy, where a call takes a third of the time of
torch's: a softmax regression of 650 parameters computes for three microseconds a batch and spends a
hundred times that on calls. The gradient of cross-entropy by a record's outputs is the softmax less
one at its class, so that nothing is left for autograd to find.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfedadamw.clipping.forms import GRAM_ROUNDING
from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    Clipping,
    Loss,
    flat_clip,
    flat_factors,
    record_losses,
)
from dpfedadamw.tasks import cross_entropy
from dpfedadamw.vectors.flat import is_short

# How such a layer's norms are found, in words for the user.
METHOD = "in closed form"
# Multiplications of the largest product: OpenBLAS shares larger ones out among threads, whose
# number would show in the rounding.
_LARGEST_PRODUCT = 2**18
_LIMITS = np.finfo(np.float32)

_Array = NDArray[np.float32]


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
    own = getattr(model, "applied_modules", None)
    if type(model) is nn.Sequential:
        for module in model:
            yield from _modules_of(module)
    elif inspect.ismethod(own):
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


@dataclass(frozen=True)
class _Step:
    """One module of the forward pass that computes something.

    Attributes:
        layer: A linear layer; None for a ReLU.
        weight: Where the gradient of its weight lies in the flat vector; None for a ReLU.
        bias: The same of its bias; None where it has none.
    """

    layer: nn.Linear | None
    weight: slice | None = None
    bias: slice | None = None


@dataclass(frozen=True)
class SmallChain:
    """A chain of few parameters in float32 on a CPU, trained by cross-entropy over classes.

    Attributes:
        steps: Its linear layers and ReLUs, in the order of the forward pass.
        size: d, its parameters.
        clipping: The clipping norm.
        methods: How each layer's norms are found, by name.
        widest: Parameters of the largest weight.
    """

    steps: tuple[_Step, ...]
    size: int
    clipping: Clipping
    methods: Mapping[str, str]
    widest: int

    @classmethod
    def of(
        cls, chain: Chain, parameters: Mapping[str, Tensor], loss: Loss, clipping: Clipping
    ) -> Self | None:
        """The chain in numpy; None where it is too large for that, or not of this kind.

        Args:
            chain: Linear layers one after another.
            parameters: All that are trained, by name, in the order of the flat vector.
            loss: Outputs and targets to one loss a record.
            clipping: The clipping norm and its rule.
        """
        size = sum(one.numel() for one in parameters.values())
        plain = all(
            one.dtype == torch.float32 and one.device.type == "cpu" for one in parameters.values()
        )
        if loss is not cross_entropy or clipping.rule is not flat_clip:
            return None
        if not plain or not is_short(size):
            return None
        places: dict[str, slice] = {}
        start = 0
        for name, one in parameters.items():
            places[name] = slice(start, start + one.numel())
            start += one.numel()
        steps: list[_Step] = []
        for name, layer in chain.layers:
            prefix = f"{name}." if name else ""
            if isinstance(layer, nn.Linear):
                bias = None if layer.bias is None else places[f"{prefix}bias"]
                steps.append(_Step(layer, places[f"{prefix}weight"], bias))
            elif isinstance(layer, nn.ReLU):
                steps.append(_Step(None))
        widest = max(one.layer.weight.numel() for one in steps if one.layer is not None)
        return cls(tuple(steps), size, clipping, chain.methods, widest)

    def __call__(
        self, inputs: Tensor, targets: Tensor, sizes: Sequence[int] | None = None
    ) -> ClippedSum | None:
        """The clipped sum of b > 0 records that the chain follows; None where torch must form it.

        Args:
            inputs: Records [b, …].
            targets: Their classes, [b].
            sizes: How many of them each person has, one after another, where mean gradients of
                people are clipped; None where each record's own is.
        """
        records = len(targets)
        together = records if sizes is None else max(records, max(sizes) ** 2)
        if together * self.widest > _LARGEST_PRODUCT or inputs.device.type != "cpu":
            return None
        if targets.dtype != torch.int64 or targets.dim() != 1:
            return None
        classes: NDArray[np.int64] = targets.numpy()
        with np.errstate(all="ignore"):
            values = self._forward(inputs.detach().numpy().reshape(records, -1))
            outputs = values[-1]
            # What torch would refuse or leave out is for torch to say; below 0 is above 2^63 here.
            if int(classes.view(np.uint64).max()) >= outputs.shape[1]:
                return None
            gradients = np.exp(outputs - outputs.max(1, keepdims=True))
            gradients /= gradients.sum(1, keepdims=True)
            gradients[np.arange(records), classes] -= 1.0
            people = None if sizes is None else _People(np.array(sizes))
            return self._clipped(values, self._backward(values, gradients), people)

    def _forward(self, inputs: _Array) -> list[_Array]:
        """What each step got, [b, n], and at the end the outputs [b, m]."""
        values = [inputs]
        for step in self.steps:
            current = values[-1]
            if step.layer is None:
                values.append(np.maximum(current, 0.0))
                continue
            after = current @ _array(step.layer.weight).T
            if step.layer.bias is not None:
                after += _array(step.layer.bias)
            values.append(after)
        return values

    def _backward(self, values: list[_Array], gradients: _Array) -> list[_Array | None]:
        """The gradient by the outputs of each linear layer, [b, m], by the place of its step."""
        found: list[_Array | None] = [None] * len(self.steps)
        first = next(place for place, step in enumerate(self.steps) if step.layer is not None)
        for place in reversed(range(first, len(self.steps))):
            layer = self.steps[place].layer
            if layer is None:
                gradients = np.where(values[place + 1] <= 0.0, np.float32(0.0), gradients)
                continue
            found[place] = gradients
            if place > first:
                gradients = gradients @ _array(layer.weight)
        return found

    def _clipped(
        self, values: list[_Array], gradients: list[_Array | None], people: _People | None
    ) -> ClippedSum:
        """The clipped sum of what each step got and of the gradients by its outputs."""
        squares = np.zeros(len(values[0] if people is None else people.sizes))
        for step, inputs, own in zip(self.steps, values, gradients, strict=False):
            if own is not None and people is not None:
                squares += people.squares(inputs, own, step.bias is not None)
            elif own is not None:
                of_inputs = _squares(inputs)
                if step.bias is not None:
                    of_inputs += 1.0
                squares += of_inputs * _squares(own)
        norms = np.sqrt(squares)
        finite = norms <= _LIMITS.max
        every = bool(finite.all())
        factors = flat_factors(norms, self.clipping.norm)
        # Too small to be held in full precision: rounded up it could exceed the clipping norm.
        factors *= factors >= _LIMITS.tiny
        if not every:
            factors = np.where(finite, factors, 0.0)
        clipped = norms * factors if every else np.where(finite, norms * factors, 0.0)
        each, kept = (factors, finite) if people is None else people.of_records(factors, finite)
        narrow = each.astype(np.float32)[:, np.newaxis]
        total = np.empty(self.size, np.float32)
        for step, inputs, own in zip(self.steps, values, gradients, strict=False):
            if own is None or step.layer is None:
                continue
            # 0 · NaN is NaN: a record that is not finite is left out, not multiplied by zero.
            weighted = own * narrow if every else own[kept] * narrow[kept]
            chosen = inputs if every else inputs[kept]
            np.matmul(weighted.T, chosen, out=total[step.weight].reshape(step.layer.weight.shape))
            if step.bias is not None:
                weighted.sum(0, out=total[step.bias])
        count = 0 if every else int(len(finite) - finite.sum())
        return ClippedSum(
            torch.from_numpy(total), torch.from_numpy(norms), torch.from_numpy(clipped), count
        )


class _People:
    """Whose each of b records is, as `people.Groups` has it, in numpy.

    Args:
        sizes: How many records each person has, one after another, [n].
    """

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        self.sizes = sizes
        self._person = np.repeat(np.arange(len(sizes)), sizes)
        self._place = np.arange(len(self._person)) - (np.cumsum(sizes) - sizes)[self._person]

    def squares(self, inputs: _Array, gradients: _Array, bias: bool) -> NDArray[np.float64]:
        """‖u‖² of each person's mean gradient over one layer, and what rounding may hide, [n]."""
        of_inputs = self._products(inputs)
        if bias:
            of_inputs += 1.0
        products = of_inputs * self._products(gradients)
        found: NDArray[np.float64] = np.maximum(products.sum((1, 2)), 0.0)
        if products.shape[1] > 1:
            own = np.sqrt(np.maximum(products.diagonal(axis1=1, axis2=2), 0.0)).sum(1)
            found += GRAM_ROUNDING * float(_LIMITS.eps) * own**2
        return found / self.sizes**2

    def of_records(
        self, factors: NDArray[np.float64], finite: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """What each record's gradient is multiplied by, and whether its person's is finite, [b]."""
        return (factors / self.sizes)[self._person], finite[self._person]

    def _products(self, rows: _Array) -> NDArray[np.float64]:
        """Inner products of each person's rows of [b, k], with zeros for fewer, [n, m, m]."""
        whole = np.zeros((len(self.sizes), int(self.sizes.max()), rows.shape[1]))
        whole[self._person, self._place] = rows
        found: NDArray[np.float64] = whole @ whole.transpose(0, 2, 1)
        return found


def _array(parameter: Tensor) -> _Array:
    """The parameter's values, where they lie."""
    array: _Array = parameter.data.numpy()
    return array


def _squares(rows: _Array) -> NDArray[np.float64]:
    """The squared norm of each row [b, n], summed in float64, [b]."""
    found: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return found
