"""Runs the cells of a sweep, several at a time, each by the command that a user would give.

A cell whose run was cut off is finished by `dpfedadamw run --resume`, and no other is begun for it:
no budget is spent twice. What fails does not stop the others.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.text import Text

from dpfedadamw.extensions.sweeps.folder import CellFolder, SweepError, SweepFolder
from dpfedadamw.extensions.sweeps.processes import Started
from dpfedadamw.spec.matrix import Cell
from dpfedadamw.storage.lock import HeldError, LockedError, RunLock

# Exit codes of `run` with which a run is finished: its audit passed, or did not.
_FINISHED = (0, 1)
_POLL_SECONDS = 0.2
# A run that is asked to stop ends the round's write that it is at.
_PATIENCE_SECONDS = 60.0
_SAID_BYTES = 4_000


@dataclass
class Job:
    """One cell, and how far it is.

    Attributes:
        cell: The cell.
        folder: Where it lies.
        state: "waiting", "running", "done", "failed" or "elsewhere": another sweep is running it,
            and it is waited for.
        seconds: How long it has run in this sweep.
        said: Of a failure, its last line.
    """

    cell: Cell
    folder: CellFolder
    state: str = "waiting"
    seconds: float = 0.0
    said: str = ""
    _began: float = field(default=0.0, repr=False)


@dataclass
class _Running:
    job: Job
    process: Started
    lock: RunLock
    told: IO[bytes]


class Runner:
    """Runs cells.

    Args:
        folder: The sweep's folder.
        processes: How many at a time.
        start: Starts the command with these arguments; what it says goes into the file.
        finished: Called with each job whose run is finished; keeps what it says of itself, or
            raises SweepError where that cannot be read.
        options: What each run is given besides its spec, such as ``--device cpu``.
    """

    def __init__(
        self,
        folder: SweepFolder,
        processes: int,
        start: Callable[[Sequence[str], Path], Started],
        finished: Callable[[Job], None],
        options: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._processes = processes
        self._start = start
        self._finished = finished
        self._options = tuple(options)
        self._running: list[_Running] = []

    def run(self, jobs: Sequence[Job]) -> Iterator[Job | None]:
        """Run jobs in their order.

        What another sweep runs is waited for, so that both end with all cells; what it leaves
        unfinished is taken over.

        Yields:
            Each job once it ended, however it did, and where it is first seen to be elsewhere; None
            now and then, while nothing ends.
        """
        waiting, elsewhere = list(jobs), list[Job]()
        with self._stopped_at_the_end():
            while waiting or elsewhere or self._running:
                looked_at = len(elsewhere)
                while waiting and len(self._running) < self._processes:
                    job = waiting.pop(0)
                    if self._begin(job):
                        continue
                    if job.state == "elsewhere":
                        elsewhere.append(job)
                    yield job
                for job in elsewhere[:looked_at]:
                    if len(self._running) < self._processes:
                        begun = self._begin(job)
                        if job.state != "elsewhere":
                            elsewhere.remove(job)
                            if not begun:
                                yield job
                ended = [one for one in self._running if one.process.poll() is not None]
                for one in ended:
                    self._running.remove(one)
                    self._end(one)
                    yield one.job
                if not ended and (self._running or elsewhere):
                    time.sleep(_POLL_SECONDS)
                    for one in self._running:
                        one.job.seconds = time.monotonic() - one.job._began
                    yield None

    def _begin(self, job: Job) -> bool:
        """Start a job's process; False where it is in other hands."""
        self._folder.begin_cell(job.cell)
        try:
            lock = RunLock(job.folder.path)
        except HeldError:
            job.state = "elsewhere"
            return False
        except LockedError as error:
            job.state, job.said = "failed", str(error)
            return False
        try:
            # Another sweep may have finished it by now.
            if job.folder.result() is not None:
                job.state = "done"
                lock.release()
                return False
            try:
                job.folder.renew(job.cell.spec)
            except SweepError as error:
                self._fail(job, str(error))
                lock.release()
                return False
            told = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed when the process ended
            process = self._start(self._arguments(job), Path(told.name))
        except BaseException:
            lock.release()
            raise
        job.state, job._began = "running", time.monotonic()
        self._running.append(_Running(job, process, lock, told))
        return True

    def _arguments(self, job: Job) -> list[str]:
        folder = job.folder
        begun = folder.newest_run()
        what = ["--resume", str(begun.path)] if begun else [str(folder.spec)]
        where = [] if begun else ["--out", str(folder.runs)]
        if not begun and folder.trial.exists():
            where += ["--trial", str(folder.trial)]
        if not begun and job.cell.released:
            # No table shows this trial: what is recomputed is the best candidate's runs.
            where += ["--replay", "0"]
        return ["run", *what, *where, "--json", *self._options]

    def _end(self, one: _Running) -> None:
        job = one.job
        job.seconds = time.monotonic() - job._began
        try:
            code = one.process.poll()
            job.said = _last_line(one.told) or f"ended with {code}"
            if code in _FINISHED and job.folder.newest_run() is not None:
                try:
                    self._finished(job)
                    job.state, job.said = "done", ""
                    return
                except SweepError as error:
                    job.said = str(error)
            self._fail(job, job.said)
        finally:
            one.told.close()
            one.lock.release()

    @staticmethod
    def _fail(job: Job, said: str) -> None:
        job.state, job.said = "failed", said
        job.folder.failure.write_text(said + "\n", encoding="utf-8")

    @contextmanager
    def _stopped_at_the_end(self) -> Iterator[None]:
        """Ask what still runs to stop, and wait for it, when the sweep is left early."""
        try:
            yield
        finally:
            for one in self._running:
                one.process.terminate()
            until = time.monotonic() + _PATIENCE_SECONDS
            for one in self._running:
                if one.process.wait(max(0.1, until - time.monotonic())) is None:
                    one.process.kill()
                    one.process.wait()
                one.told.close()
                one.lock.release()
                one.job.state = "waiting"
            self._running.clear()


def _last_line(told: IO[bytes]) -> str:
    """What a process wrote last to standard error."""
    size = told.seek(0, os.SEEK_END)
    told.seek(max(0, size - _SAID_BYTES))
    written = Text.from_ansi(told.read().decode("utf-8", "replace")).plain
    lines = [line.strip() for line in written.splitlines()]
    return next((line for line in reversed(lines) if line), "")


def expected_seconds(done: Sequence[tuple[Cell, float]], cell: Cell) -> float | None:
    """How long a cell may take, from those that were run: the mean rate of like ones.

    Alike are cells of one model and data set; their time is taken to grow with rounds, clients and
    local steps.

    Args:
        done: Cells that were run, with their seconds.
        cell: The cell that is asked for.
    """
    rates = [
        seconds / _size(other)
        for other, seconds in done
        if (other.spec.model.name, other.spec.data.dataset)
        == (cell.spec.model.name, cell.spec.data.dataset)
    ]
    return _size(cell) * sum(rates) / len(rates) if rates else None


def _size(cell: Cell) -> float:
    federation = cell.spec.federation
    return float(federation.rounds * federation.clients_per_round * federation.local_steps)
