"""The gate's side of one shard's socket: one question out, numbers back, and nothing else.

A question is a JSON object (its length before it, in four bytes) and then the bytes of the arrays,
one after the other. An answer is these bytes alone, as many as the model has: there is no name, no
text and no form that a job could fill with anything else, and nothing to parse.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.gate.settings import Form, size_of

Model = Mapping[str, Form]
_PIECE = 1 << 20
_MOST_HEADER = 1 << 20
# A silent connection holds a thread for so long at most.
_SILENCE = 3600.0
# A cell's program connects once.
_CONNECTIONS = 8


@dataclass(frozen=True)
class Question:
    """What the researcher's server asks.

    Attributes:
        told: The task, as JSON has it.
        arrays: The broadcast, in the model's form.
    """

    told: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def to_bytes(self) -> bytes:
        """As `read_question` reads it."""
        forms = [[name, str(one.dtype), one.shape] for name, one in self.arrays.items()]
        head = json.dumps({**self.told, "arrays": forms}).encode()
        if len(head) > _MOST_HEADER:
            raise ValueError("has more than a task's description")
        body = b"".join(one.tobytes() for one in self.arrays.values())
        return len(head).to_bytes(4, "big") + head + body


def read_question(line: socket.socket) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A question as a shard's cell gets it: the task, and the broadcast."""
    told = json.loads(_exactly(line, int.from_bytes(_exactly(line, 4), "big")))
    arrays = {}
    for name, kind, shape in told.pop("arrays"):
        data = _exactly(line, np.dtype(kind).itemsize * math.prod(shape))
        arrays[name] = np.frombuffer(data, kind).reshape(shape)
    return told, arrays


def read_answer(data: bytes, model: Model) -> dict[str, NDArray[Any]]:
    """The model's arrays in a shard's bytes, which are as many as they need."""
    found, start = {}, 0
    for name, form in model.items():
        end = start + size_of(form) * np.dtype(form.dtype).itemsize
        found[name] = np.frombuffer(data[start:end], form.dtype).reshape(form.shape)
        start = end
    return found


class Shard:
    """Serves one shard.

    Args:
        place: Path of the socket.
        model: The arrays of an answer.
        on_answer: Called when an answer is complete.
    """

    def __init__(self, place: Path, model: Model, on_answer: Callable[[], None]) -> None:
        self._bytes = sum(size_of(one) * np.dtype(one.dtype).itemsize for one in model.values())
        self._on_answer = on_answer
        self._lock = threading.Condition()
        self._question: bytes | None = None
        self._turn = 0
        self._answer: bytes | None = None
        self._joined = threading.Event()
        self._free = threading.Semaphore(_CONNECTIONS)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen(2 * _CONNECTIONS)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def ask(self, question: Question | None) -> None:
        """Put a question, in place of the one before; None takes that one back."""
        with self._lock:
            self._question = None if question is None else question.to_bytes()
            self._turn += 1
            self._answer = None
            self._lock.notify_all()

    def answered(self) -> bytes | None:
        """The answer to what was asked last, once it is complete."""
        with self._lock:
            return self._answer

    def has_joined(self, seconds: float) -> bool:
        """Whether a cell's program is there, after so many seconds at most."""
        return self._joined.wait(seconds)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                if not self._free.acquire(blocking=False):
                    line.close()
                    continue
                line.settimeout(_SILENCE)
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        self._joined.set()
        try:
            self._exchange(line)
        finally:
            self._free.release()

    def _exchange(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError, EOFError):
            with self._lock:
                turn = self._turn
                self._lock.wait_for(lambda: self._question is not None or turn != self._turn)
                question, turn = self._question, self._turn
            if question is None:
                return
            line.sendall(question)
            answer = _exactly(line, self._bytes)
            with self._lock:
                # A job may connect as often as it likes; the first complete answer counts.
                if turn == self._turn and self._answer is None:
                    self._answer = answer
            self._on_answer()


def _exactly(line: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = line.recv(min(_PIECE, size - len(found)))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
