"""Serialised tensors (safetensors) from hostile bytes: exactly what a plain writer makes.

What travels between server and clients, and the published weights, are in this format: eight bytes
of length, a JSON header, then the numbers. Bytes that belong to no tensor are refused, as something
might travel in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.untrusted import fields
from audit.untrusted.arrays import Floats
from audit.untrusted.documents import DocumentError, parse_json
from audit.untrusted.errors import UntrustedError
from audit.untrusted.fields import FieldError

MAXIMUM_HEADER_BYTES = 1 << 24
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_WHOLE = {"I64": "<i8", "I32": "<i4"}
_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2"), 1),
}


@dataclass(frozen=True)
class Stored:
    """A tensor as it is stored: its type's name, its shape and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    content: memoryview


class MessageError(UntrustedError):
    """Bytes that are not plain serialised tensors; the message says why."""


def read_tensors(
    raw: bytes, *, metadata: bool = False, whole: str | None = None
) -> dict[str, Floats]:
    """All tensors by name, each flat and in float64.

    Args:
        raw: the whole message.
        metadata: whether texts beside the tensors are allowed.
        whole: the one tensor that may hold whole numbers.

    Raises:
        MessageError: the message is malformed, or holds more than its tensors.
    """
    try:
        header, data = _opened(raw)
        if header.pop("__metadata__", None) is not None and not metadata:
            raise MessageError("carries texts beside its tensors")
        return _tensors(header, data, whole)
    except (DocumentError, FieldError) as error:
        raise MessageError(f"has a malformed header ({error})") from error


def read_stored(raw: bytes) -> dict[str, Stored]:
    """All tensors by name as they are stored, whatever their type; texts beside them are allowed.

    Raises:
        MessageError: the message is malformed, or holds bytes that belong to no tensor.
    """
    try:
        header, data = _opened(raw)
        header.pop("__metadata__", None)
        return dict(_stored(header, memoryview(data)))
    except (DocumentError, FieldError) as error:
        raise MessageError(f"has a malformed header ({error})") from error


def read_names(raw: bytes) -> tuple[dict[str, bool], Mapping[str, Any]]:
    """All tensors by name, each with whether it holds real numbers; and the texts beside them.

    Raises:
        MessageError: the message is malformed.
    """
    try:
        header, _ = _opened(raw)
        texts = fields.mapping(header, "__metadata__") if "__metadata__" in header else {}
        names = {
            name: "F" in fields.text(entry, "dtype")
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (DocumentError, FieldError) as error:
        raise MessageError(f"has a malformed header ({error})") from error
    return names, texts


def _opened(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The parsed header, and the numbers behind it."""
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > min(MAXIMUM_HEADER_BYTES, len(raw) - 8):
        raise MessageError("is not a serialised message")
    header = parse_json(raw[8 : 8 + length].rstrip(b" "))
    if not isinstance(header, dict):
        raise MessageError("has a header that is no mapping")
    return header, raw[8 + length :]


def _tensors(header: Mapping[str, Any], data: bytes, whole: str | None) -> dict[str, Floats]:
    tensors: dict[str, Floats] = {}
    for name, stored in _stored(header, memoryview(data)):
        types = _WHOLE if name == whole else _TYPES
        kind = np.dtype(types[fields.choice(header[name], "dtype", tuple(types))])
        tensors[name] = np.frombuffer(stored.content, dtype=kind).astype(np.float64)
    return tensors


def _stored(header: Mapping[str, Any], data: memoryview) -> Iterator[tuple[str, Stored]]:
    """Tensors in the order of their bytes, which they must share out among them."""
    covered = 0
    places = {name: fields.integers(entry, "data_offsets") for name, entry in header.items()}
    if any(len(place) != 2 for place in places.values()):
        raise MessageError("has a tensor without a place")
    for name, (start, stop) in sorted(places.items(), key=lambda item: item[1]):
        dtype = fields.choice(header[name], "dtype", tuple(_BYTES))
        shape = fields.integers(header[name], "shape")
        size = math.prod(shape) * _BYTES[dtype]
        if start != covered or stop - start != size or stop > len(data):
            raise MessageError("has bytes that belong to no tensor, or to two")
        covered = stop
        yield name, Stored(dtype, tuple(shape), data[start:stop])
    if covered != len(data):
        raise MessageError("has bytes that belong to no tensor")
