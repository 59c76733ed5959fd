"""What a round costs besides its training: ledger, evidence and checkpoint, and memory over rounds.

    python tests/bench/bench_rounds.py [--rounds 200] [--clients 100] [--every 10]

Trains `digits-cnn` with this many clients, all of them in each round, and prints for every so many
rounds the share of the round's time that went into each of the three, its growth since the fifth
round, and the process's resident memory. Shares are of wall time within one process; waiting for
the disk counts. The last line compares the median share of the last quarter of the rounds with that
of the first: what grows with the number of rounds shows there. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.run import setup, training
from dpfedadamw.run.journal import Journal

TARGET = 0.05
PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "ledger": ((Journal, "charge"), (Federation, "_choose"), (Federation, "_earlier_steps")),
    "evidence": ((RecordLevel, "took_part"), (RecordLevel, "close")),
    "checkpoint": ((Journal, "complete"), (Journal, "measure")),
}


def resident() -> float:
    """Resident memory of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def timed(spent: dict[str, float]) -> None:
    """Let each part add up its seconds."""
    for part, methods in PARTS.items():
        for owner, name in methods:
            setattr(owner, name, _timed(getattr(owner, name), part, spent))


def _timed(method: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    @wraps(method)
    def timing(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            spent[part] += time.perf_counter() - began

    return timing


def main() -> None:
    """Train, and print a row for every so many rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--every", type=int, default=10)
    chosen = parser.parse_args()
    spec = specs.load(
        "digits-cnn",
        (
            f"data.clients={chosen.clients}",
            "data.partition={kind: iid}",
            f"federation.clients_per_round={chosen.clients}",
            f"federation.rounds={chosen.rounds}",
            "privacy.target_epsilon=null",
            "privacy.noise_multiplier=2.0",
            "privacy.sampling={kind: poisson, expected_batch_size: 8}",
            f"evaluation.every={chosen.rounds}",
        ),
    )
    spent: dict[str, float] = defaultdict(float)
    timed(spent)
    shares: list[dict[str, float]] = []
    fifth = 0.0
    began = time.perf_counter()

    def after_round(result: Any, _evaluation: Any) -> None:
        nonlocal fifth, began
        now = time.perf_counter()
        shares.append({part: spent[part] / (now - began) for part in PARTS})
        if result.completed == 5:
            fifth = resident()
        if result.completed % chosen.every == 0 or result.completed == 1:
            told = "  ".join(f"{part} {share:6.2%}" for part, share in shares[-1].items())
            print(
                f"round {result.completed:4}: {now - began:6.2f} s  {told}  "
                f"{resident():7.1f} MiB ({resident() - fifth if fifth else 0:+.1f})",
                flush=True,
            )
        spent.clear()
        began = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        opened = setup.start(prepare(spec, torch.device("cpu")), Path(folder))
        began = time.perf_counter()
        with opened.lock:
            for result in _rounds(opened):
                after_round(result, None)
    quarter = max(1, len(shares) // 4)
    for part in PARTS:
        early = statistics.median(share[part] for share in shares[:quarter])
        late = statistics.median(share[part] for share in shares[-quarter:])
        print(f"{part}: {early:.2%} of a round at first, {late:.2%} at last")
    whole = statistics.median(sum(share.values()) for share in shares)
    print(f"together: {whole:.2%}, the target is below {TARGET:.0%}")


def _rounds(opened: training.Training) -> Any:
    """The rounds of `run.training`, without the claim, whose accountants take minutes."""
    for result in opened.federation.run(opened.state, 0):
        numbers = training.RoundNumbers(result.learning_rate, 0, 0, result.last)
        state = training.checkpoints.pack_state(result.state, numbers)
        opened.journal.complete(result.entry, state)
        opened.journal.measure({"round": result.completed})
        yield result


if __name__ == "__main__":
    main()
