"""What travels between server and clients, as bytes.

Messages are really serialised, so that communication is measured and not assumed, and so that
nothing can reach a client or the server but what is in a message.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors.torch import load
from torch import Tensor

from dpfedadamw.errors import PrivacyError
from dpfedadamw.profiling import part
from dpfedadamw.vectors.packing import packed, views

_PRINCIPAL = "parameters"
_COORDINATES = "coordinates"


@part("messages")
def pack(principal: Tensor, state: Mapping[str, Tensor]) -> bytes:
    """Serialise a flat vector and named state tensors."""
    tensors = {_PRINCIPAL: principal, **{f"state.{name}": value for name, value in state.items()}}
    return packed(tensors)


@part("messages")
def unpack(message: bytes, like: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Read a message back, onto the device of ``like``."""
    tensors = {name: value.to(like.device) for name, value in load(message).items()}
    principal = tensors.pop(_PRINCIPAL)
    return principal, {name.removeprefix("state."): value for name, value in tensors.items()}


def view(message: bytes, like: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Read a message without a copy where that can be; nobody may write into what it gives.

    Others read the same memory: `refuse_changes` tells afterwards whether anybody wrote into it.
    """
    tensors = {name: value.to(like.device) for name, value in views(message).items()}
    principal = tensors.pop(_PRINCIPAL)
    return principal, {name.removeprefix("state."): value for name, value in tensors.items()}


def refuse_changes(read: Mapping[str, Tensor]) -> None:
    """Refuse a local rule that wrote into what it read: the next client reads the same.

    Args:
        read: What `view` gave, by name.

    Raises:
        PrivacyError: If an operation has changed one of the tensors in place.
    """
    # Counted by torch for a tensor and all that look at its memory; new ones have 0.
    changed = [name for name, tensor in read.items() if tensor._version]
    if changed:
        raise PrivacyError(
            f"the algorithm's local rule wrote into {changed[0]!r} of the broadcast, which the "
            "next client reads too; it must copy what it changes, as with .clone()"
        )


@part("messages")
def pack_update(update: Tensor, kept: int | None) -> bytes:
    """Serialise a client's upload.

    Args:
        update: What the client sends, dense or at public coordinates, which need no naming.
        kept: How many coordinates at most are not zero, where the client has chosen them itself:
            then each value travels with its coordinate if that is shorter. How long a message is
            depends on public numbers only.
    """
    position = torch.int32 if len(update) < 2**31 else torch.int64
    pair = update.element_size() + position.itemsize
    if kept is None or kept * pair >= len(update) * update.element_size():
        return pack(update, {})
    # What clips whole updates is loaded where clients are protected.
    from dpfedadamw.privacy.updates import largest_coordinates

    chosen = largest_coordinates(update, kept)
    return pack(update[chosen], {_COORDINATES: chosen.to(position)})


@part("messages")
def unpack_update(message: bytes, size: int, like: Tensor) -> Tensor:
    """Read an upload back: [size], zero at coordinates that were not named."""
    update, state = unpack(message, like)
    if _COORDINATES not in state:
        return update
    whole = update.new_zeros(size)
    whole[state[_COORDINATES].long()] = update
    return whole
