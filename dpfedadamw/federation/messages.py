"""What travels between server and clients, as bytes.

Messages are really serialised, so that communication is measured and not assumed, and so that
nothing can reach a client or the server but what is in a message.
"""

from __future__ import annotations

from collections.abc import Mapping

from safetensors.torch import load, save
from torch import Tensor

_PRINCIPAL = "parameters"


def pack(principal: Tensor, state: Mapping[str, Tensor]) -> bytes:
    """Serialise a flat vector and named state tensors."""
    tensors = {_PRINCIPAL: principal, **{f"state.{name}": value for name, value in state.items()}}
    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def unpack(message: bytes, like: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Read a message back, onto the device of ``like``."""
    tensors = {name: value.to(like.device) for name, value in load(message).items()}
    principal = tensors.pop(_PRINCIPAL)
    return principal, {name.removeprefix("state."): value for name, value in tensors.items()}
