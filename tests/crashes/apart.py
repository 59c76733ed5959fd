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

# What a run loads when it comes to it; loaded here once, instead of in each of the many forks.
_LOADED_LATE = (
    "dpfedadamw.filing.after_training",
    "dpfedadamw.run.setup",
    "matplotlib.backends.backend_svg",
    "reports.render.html",
    "reports.render.pdf",
    "torch._dynamo",
    "torch._inductor",
    "typst",
)


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
    for name in _LOADED_LATE:
        importlib.import_module(name)


def _run(module: str, name: str, arguments: dict[str, Any]) -> None:
    getattr(importlib.import_module(module), name).__wrapped__(**arguments)
