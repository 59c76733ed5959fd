"""Memory of long vectors is used again only when nothing refers to it any more.

A step makes several vectors as long as the model and drops them. Mapping such memory again costs
more than filling it: 45 MB take 25 ms in pages of 4 KiB, and about 4 ms in large ones, which the
system does not always have.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

# What lies idle between two uses, in all. Models whose vectors are longer do without: a step of
# theirs takes so long that mapping memory does not show.
_IDLE_BYTES = 2**26
# Below this, the allocator keeps memory by itself.
_LEAST_BYTES = 2**20


class _Idle:
    """Arrays of bytes that nobody refers to any more."""

    def __init__(self) -> None:
        # Reentrant: the collector may give memory back while the same thread takes some.
        self._lock = threading.RLock()
        self._arrays: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """An array of so many bytes, used before or new."""
        with self._lock:
            for place, array in enumerate(self._arrays):
                if array.nbytes == size:
                    return self._arrays.pop(place)
        return _mapped(size)

    def give_back(self, array: NDArray[np.uint8]) -> None:
        """Keep an array for the next who asks for one of its size, and drop the oldest for it."""
        with self._lock:
            self._arrays.append(array)
            while sum(one.nbytes for one in self._arrays) > _IDLE_BYTES:
                self._arrays.pop(0)


def _mapped(size: int) -> NDArray[np.uint8]:
    """New memory of so many bytes, apart from what the allocator gives to everything else.

    Vectors that stay for a client's whole round would lie scattered among what a step computes in,
    and keep the allocator from giving its parts to the next. It begins at a page, so that sums
    over a model's parameters are taken in one order, which a matrix product may choose by that.
    """
    try:
        if sys.platform == "win32":
            # Anonymous and this process's own there without being told.
            memory = mmap.mmap(-1, size)
        else:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no memory for {size} bytes: {error}") from error
    if sys.platform == "linux":
        # Large pages, where the system has some.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


_idle = _Idle()

# Models of fewer parameters leave too little idle for it to matter.
_LEAST_RETURNED = 2**20


def return_idle(parameters: int) -> None:
    """Give the system back what the allocator holds and nobody uses, after work on a long model.

    What a step computes in comes and goes in pieces that the allocator of glibc keeps, several
    hundred megabytes of a ResNet-18. Mapping them again takes a tenth of a second, so this is meant
    for once a round and not once a step. With another allocator it does nothing.

    Args:
        parameters: d.
    """
    trim = _trim() if parameters >= _LEAST_RETURNED else None
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return found


def recycled(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """A vector [size] whose entries are not yet written, and may hold what was there before.

    Its memory is used again once nothing refers to it: no array, no view, no tensor made of it.

    Args:
        size: Number of entries.
        dtype: Their type.
    """
    length = size * np.dtype(dtype).itemsize
    if not _LEAST_BYTES <= length <= _IDLE_BYTES:
        return np.empty(size, dtype=dtype)
    whole = _idle.take(length)
    # An array over a buffer of its own, so that views refer to it and not to the memory below.
    seen: NDArray[Any] = np.frombuffer(whole.data, dtype=dtype)
    weakref.finalize(seen, _idle.give_back, whole).atexit = False
    return seen
