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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
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

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer]:
        """What each client's part comes to, in the order of ``parts``.

        Raises:
            WorkerError: If a process ends, or cannot be started.
        """
        if not parts:
            return
        # Nothing else waits for the processes: a thread for each would cost more than the messages.
        idle, asked = list(self._started()), 0
        busy: dict[Any, tuple[_Process, int]] = {}
        found: dict[int, tuple[bytes, _Given]] = {}
        unit, device = self._worker.unit, self._worker.flat.vector.device
        try:
            for place in range(len(parts)):
                while True:
                    most = min(len(parts), place + _AHEAD * self._number)
                    while idle and asked < most:
                        process = idle.pop()
                        process.ask(self._task(parts[asked]), parts[asked].current.message)
                        busy[process.connection] = process, asked
                        asked += 1
                    # Who has answered is asked for more before the next answer is used.
                    ready = wait(busy, 0.0 if place in found else None)
                    if not ready:
                        break
                    for one in ready:
                        process, which = busy.pop(one)
                        found[which] = process.answer()
                        idle.append(process)
                message, given = found.pop(place)
                answer = answered(message, given.noted, unit.evidence_of_client(), device)
                unit.add_shared(given.shared)
                del message, given
                yield answer
                # Else the last answer would stay while the next one is read.
                del answer
        finally:
            # An answer that nobody waits for would be taken for that to a later question.
            if busy:
                self.close()

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.forget()
        self._processes = []

    def _task(self, part: Participation) -> _Task:
        keys = keys_of(part, self._worker.randomness)
        return _Task(Asked.of(part), packed(part.memory), keys)

    def _started(self) -> Sequence[_Process]:
        if not self._processes:
            forks = "forkserver" in multiprocessing.get_all_start_methods()
            context = multiprocessing.get_context("forkserver" if forks else "spawn")
            if forks:
                context.set_forkserver_preload([__name__])
            for number in range(1, self._number + 1):
                self._processes.append(_Process(context, self._opening, (number, self._number)))
            for process in self._processes:
                process.wait_until_ready()
        return self._processes


class _Process:
    """A worker process, as this one sees it.

    Args:
        context: Starts processes.
        opening: What it needs to make itself ready.
        number: Which of how many it is, from 1.

    Attributes:
        connection: Can be read once it has answered, or has ended.
    """

    def __init__(self, context: Any, opening: Opening, number: tuple[int, int]) -> None:
        self._number = number
        self.connection: Connection[Any, Any]
        self.connection, other = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(other, opening), name=f"worker {number[0]}", daemon=True
        )
        self._process.start()
        # Held here too, it would never be seen that the process has ended.
        other.close()
        self._round: tuple[int, int] | None = None
        self._doing = "was starting"

    def wait_until_ready(self) -> None:
        """Wait until it has read spec and data.

        Raises:
            WorkerError: If it cannot.
        """
        self._receive()

    def ask(self, task: _Task, broadcast: bytes) -> None:
        """Have it compute a participation, of a round whose broadcast is sent once.

        Raises:
            WorkerError: If it has ended.
        """
        asked = task.asked
        self._doing = f"computed a client of round {asked.round}"
        try:
            if self._round != (asked.round, asked.attempt):
                self.connection.send(None)
                self.connection.send_bytes(broadcast)
                self._round = (asked.round, asked.attempt)
            self.connection.send(task)
        except OSError:
            raise self._ended() from None

    def answer(self) -> tuple[bytes, _Given]:
        """What it was asked for: an upload, and all else of the answer.

        Raises:
            WorkerError: If it ends meanwhile.
        """
        given = self._receive()
        assert isinstance(given, _Given)
        try:
            return self.connection.recv_bytes(), given
        except (OSError, EOFError):
            raise self._ended() from None

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def forget(self) -> None:
        """Let go of what belonged to it."""
        self._process.join(_PATIENCE)
        self.connection.close()

    def _receive(self) -> object:
        try:
            found: object = self.connection.recv()
        except (OSError, EOFError):
            raise self._ended() from None
        if isinstance(found, _Failed):
            if found.wrong_input:
                raise WorkerError(found.reason)
            raise RuntimeError(f"in a worker process: {found.reason}")
        return found

    def _ended(self) -> WorkerError:
        self._process.join(_PATIENCE)
        code = self._process.exitcode
        how = f"with exit code {code}"
        if code is None:
            how = "its connection"
        elif code < 0:
            how = f"by signal {-code}"
        which, of = self._number
        return WorkerError(
            f"federation.workers: worker process {which} of {of} ended ({how}) while it "
            f"{self._doing}; its charges remain. If memory ran out, use fewer workers"
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
