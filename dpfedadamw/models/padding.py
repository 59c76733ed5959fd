"""Cuts a batch of texts to its longest record, so that nobody computes on padding.

Texts are padded to one length when they are read; most are far shorter. What a record's gradient is
must not depend on who shares its batch, so a batch is cut only for encoders in which no padding
reaches any token or score: each layer works on one place at a time, and attention gives padding a
weight of exactly 0. Convolutions over places, Fourier mixing, windows, or scores taken from the
last place would not do.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Architectures of transformers, by the name in config.json, of which that is tested.
BLIND_TO_PADDING = frozenset(
    ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
)


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
