"""What worker processes gain: rounds with them and without, in turns, within one run.

    python tests/bench/bench_workers.py [--workers 2] [--rounds 40] [SPEC] [--set KEY=VALUE ...]

Each round's clients are computed either in the run's own process or by its workers, in turns of one
round each, so that other work on the machine meets both alike. Prints the median wall time of a
round's clients for each, and their ratio, beside the load of the machine. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.participation import Answer, Participation
from dpfedadamw.federation.worker import ClientRunner, Inline
from dpfedadamw.run import setup, training

NAMES = ("wall", "here", "workers")


@dataclass(frozen=True)
class Took:
    """What a round's clients took: seconds by the clock, and of processors, here and in workers."""

    wall: float
    here: float
    workers: float


@dataclass(frozen=True)
class InTurns:
    """Hands the clients of every other round to one of two runners, and takes the time."""

    runners: tuple[ClientRunner, ClientRunner]
    took: tuple[list[Took], list[Took]] = field(default_factory=lambda: ([], []))

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer]:
        """By one of them."""
        which = parts[0].current.index % 2
        before = times()
        given = self.runners[which].answers(parts)
        for _ in parts[1:]:
            yield next(given)
        last = next(given)
        self.took[which].append(Took(*np.subtract(times(), before)))
        yield last

    def close(self) -> None:
        """Both."""
        for runner in self.runners:
            runner.close()


def times() -> tuple[float, float, float]:
    """Seconds by the clock, and of processors that this process and its workers used."""
    ticks = 0
    for process in multiprocessing.active_children():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.perf_counter(), time.process_time(), ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Train, and print both means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", nargs="?", default="digits-cnn")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    chosen = parser.parse_args()
    changes = [f"federation.rounds={chosen.rounds}", f"federation.workers={chosen.workers}"]
    spec = specs.load(chosen.spec, (*changes, *chosen.changes))
    with tempfile.TemporaryDirectory() as folder:
        begun = setup.start(prepare(spec, torch.device("cpu")), Path(folder))
        federation = begun.federation
        in_turns = InTurns((Inline(federation.worker, federation.clients), federation.runner))
        begun.federation = replace(federation, elsewhere=in_turns)
        with begun.lock:
            training.train(begun)
    # The first round with workers starts them.
    alone, side_by_side = (
        [1e3 * statistics.mean(getattr(one, name) for one in times[1:]) for name in NAMES]
        for times in in_turns.took
    )
    # What three processes on two processors need at least, as they need it.
    shared = sum(side_by_side[1:]) / chosen.workers
    print(
        f"threads {torch.get_num_threads()}  load {os.getloadavg()[0]:.1f}  clients of a round:\n"
        f"  alone: {alone[0]:.0f} ms, of a processor {alone[1]:.0f} ms\n"
        f"  {chosen.workers} workers: {side_by_side[0]:.0f} ms, of processors "
        f"{side_by_side[1]:.0f} ms in the process that leads and {side_by_side[2]:.0f} ms in the "
        f"workers together\n"
        f"  {alone[0] / side_by_side[0]:.2f} times by the clock here and now, "
        f"{alone[1] / shared:.2f} times on {chosen.workers} idle processors"
    )


if __name__ == "__main__":
    main()
