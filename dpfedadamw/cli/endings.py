"""How a command ends: each exception becomes one line, and standard output never breaks its work.

Exit codes: 2 where the input is wrong or the machine fails (a full disk, no memory, no access), 70
for our own bugs, and 128 plus the number of the signal that stopped it.

A closed pipe (`dpfedadamw run SPEC | head`) is no error. A full device is an error, reported once
everything else is done. A terminal that cannot show a character shows its number (`steady`).
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from dpfedadamw.cli.terminal import EXIT_INTERNAL, EXIT_WRONG_INPUT, Stop
from dpfedadamw.errors import DpfedadamwError, SpecError
from dpfedadamw.registration import missing_extension

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


EXIT_SIGNALLED = 128

_SENTENCES = {
    errno.ENOSPC: "no space is left on the device; make room",
    errno.EDQUOT: "your disk quota is used up; make room",
    errno.EFBIG: "the file would become larger than this system or ulimit -f allows",
    errno.EIO: "the device reports an input/output error; look at the disk",
    errno.EROFS: "the file system is read-only; use a folder that can be written",
    errno.EMFILE: "too many files are open; raise the limit with ulimit -n",
    errno.ENFILE: "too many files are open on this machine",
    errno.EACCES: "there is no permission to use it",
    errno.EPERM: "there is no permission to use it",
    errno.ENOENT: "there is no such file or folder",
}
# These say nothing about the input: the machine could not do what was asked.
_OF_THE_MACHINE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)
)
_NO_MEMORY = (
    "not enough memory; use a smaller compute.physical_batch_size or model, or close other programs"
)
# How torch words it on each device, in a plain RuntimeError where it has no class for it.
_NO_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory")


class Stopped(BaseException):
    """A signal asks the process to end; raised in the main thread so that files are closed.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number

    @property
    def code(self) -> int:
        """The exit code that shells give it."""
        return EXIT_SIGNALLED + self.number


class Passed(BaseException):
    """Carries a command's exception, its cause, past typer, which would end on some by itself."""


@dataclass(frozen=True)
class Ending:
    """How a command ends.

    Attributes:
        code: The exit code.
        lines: Printed on standard error; empty where everything has been printed already.
        problems: What is wrong with a spec, for a machine to read.
        bug: The exception, if the fault is ours.
    """

    code: int
    lines: tuple[str, ...] = ()
    problems: tuple[dict[str, Any], ...] = ()
    bug: BaseException | None = None

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints of it."""
        error: dict[str, Any] = {"exit_code": self.code, "messages": list(self.lines)}
        if self.problems:
            error["problems"] = list(self.problems)
        return {"error": error}


@contextmanager
def signals() -> Iterator[None]:
    """While this lasts, SIGTERM and SIGHUP raise `Stopped` in the main thread.

    A signal that the caller ignores, as nohup does, stays ignored.
    """

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        raise Stopped(signal.Signals(number))

    names = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP.
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    replaced = []
    if threading.current_thread() is threading.main_thread():
        replaced = [one for one in numbers if signal.getsignal(one) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def ending_of(error: BaseException) -> Ending:
    """Return how a command that raised an exception ends, with the exception's notes."""
    # Typer exits this way after answering a shell; within a command it is another library's code.
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return Ending(error.code)
    if isinstance(error, Passed) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, Stop):
        return Ending(error.exit_code, (error.message,))
    if isinstance(error, SpecError):
        problems = tuple(
            {
                "source": problem.source,
                "line": problem.line,
                "column": problem.column,
                "path": problem.path,
                "message": problem.message,
            }
            for problem in error.problems
        )
        lines = tuple(str(problem) for problem in error.problems)
        return Ending(EXIT_WRONG_INPUT, lines, problems)
    # An exit with only a code (typer's and Python's exits) needs no further message.
    code = getattr(error, "exit_code", None)
    if isinstance(code, int) and not hasattr(error, "format_message"):
        return Ending(code)
    if isinstance(error, KeyboardInterrupt):
        return Ending(EXIT_SIGNALLED + signal.SIGINT, (_line("stopped", error),))
    if isinstance(error, Stopped):
        return Ending(error.code, (_line(f"stopped by {error.number.name}", error),))
    # No command at all: typer has shown the help, and has nothing to add.
    if type(error).__name__ == "NoArgsIsHelpError":
        return Ending(EXIT_WRONG_INPUT)
    said = _of_the_user(error) or of_the_world(error)
    if said is not None:
        return Ending(EXIT_WRONG_INPUT, (_line(f"error: {said}", error),))
    text = (
        f"internal error: {type(error).__name__}: {' '.join(str(error).split())}. This is a bug of "
        "dpfedadamw; DPFEDADAMW_DEBUG=1 shows where. Please report it"
    )
    return Ending(EXIT_INTERNAL, (_line(text, error),), bug=error)


def name_the_resume(error: BaseException, arguments: Sequence[str]) -> None:
    """Let a signal that ends ``run --resume`` before the run was opened name that command.

    From then on the run names it itself (`rundir.mark_resumable`).

    Args:
        error: What ended the command.
        arguments: The command line.
    """
    cause = error.__cause__ if isinstance(error, Passed) else error
    named = getattr(cause, "__notes__", ())
    if (
        isinstance(cause, KeyboardInterrupt | Stopped)
        and not named
        and arguments[:1] == ["run"]
        and "--resume" in arguments
    ):
        cause.add_note(f"continue with: dpfedadamw {shlex.join(arguments)}")


