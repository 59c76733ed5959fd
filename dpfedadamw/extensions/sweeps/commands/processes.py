"""Starts this command in further processes, which have its libraries already."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dpfedadamw.extensions.sweeps.processes import Processes, Started

# What a run loads from start to end, but for its own model and data set. None of these starts a
# thread or draws a random number when it is imported.
_LOADED = (
    "dpfedadamw.cli.run",
    "dpfedadamw.cli.challenge_files",
    "dpfedadamw.filing.after_training",
    "dpfedadamw.run.setup",
    "audit.checks.canaries",
    "reports.render.pages",
    "reports.render.html",
    "reports.render.pdf",
    "dp_accounting",
    "matplotlib.figure",
)


def starting(processes: int) -> Callable[[Sequence[str], Path], Started]:
    """Return what starts the command with some arguments, telling a file what goes wrong.

    Args:
        processes: How many will run at a time; they share the processor's cores.
    """
    from dpfedadamw.cli import main

    return Processes(main, _LOADED, max(1, (os.cpu_count() or 1) // processes)).start
