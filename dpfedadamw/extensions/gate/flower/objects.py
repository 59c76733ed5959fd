"""Arrays out of Flower's objects, where everything may be forged.

Flower cuts a message into objects, each named by its SHA-256: a message has a dictionary of
records, a record has arrays, an array has chunks. Flower's own reader follows every reference that
a chunk list makes, so a few kilobytes can name gigabytes. This one knows which arrays may be there,
and reads no byte more than they need.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.lib import format as numpy_format
from numpy.typing import NDArray

from dpfedadamw.extensions.gate.settings import Form, size_of

Arrays = Mapping[str, NDArray[Any]]
Model = Mapping[str, Form]

_NUMPY = "numpy.ndarray"
# NumPy describes an array in about a hundred bytes.
_HEAD = 4096
_OBJECTS = 10_000
_DEPTH = 8


def most_bytes(model: Model) -> int:
    """Bytes that all objects of an honest message with this model's arrays need at most."""
    numbers = sum(map(_size, model.values()))
    # Names, metrics and configurations are small next to the arrays.
    return 2 * numbers + _HEAD * len(model) + (1 << 20)


def names_in(tree: Any) -> list[str]:
    """The names of a tree's objects, children first, each once.

    Args:
        tree: Flower's ObjectTree.

    Raises:
        ValueError: If it has too many, or is too deep.
    """
    found: dict[str, None] = {}
    for place, name in enumerate(_walk(tree, 0)):
        if place >= _OBJECTS:
            raise ValueError("has too many objects")
        found[name] = None
    return list(found)


def _walk(tree: Any, depth: int) -> Iterator[str]:
    if depth > _DEPTH:
        raise ValueError("is too deep")
    for child in tree.children:
        yield from _walk(child, depth + 1)
    yield str(tree.object_id)


def is_named(name: str, content: bytes) -> bool:
    """Whether an object has the name that its content gives it."""
    return hashlib.sha256(content).hexdigest() == name


def read_arrays(name: str, objects: Mapping[str, bytes], model: Model) -> tuple[str, Arrays]:
    """The one record of arrays in a message, which must be exactly the model's.

    Args:
        name: The message's.
        objects: Contents by name.
        model: Which arrays may be there.

    Returns:
        The record's name, and its arrays in the order of the model.

    Raises:
        ValueError: If the message has no arrays, others, or several records of arrays.
    """
    try:
        children, _ = _parts(objects[name], "Message")
        content = _only(children)
        _, body = _parts(objects[content], "RecordDict")
        records = {key: one for key, one in json.loads(body).items() if _is_record(objects[one])}
        record, place = _only(list(records.items()))
        _, body = _parts(objects[place], "ArrayRecord")
        named = json.loads(body)
        if named.keys() != model.keys():
            raise ValueError("has arrays of other names")
        return record, {
            key: _array(objects[named[key]], objects, form) for key, form in model.items()
        }
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"is no message with the model's arrays ({type(error).__name__})"
        ) from None


def _only(found: list[Any]) -> Any:
    if len(found) != 1:
        raise ValueError(f"has {len(found)} records of arrays; must have one")
    return found[0]


def _parts(content: bytes, kind: str) -> tuple[list[str], bytes]:
    head, divider, body = content.partition(b"\0")
    words = head.decode("ascii").split(" ")
    if not divider or len(words) != 3 or words[0] != kind:
        raise ValueError(f"is no {kind}")
    return words[1].split(",") if words[1] else [], body


def _is_record(content: bytes) -> bool:
    return content.startswith(b"ArrayRecord ")


def _array(content: bytes, objects: Mapping[str, bytes], form: Form) -> NDArray[Any]:
    chunks, body = _parts(content, "Array")
    told = json.loads(body)
    if (told["stype"], told["dtype"], tuple(told["shape"])) != (_NUMPY, form.dtype, form.shape):
        raise ValueError("has an array of another shape or type")
    data, most = bytearray(), _HEAD + _size(form)
    for place in told["arraychunk_ids"]:
        data += _parts(objects[chunks[place]], "ArrayChunk")[1]
        if len(data) > most:
            raise ValueError("has an array that is too long")
    return _read(bytes(data), form)


def _read(data: bytes, form: Form) -> NDArray[Any]:
    file = BytesIO(data)
    if numpy_format.read_magic(file) != (1, 0):
        raise ValueError("is in another version of NumPy's format")
    found, by_column, numbers = numpy_format.read_array_header_1_0(file)
    if found != form.shape or numbers != np.dtype(form.dtype) or numbers.hasobject:
        raise ValueError("has an array of another shape or type")
    if len(data) - file.tell() != _size(form):
        raise ValueError("is not as long as it says")
    order: Literal["F", "C"] = "F" if by_column else "C"
    return np.ndarray(form.shape, numbers, data, file.tell(), order=order)


def _size(form: Form) -> int:
    """In bytes."""
    return size_of(form) * np.dtype(form.dtype).itemsize
