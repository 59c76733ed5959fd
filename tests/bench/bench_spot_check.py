"""What the spot check costs: rounds of a real run with and without it, in turns.

    python tests/bench/bench_spot_check.py [--only NAME] [--rounds 41]

Processor time of whole rounds as `dpfedadamw run` makes them (ledger, evidence, checkpoint,
evaluation), in one process, every second round without the check; the mean of each, since most
rounds of a small model have no check and few have one. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import prepare
from dpfedadamw.federation import record
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.run import setup, training

WORKLOADS = {
    "softmax regression": ("quickstart", "model={name: mlp, hidden: []}"),
    "quickstart": ("quickstart",),
    "mlp-256": ("quickstart", "model={name: mlp, hidden: [256]}"),
    "digits-cnn": ("digits-cnn",),
    "digits-vit": ("digits-vit",),
}


class Switched(SpotCheck):
    """A check that is there in every second round."""

    on = True
    checks = 0

    def due(self, seconds: float) -> bool:
        return Switched.on and super().due(seconds)

    def __call__(self, *given: object) -> None:
        Switched.checks += 1
        super().__call__(*given)  # type: ignore[arg-type]


def measure(name: str, rounds: int) -> None:
    spec, *changes = WORKLOADS[name]
    changes.append(f"federation.rounds={rounds}")
    experiment = prepare(specs.load(spec, changes), torch.device("cpu"))
    times: dict[bool, list[float]] = {True: [], False: []}
    Switched.on, Switched.checks = True, 0
    began = time.process_time()

    def turn(*_: object) -> None:
        nonlocal began
        times[Switched.on].append(time.process_time() - began)
        Switched.on = not Switched.on
        began = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        training.train(setup.start(experiment, Path(folder)), on_round=turn)
    # The first round of each also loads and rehearses.
    with_it, without = (statistics.fmean(times[key][1:]) for key in (True, False))
    print(
        f"{name}: {1e3 * with_it:.1f} ms a round with, {1e3 * without:.1f} ms without, ratio "
        f"{with_it / without:.3f}; {Switched.checks} checks in {len(times[True])} rounds"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=WORKLOADS, nargs="*", default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=81)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    record.SpotCheck = Switched  # type: ignore[misc]
    for name in asked.only:
        measure(name, asked.rounds)


if __name__ == "__main__":
    main()
