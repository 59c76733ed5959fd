"""Layers whose backward pass hands over per-record gradients in place of their sum.

Each function computes exactly what the layer it stands for computes. Its backward pass gives the
gradient of the inputs as usual, none for the parameters, and a `GradientForm` to the layer's site.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dpfedadamw.clipping.embeddings import form_of_lookup
from dpfedadamw.clipping.forms import (
    GradientForm,
    Kept,
    form_of_product,
)
from dpfedadamw.clipping.precision import narrow
from dpfedadamw.clipping.products import (
    ConvolutionProducts,
    LinearProducts,
    TransposedLinearProducts,
)
from dpfedadamw.vectors.precision import wide


@dataclass(frozen=True)
class Receiver:
    """Where a layer's per-record gradients go.

    Attributes:
        weight: Whether its weight is trained.
        bias: Whether it has a bias that is trained.
        receive: Takes the form; called once a use of the layer.
    """

    weight: bool
    bias: bool
    receive: Callable[[GradientForm], None]


class _Linear(Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, receiver: Receiver
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.receiver = receiver
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        receiver: Receiver = ctx.receiver
        form = form_of_product(
            LinearProducts(), inputs.detach(), outputs, weight=receiver.weight, bias=receiver.bias
        )
        receiver.receive(form)
        back = outputs.matmul(weight.to(outputs.dtype)) if ctx.needs_input_grad[0] else None
        return back, None, None, None


class _TransposedLinear(Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, receiver: Receiver
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.receiver = receiver
        return F.linear(inputs, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        receiver: Receiver = ctx.receiver
        form = form_of_product(
            TransposedLinearProducts(),
            inputs.detach(),
            outputs,
            weight=receiver.weight,
            bias=receiver.bias,
        )
        receiver.receive(form)
        back = outputs.matmul(weight.t().to(outputs.dtype)) if ctx.needs_input_grad[0] else None
        return back, None, None, None


class _Convolution(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        products: ConvolutionProducts,
        receiver: Receiver,
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.products, ctx.receiver = products, receiver
        return F.conv2d(
            inputs,
            weight,
            bias,
            products.stride,
            products.padding,
            products.dilation,
            products.groups,
        )

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        products: ConvolutionProducts = ctx.products
        receiver: Receiver = ctx.receiver
        form = form_of_product(
            products, inputs.detach(), outputs, weight=receiver.weight, bias=receiver.bias
        )
        receiver.receive(form)
        back = None
        if ctx.needs_input_grad[0]:
            back = torch.ops.aten.convolution_backward(
                outputs,
                inputs,
                weight.to(outputs.dtype),
                None,
                products.stride,
                products.padding,
                products.dilation,
                False,
                (0, 0),
                products.groups,
                (True, False, False),
            )[0]
        return back, None, None, None, None


class _LayerNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shape: tuple[int, ...],
        epsilon: float,
        receiver: Receiver,
    ) -> Tensor:
        result, mean, scale = torch.native_layer_norm(inputs, shape, weight, bias, epsilon)
        ctx.save_for_backward(inputs, mean, scale, weight, bias)
        ctx.shape, ctx.receiver = shape, receiver
        return result

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> tuple[Tensor | None, ...]:
        inputs, mean, scale, weight, bias = ctx.saved_tensors
        receiver: Receiver = ctx.receiver
        inputs = inputs.detach()
        gradients: dict[str, Tensor] = {}
        if receiver.weight:
            normalised = (inputs - mean).mul_(scale).mul_(outputs)
            gradients["weight"] = _over_places(normalised, ctx.shape)
        if receiver.bias:
            gradients["bias"] = _over_places(outputs, ctx.shape)
        receiver.receive(Kept(gradients))
        back = None
        if ctx.needs_input_grad[0]:
            back = torch.ops.aten.native_layer_norm_backward(
                outputs, inputs, ctx.shape, mean, scale, weight, bias, (True, False, False)
            )[0]
        return back, None, None, None, None, None


def _over_places(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum values [b, …, *shape] over the places of each record, [b, *shape]."""
    return values.reshape(len(values), -1, *shape).sum(1)


