"""A machine with one disk, and processes that are killed, fail or take turns at their steps."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dpfedadamw.storage.disk import Disk, OpenFile
from tests.simulation.storage import File, Folder, Storage, failure

# What may happen to a process at a step: the process is killed, or the power goes, before the step,
# after it, or in the middle of a write; the step fails, which the process is told; or a write is
# done once more, at once or later, by a layer that did not see its success.
KILLED, POWER, FAILED, REPEATED = "killed", "power", "failed", "repeated"
_AGAIN = "again"
_SWITCHING = 0.3


class Killed(BaseException):
    """The process is gone; nothing in it may hold this up."""


def _locked() -> threading.Lock:
    """A lock that waits for whoever gives the turn; cheaper than a semaphore."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class Process:
    """One process.

    Attributes:
        name: For messages.
        event: What happens to it, and at which of its steps; None for nothing.
        steps: Steps that it has taken.
        alive: Whether it still runs.
        refused: Whether it ended with an error.
        repeated: A write that is done once more: the name, the file, where, what.
        turn: Given to it when it is its turn among several.
    """

    name: str
    event: tuple[str, int] | None = None
    steps: int = 0
    alive: bool = True
    refused: bool = False
    repeated: tuple[Path, File, int | None, bytes] | None = None
    turn: threading.Lock = field(default_factory=_locked)


