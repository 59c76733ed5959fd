"""Clients of a round side by side, in processes of this machine (``federation.workers``).

The process that leads the run charges the ledger before it hands out a round's first participation,
and writes evidence itself, in the order of the round's clients. A worker reads the run's spec and
data, computes one participation after another, and writes nothing of the run. So files, their order
and their contents are those of a run in one process, however many workers there are, and a worker
that dies takes nothing with it but the round: that stays charged, and the run can be resumed.

A worker is a fresh process and not a copy of this one, whose threads it would lack: Python's fork
server loads the libraries once for all of them. It lives as long as the run's rounds.
"""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from numpy.typing import NDArray

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.federation.participation import Answer, Participation
from dpfedadamw.federation.recorded import answered, recorded
from dpfedadamw.federation.stations import Asked, Station
from dpfedadamw.federation.worker import Worker
from dpfedadamw.models.own.permission import permission
from dpfedadamw.run.computing import determinism
from dpfedadamw.run.stations import Opening, keys_of, open_station, source_of
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.spec import Spec
from dpfedadamw.vectors.packing import packed, views

# Answers that are computed before their turn, for each worker: what bounds memory.
_AHEAD = 2
_PATIENCE = 5.0


class WorkerError(DpfedadamwError):
    """A worker process cannot go on."""


@dataclass(frozen=True)
class _Task:
    """What a worker is asked, in addition to the round's broadcast.

    Attributes:
        asked: The client's part.
        memory: What it kept when it last took part, serialised.
        keys: What opens its streams.
    """

    asked: Asked
    memory: bytes
    keys: Mapping[str, bytes]


@dataclass(frozen=True)
class _Failed:
    """Why a worker has no answer.

    Attributes:
        reason: In one sentence if the input is wrong, else where in the program it happened.
        wrong_input: Whether it is.
    """

    reason: str
    wrong_input: bool


@dataclass(frozen=True)
class _Given:
    """A worker's answer but for the upload, which follows as bytes."""

    noted: dict[str, NDArray[Any]]
    shared: dict[str, NDArray[Any]]


class WorkerProcesses:
    """Runs the clients of a round side by side; the processes start with the first that has any.

    Args:
        run: The run's directory.
        worker: What clients of this process would share: its unit gets what clients noted.
        commitments: How participations are hashed.
        number: How many processes there are, at least 2.
    """

    def __init__(self, run: RunDirectory, worker: Worker, commitments: str, number: int) -> None:
        self._worker = worker
        self._number = number
        self._opening = Opening(
            run=str(run.path.resolve()),
            place=str(Path.cwd()),
            device=worker.flat.vector.device.type,
            engine=worker.performance.engine,
            threads=torch.get_num_threads(),
            commitments=commitments,
            allow_code=permission().handed_on(),
        )
        self._processes: list[_Process] = []
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer]:
        """What each client's part comes to, in the order of ``parts``.

        Raises:
            WorkerError: If a process ends, or cannot be started.
        """
        if not parts:
            return
        threads, waiting = self._started(), iter(parts)
        ahead: deque[Future[tuple[bytes, _Given]]] = deque(
            threads.submit(self._ask, part) for part in islice(waiting, _AHEAD * self._number)
        )
        unit, device = self._worker.unit, self._worker.flat.vector.device
        while ahead:
            message, given = ahead.popleft().result()
            ahead.extend(threads.submit(self._ask, part) for part in islice(waiting, 1))
            answer = answered(message, given.noted, unit.evidence_of_client(), device)
            unit.add_shared(given.shared)
            del message, given
            yield answer
            # Else the last answer would stay while the next one is read.
            del answer

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.kill()
        if self._threads is not None:
            # Code that waits for a process finds that it has ended.
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        for process in self._processes:
            process.forget()
        self._processes = []

    def _ask(self, part: Participation) -> tuple[bytes, _Given]:
        """Have a process that has nothing to do compute a participation."""
        process = self._idle.get()
        try:
            task = _Task(
                Asked.of(part), packed(part.memory), keys_of(part, self._worker.randomness)
            )
            return process.ask(task, part.current.message)
        finally:
            # Including one that has ended: a request to it fails at once instead of waiting.
            self._idle.put(process)

    def _started(self) -> ThreadPoolExecutor:
        if self._threads is None:
            forks = "forkserver" in multiprocessing.get_all_start_methods()
            context = multiprocessing.get_context("forkserver" if forks else "spawn")
            if forks:
                context.set_forkserver_preload([__name__])
            for number in range(1, self._number + 1):
                self._processes.append(_Process(context, self._opening, (number, self._number)))
            for process in self._processes:
                process.wait_until_ready()
                self._idle.put(process)
            # One for each process: they wait, and torch computes nothing in them.
            self._threads = ThreadPoolExecutor(self._number, thread_name_prefix="workers")
        return self._threads


