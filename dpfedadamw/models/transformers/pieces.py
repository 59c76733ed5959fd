"""The loss of a frozen output layer over a long vocabulary, some tokens at a time.

The scores of a batch are by far the largest tensor of a language model's step, and each is needed
once. Here a few tokens are scored, their losses and the gradient of their hidden states are taken,
and their scores are dropped before the next. The gradient that is kept has the size of the hidden
states. Nothing is approximated, and no gradient of the output layer is formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

# Scores that are formed at once: 16 MiB in float32.
SCORES = 2**22


def losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    shares: Tensor,
    ignored: int,
) -> Tensor:
    """The loss of each record, [b]: the sum of its tokens' cross-entropies times its share.

    Args:
        hidden: What the output layer reads, [b, m, h].
        weight: Of the output layer, [tokens, h]; frozen.
        bias: Of the same, [tokens] or None; frozen.
        targets: The right tokens, int64 [b, m].
        shares: What a record's losses are multiplied by, [b].
        ignored: The target of places that do not count. They are never scored.
    """
    arguments = (hidden, weight, bias, targets, shares, ignored)
    found: Tensor = _Losses.apply(*arguments)  # type: ignore[no-untyped-call]  # torch's
    return found


def ranges(tokens: int, vocabulary: int) -> Iterator[slice]:
    """Runs of tokens whose scores are formed at once."""
    step = max(1, SCORES // vocabulary)
    for start in range(0, tokens, step):
        yield slice(start, start + step)


class _Losses(Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        shares: Tensor,
        ignored: int,
    ) -> Tensor:
        counts = targets != ignored
        chosen, right = hidden[counts], targets[counts]
        share = shares[:, None].expand_as(targets)[counts]
        each = chosen.new_empty(len(right))
        back = torch.empty_like(chosen) if ctx.needs_input_grad[0] else None
        for run in ranges(len(right), len(weight)):
            scores = functional.linear(chosen[run], weight, bias)
            found = scores.log_softmax(1)
            del scores
            told = right[run, None]
            each[run] = -found.gather(1, told)[:, 0]
            if back is not None:
                # ∂/∂z of −log softmax(z)_y is softmax(z) − e_y.
                slope = found.exp_()
                slope.scatter_add_(1, told, -torch.ones_like(told, dtype=slope.dtype))
                back[run] = slope @ weight
        if back is not None:
            whole = torch.zeros_like(hidden)
            whole[counts] = back.mul_(share[:, None])
            ctx.save_for_backward(whole)
        rows = counts.nonzero()[:, 0]
        return hidden.new_zeros(len(hidden)).index_add_(0, rows, each * share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outputs: Tensor) -> tuple[Tensor | None, ...]:
        (whole,) = ctx.saved_tensors
        return whole * outputs[:, None, None], None, None, None, None, None
