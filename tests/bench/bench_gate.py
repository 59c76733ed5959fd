"""What a gate costs in accuracy, by shards, ε and records a site; by hand.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_gate docs/gate.md [MNIST_FOLDER]

Two sites train a softmax regression for three rounds through the gate's own mechanism
(`dpfedadamw.extensions.gate.mechanism`), at δ = 1e-5, over five seeds. Each shard takes 20 steps of
gradient descent from the broadcast model; the server takes the mean of both sites. The data are the
digits (8×8 pixels, 718 records a site, the others for the test), the made-up visits (16 numbers,
two classes; patients are protected, and all visits of one are in one shard of one site) and, with a
folder, MNIST with pixels averaged to 14×14. Rates and steps were not tuned. Rows of DP-SGD are runs
of this package's own engine with the same sites, rounds, steps, rate and clip. The table is written
between two comments of the page.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.gate import mechanism, spending
from tests.bench.bench_correlated_noise import read

ROUNDS, SITES, DELTA, CLIP, STEPS, RATE = 3, 2, 1e-5, 1.0, 20, 2.0
EPSILONS = (1.0, 2.0, 8.0)
SEEDS = range(5)
# What an epoch of DP-SGD draws its batches of, by data: expected records, or people.
BATCHES = {"digits": 72, "visits": 200}
BEGIN, END = "<!-- utility of the gate -->", "<!-- end of the utility of the gate -->"
Images = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: The data.
        train: Images and labels that sites draw their records from.
        test: Those that the model is judged by.
        records: Of each site; people where people are protected.
        shards: K.
        people: Whose each training record is; None where each is somebody's only one.
    """

    name: str
    train: Images
    test: Images
    records: int
    shards: int
    people: NDArray[np.int64] | None = None

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return int(self.train[1].max()) + 1


def digits() -> tuple[Images, Images]:
    """The digits, 1,437 to train and 360 to test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    pixels, labels = found.data[order].astype(np.float32) / 16, found.target[order]
    return (pixels[360:], labels[360:]), (pixels[:360], labels[:360])


def visits() -> tuple[Images, Images, NDArray[np.int64]]:
    """The visits of four patients in five to train, the others', and whose the former are."""
    from dpfedadamw.data.formats.visits import _visits

    found = _visits()
    tested = np.random.default_rng(0).permutation(found.patients.max() + 1) % 5 == 0
    test = tested[found.patients]
    train = found.values[~test], found.labels[~test]
    _, people = np.unique(found.patients[~test], return_inverse=True)
    return train, (found.values[test], found.labels[test]), people


def pooled(folder: Path) -> tuple[Images, Images]:
    """MNIST, 2×2 pixels averaged, from 0 to 1."""
    task = read(folder)

    def small(part: tuple[NDArray[np.float32], NDArray[np.int64]]) -> Images:
        pixels = (part[0] * 0.3081 + 0.1307).reshape(-1, 14, 2, 14, 2).mean((2, 4))
        return pixels.reshape(len(pixels), -1).astype(np.float32), part[1]

    return small(task.train), small(task.test)


