"""Named tensors become bytes in the format of safetensors, and come back as they were.

The library gives the same bytes, but holds all of them twice while it makes them, and copies each
number when it reads them.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

# Types by their names in the format, in the order in which it has their tensors.
_KINDS = {"I64": torch.int64, "F64": torch.float64, "F32": torch.float32, "I32": torch.int32}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_ORDER = {kind: place for place, kind in enumerate(_NAMES)}
_ALIGNMENT = 8


def packed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """What ``safetensors.torch.save`` gives.

    Args:
        tensors: By name, of any device and type.
        metadata: One entry at most: the library writes several in no fixed order.
    """
    values = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    if not {value.dtype for value in values.values()} <= _NAMES.keys():
        return save(values, metadata=None if metadata is None else dict(metadata))
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    content, end = [], 0
    for name in sorted(values, key=lambda name: (_ORDER[values[name].dtype], name)):
        value = values[name]
        start, end = end, end + value.nbytes
        kind, shape = _NAMES[value.dtype], list(value.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
        content.append(value.reshape(-1).numpy().data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(8, "little"), text, *content])


def views(content: bytes) -> dict[str, Tensor]:
    """The tensors in bytes, which nobody may write into, without a copy where that can be."""
    begin = 8 + int.from_bytes(content[:8], "little")
    entries: dict[str, dict[str, Any]] = json.loads(content[8:begin])
    entries.pop("__metadata__", None)
    if not {one["dtype"] for one in entries.values()} <= _KINDS.keys():
        found: dict[str, Tensor] = load(content)
        return found
    if not entries:
        return {}
    with warnings.catch_warnings():
        # That bytes cannot be written to.
        warnings.simplefilter("ignore", UserWarning)
        return {name: _view(content, begin, **entry) for name, entry in entries.items()}


def _view(
    content: bytes, begin: int, *, dtype: str, shape: list[int], data_offsets: list[int]
) -> Tensor:
    count, kind = math.prod(shape), _KINDS[dtype]
    if not count:
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(content, dtype=kind, count=count, offset=begin + data_offsets[0])
    return flat.view(shape)
