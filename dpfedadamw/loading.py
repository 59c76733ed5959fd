"""How a command loads its modules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading(first: str) -> Iterator[None]:
    """Load modules, without looking for garbage among them if a module `first` is not loaded yet.

    Python's collector goes through all objects each time their number has grown by a quarter. What
    is loaded stays, so that this takes a tenth of a short run and frees nothing.
    """
    if first in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
