"""The digest of what a module computes with and nobody trains: frozen parameters and buffers.

The ledger's header names it, and so does the line of every round. A backbone that moved between two
rounds moved by something that nobody charged.
"""

from __future__ import annotations

import hashlib
import itertools

import torch
from torch import nn


def frozen_digest(module: nn.Module) -> str | None:
    """Sha256 (hex) of names, types, shapes and numbers; None where everything is trained.

    Published weights and buffers that no file holds are part of it. The numbers are read each time:
    torch counts no changes that are made through ``data``.
    """
    whole, found = hashlib.sha256(), False
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if tensor.requires_grad:
            continue
        found = True
        plain = tensor.detach().cpu().contiguous()
        whole.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        whole.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest() if found else None
