"""Mapped files are read from end to end without all of them staying in memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Bytes that are read of a mapped file between two times that it is let go of.
AT_ONCE = 1 << 24


def let_go(values: NDArray[np.generic]) -> None:
    """Let go of the pages of a file that an array was mapped from, if it was.

    They are read again from the file, or from the system's cache of it, when they are asked for.
    Otherwise a process that reads a whole file once would seem to hold all of it, and would be
    killed first when memory is short.

    Args:
        values: An array that nothing was written to, or a view of one.
    """
    owner: object = values
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    # Systems without this advice drop the pages by themselves, later.
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if isinstance(owner, mmap.mmap) and advice is not None:
        owner.madvise(advice)


def stretches(rows: NDArray[np.int64], each: int) -> Iterator[slice]:
    """Cut rows of a mapped array so that a part touches no more of the file than `AT_ONCE`.

    The system maps what lies around a page as well, so rows far from one another count as all that
    is between them.

    Args:
        rows: Their numbers, in the order in which they are read. Parts of rows that do not ascend
            are limited by the rows' own bytes alone.
        each: Bytes of a row.
    """
    most = max(1, AT_ONCE // max(1, each))
    ascend = bool((np.diff(rows) > 0).all())
    start = 0
    while start < len(rows):
        stop = min(len(rows), start + most)
        if ascend:
            stop = start + int(np.searchsorted(rows[start:stop], rows[start] + most))
        yield slice(start, stop)
        start = stop
