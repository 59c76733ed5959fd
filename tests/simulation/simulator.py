"""Runs many schedules: ``python -m tests.simulation.simulator --schedules 1000000 [--seed N]``."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import time
import traceback
from collections.abc import Iterable, Iterator

from tests.simulation.contests import Contest
from tests.simulation.schedules import Schedule
from tests.simulation.trainer import toys

_CONTEST = 5


class ScheduleError(AssertionError):
    """A schedule in which something that must hold did not."""

    def __init__(self, seed: int, what: str) -> None:
        self.seed, self.what = seed, what
        again = f"python -m tests.simulation.simulator --schedules 1 --seed {seed}"
        super().__init__(f"schedule {seed}: {what}\nshow it again with: {again}")


def run_all(seeds: Iterable[int]) -> dict[str, int]:
    """Run schedules, and a contest for locks with every fifth, until one breaks.

    Returns:
        How many there were, and how often noise was drawn in them.

    Raises:
        ScheduleError: With the seed of the first in which something did not hold.
    """
    tally = {"schedules": 0, "contests": 0, "draws of noise": 0}
    with toys(), _seldom_collected():
        for seed in seeds:
            try:
                watcher = Schedule(seed).run()
                broken = watcher.broken
                if seed % _CONTEST == 0 and broken is None:
                    tally["contests"] += 1
                    broken = Contest(seed).run()
            except Exception:
                broken = traceback.format_exc()
            if broken is not None:
                raise ScheduleError(seed, broken)
            tally["schedules"] += 1
            tally["draws of noise"] += watcher.drawn
    return tally


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for garbage in cycles seldom: schedules leave little, and libraries nothing."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="number of the first")
    chosen = parser.parse_args()
    began = time.process_time()
    try:
        tally = run_all(range(chosen.seed, chosen.seed + chosen.schedules))
    except ScheduleError as broken:
        sys.exit(str(broken))
    told = ", ".join(f"{count} {name}" for name, count in tally.items())
    print(f"{told}: all held, in {time.process_time() - began:.0f} s of process time")


if __name__ == "__main__":
    main()
