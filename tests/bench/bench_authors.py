"""What protecting authors costs by each way to draw batches, on texts: run by hand.

    python -m tests.bench.bench_authors docs/people.md

Makes the table of `tests.changelogs` from the changelogs of the packages that are installed, and
trains a linear model on it, at one ε of an author, by batches of authors and by batches of items of
which each author keeps some. σ is solved for each way, by the package's own accountants. Every way
has the same split, initial model, rates of sampling and numbers of steps in each of the seeds, and
is shown at the best of the learning rates by test accuracy, which is better than any of them could
choose without it. Differences are taken seed by seed. It takes some ten minutes on two cores.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import foresee, prepare
from dpfedadamw.run import calibrate
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run.calibrate import Solve, View
from dpfedadamw.run.training import evaluated_model
from dpfedadamw.spec import Spec
from tests.changelogs import COLUMNS, items, write_table

BEGIN, END = "<!-- texts by author -->", "<!-- end of texts by author -->"
TARGET, RATE, CLIENTS = 3.0, 0.2, 2
SEEDS = range(1, 6)
LEARNING_RATES = (1.0, 2.0, 4.0, 8.0, 16.0)
_SPEC = """
version: 1
name: authors
data:
  {{dataset: table, path: {path}, cache: {cache}, label: change, numbers: [{numbers}],
   person: author, most_records_per_person: {keeps}, seed: {seed}, clients: {clients},
   partition: {{kind: iid}}}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: {algorithm}, learning_rate: {learning_rate}}}
federation: {{rounds: 20, clients_per_round: {clients}, local_steps: 2}}
privacy: {privacy}
evaluation: {{every: 20}}
randomness: {{mode: reproducible, seed: {seed}}}
"""
_PRIVACY = (
    "{{unit: {unit}, {bound}clipping_norm: 1.0, noise_multiplier: {sigma}, delta: 1.0e-4, "
    "sampling: {{kind: poisson, expected_batch_size: {batch}}}}}"
)


_NONE = "{unit: none, sampling: {kind: full}}"


@dataclass(frozen=True)
class Way:
    """A way to draw batches.

    Attributes:
        unit: "person", "record", or "none" for whole batches without noise and clipping.
        most: Most records of a person, in a batch of people or in the data; None for all.
    """

    unit: str
    most: int | None

    @property
    def told(self) -> tuple[str, str]:
        """What batches are of, and what an author keeps."""
        if self.unit == "person":
            return "authors", f"all, up to {self.most} a batch"
        drawn = "items" if self.unit == "record" else "none: all items, without privacy"
        return drawn, "all" if self.most is None else str(self.most)


WAYS = (
    Way("person", 4),
    Way("person", 64),
    *(Way("record", most) for most in (1, 2, 4, 16, None)),
    Way("none", None),
)


@dataclass(frozen=True)
class Table:
    """The table on disk."""

    path: Path

    def spec(self, way: Way, seed: int, learning_rate: float = 1.0, sigma: float = 1.0) -> Spec:
        """A spec of a way, with as large a batch as RATE of its smallest client is."""
        batch = 1.0
        # The first is planned to learn the clients' sizes.
        for _ in range(2):
            privacy = (
                _NONE
                if way.unit == "none"
                else _PRIVACY.format(
                    unit=way.unit,
                    bound=f"records_per_person: {way.most}, " if way.unit == "person" else "",
                    sigma=sigma,
                    batch=batch,
                )
            )
            found = specs.loads(
                _SPEC.format(
                    path=self.path,
                    cache=self.path.parent / "cache",
                    numbers=", ".join(f"w{column}" for column in range(COLUMNS)),
                    keeps=way.most if way.unit == "record" and way.most else "null",
                    seed=seed,
                    clients=CLIENTS,
                    learning_rate=learning_rate,
                    algorithm="fedavg" if way.unit == "none" else "dp-fedavg",
                    privacy=privacy,
                )
            )
            batch = float(round(RATE * min(foresee(found).records)))
        return found

    def calibrated(self, way: Way, seed: int) -> Spec:
        """The way's spec at the target."""
        spec = self.spec(way, seed)
        if way.unit == "none":
            return spec
        if way.unit == "person":
            return calibrate.calibrate(spec, TARGET, View.server, Solve.noise).spec
        # Of those who keep all, the one with most.
        most = foresee(spec).most_records
        kept = specs.loads(specs.dump(spec), overrides=(f"data.most_records_per_person={most}",))
        return calibrate.for_a_person(kept, TARGET).spec


