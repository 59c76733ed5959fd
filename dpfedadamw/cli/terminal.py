"""The terminal: two consoles, progress bars, and how a command ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dpfedadamw.rundir import RunDirectory, newest, open_existing

EXIT_NOT_PASSED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def find_run(run_dir: Path | None, parent: Path) -> RunDirectory:
    """The run that was named, or the newest."""
    return open_existing(run_dir) if run_dir is not None else newest(parent)


def relative(path: Path) -> Path:
    """The path as seen from here, where that is shorter."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def exit_by(verdict: str) -> None:
    """End with the exit code of a verdict."""
    if verdict not in ("PASS", "NO CLAIM"):
        raise typer.Exit(EXIT_NOT_PASSED)


def print_json(value: Any) -> None:
    """Print a value for a machine to read."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def status(text: str, quiet: bool) -> Iterator[None]:
    """Show what is going on, on a terminal."""
    if quiet or not err.is_terminal:
        yield
        return
    with err.status(text):
        yield


def progress_bar(quiet: bool) -> Progress:
    """A progress bar for long work."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        disable=quiet,
        transient=True,
    )


def refuse(message: str) -> NoReturn:
    """End because the input is wrong."""
    stop(message, EXIT_WRONG_INPUT)


def refuse_unstamped(reason: str | None, folder: Path) -> None:
    """End because there is no timestamp, where one was asked for and a reason is given."""
    if reason is not None:
        refuse(
            f"error: {reason}; all is signed, but without a timestamp: add one with "
            f"dpfedadamw sign {folder} --timestamp URL"
        )


def stop(message: str, code: int) -> NoReturn:
    """End with a message and an exit code."""
    err.print(Text(message), soft_wrap=True)
    raise typer.Exit(code)
