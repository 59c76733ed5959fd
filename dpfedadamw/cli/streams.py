"""Standard output and error that never break a command's work.

A reader that went away (`dpfedadamw run SPEC | head`) is no error, a full device is one that is
told once everything else is done, and a terminal that cannot show a character shows its number.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STANDARD_DESCRIPTORS = 3


class _Descriptor(io.RawIOBase):
    """A descriptor that takes everything; after a failed write, what follows is dropped.

    Attributes:
        failure: Why the first write failed, unless its reader went away.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._terminal = os.isatty(descriptor)
        self._open = True
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return self._terminal

    def write(self, content: ReadableBuffer) -> int:
        size = memoryview(content).nbytes
        while self._open:
            try:
                return os.write(self._descriptor, content)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._open = False
                # A terminal that was closed answers with an input/output error.
                if not isinstance(error, ConnectionError) and not self._terminal:
                    self.failure = error
        return size


@dataclass(frozen=True)
class Standard:
    """The process's standard streams while a command runs.

    Attributes:
        output: What standard output writes to; None where it is no descriptor, as in a notebook.
    """

    output: _Descriptor | None

    def failure(self) -> OSError | None:
        """Why standard output could not be written; None if it could, or nobody reads it."""
        sys.stdout.flush()
        sys.stderr.flush()
        return self.output.failure if self.output is not None else None


@contextmanager
def steady() -> Iterator[Standard]:
    """Replace the standard streams by ones that neither break nor refuse a character."""
    _occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    sys.stdout, output = _steady(sys.stdout)
    sys.stderr, _ = _steady(sys.stderr)
    try:
        yield Standard(output)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _occupy_standard_descriptors() -> None:
    """Open the null device where a standard descriptor is closed.

    Otherwise the next file that is opened gets its number, and a library's warning on standard
    error would be written into a ledger.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < _STANDARD_DESCRIPTORS:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)


def _steady(stream: TextIO | None) -> tuple[TextIO, _Descriptor | None]:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8"), None
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # PYTHONUNBUFFERED leaves the buffer out.
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.FileIO):
        return stream, None
    stream.flush()
    descriptor = _Descriptor(raw.fileno())
    replaced = io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    return replaced, descriptor