def with_constant(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """The pixels and a 1, so that the bias is a weight."""
    return np.concatenate([pixels, np.ones((len(pixels), 1), np.float32)], axis=1)


@dataclass(frozen=True)
class Sharded:
    """A site's records by shard, the shorter ones filled up.

    Attributes:
        inputs: [K, most, p].
        targets: One-hot, [K, most, classes].
        weights: One over a shard's records, 0 where it was filled up, [K, most, 1].
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.float32]
    weights: NDArray[np.float32]


def divide(case: Case, chosen: NDArray[np.int64], seed: int) -> Sharded:
    """Records by shard: each person, or record, in one by chance, as a keyed hash does it."""
    inputs, labels = with_constant(case.train[0][chosen]), case.train[1][chosen]
    shards = case.shards
    rng = np.random.default_rng([seed, 2])
    if case.people is None:
        place = rng.integers(shards, size=len(labels))
    else:
        place = rng.integers(shards, size=case.people.max() + 1)[case.people[chosen]]
    order = np.argsort(place, kind="stable")
    sizes = np.bincount(place, minlength=shards)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    column = np.arange(len(labels)) - np.repeat(starts, sizes)
    shape = shards, max(1, sizes.max())
    found = Sharded(
        np.zeros((*shape, inputs.shape[1]), np.float32),
        np.zeros((*shape, case.classes), np.float32),
        np.zeros((*shape, 1), np.float32),
    )
    row = place[order]
    found.inputs[row, column] = inputs[order]
    found.targets[row, column, labels[order]] = 1.0
    found.weights[row, column, 0] = 1.0 / sizes[row]
    return found


def sites_of(case: Case, seed: int) -> list[Sharded]:
    """The sites' records, drawn from all; a person is at one site."""
    rng = np.random.default_rng([seed, 1])
    if case.people is None:
        chosen = rng.permutation(len(case.train[1]))[: SITES * case.records]
        parts = np.array_split(chosen, SITES)
    else:
        of_person = rng.permutation(case.people.max() + 1) % SITES
        parts = [np.flatnonzero(of_person[case.people] == site) for site in range(SITES)]
    return [divide(case, part, seed) for part in parts]


def trained(site: Sharded, broadcast: NDArray[np.float64]) -> NDArray[np.float32]:
    """What each shard makes of the broadcast model, [K, p, classes]."""
    model = np.repeat(broadcast.astype(np.float32)[np.newaxis], len(site.inputs), axis=0)
    turned = site.inputs.transpose(0, 2, 1)
    for _ in range(STEPS):
        scores = site.inputs @ model
        scores -= scores.max(2, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(2, keepdims=True)
        model -= RATE * (turned @ ((scores - site.targets) * site.weights))
    return model


def one_run(case: Case, seed: int, sigma: float | None) -> tuple[float, float]:
    """Accuracy after the last round, and the first round's mean clipped update over C."""
    sites = sites_of(case, seed)
    model = np.zeros((case.train[0].shape[1] + 1, case.classes))
    shares: list[float] = []
    for _ in range(ROUNDS):
        flat = model.reshape(-1)
        released = []
        for site in sites:
            updates = trained(site, model).astype(np.float64) - model
            clipped = [mechanism.clipped(one.reshape(-1), CLIP) for one in updates]
            total = np.sum(clipped, axis=0)
            shares.append(float(np.linalg.norm(total)) / case.shards / CLIP)
            released.append(
                flat + total / case.shards
                if sigma is None
                else mechanism.noised_mean(
                    flat, total, case.shards, mechanism.SENSITIVITY * CLIP * sigma, bytes(32)
                )
            )
        model = np.mean(released, axis=0).reshape(model.shape)
    right = (with_constant(case.test[0]) @ model).argmax(1) == case.test[1]
    return float(right.mean()), float(np.mean(shares[:SITES]))


def noise_share(case: Case, sigma: float, agreement: float) -> float:
    """ρ = 2σ√d / (a·K·√M), the length of a round's noise over that of its mean update."""
    size = (case.train[0].shape[1] + 1) * case.classes
    return 2 * sigma * size**0.5 / (agreement * case.shards * SITES**0.5)


def cases(folder: Path | None) -> Iterator[Case]:
    """The rows, in order."""
    train, test = digits()
    for shards in (1, 70, 140, 350):
        yield Case("digits", train, test, 718, shards)
    train, test, people = visits()
    for shards in (1, 100, 300, 700):
        yield Case("visits", train, test, (people.max() + 1) // SITES, shards, people)
    if folder is not None:
        train, test = pooled(folder)
        for records, counts in ((6_000, (300, 1000)), (30_000, (1, 300, 1000))):
            for shards in counts:
                yield Case("MNIST", train, test, records, shards)


def row(case: Case) -> str:
    """One row: accuracies in per cent, mean and standard deviation over seeds, and ρ."""
    clean = [one_run(case, seed, None) for seed in SEEDS]
    agreement = float(np.mean([share for _, share in clean]))
    cells = [case.name, f"{case.records:,}", f"{case.shards:,}", shown([one for one, _ in clean])]
    for epsilon in EPSILONS:
        sigma = spending.noise_for(ROUNDS, epsilon, DELTA)
        found = [one_run(case, seed, sigma)[0] for seed in SEEDS]
        share = float(f"{noise_share(case, sigma, agreement):.2g}")
        cells.append(f"{shown(found)} ({share:g})")
    return f"| {' | '.join([*cells, f'{agreement:.2f}'])} |"


def own_engine(case: Case) -> str:
    """A row of DP-SGD by this package's engine: same sites, rounds, steps, rate and clip."""
    import tempfile

    from dpfedadamw.api.running import run

    person = "" if case.people is None else ", person: patient_id"
    unit = "unit: record" if case.people is None else "unit: person, records_per_person: 4"
    cells = [f"{case.name}, DP-SGD", f"{case.records:,}", "–", "–"]
    for epsilon in EPSILONS:
        found = []
        for seed in SEEDS:
            spec = f"""
                version: 1
                name: dp-sgd
                data:
                  {{dataset: {case.name}{person}, clients: {SITES}, partition: {{kind: iid}}}}
                model: {{name: mlp, hidden: []}}
                algorithm: {{name: dp-fedavg, learning_rate: {RATE}}}
                federation: {{rounds: {ROUNDS}, clients_per_round: {SITES}, local_steps: {STEPS}}}
                privacy:
                  {{{unit}, clipping_norm: {CLIP}, target_epsilon: {epsilon}, delta: {DELTA:.6f},
                    sampling: {{kind: poisson, expected_batch_size: {BATCHES[case.name]}}}}}
                randomness: {{mode: reproducible, seed: {seed}}}
                """
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "spec.yaml"
                path.write_text(textwrap.dedent(spec), encoding="utf-8")
                found.append(run(path, out=folder, replay=0).accuracy or 0.0)
        cells.append(shown(found))
    return f"| {' | '.join([*cells, '–'])} |"


def shown(values: list[float]) -> str:
    """Mean and standard deviation in per cent."""
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"


def table(folder: Path | None) -> str:
    """The whole table."""
    noised = (f"ε = {epsilon:g} (ρ)" for epsilon in EPSILONS)
    head = ["data", "records a site", "shards", "no noise", *noised, "a"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for case in cases(folder):
        lines.append(row(case))
        print(lines[-1], flush=True)
    for case in {case.name: case for case in cases(None)}.values():
        lines.append(own_engine(case))
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the table into the page."""
    page = Path(sys.argv[1])
    made = table(Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    before, rest = page.read_text("utf-8").split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