class Machine:
    """Runs processes on one storage, one step of one process at a time.

    Args:
        rng: Decides about everything that is left to chance.

    Attributes:
        storage: The disk.
        current: The process whose turn it is.
        writing: Called with a path, what was there and what is to be, before a file is written to.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.storage = Storage()
        self.current = Process("nobody")
        self.writing: Callable[[Path, bytes, bytes], None] = lambda path, old, new: None
        self._running: list[Process] = []
        self._locks: dict[File, Process] = {}

    def run(self, works: list[tuple[Process, Callable[[], None]]]) -> None:
        """Run processes until all have ended, in turns where there are several.

        Args:
            works: Each process and what it does; it must not raise.
        """
        self._running = [process for process, _ in works]
        if len(works) == 1:
            (self.current, work) = works[0]
            work()
            self._end(self.current)
            return
        done = _locked()

        def take_part(process: Process, work: Callable[[], None]) -> None:
            process.turn.acquire()
            self.current = process
            try:
                work()
            finally:
                self._end(process)
                self._running.remove(process)
                (self.rng.choice(self._running).turn if self._running else done).release()

        threads = [threading.Thread(target=take_part, args=one) for one in works]
        for thread in threads:
            thread.start()
        self.rng.choice(self._running).turn.release()
        done.acquire()
        for thread in threads:
            thread.join()

    def look(self, process: Process) -> None:
        """Let a process look at the disk; others may have their turn before."""
        if not process.alive:
            raise Killed
        if len(self._running) > 1 and self.rng.random() < _SWITCHING:
            others = [other for other in self._running if other is not process]
            self.rng.choice(others).turn.release()
            process.turn.acquire()
            self.current = process
            if not process.alive:
                raise Killed

    def step(self, process: Process) -> str | None:
        """Let a process take a step that changes the disk; what is to happen to it in its midst."""
        if len(self._running) > 1 or not process.alive:
            self.look(process)
        process.steps += 1
        if process.event is None or process.event[1] != process.steps:
            return None
        event, process.event = process.event[0], None
        return event

    def kill(self, process: Process, event: str) -> None:
        """Kill a process, or all of them with the machine."""
        self._end(process)
        if event == POWER:
            for other in self._running:
                self._end(other)
            self.storage.lose_power(self.rng)
        raise Killed

    def lock(self, process: Process, file: File) -> bool:
        """Lock a file for a process; False if another has it."""
        return self._locks.setdefault(file, process) is process

    def unlock(self, process: Process, file: File) -> None:
        """Give a file free that the process may have locked."""
        if self._locks.get(file) is process:
            del self._locks[file]

    def _end(self, process: Process) -> None:
        process.alive = False
        for file in [file for file, holder in self._locks.items() if holder is process]:
            del self._locks[file]


@dataclass(frozen=True, init=False)
class Opened(OpenFile):
    """A file that is open, whatever its name is by now."""

    file: File

    def __init__(self, path: Path, descriptor: int, file: File) -> None:
        # There are thirty in a schedule, and setting the fields of a frozen class takes long.
        vars(self).update(path=path, descriptor=descriptor, file=file)


class SimulatedDisk(Disk):
    """The machine's disk as one process sees it."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine, self._process = machine, process
        self._storage = machine.storage

    def _step(self, path: Path) -> str | None:
        """Begin a step; what is to happen after it, for `_done`."""
        machine, process = self._machine, self._process
        event = machine.step(process)
        if event is None:
            return None
        if event == FAILED:
            raise failure(machine.rng.choice((errno.ENOSPC, errno.EIO)), path)
        if event in (KILLED, POWER) and machine.rng.random() < 0.5:
            machine.kill(process, event)
        return event

    def _done(self, event: str) -> None:
        process = self._process
        if event == REPEATED:
            # This step is no write: the next may be one.
            process.event = (REPEATED, process.steps + 1)
        elif event == _AGAIN:
            assert process.repeated is not None
            self._put(*process.repeated)
        else:
            self._machine.kill(process, event)

    def create(self, path: Path, mode: int) -> OpenFile:
        event = self._step(path)
        if self._storage.find(path) is not None:
            raise failure(errno.EEXIST, path)
        file = File()
        self._storage.link(path, file)
        if event is not None:
            self._done(event)
        return Opened(path, -1, file)

    def open(self, path: Path) -> OpenFile:
        self._machine.look(self._process)
        return Opened(path, -1, self._storage.file(path))

    def open_or_create(self, path: Path, mode: int) -> OpenFile:
        if self._storage.find(path) is None:
            with contextlib.suppress(FileExistsError):
                return self.create(path, mode)
        return self.open(path)

    def write(self, file: OpenFile, content: bytes, offset: int | None = 0) -> None:
        assert isinstance(file, Opened)
        machine, process = self._machine, self._process
        event = machine.step(process)
        if event not in (KILLED, POWER, FAILED):
            self._put(file.path, file.file, offset, content)
            if event == REPEATED and machine.rng.random() < 0.5:
                process.repeated = (file.path, file.file, offset, content)
                process.event = (_AGAIN, process.steps + machine.rng.randint(1, 8))
            elif event == REPEATED:
                self._put(file.path, file.file, offset, content)
            elif event is not None:
                self._done(event)
            return
        self._put(file.path, file.file, offset, content[: machine.rng.randint(0, len(content))])
        if event == FAILED:
            raise failure(errno.ENOSPC, file.path)
        machine.kill(process, event)

    def _put(self, path: Path, file: File, offset: int | None, content: bytes) -> None:
        old = file.content
        at = len(old) if offset is None else offset
        new = old[:at].ljust(at, b"\0") + content + old[at + len(content) :]
        self._machine.writing(path, old, new)
        self._storage.change(file, new)

    def sync(self, file: OpenFile) -> None:
        assert isinstance(file, Opened)
        event = self._step(file.path)
        self._storage.sync(file.file)
        if event is not None:
            self._done(event)

    def close(self, file: OpenFile) -> None:
        assert isinstance(file, Opened)
        if self._process.alive:
            self._machine.unlock(self._process, file.file)

    def cut(self, path: Path, size: int) -> None:
        file = self._storage.file(path)
        event = self._step(path)
        self._storage.change(file, file.content[:size])
        if event is not None:
            self._done(event)
        event = self._step(path)
        self._storage.sync(file)
        if event is not None:
            self._done(event)

    def lock(self, file: OpenFile) -> None:
        assert isinstance(file, Opened)
        self._machine.look(self._process)
        if not self._machine.lock(self._process, file.file):
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")

    def is_named(self, file: OpenFile) -> bool:
        assert isinstance(file, Opened)
        self._machine.look(self._process)
        return self._storage.find(file.path) is file.file

    def rename(self, old: Path, new: Path) -> None:
        event = self._step(old)
        node, there = self._storage.find(old), self._storage.find(new)
        if node is None:
            raise failure(errno.ENOENT, old)
        if isinstance(there, Folder) and there.names:
            raise failure(errno.ENOTEMPTY, new)
        self._storage.link(new, node, old)
        if event is not None:
            self._done(event)

    def remove(self, path: Path) -> None:
        event = self._step(path)
        self._storage.file(path)
        self._storage.link(path, None)
        if event is not None:
            self._done(event)

    def make_folder(self, path: Path, private: bool = True) -> None:
        event = self._step(path)
        if self._storage.find(path) is not None:
            raise failure(errno.EEXIST, path)
        self._storage.link(path, Folder())
        if event is not None:
            self._done(event)

    def remove_folder(self, path: Path) -> None:
        event = self._step(path)
        if self._storage.folder(path).names:
            raise failure(errno.ENOTEMPTY, path)
        self._storage.link(path, None)
        if event is not None:
            self._done(event)

    def remove_tree(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            for name in self.names(path):
                if self.is_folder(path / name):
                    self.remove_tree(path / name)
                else:
                    with contextlib.suppress(OSError):
                        self.remove(path / name)
            self.remove_folder(path)

    def sync_folder(self, path: Path) -> None:
        event = self._step(path)
        self._storage.sync_folder(self._storage.folder(path))
        if event is not None:
            self._done(event)

    def read(self, path: Path, most: int = 0) -> bytes:
        self._machine.look(self._process)
        return self._storage.file(path).content

    def size(self, path: Path) -> int:
        return len(self.read(path))

    def exists(self, path: Path) -> bool:
        self._machine.look(self._process)
        return self._storage.find(path) is not None

    def is_link(self, path: Path) -> bool:
        return False

    def is_file(self, path: Path) -> bool:
        self._machine.look(self._process)
        return isinstance(self._storage.find(path), File)

    def is_folder(self, path: Path) -> bool:
        self._machine.look(self._process)
        return isinstance(self._storage.find(path), Folder)

    def names(self, folder: Path) -> list[str]:
        self._machine.look(self._process)
        node = self._storage.find(folder)
        return sorted(node.names) if isinstance(node, Folder) else []
