"""What the gate and a shard's cell say to each other: one question, and numbers back.

A question is a JSON object (its length before it, in four bytes), which says how long each part is,
and then the parts. An answer is the bytes of the model's arrays, one after the other, as many as
`gate.yaml` says: there is no name, no text and no form that a job could fill with anything else,
and nothing to parse.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PIECE = 1 << 20
_MOST_HEADER = 1 << 20


@dataclass(frozen=True)
class Question:
    """What the researcher's server asks.

    Attributes:
        told: What JSON has of it.
        parts: All else, as bytes.
    """

    told: Mapping[str, Any]
    parts: Sequence[bytes]

    def to_bytes(self) -> bytes:
        """As `read_question` reads it.

        Raises:
            ValueError: If more is told than any task needs.
        """
        told = {"told": dict(self.told), "parts": [len(one) for one in self.parts]}
        head = json.dumps(told).encode()
        if len(head) > _MOST_HEADER:
            raise ValueError("has more than a task's description")
        return len(head).to_bytes(4, "big") + head + b"".join(self.parts)


def read_question(line: socket.socket) -> Question:
    """A question as a shard's cell gets it."""
    head = json.loads(exactly(line, int.from_bytes(exactly(line, 4), "big")))
    return Question(head["told"], [exactly(line, size) for size in head["parts"]])


def answer(place: str, trained: Callable[[Question], bytes]) -> None:
    """In a cell: get a question from the gate, answer it, and end this process.

    Args:
        place: Path of the gate's socket.
        trained: The arrays after training, as bytes.
    """
    code = 1
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(place)
            line.sendall(trained(read_question(line)))
            # The gate closes once it has all of it. The cell ends with this process.
            line.recv(1)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    # Whatever the job left running ends too, threads included.
    os._exit(code)


def exactly(line: socket.socket, size: int) -> bytes:
    """So many bytes.

    Raises:
        EOFError: If there are fewer.
    """
    found = bytearray()
    while len(found) < size:
        piece = line.recv(min(_PIECE, size - len(found)))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
