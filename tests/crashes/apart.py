"""Tests that fork, in a process that has loaded everything and run nothing.

A process that has trained or typeset before has threads of libraries, which a fork does not have:
its copy would wait for them for ever. So each of these tests runs in one process beside pytest's,
which is kept for all of them.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from reports.content import parts
from tests.reports import drawings
from tests.warm import load_every_module

# Compilers, backends and typesetters that a run loads when it comes to them.
_LOADED_LATE = ("matplotlib.backends.backend_svg", "torch._dynamo", "torch._inductor", "typst")


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in the process that is kept for them; its arguments must be plain values."""

    @functools.wraps(test)
    def there(**arguments: Any) -> None:
        _pool().submit(_run, test.__module__, test.__name__, arguments).result()

    return there


@functools.cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _load)


def _load() -> None:
    import torch

    torch.set_num_threads(1)
    load_every_module()
    for name in _LOADED_LATE:
        importlib.import_module(name)
    # A drawing is bytes in memory, and takes half of a report's time.
    parts.draw = drawings.nothing


def _run(module: str, name: str, arguments: dict[str, Any]) -> None:
    getattr(importlib.import_module(module), name).__wrapped__(**arguments)
