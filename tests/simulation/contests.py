"""Contests for a run's lock: processes that start runs, sweep up starts, and take hold of runs.

What must hold: nobody else is at work in a run while its lock is held, and a start that nobody
killed succeeds, whoever sweeps up around it.
"""

from __future__ import annotations

import random
import traceback
from pathlib import Path

from dpfedadamw import rundir
from dpfedadamw.storage.lock import LockedError, RunLock
from tests.simulation import trainer
from tests.simulation.machine import KILLED, Killed, Machine, Process, SimulatedDisk
from tests.simulation.storage import Node
from tests.simulation.trainer import PARENT, Toy, World

_TOY = Toy("record", 1, 1, "fixed-size", "release")


class Contest:
    """One contest, drawn from its seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._world = World(Machine(self._rng), _TOY)
        self._inside: dict[Node, Process] = {}
        self.broken: str | None = None

    def run(self) -> str | None:
        """Run it; what did not hold, or None."""
        trainer.WORLD = self._world
        works = []
        for number in range(self._rng.choice((2, 3, 3))):
            killed = (KILLED, self._rng.randint(1, 40)) if self._rng.random() < 0.3 else None
            process = Process("ABC"[number], killed)
            works.append((process, lambda process=process: self._take_part(process)))
        self._world.machine.run(works)
        return self.broken

    def _take_part(self, process: Process) -> None:
        disk = SimulatedDisk(self._world.machine, process)
        try:
            for _ in range(self._rng.randint(1, 3)):
                begun = [name for name in disk.names(PARENT) if not name.startswith(".")]
                if begun and self._rng.random() < 0.7:
                    self._hold(process, disk, PARENT / self._rng.choice(begun))
                else:
                    self._start(process, disk)
        except Killed:
            pass
        except Exception:
            self.broken = self.broken or traceback.format_exc()

    def _start(self, process: Process, disk: SimulatedDisk) -> None:
        with rundir.starting("toy", PARENT, self._world.now, disk) as (hidden, lock):
            self._work(process, disk, hidden.path)
        self._work(process, disk, rundir.appeared(hidden).path)
        lock.release()

    def _hold(self, process: Process, disk: SimulatedDisk, run: Path) -> None:
        try:
            lock = RunLock(run, disk)
        except LockedError:
            return
        self._work(process, disk, run)
        lock.release()

    def _work(self, process: Process, disk: SimulatedDisk, run: Path) -> None:
        """Be in a run for a while."""
        node = self._world.machine.storage.find(run)
        assert node is not None
        before = self._inside.get(node)
        if before is not None and before.alive:
            self.broken = self.broken or f"{process.name} and {before.name} hold {run} at once"
        self._inside[node] = process
        for _ in range(self._rng.randint(0, 20)):
            disk.exists(run)
        del self._inside[node]
