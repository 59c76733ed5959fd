"""What passes between Flower's process of one message and a client's own process: plain bytes.

A head of JSON, then the bytes of each array, over a socket of this machine's files. Nothing is
pickled, and this module imports nothing large: Flower starts a process for every message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

_MOST_HEAD = 1 << 20
_HEX = "hex"


@dataclass(frozen=True)
class Frame:
    """Plain values and arrays.

    Attributes:
        values: By name: numbers, texts, bytes, and lists of these.
        arrays: By name: type, shape, format and bytes, as Flower's arrays have them.
    """

    values: Mapping[str, Any]
    arrays: Mapping[str, tuple[str, tuple[int, ...], str, bytes]] = field(default_factory=dict)


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


def receive(connection: Connection[Any, Any]) -> Frame:
    """Receive a frame.

    Raises:
        ValueError: If it is none.
        EOFError: If the other end is gone.
    """
    head = json.loads(connection.recv_bytes(_MOST_HEAD))
    arrays = {}
    for name, kind, shape, form, size in head["arrays"]:
        arrays[str(name)] = (str(kind), tuple(shape), str(form), connection.recv_bytes(size))
    values = {
        name: bytes.fromhex(value[_HEX]) if isinstance(value, dict) else value
        for name, value in head["values"].items()
    }
    return Frame(values, arrays)
