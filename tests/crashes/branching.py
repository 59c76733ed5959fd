"""One command, and before each of its file operations copies of its process that end there.

The process that runs the command is forked before an operation, together with a copy of everything
that it writes, and the copy gets a signal, or an error from that operation, and runs to its end.
So every point of a run costs milliseconds to reach, and what is killed there is the real command
in a real process.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import NoReturn

from dpfedadamw import cli
from dpfedadamw.privacy.noise import streams
from dpfedadamw.privacy.noise.key_tree import NO_HISTORY
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness, ReproducibleRandomness
from dpfedadamw.run import setup
from dpfedadamw.storage.disk import UNFINISHED
from tests.crashes.operations import ERRORS, Operation, Watch, failure
from tests.runs import key_of_a_test

# A process that takes longer hangs.
_PATIENCE = 300
_CRASHED = 99


@dataclass(frozen=True)
class Fate:
    """What befalls a process before an operation.

    Attributes:
        name: A signal, SIGKILL among them, or an error of the operating system.
        lasting: Of an error, whether every operation after it fails as well.
    """

    name: str
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.name} for good" if self.lasting else self.name


@dataclass(frozen=True)
class Process:
    """A command in a process of its own.

    Attributes:
        arguments: What is given to ``dpfedadamw``.
        case: The folder of all that it touches, from which it is run: runs in `runs`, keys in
            `keys`, and beside them `draws`, which counts its draws of noise.
        key: Which of the tests' release keys it draws.
        umask: Its umask.
        prints: What is added to the names of the files `said` and `told`, to which it prints.
    """

    arguments: tuple[str, ...]
    case: Path
    key: int = 1
    umask: int = 0o022
    prints: str = ""


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit code; the negative number of the signal that killed it.
        said: What it wrote to standard output.
        told: What it wrote to standard error.
    """

    code: int
    said: str
    told: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.told}{self.said}"


@dataclass(frozen=True)
class Branch:
    """A copy of a process that ended early.

    Attributes:
        operation: Before which it was copied.
        fate: What ended it.
        ended: How.
        case: The copy of all that it touched, or an equal one that another copy left.
    """

    operation: Operation
    fate: Fate
    ended: Ended
    case: Path


def run(process: Process) -> Ended:
    """Run a command to its end."""
    return end(begin(process), process)


def begin(process: Process) -> int:
    """Start a command; returns its process number."""
    number = os.fork()
    if number == 0:
        _be(process)
    return number


def end(number: int, process: Process) -> Ended:
    """Wait for a command that `begin` started."""
    return _told(_code(number), process)


def branches(
    process: Process, results: Path, fates: Callable[[Operation], Sequence[Fate]]
) -> tuple[Ended, list[Operation], list[Branch]]:
    """Run a command, and end copies of it before its operations.

    Args:
        process: The command.
        results: A new folder for the copies.
        fates: What befalls copies before an operation; nothing where it is passed by.

    Returns:
        How the command itself ended, all its operations, and the copies. Of those that left the
        same on the disk, one is kept.
    """
    results.mkdir(parents=True)
    number = os.fork()
    if number == 0:
        _be(process, _Brancher(process, results, fates))
    whole = end(number, process)
    lines = (results / "operations").read_text().splitlines()
    operations = [Operation(**json.loads(line)) for line in lines]
    found = []
    for line in (results / "branches").read_text().splitlines():
        at, name, lasting, ended_as, folder = json.loads(line)
        case = results / folder
        found.append(Branch(operations[at - 1], Fate(name, lasting), Ended(*ended_as), case))
    return whole, operations, found