def _line(text: str, error: BaseException) -> str:
    return "; ".join((text, *getattr(error, "__notes__", ())))


def _of_the_user(error: BaseException) -> str | None:
    """What a user did wrong, in our words or typer's; None if the fault is not the user's."""
    if hasattr(error, "format_message"):
        # The second name is a class of pydantic, through which typer checks values.
        text = " ".join(str(error.format_message()).split()).replace("Value error, ", "")
        context = getattr(error, "ctx", None)
        help_command = f"{context.command_path} --help" if context is not None else ""
        return f"{text.rstrip('.')}; see {help_command}" if help_command else text
    if type(error).__name__ == "Abort" and type(error).__module__.startswith("typer"):
        return "nothing was entered"
    if isinstance(error, ModuleNotFoundError) and (said := missing_extension(error)):
        return f"this {said}"
    return str(error) if isinstance(error, _user_errors()) else None


def _user_errors() -> tuple[type[Exception], ...]:
    """The base errors of all packages; the auditor's and reports' only if loaded."""
    kinds: list[type[Exception]] = [DpfedadamwError]
    if "audit.errors" in sys.modules:
        from audit.errors import AuditError

        kinds.append(AuditError)
    if "reports.errors" in sys.modules:
        from reports.errors import ReportError

        kinds.append(ReportError)
    return tuple(kinds)


def of_the_world(error: BaseException) -> str | None:
    """What the machine could not do, and where; None if the exception has another cause."""
    if isinstance(error, OSError):
        return _said(error)
    if isinstance(error, MemoryError):
        return _NO_MEMORY
    if isinstance(error, RuntimeError):
        if any(text in str(error) for text in _NO_MEMORY_TEXTS):
            return _NO_MEMORY
        if "can't start new thread" in str(error):
            return "no more threads can be started; raise the limit with ulimit -u"
        # How `Path.resolve` says it before Python 3.13, where it is no error.
        if (loop := re.fullmatch(r"Symlink loop from '(.*)'", str(error), re.S)) is not None:
            return f"{loop[1]}: is a link that points to itself"
    # A library's own error may hide what the machine said.
    beneath = error.__cause__ or error.__context__
    if isinstance(beneath, MemoryError) or (
        isinstance(beneath, OSError) and beneath.errno in _OF_THE_MACHINE
    ):
        return of_the_world(beneath)
    return None


def _said(error: OSError) -> str:
    if error.errno == errno.ENOMEM:
        return _NO_MEMORY
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None and error.errno == errno.ENOENT and _lost():
        return "the working directory is gone; change to another"
    if error.filename is None and error.errno not in _OF_THE_MACHINE:
        return reason
    reason = _SENTENCES.get(error.errno or 0, reason)
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' → '.join(names)}: {reason}" if names else reason


def _lost() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


_STANDARD_DESCRIPTORS = 3


class _Descriptor(io.RawIOBase):
    """A descriptor that accepts everything; after a failed write, later output is dropped.

    Attributes:
        failure: Why the first write failed, unless the pipe was closed.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._terminal = os.isatty(descriptor)
        self._open = True
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return self._terminal

    def write(self, content: ReadableBuffer) -> int:
        size = memoryview(content).nbytes
        while self._open:
            try:
                return os.write(self._descriptor, content)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._open = False
                # A terminal that was closed answers with an input/output error.
                if not isinstance(error, ConnectionError) and not self._terminal:
                    self.failure = error
        return size


@dataclass(frozen=True)
class Standard:
    """The process's standard streams while a command runs.

    Attributes:
        output: What standard output writes to; None where it is no descriptor, as in a notebook.
    """

    output: _Descriptor | None

    def failure(self) -> OSError | None:
        """Why standard output could not be written; None if it could, or the pipe was closed."""
        sys.stdout.flush()
        sys.stderr.flush()
        return self.output.failure if self.output is not None else None


@contextmanager
def steady() -> Iterator[Standard]:
    """Replace the standard streams by ones that neither fail nor reject a character."""
    _occupy_standard_descriptors()
    before = sys.stdout, sys.stderr
    sys.stdout, output = _steady(sys.stdout)
    sys.stderr, _ = _steady(sys.stderr)
    try:
        yield Standard(output)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _occupy_standard_descriptors() -> None:
    """Open the null device where a standard descriptor is closed.

    Otherwise the next file that is opened gets its number, and a library's warning on standard
    error would be written into a ledger.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < _STANDARD_DESCRIPTORS:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)


def _steady(stream: TextIO | None) -> tuple[TextIO, _Descriptor | None]:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8"), None
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # PYTHONUNBUFFERED leaves the buffer out.
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.FileIO):
        return stream, None
    stream.flush()
    descriptor = _Descriptor(raw.fileno())
    replaced = io.TextIOWrapper(
        io.BufferedWriter(descriptor),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    return replaced, descriptor