class _GroupNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        groups: int,
        epsilon: float,
        receiver: Receiver,
    ) -> Tensor:
        inputs = inputs.contiguous()
        batch, channels = inputs.shape[:2]
        places = inputs[0, 0].numel()
        result, mean, scale = torch.native_group_norm(
            inputs, weight, bias, batch, channels, places, groups, epsilon
        )
        ctx.save_for_backward(inputs, mean, scale, weight)
        ctx.groups, ctx.receiver = groups, receiver
        return result

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> tuple[Tensor | None, ...]:
        inputs, mean, scale, weight = ctx.saved_tensors
        receiver: Receiver = ctx.receiver
        batch, channels = inputs.shape[:2]
        # The whole batch as one record with b times the channels and groups: the sums over records
        # that the kernel would form for weight and bias are then each record's own.
        back, of_weight, of_bias = torch.ops.aten.native_group_norm_backward(
            outputs.contiguous(),
            inputs.detach(),
            mean.view(1, -1),
            scale.view(1, -1),
            None if weight is None else weight.detach().repeat(batch),
            1,
            batch * channels,
            inputs[0, 0].numel(),
            ctx.groups * batch,
            (ctx.needs_input_grad[0], receiver.weight, receiver.bias),
        )
        gradients: dict[str, Tensor] = {}
        if receiver.weight:
            gradients["weight"] = of_weight.view(batch, channels)
        if receiver.bias:
            gradients["bias"] = of_bias.view(batch, channels)
        receiver.receive(Kept(gradients))
        return back, None, None, None, None, None


class _Lookup(Function):
    @staticmethod
    def forward(
        ctx: Any, indices: Tensor, weight: Tensor, padding_index: int | None, receiver: Receiver
    ) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows, ctx.padding_index, ctx.receiver = len(weight), padding_index, receiver
        return F.embedding(indices, weight)

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> tuple[None, ...]:
        (indices,) = ctx.saved_tensors
        receiver: Receiver = ctx.receiver
        receiver.receive(form_of_lookup(indices, outputs, ctx.rows, ctx.padding_index))
        return None, None, None, None


class _Copies(Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, shape: tuple[int, ...], receiver: Receiver) -> Tensor:
        ctx.receiver = receiver
        # One copy a record, sharing memory.
        return parameter.detach().expand(shape)

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> tuple[None, ...]:
        receiver: Receiver = ctx.receiver
        receiver.receive(Kept({"weight": outputs.reshape(len(outputs), -1)}))
        return None, None, None


def copies(parameter: Tensor, batch: int, receiver: Receiver) -> Tensor:
    """One copy of a parameter a record.

    Args:
        parameter: Any shape; a leading dimension of 1 is taken as the place of the records.
        batch: Number of records b.
        receiver: Takes the gradient of each copy.

    Returns:
        The copies, [b, …].
    """
    shape = parameter.shape[1:] if parameter.shape[:1] == (1,) else parameter.shape
    return apply(_Copies, parameter, (batch, *shape), receiver)


def apply(function: type[torch.autograd.Function], *arguments: object) -> Tensor:
    """Apply an autograd function: the one place that meets torch's untyped ``apply``."""
    outputs: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return outputs


def linear(layer: nn.Module, inputs: Tensor, receiver: Receiver) -> Tensor:
    """The outputs of a ``Linear``."""
    return apply(_Linear, narrow(inputs), layer.weight, layer.bias, receiver)


def transposed_linear(layer: nn.Module, inputs: Tensor, receiver: Receiver) -> Tensor:
    """The outputs of a layer whose weight is [inputs, outputs], as ``Conv1D`` of GPT-2 has it."""
    return apply(_TransposedLinear, narrow(inputs), layer.weight, layer.bias, receiver)


def convolution(layer: nn.Module, inputs: Tensor, receiver: Receiver) -> Tensor:
    """The outputs of a ``Conv2d``."""
    assert isinstance(layer, nn.Conv2d)
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        inputs = F.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
        padding = (0, 0)
    products = ConvolutionProducts(
        _pair(layer.kernel_size),
        _pair(layer.stride),
        _pair(padding),
        _pair(layer.dilation),
        layer.groups,
    )
    return apply(_Convolution, narrow(inputs), layer.weight, layer.bias, products, receiver)


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]


def layer_norm(layer: nn.Module, inputs: Tensor, receiver: Receiver) -> Tensor:
    """The outputs of a ``LayerNorm``."""
    assert isinstance(layer, nn.LayerNorm)
    return apply(
        _LayerNorm,
        wide(inputs),
        layer.weight,
        layer.bias,
        layer.normalized_shape,
        layer.eps,
        receiver,
    )


def group_norm(layer: nn.Module, inputs: Tensor, receiver: Receiver) -> Tensor:
    """The outputs of a ``GroupNorm``."""
    assert isinstance(layer, nn.GroupNorm)
    return apply(
        _GroupNorm, wide(inputs), layer.weight, layer.bias, layer.num_groups, layer.eps, receiver
    )


def lookup(layer: nn.Module, inputs: Tensor, receiver: Receiver) -> Tensor:
    """The outputs of an ``Embedding``."""
    assert isinstance(layer, nn.Embedding)
    return apply(_Lookup, inputs, layer.weight, layer.padding_idx, receiver)