class _Process:
    """A worker process, as this one sees it.

    Args:
        context: Starts processes.
        opening: What it needs to make itself ready.
        number: Which of how many it is, from 1.
    """

    def __init__(self, context: Any, opening: Opening, number: tuple[int, int]) -> None:
        self._number = number
        self._connection: Connection[Any, Any]
        self._connection, other = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(other, opening), name=f"worker {number[0]}", daemon=True
        )
        self._process.start()
        # Held here too, it would never be seen that the process has ended.
        other.close()
        self._round: tuple[int, int] | None = None

    def wait_until_ready(self) -> None:
        """Wait until it has read spec and data.

        Raises:
            WorkerError: If it cannot.
        """
        self._receive("was starting")

    def ask(self, task: _Task, broadcast: bytes) -> tuple[bytes, _Given]:
        """Have it compute a participation, of a round whose broadcast is sent once.

        Raises:
            WorkerError: If it ends meanwhile.
        """
        asked = task.asked
        doing = f"computed a client of round {asked.round}"
        try:
            if self._round != (asked.round, asked.attempt):
                self._connection.send(None)
                self._connection.send_bytes(broadcast)
                self._round = (asked.round, asked.attempt)
            self._connection.send(task)
        except OSError:
            raise self._ended(doing) from None
        given = self._receive(doing)
        assert isinstance(given, _Given)
        try:
            return self._connection.recv_bytes(), given
        except (OSError, EOFError):
            raise self._ended(doing) from None

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def forget(self) -> None:
        """Let go of what belonged to it."""
        self._process.join(_PATIENCE)
        self._connection.close()

    def _receive(self, doing: str) -> object:
        try:
            found: object = self._connection.recv()
        except (OSError, EOFError):
            raise self._ended(doing) from None
        if isinstance(found, _Failed):
            if found.wrong_input:
                raise WorkerError(found.reason)
            raise RuntimeError(f"in a worker process: {found.reason}")
        return found

    def _ended(self, doing: str) -> WorkerError:
        self._process.join(_PATIENCE)
        code = self._process.exitcode
        how = f"with exit code {code}"
        if code is None:
            how = "its connection"
        elif code < 0:
            how = f"by signal {-code}"
        which, of = self._number
        return WorkerError(
            f"federation.workers: worker process {which} of {of} ended ({how}) while it {doing}; "
            "its charges remain. If memory ran out, use fewer workers"
        )


def _serve(connection: Connection[Any, Any], opening: Opening) -> None:
    """Compute participations until nobody asks any more: all that a worker process does."""
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches all processes of a terminal; the one that leads decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # Nothing is read from the folder once the unit is open.
        with tempfile.TemporaryDirectory(prefix="dpfedadamw-worker-") as folder:
            station, spec = open_station(opening, Path(folder))
        connection.send("ready")
        broadcast = b""
        while True:
            try:
                task = connection.recv()
                if task is None:
                    broadcast = connection.recv_bytes()
                    continue
            except EOFError:
                return
            message, given = _computed(station, spec, task, broadcast)
            connection.send(given)
            connection.send_bytes(message)
            del message, given
    except (BrokenPipeError, ConnectionResetError):
        # The process that leads is gone, or has no use for the answer.
        return
    except DpfedadamwError as error:
        connection.send(_Failed(str(error), wrong_input=True))
    except Exception as error:
        # Another's message may hold private values; where it was raised does not.
        places = "".join(traceback.format_tb(error.__traceback__))
        connection.send(_Failed(f"{type(error).__name__}\n{places}", wrong_input=False))


def _computed(station: Station, spec: Spec, task: _Task, broadcast: bytes) -> tuple[bytes, _Given]:
    memory = {name: value.clone() for name, value in views(task.memory).items()}
    device = station.worker.flat.vector.device
    with determinism(spec):
        found = station.answer(
            task.asked,
            broadcast,
            {name: value.to(device) for name, value in memory.items()},
            source_of(spec, task.keys),
        )
    return found.message, _Given(recorded(found), station.worker.unit.take_shared())
