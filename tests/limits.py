"""Bounds on one command in this process: no traceback, little time, little memory."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

MOST_SECONDS = 5.0
MOST_BYTES = 2**30
# Long enough for a loaded machine, and an end to what would never come back.
_PATIENCE = 120.0


@dataclass
class Spent:
    """What a piece of work took.

    Attributes:
        seconds: Of processor time.
        bytes: By how much the process's largest size grew.
    """

    seconds: float = 0.0
    bytes: int = 0


class TooLong(BaseException):
    """The work does not come back; no `except Exception` of the code under test stops this."""


@contextlib.contextmanager
def measured() -> Iterator[Spent]:
    """Measure a piece of work, which is interrupted after two minutes."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TooLong

    spent = Spent()
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    size, start = _largest(), time.process_time()
    try:
        yield spent
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        spent.seconds = time.process_time() - start
        spent.bytes = _largest() - size


@contextlib.contextmanager
def address_space(most: int) -> Iterator[None]:
    """Refuse memory beyond what this process has and `most` bytes: no machine is flooded."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _largest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
