"""Cuts batches of texts to their longest record, so that little is computed on padding.

Texts are padded to one length when they are read; most are far shorter. What a record's gradient is
must not depend on who shares its batch, so a batch is cut only for encoders in which no padding
reaches any token or score: each layer works on one place at a time, and attention gives padding a
weight of exactly 0. Convolutions over places, Fourier mixing, windows, or scores taken from the
last place would not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

# Architectures of transformers, by the name in config.json, of which that is tested.
BLIND_TO_PADDING = frozenset(
    ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
)


@runtime_checkable
class CutsPadding(Protocol):
    """A model that may cut its batches."""

    def keep_padding(self) -> None:
        """Compute on whole records from now on."""


def keep_padding(model: nn.Module) -> None:
    """Let a model's batches be of one size in every dimension, whatever records they hold."""
    if isinstance(model, CutsPadding):
        model.keep_padding()


def places_in_use(tokens: Tensor, padding: int) -> Tensor:
    """Places up to the last token of each record, int64 [b], each from 1 to length.

    A record without any token uses all places: attention has nothing else to look at then than
    padding, all of which counts.

    Args:
        tokens: Token numbers [b, length].
        padding: The one that means nothing is there.
    """
    length = tokens.shape[1]
    counted = torch.arange(1, length + 1, device=tokens.device)
    last = ((tokens != padding) * counted).amax(1)
    return torch.where(last == 0, length, last)


def can_be_cut(records: Tensor) -> bool:
    """Whether the records' contents can be looked at: vmap hides them."""
    return len(records) > 0 and not torch._C._functorch.is_functorch_wrapped_tensor(records)


def groups_of_like_length(places: Sequence[int], overhead: float) -> list[list[int]]:
    """Divide records into groups that take the least time, each cut to its own longest record.

    Args:
        places: Of each record.
        overhead: What one more group costs, in places.

    Returns:
        The records of each group, by their position; each record once.
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    lengths = sorted(set(places))
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + places.count(length))
    # Least cost of the records up to each length, and where its last group begins.
    best, begins = [0.0], [0]
    for last, length in enumerate(lengths, start=1):
        costs = [best[k] + overhead + (ends[last] - ends[k]) * length for k in range(last)]
        best.append(min(costs))
        begins.append(costs.index(best[-1]))
    groups: list[list[int]] = []
    last = len(lengths)
    while last:
        groups.append(order[ends[begins[last]] : ends[last]])
        last = begins[last]
    return groups
