"""Starts commands in processes that have the large libraries already.

Half of a small run's computing time is the loading of torch, SciPy and the reports' libraries. A
sweep therefore has one process that has loaded them and used none (Python's fork server); each run
is a fork of that. Where a system cannot fork, each process loads them itself.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol


class Started(Protocol):
    """A process that was started."""

    def poll(self) -> int | None:
        """Return its exit code, that of a signal negative; None while it runs."""

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait until it ends, or so long, and return what `poll` does then."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


class Processes:
    """Starts a command again and again, each time in a process of its own.

    Args:
        command: Takes the command's arguments, and ends by `SystemExit`.
        loaded: Modules to import beforehand. They must start no thread and draw nothing at import.
        threads: How many threads each process may compute with, unless the environment says so.
    """

    def __init__(
        self,
        command: Callable[[list[str]], object],
        loaded: Sequence[str] = (),
        threads: int = 1,
    ) -> None:
        self._command = command
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            self._context.set_forkserver_preload(list(loaded))
        # The fork server has the environment that it was started with, and so have its forks.
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))

    def start(self, arguments: Sequence[str], told: Path) -> Started:
        """Start the command.

        Args:
            arguments: Its arguments.
            told: A file for what it writes to standard error. Its standard output is dropped.
        """
        process = self._context.Process(
            target=_run, args=(self._command, list(arguments), str(told), Path.cwd())
        )
        process.start()
        return _Process(process)


class _Process:
    """A process of `multiprocessing` that is asked as one of `subprocess` is."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _run(
    command: Callable[[list[str]], object], arguments: list[str], told: str, folder: Path
) -> None:
    """Run the command in this process, which is its own."""
    if hasattr(os, "setsid"):
        # Ctrl-C reaches the sweep alone, which asks each run to stop.
        os.setsid()
    os.chdir(folder)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    errors = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for source, target in ((nothing, 0), (nothing, 1), (errors, 2)):
        os.dup2(source, target)
    command(arguments)
