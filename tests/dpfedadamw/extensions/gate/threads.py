"""A shard's cell as a thread of this process, for tests without processes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from dpfedadamw.extensions.gate.exchange import read_question


class CellThread:
    """In place of a `Cell`.

    Args:
        place: Path of the gate's socket, which the gate makes.
        answers: The bytes that a question is answered with; None answers nothing.
    """

    def __init__(self, place, answers):
        self.socket, self._answers = place, answers
        self.runs, self.begun = False, None

    def start(self):
        self.runs, self.begun = True, time.monotonic()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(str(self.socket))
        threading.Thread(target=self._serve, args=(self._line,), daemon=True).start()

    def stop(self):
        if self.runs:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    def end(self, seconds=0.0):
        self.stop()
        self.runs = False

    def _serve(self, line):
        with line, contextlib.suppress(OSError, EOFError):
            made = self._answers(read_question(line))
            if made is not None:
                line.sendall(made)
                line.shutdown(socket.SHUT_WR)
            line.recv(1)
