"""What layers multiply in: float32, or bfloat16 by torch's autocast; weights stay in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

FLOAT32, BFLOAT16 = "float32", "bfloat16"
PRECISIONS = (FLOAT32, BFLOAT16)


@contextlib.contextmanager
def computing_in(precision: str, device: torch.device) -> Iterator[None]:
    """Let a forward pass multiply in a precision; float32 changes nothing."""
    if precision == FLOAT32:
        yield
        return
    # Weights change between steps: a cached copy in bfloat16 would be an old one.
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        yield


def wide(values: Tensor) -> Tensor:
    """Values of 16 bits in float32, exactly; others themselves."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
