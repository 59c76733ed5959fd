"""The gate's side of one shard's socket: the question goes out, the model's numbers come back.

Each shard has a socket of its own, so a connection says which shard it is; its cell holds no other.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.gate.exchange import exactly
from dpfedadamw.extensions.gate.settings import Form, size_of

Model = Mapping[str, Form]
# A silent connection holds a thread for so long at most.
_SILENCE = 3600.0
# A cell's program connects once.
_CONNECTIONS = 8
# Until a connection is tried again that this machine had no room for.
_AGAIN = 0.01


def read_answer(data: bytes, model: Model) -> dict[str, NDArray[Any]]:
    """The model's arrays in a shard's bytes, which are as many as they need."""
    found, start = {}, 0
    for name, form in model.items():
        one = np.frombuffer(data, form.dtype, size_of(form), start).reshape(form.shape)
        found[name] = one
        start += one.nbytes
    return found


class Shard:
    """Serves one shard while its cell runs.

    Args:
        place: Path of the socket, which this makes.
        model: The arrays of an answer.
        on_answer: Called when an answer is complete.
        question: What a connection is asked; None asks nothing.
    """

    def __init__(
        self,
        place: Path,
        model: Model,
        on_answer: Callable[[], None] = lambda: None,
        question: bytes | None = None,
    ) -> None:
        self._place, self._model, self._question = place, model, question
        self._bytes = sum(size_of(one) * np.dtype(one.dtype).itemsize for one in model.values())
        self._on_answer = on_answer
        self._lock = threading.Lock()
        self._open = True
        self._answer: bytes | None = None
        self._joined = threading.Event()
        self._free = threading.Semaphore(_CONNECTIONS)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen(2 * _CONNECTIONS)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stop serving. What arrives from now on is no answer."""
        with self._lock:
            self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._place.unlink(missing_ok=True)

    def answered(self) -> dict[str, NDArray[Any]] | None:
        """The arrays in the first answer that is complete; None until there is one."""
        with self._lock:
            return None if self._answer is None else read_answer(self._answer, self._model)

    def has_joined(self, seconds: float) -> bool:
        """Whether a cell's program is there, after so many seconds at most."""
        return self._joined.wait(seconds)

    def _accept(self) -> None:
        while self._open:
            try:
                line, _ = self._listener.accept()
            except OSError:
                time.sleep(_AGAIN)
                continue
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
            if self._question is None:
                return
            line.sendall(self._question)
            answer = exactly(line, self._bytes)
            with self._lock:
                # A job may connect as often as it likes; the first complete answer counts.
                if self._open and self._answer is None:
                    self._answer = answer
            self._on_answer()
