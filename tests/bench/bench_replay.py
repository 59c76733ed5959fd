"""What computing participations again takes, beside the training: processor time, run by hand.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_replay quickstart 20
    OMP_NUM_THREADS=1 python -m tests.bench.bench_replay digits-vit 20

Trains the spec, with changes as `--set` takes them, which may follow; audits it without and with so
many replays, and runs all of it again. The training is told without its probe, and a replay without
what the audit takes else. What it came to stands in docs/reexecution.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import TypeVar

import torch

from dpfedadamw import spec as specs
from dpfedadamw.cli.replaying import order_of
from dpfedadamw.experiment import prepare
from dpfedadamw.filing import after_training as filing
from dpfedadamw.filing.replaying import replay_of
from dpfedadamw.reexecution import whole
from dpfedadamw.reexecution.rounds import Cost, Rerun
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions
from tests.runs import attest

Outcome = TypeVar("Outcome")


def timed(act: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """What something comes to, and its processor time in seconds."""
    began = process_time()
    return act(), process_time() - began


def main(arguments: Sequence[str]) -> int:
    """Time one spec; a name, how many participations, and changes."""
    name, count, *changes = arguments
    cpu, costs = torch.device("cpu"), list[Cost]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPFEDADAMW_KEYS"] = f"{folder}/keys"
        experiment, escrow = prepare(specs.load(name, changes), cpu), Path(folder) / "key"
        training = engine_setup.start(experiment, Path(folder), options=StartOptions(escrow=escrow))
        with training.lock:
            trained = timed(lambda: engine_run.train(training))[1]
        attest(training)
        run = training.run
        audited = timed(lambda: filing.audit(run))[1]
        order = order_of(run, int(count), [escrow])
        rerun, began = timed(lambda: Rerun(run, order.keys, cpu))
        replay = replay_of(rerun, order, costs.append)
        findings, replayed = timed(lambda: filing.audit(run, replay=replay))
        took, cost = began + replayed - audited, costs[0]
        print(
            f"{name}: training {trained:.1f} s; {cost.participations} replays {took:.1f} s "
            f"({cost.executed} of {cost.total} rounds run again), share {took / trained:.2f}"
        )
        print(findings.named("reexecution").measurement, flush=True)
        again, repeated = timed(lambda: whole.replay(rerun, run))
    print(f"the whole run again {repeated:.1f} s, the same: {again.same}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
