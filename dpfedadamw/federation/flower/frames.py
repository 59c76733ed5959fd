"""What passes between Flower's process of one message and a client's own process: plain bytes.

A head of JSON, then the bytes of each array, over a socket of this machine's files. Nothing is
pickled, and this module imports nothing large: Flower starts a process for every message.

Each end takes the other for hostile: what arrives is a frame within the receiver's limits, or one
of the errors that `receive` names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NoReturn

_HEX = "hex"
_MOST_DIMENSIONS = 8
_MOST_INTEGER = 2**63 - 1

Wire = tuple[str, tuple[int, ...], str, bytes]
"""An array as Flower has it: type, shape, format and bytes."""


@dataclass(frozen=True)
class Frame:
    """Plain values and arrays.

    Attributes:
        values: By name: numbers, texts, bytes, and lists of numbers and texts.
        arrays: By name.
    """

    values: Mapping[str, Any]
    arrays: Mapping[str, Wire] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a frame may have at most.

    Attributes:
        head: Bytes of the head.
        arrays: Number of arrays.
        content: Bytes of all arrays together.
    """

    head: int = 1 << 20
    arrays: int = 4096
    content: int = 1 << 40


_ANY = Limits()


def send(connection: Connection[Any, Any], frame: Frame) -> None:
    """Send a frame."""
    values = {
        name: {_HEX: value.hex()} if isinstance(value, bytes) else value
        for name, value in frame.values.items()
    }
    arrays = [[name, *one[:3], len(one[3])] for name, one in frame.arrays.items()]
    connection.send_bytes(json.dumps({"values": values, "arrays": arrays}).encode())
    for _, _, _, content in frame.arrays.values():
        connection.send_bytes(content)


def receive(connection: Connection[Any, Any], limits: Limits = _ANY) -> Frame:
    """Receive a frame; an array's bytes are read only once all arrays are known to be in limits.

    Raises:
        ValueError: If it is none, or beyond the limits.
        EOFError: If the other end is gone.
        OSError: If it goes in between, or says that a part is longer than it may be.
    """
    values, described = _head(connection.recv_bytes(limits.head), limits)
    arrays: dict[str, Wire] = {}
    for name, kind, shape, form, size in described:
        content = connection.recv_bytes(size)
        if len(content) != size:
            raise ValueError("an array is not as long as the head says")
        arrays[name] = (kind, shape, form, content)
    return Frame(values, arrays)


Described = tuple[str, str, tuple[int, ...], str, int]


def _head(raw: bytes, limits: Limits) -> tuple[dict[str, Any], list[Described]]:
    """The values, and what each array is said to be.

    Raises:
        ValueError: If the bytes are no head, or say more than the limits allow.
    """
    try:
        head = json.loads(raw.decode(), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("the head is nested too deeply") from None
    if not isinstance(head, dict) or head.keys() != {"values", "arrays"}:
        raise ValueError("the head is no object of values and arrays")
    values, arrays = head["values"], head["arrays"]
    if not isinstance(values, dict) or not isinstance(arrays, list):
        raise ValueError("values are no object, or arrays no list")
    if len(arrays) > limits.arrays:
        raise ValueError("there are more arrays than there may be")
    described = [_described(one) for one in arrays]
    if len({one[0] for one in described}) != len(described):
        raise ValueError("two arrays have one name")
    if sum(one[4] for one in described) > limits.content:
        raise ValueError("the arrays are longer than they may be")
    return {name: _value(value) for name, value in values.items()}, described


def _described(one: Any) -> Described:
    if not isinstance(one, list) or len(one) != 5:
        raise ValueError("an array is not described by five values")
    name, kind, shape, form, size = one
    if not all(isinstance(text, str) for text in (name, kind, form)):
        raise ValueError("an array's name, type or format is no text")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError("an array's shape is no short list")
    if not all(_is_size(number) for number in (*shape, size)):
        raise ValueError("an array's shape or size is no number of things")
    return name, kind, tuple(shape), form, size


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_INTEGER


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        text = value.get(_HEX)
        if value.keys() != {_HEX} or not isinstance(text, str):
            raise ValueError("a value is an object that stands for no bytes")
        return bytes.fromhex(text)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str | bool):
        return value
    if type(value) is int and abs(value) <= _MOST_INTEGER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError("a value is no text and no number of 64 bits")


def _no_number(_name: str) -> NoReturn:
    raise ValueError("a number is not finite")
