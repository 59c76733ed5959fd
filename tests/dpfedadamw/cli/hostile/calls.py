"""One command in a forked child: with little memory, a watchdog, and everything it prints kept.

The warm process that is forked is not the one that runs the tests: that one has computed and
typeset, and the threads that torch and typst started are missing in a fork, which then waits for
them without an end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import multiprocessing
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from dpfedadamw import cli
from dpfedadamw.cli import terminal
from tests.warm import load_every_module

SECONDS = 20
"""Of processor time: a call that takes more is killed, and fails its test."""
PATIENCE = 120.0
"""By the clock, which runs on a loaded machine too; what takes longer waits for something."""
BYTES = 768 * 2**20
"""By so much a call may grow beyond the warm process."""
SERVES = b" listens in "
"""What a command prints that serves until it is told to end: it has read all that it reads."""
_LOOK = 0.2
# What is mapped beyond the warm process; more than `BYTES`, because not all of it is ever touched.
_ADDRESSES = 3 * 2**30
_LONGEST_FILE = 2**30


@dataclass(frozen=True)
class Answer:
    """How a command ended.

    Attributes:
        code: Its exit code; 128 + N if signal N ended it, None if the watchdog did, 0 if it serves.
        printed: Standard output and standard error, in this order.
        seconds: Of processor time.
        grown: Bytes of memory beyond what the warm process has.
    """

    code: int | None
    printed: bytes
    seconds: float
    grown: int

    @property
    def text(self) -> str:
        """What it printed, as text."""
        return self.printed.decode("utf-8", "backslashreplace")


@functools.cache
def _warm_process() -> ProcessPoolExecutor:
    spawned = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawned, initializer=load_every_module)


def apart(work: Callable[[], object]) -> None:
    """Do something in a child of the warm process, which keeps nothing of it.

    Args:
        work: A function that can be pickled.

    Raises:
        AssertionError: If it failed, with what it printed.
    """
    _warm_process().submit(_apart, work).result()


def _apart(work: Callable[[], object]) -> None:
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.dup2(told.fileno(), 1)
                os.dup2(told.fileno(), 2)
                _steady_output()
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        told.seek(0)
        assert not status, told.read().decode(errors="replace")


def called(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    scratch: Path,
    before: Callable[[], object] | None = None,
) -> Answer:
    """Run a command.

    Args:
        arguments: After the program's name.
        folder: The working directory.
        environment: Variables that are set for it.
        scratch: Where its output goes while it runs; not the working directory.
        before: Called in the child first, as an attacker's last step; may fail. It can be pickled.
    """
    return (
        _warm_process()
        .submit(_called, tuple(arguments), folder, dict(environment), scratch, before)
        .result()
    )


def _called(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    scratch: Path,
    before: Callable[[], object] | None,
) -> Answer:
    files = [os.open(scratch / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in ("1", "2")]
    base = _resident()
    child = os.fork()
    if not child:
        _child(arguments, folder, environment, files, before)
    try:
        opened = os.pidfd_open(child)
        ended = serves = False
        end = time.monotonic() + PATIENCE
        while not (ended or serves) and time.monotonic() < end:
            ended = bool(select.select([opened], [], [], _LOOK)[0])
            serves = SERVES in os.pread(files[1], 1 << 16, 0)
        os.close(opened)
    finally:
        # Processes that it started have its group; where it ended by itself, they are gone.
        _kill(child)
        _, status, usage = os.wait4(child, 0)
    printed = []
    for descriptor in files:
        os.lseek(descriptor, 0, os.SEEK_SET)
        printed.append(os.read(descriptor, 1 << 24))
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(status)
    return Answer(
        code=_code(code) if ended else 0 if serves else None,
        printed=b"".join(printed),
        seconds=usage.ru_utime + usage.ru_stime,
        grown=usage.ru_maxrss * 1024 - base,
    )


def _code(status: int) -> int:
    return 128 - status if status < 0 else status


def _kill(child: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _child(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    files: Sequence[int],
    before: Callable[[], object] | None,
) -> NoReturn:
    try:
        os.setpgid(0, 0)
        os.environ.update(environment)
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, place in zip((nothing, *files), (0, 1, 2), strict=True):
            os.dup2(descriptor, place)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS + 2, SECONDS + 2))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LONGEST_FILE, _LONGEST_FILE))
        most = _mapped() + _ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        faulthandler.dump_traceback_later(PATIENCE - 5, file=2)
        _steady_output()
        if before is not None:
            with contextlib.suppress(Exception):
                before()
        try:
            cli.main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 71
        os._exit(code)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    os._exit(72)


def _steady_output() -> None:
    """Let Python write to the descriptors, whatever pytest has put in its streams' place."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = open(descriptor, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    terminal.out.file, terminal.err.file = sys.stdout, sys.stderr


def _pages(place: int) -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[place]) * resource.getpagesize()


def _mapped() -> int:
    return _pages(0)


def _resident() -> int:
    return _pages(1)
