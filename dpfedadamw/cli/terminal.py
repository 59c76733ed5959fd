"""The terminal: two consoles, progress bars, and how a command says that it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import measure_renderables
from rich.segment import Segment

from audit.untrusted.documents import STEERING, steerless
from dpfedadamw.rundir import RunDirectory, mark_resumable, newest, open_existing

if TYPE_CHECKING:
    from rich.progress import Progress

EXIT_NOT_PASSED = 1
EXIT_WRONG_INPUT = 2
EXIT_SIGNER_UNKNOWN = 3
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130


# Characters; a table takes no more of them than it needs.
_NO_WIDTH = 100_000


class _Terminal(Console):
    """Shows texts from any source without letting them control the terminal."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print; in a pipe or a file, paths are never broken, however long."""
        before = self._width
        if not self.is_terminal and "COLUMNS" not in os.environ:
            wide = self.options.update(width=_NO_WIDTH)
            words = (measure_renderables(self, wide, [one]).minimum for one in objects)
            self.width = max(self.width, *words, 0)
        try:
            super().print(*objects, **how)
        finally:
            self._width = before

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is printed, piece by piece; only the console styles it or moves the cursor."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else piece._replace(text=steerless(piece.text))


out = _Terminal(highlight=False)
err = _Terminal(stderr=True, highlight=False)


class Stop(typer.Exit):
    """A command ends with a message, which is told where it ends.

    Attributes:
        message: One line, for standard error.
    """

    # typer's own has slots, which a message needs to be one of.
    __slots__ = ("message",)

    def __init__(self, message: str, code: int) -> None:
        super().__init__(code)
        self.message = message


@contextmanager
def resumable(folder: Path, escrow: bool = False) -> Iterator[None]:
    """Make whatever ends a run in progress name the command that continues it.

    This covers signals, full disks, lack of memory and our own bugs (`rundir.mark_resumable`). A
    deliberate exit (`stop`, `refuse`) is left unchanged.

    Args:
        folder: The run's folder.
        escrow: Whether its key is in a file, which the continued run needs.
    """
    try:
        yield
    except typer.Exit:
        raise
    except BaseException as error:
        mark_resumable(error, folder, escrow)
        raise


def find_run(run_dir: Path | None, parent: Path) -> RunDirectory:
    """The run that was named, or the newest."""
    return open_existing(run_dir) if run_dir is not None else newest(parent)


def relative(path: Path) -> Path:
    """The path as seen from here, where that is shorter.

    A service starts in / but its log's reader does not: then the path stays absolute.
    """
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and here.name else path


def exit_by(verdict: str) -> None:
    """End with the exit code of a verdict."""
    if verdict not in ("PASS", "NO CLAIM"):
        raise typer.Exit(EXIT_NOT_PASSED)


@dataclass
class _Answer:
    """What a machine has been told.

    Attributes:
        given: Whether JSON was printed: one command prints one value.
    """

    given: bool = False


answer = _Answer()


def print_json(value: Any) -> None:
    """Print a value for a machine to read."""
    # JSON has escapes of its own for what a stream cannot encode.
    plain = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=plain)
    # JSON texts may contain characters that control a terminal; escaped, the value is the same.
    sys.stdout.write(STEERING.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")
    answer.given = True


def print_whole(shown: RenderableType) -> None:
    """Print a table; in a pipe or a file, which have no width, each row is one line.

    COLUMNS in the environment sets a width for these too.
    """
    if out.is_terminal or "COLUMNS" in os.environ:
        out.print(shown)
    else:
        _Terminal(highlight=False, width=_NO_WIDTH).print(shown)


def print_document(text: str) -> None:
    """Print the content of a file, YAML or LaTeX, in UTF-8 whatever the terminal's encoding."""
    text = steerless(text)
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(text)
    else:
        buffer.write(text.encode())
        buffer.flush()


@contextmanager
def status(text: str, quiet: bool) -> Iterator[None]:
    """Show what is happening, on a terminal."""
    if quiet or not err.is_terminal:
        yield
        return
    with err.status(text):
        yield


def progress_bar(quiet: bool) -> Progress:
    """A progress bar for long work, on a terminal; elsewhere it would print an empty line."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        disable=quiet or not err.is_terminal,
        transient=True,
    )


def refuse(message: str) -> NoReturn:
    """End because the input is wrong."""
    stop(message, EXIT_WRONG_INPUT)


def refuse_unstamped(reason: str | None, folder: Path) -> None:
    """End because a requested timestamp is missing, if a reason is given."""
    if reason is not None:
        refuse(
            f"error: {reason}; everything is signed, but without a timestamp; add one with "
            f"dpfedadamw sign {folder} --timestamp URL"
        )


def ask(what: str) -> None:
    """Ask for confirmation of something that cannot be undone; end without a yes or a terminal.

    Args:
        what: What would be done, as an imperative: "revoke the key".
    """
    if not sys.stdin.isatty():
        refuse(f"this would {what}; give --yes to confirm")
    if not typer.confirm(f"{what}?", err=True):
        refuse("nothing was done")


def stop(message: str, code: int) -> NoReturn:
    """End with a message and an exit code."""
    raise Stop(message, code)