def accuracy(spec: Spec, folder: Path) -> float:
    """Test accuracy at the end of a run."""
    training = engine_setup.start(prepare(spec, torch.device("cpu")), folder)
    with training.lock:
        for result in training.federation.run(training.state, 0):
            training.federation.ledger.append("round", result.entry)
            training.state = result.state
    training.flat.assign(training.state.parameters)
    found = evaluated_model(training.experiment, finished=False).accuracy
    assert found is not None
    return found


@dataclass(frozen=True)
class Outcome:
    """What a way reached.

    Attributes:
        way: Which one.
        spec: That of the last seed.
        by_rate: Accuracies of all seeds by learning rate.
    """

    way: Way
    spec: Spec
    by_rate: dict[float, list[float]]

    @property
    def best(self) -> list[float]:
        """Accuracies at the best learning rate."""
        return max(self.by_rate.values(), key=statistics.mean)


def outcome(table: Table, way: Way, folder: Path) -> Outcome:
    """Make all runs of a way."""
    by_rate: dict[float, list[float]] = {rate: [] for rate in LEARNING_RATES}
    for seed in SEEDS:
        spec = table.calibrated(way, seed)
        for rate, reached in by_rate.items():
            own = specs.loads(specs.dump(spec), overrides=(f"algorithm.learning_rate={rate}",))
            reached.append(accuracy(own, folder))
        print(way, seed, spec.privacy.noise_multiplier, by_rate, flush=True)
    return Outcome(way, spec, by_rate)


def text(outcomes: Sequence[Outcome], authors: int, found: int) -> str:
    """The table as Markdown."""
    first = outcomes[0]
    lines = [
        f"{found:,} items by {authors:,} authors; test accuracy, and its difference from the first "
        "row, each with its standard error over the seeds:",
        "",
        "| batches of | an author keeps | σ | expected batch of a client | accuracy | difference |",
        "|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        drawn, keeps = one.way.told
        privacy = one.spec.privacy
        noise = "–" if privacy.noise_multiplier is None else f"{privacy.noise_multiplier:.3g}"
        batch = getattr(privacy.sampling, "expected_batch_size", None)
        differences = [a - b for a, b in zip(one.best, first.best, strict=True)]
        lines.append(
            f"| {drawn} | {keeps} | {noise} | {'–' if batch is None else f'{batch:.0f} {drawn}'} "
            f"| {_told(one.best)} | {'–' if one is first else _told(differences)} |"
        )
    return "\n".join(lines)


def _told(shares: Sequence[float]) -> str:
    error = statistics.stdev(shares) / len(shares) ** 0.5
    return f"{100 * statistics.mean(shares):.1f} ± {100 * error:.1f} %"


def main(arguments: Sequence[str]) -> int:
    """Make all runs, and rewrite the table of the page that is named."""
    page = Path(arguments[0])
    torch.set_num_threads(1)
    found = items()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["DPFEDADAMW_KEYS"] = str(folder / "keys")
        table = Table(folder / "changelogs.csv")
        with table.path.open("w", encoding="utf-8") as stream:
            write_table(stream, found)
        outcomes = [outcome(table, way, folder / "runs") for way in WAYS]
    told = text(outcomes, len({item.author for item in found}), len(found))
    before, rest = page.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n\n{told}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
