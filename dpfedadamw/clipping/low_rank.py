"""Low-rank adapters (LoRA, Hu et al. 2022) as one layer: frozen base, A and B in one pass.

y = W x + s·B A x, as peft's ``Linear`` computes it. Taken apart, the narrow path costs four thin
products and as many passes over inputs and outputs. W + s·B A, formed once a batch, serves both
directions; what is left are the two products that the gradients of A and B need anyway.
"""

from __future__ import annotations

import operator
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from dpfedadamw.clipping.forms import form_of_product
from dpfedadamw.clipping.layers import Receiver, apply
from dpfedadamw.clipping.products import LinearProducts

_PEFT = "peft.tuners.lora.layer"
_PRECISE = (torch.float32, torch.float64)


@dataclass(frozen=True)
class LowRankPair:
    """What is in force inside an adapted layer.

    Attributes:
        base: The frozen layer.
        down: A, [r, d], without bias.
        up: B, [p, r], without bias.
        scaling: s.
        names: Names of A and B below the adapted layer; of B alone where A is frozen.
    """

    base: nn.Linear
    down: nn.Linear
    up: nn.Linear
    scaling: float
    names: tuple[str, ...]


def pair_of(module: nn.Module) -> LowRankPair | None:
    """The pair that an adapted layer consists of; None for anything else.

    A layer with several active adapters, a merged or disabled one, a variant (DoRA), dropout,
    biases of its own or a trained base is left to the treatment of its parts; so is one of low
    precision, in which W would swallow a small B A.
    """
    peft = sys.modules.get(_PEFT)
    if peft is None or type(module).forward is not peft.Linear.forward:
        return None
    adapted: Any = module
    names = [name for name in adapted.active_adapters if name in adapted.lora_A]
    if len(names) != 1 or adapted.merged or adapted.disable_adapters:
        return None
    (name,) = names
    if name in adapted.lora_variant:
        return None
    base, down, up = adapted.base_layer, adapted.lora_A[name], adapted.lora_B[name]
    if not all(_is_plain(layer) for layer in (base, down, up)):
        return None
    trained = [p for p in module.parameters() if p.requires_grad]
    inside = {f"lora_A.{name}": down.weight, f"lora_B.{name}": up.weight}
    if not down.weight.requires_grad:
        del inside[f"lora_A.{name}"]
    if len(trained) != len(inside) or any(map(operator.is_not, trained, inside.values())):
        return None
    if down.bias is not None or up.bias is not None or base.weight.dtype != down.weight.dtype:
        return None
    if _drops(adapted.lora_dropout[name]):
        return None
    if base.weight.dtype not in _PRECISE or torch.is_autocast_enabled(base.weight.device.type):
        return None
    return LowRankPair(base, down, up, float(adapted.scaling[name]), tuple(inside))


def _drops(layer: nn.Module) -> bool:
    """Whether a layer where dropout may stand changes its inputs, of whatever class it is."""
    if isinstance(layer, nn.Identity):
        return False
    return layer.training and bool(getattr(layer, "p", 1.0))


def _is_plain(layer: nn.Module) -> bool:
    return type(layer).forward is nn.Linear.forward and "weight" in layer._parameters


class _LowRank(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        pair: LowRankPair,
        down: Tensor,
        up: Tensor,
        receivers: tuple[Receiver | None, Receiver],
    ) -> Tensor:
        merged = torch.addmm(pair.base.weight, up, down, alpha=pair.scaling)
        ctx.save_for_backward(inputs, F.linear(inputs, down * pair.scaling), merged, up)
        ctx.scaling, ctx.receivers = pair.scaling, receivers
        return F.linear(inputs, merged, pair.base.bias)

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> tuple[Tensor | None, ...]:
        inputs, narrow, merged, up = ctx.saved_tensors
        of_down, of_up = ctx.receivers
        _hand_over(of_up, narrow, outputs)
        if of_down is not None:
            _hand_over(of_down, inputs.detach(), outputs.matmul(up * ctx.scaling))
        back = outputs.matmul(merged) if ctx.needs_input_grad[0] else None
        return back, None, None, None, None


def _hand_over(receiver: Receiver, inputs: Tensor, outputs: Tensor) -> None:
    receiver.receive(form_of_product(LinearProducts(), inputs, outputs, weight=True, bias=False))


def low_rank(
    pair: LowRankPair, inputs: Tensor, of_down: Receiver | None, of_up: Receiver
) -> Tensor:
    """The outputs of an adapted layer.

    Args:
        pair: Its parts.
        inputs: [b, …, d].
        of_down: Takes the per-record gradients of A; None where A is frozen.
        of_up: Takes those of B.
    """
    weights = (pair.down.weight, pair.up.weight)
    return apply(_LowRank, inputs, pair, *weights, (of_down, of_up))
