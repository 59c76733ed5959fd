"""A round that protects people against the same round that protects records: run by hand.

    python -m tests.bench.bench_people [--rounds 41] [--uneven]

Everybody has four records at one client (with --uneven one to seven), all of which are in the batch
if they are drawn, so that both rounds look at as many records on average. Both runs take turns at
single rounds in one process, and the first round of each is thrown away; a ratio is the median over
turns of the ratio of the processor's times of two neighbouring rounds.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from dpfedadamw.experiment import prepare
from dpfedadamw.run import setup
from tests.people import PEOPLE, RECORDS, people_spec
from tests.runs import played

GOAL, EACH, MOST, PERSONS, BATCH = 1.3, 4, 7, 1197, 24
MODELS = {
    "linear": "model={name: mlp, hidden: []}",
    "MLP, 32": "model={name: mlp, hidden: [32]}",
    "MLP, 256": "model={name: mlp, hidden: [256]}",
    "MLP, 1024": "model={name: mlp, hidden: [1024]}",
}


def write_table(path: Path, uneven: bool) -> None:
    """Write a table of people with four rows each, or one to seven, in no order."""
    choice = np.random.default_rng(0)
    each = np.arange(PERSONS) % MOST + 1 if uneven else EACH
    with path.open("w", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["patient_id", *(f"x{number}" for number in range(16)), "label"])
        for person in choice.permutation(np.repeat(np.arange(PERSONS), each)).tolist():
            numbers = choice.standard_normal(16)
            table.writerow([person, *numbers.round(4), int(numbers[0] > 0)])


def rounds(table: Path, folder: Path, unit: str, changes: tuple[str, ...]) -> Iterator[float]:
    """Processor time of round after round."""
    batch = BATCH if unit == PEOPLE else EACH * BATCH
    sizes = (
        f"privacy.sampling.expected_batch_size={batch}",
        "federation.rounds=1000",
        "federation.local_steps=10",
    )
    spec = people_spec(unit=unit, table=table, overrides=(*sizes, *changes))
    opened = setup.start(prepare(spec, torch.device("cpu")), folder)
    with opened.lock:
        running = played(opened.federation, opened.state)
        while True:
            began = time.process_time()
            next(running)
            yield time.process_time() - began


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--uneven", action="store_true")
    asked = parser.parse_args()
    turns = asked.rounds
    torch.set_num_threads(1)
    more = (f"privacy.records_per_person={MOST if asked.uneven else EACH}",)
    print(f"{'model':12} {'records ms':>10} {'people ms':>10} {'ratio':>6}  goal {GOAL}")
    with tempfile.TemporaryDirectory() as name:
        table = Path(name) / "people.csv"
        write_table(table, asked.uneven)
        for model, change in MODELS.items():
            both = [
                rounds(table, Path(name) / "runs", unit, (change, *own))
                for unit, own in ((RECORDS, ()), (PEOPLE, more))
            ]
            times = [[next(one) for one in both] for _ in range(turns + 1)][1:]
            ratio = statistics.median(people / records for records, people in times)
            each = [1e3 * statistics.median(column) for column in zip(*times, strict=True)]
            print(f"{model:12} {each[0]:10.2f} {each[1]:10.2f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