class _Brancher:
    """Copies the process in which it is before each operation."""

    def __init__(
        self, process: Process, results: Path, fates: Callable[[Operation], Sequence[Fate]]
    ) -> None:
        self._process, self._results, self._fates = process, results, fates
        self._doom: Fate | None = None
        folders = (process.case / "runs", process.case / "keys")
        self._watch = Watch(folders, self._before)
        for name in ("operations", "branches"):
            (results / name).touch()

    def begin(self) -> None:
        """Watch from now on."""
        self._watch.install()

    def _before(self, operation: Operation) -> None:
        if self._doom is not None:
            if self._doom.lasting:
                raise failure(ERRORS[self._doom.name], operation)
            return
        self._note("operations", asdict(operation))
        fates = self._fates(operation)
        if not fates:
            return
        case = self._process.case
        aside = case.with_name(case.name + ".aside")
        sys.stdout.flush()
        sys.stderr.flush()
        os.rename(case, aside)
        for fate in fates:
            shutil.copytree(aside, case, symlinks=True)
            number = os.fork()
            if number == 0:
                self._suffer(fate, operation)
                return
            ended = end(number, self._process)
            folder = _state(case)
            # Of equal states the last is kept, whose place for unfinished files holds the most.
            shutil.rmtree(self._results / folder, ignore_errors=True)
            os.rename(case, self._results / folder)
            note = [operation.number, fate.name, fate.lasting, astuple(ended), folder]
            self._note("branches", note)
        os.rename(aside, case)

    def _suffer(self, fate: Fate, operation: Operation) -> None:
        """In the copy: meet one's fate."""
        self._doom = fate
        os.chdir(self._process.case)
        _redirect(self._process)
        signal.alarm(_PATIENCE)
        self._watch.reopen()
        for descriptor in self._watch.locks():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if fate.name in ERRORS:
            raise failure(ERRORS[fate.name], operation)
        os.kill(os.getpid(), getattr(signal, fate.name))

    def _note(self, name: str, value: object) -> None:
        with open(self._results / name, "a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")


def _state(case: Path) -> str:
    """A digest of names, permissions and content of everything in a case.

    What lies in a run's place for unfinished files is left out, because every writer sweeps it
    before it does anything else; that the place is there is not. So whoever finishes one of two
    cases with equal digests reads the same.
    """
    digest = hashlib.sha256()
    for path in sorted(case.rglob("*")):
        if UNFINISHED in path.parent.parts or path.name in ("said", "told"):
            continue
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            content = path.read_bytes()
        else:
            content = os.fsencode(os.readlink(path)) if stat.S_ISLNK(mode) else b""
        name = os.fsencode(path.relative_to(case))
        for part in (name, b"%o" % mode, content):
            digest.update(b"%d " % len(part) + part)
    return digest.hexdigest()


def _be(process: Process, brancher: _Brancher | None = None) -> NoReturn:
    """Become the command."""
    code = _CRASHED
    try:
        for name in ("SIGTERM", "SIGHUP", "SIGALRM"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if brancher is None:
            signal.alarm(_PATIENCE)
        os.umask(process.umask)
        os.environ["DPFEDADAMW_KEYS"] = str(process.case / "keys")
        os.environ.pop("DPFEDADAMW_DEBUG", None)
        process.case.mkdir(exist_ok=True)
        os.chdir(process.case)
        _redirect(process)
        # Not those of pytest, which keeps what is printed.
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        _count_draws(process.case / "draws")
        setup.ReleaseRandomness = lambda: ReleaseRandomness(key_of_a_test(process.key))
        if brancher is not None:
            brancher.begin()
        cli.main(list(process.arguments))
    except SystemExit as exit:
        code = int(exit.code or 0)
    except KeyboardInterrupt:
        # Before the command began, or after it had ended.
        code = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(process: Process) -> None:
    """Write what is printed beside what is written."""
    for number, name in ((1, "said"), (2, "told")):
        path = process.case / (name + process.prints)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)


def _count_draws(file: Path) -> None:
    """Write a line to the file before each draw of noise: round, client and attempt."""
    names: dict[int, tuple[streams.Stream, str]] = {}
    for kind in (ReleaseRandomness, ReproducibleRandomness):
        kind.stream = _noted(kind.stream, names)
    real = streams.Stream.normal_blocks

    def counted(self: streams.Stream, *rest: object, **more: object) -> None:
        with open(file, "a", encoding="ascii") as log:
            log.write(names[id(self)][1] + "\n")
        real(self, *rest, **more)

    streams.Stream.normal_blocks = counted


def _noted(real: Callable[..., streams.Stream], names: dict[int, tuple[streams.Stream, str]]):
    def stream(
        self, purpose: str, round: int, client: int, attempt: int = 1, history: bytes = NO_HISTORY
    ) -> streams.Stream:
        opened = real(self, purpose, round, client, attempt, history)
        # The stream is kept, so that its number stays its own.
        names[id(opened)] = opened, f"{round} {client} {attempt}"
        return opened

    return stream


def _code(number: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def _told(code: int, process: Process) -> Ended:
    paths = [process.case / (name + process.prints) for name in ("said", "told")]
    said, told = (path.read_text(encoding="utf-8") if path.exists() else "" for path in paths)
    return Ended(code, said, told)
