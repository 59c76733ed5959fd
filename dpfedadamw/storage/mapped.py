"""Mapped files are read from end to end without all of them staying in memory."""

from __future__ import annotations

import mmap

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
