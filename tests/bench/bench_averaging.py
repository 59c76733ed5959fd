"""What an average of the models could gain, before anything of it was built: by hand.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_averaging data/fashion-mnist

In NumPy alone, nothing audited: a perceptron 784-64-10 on Fashion-MNIST, twenty clients (Dirichlet
0.6), five of them in each of 100 rounds of one step, ε = 4. Each method is run with five rates on
two seeds, and with the best one, chosen for the last model and for the average by itself, on five
others, paired. The average counts round t by t⁸ (`dpfedadamw.algorithms.averaging`). What came out
stands in docs/method.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from dpfedadamw.accounting.calibration import PlannedRun, solve_noise_multiplier
from dpfedadamw.privacy.sampling import PoissonSampling
from tests.bench.bench_correlated_noise import (
    BETA2,
    POWER,
    SHAPES,
    Task,
    clipped_sum,
    initial,
    read,
    right,
)

ROUNDS, CLIENTS, COHORT, BATCH, RECORDS, DELTA, EPSILON = 100, 20, 5, 64.0, 3000, 1e-5, 4
ALPHA, FEWEST = 0.6, 500
RATES, TRIALS, REPORTED = (1.0, 1.8, 3.2, 5.7, 10.0), (100, 101), range(5)
COSINE = 0.5 * (1 + np.cos(np.pi * np.arange(ROUNDS) / ROUNDS))
SCHEDULES = {"cosine": COSINE, "constant": np.ones(ROUNDS)}


@dataclass(frozen=True)
class Method:
    """What a client divides by, and how much of the last global update a step adds.

    Attributes:
        denominator: "none" (gradient descent), "coordinate" or "block".
        alignment: γ.
    """

    denominator: str = "none"
    alignment: float = 0.0


METHODS = {
    "gradient descent": Method(),
    "one denominator a coordinate, γ = 0.5": Method("coordinate", 0.5),
    "one denominator a block, γ = 0": Method("block", 0.0),
    "one denominator a block, γ = 0.5": Method("block", 0.5),
    "one denominator a block, γ = 0.9": Method("block", 0.9),
}


def noise_multiplier() -> float:
    """σ of each step at which a client in every round spends ε."""
    run = PlannedRun(
        sampling=PoissonSampling(BATCH, stated_rate=BATCH / RECORDS),
        records=(RECORDS,),
        noise_multiplier=1.0,
        rounds=ROUNDS,
        local_steps=1,
        delta=DELTA,
    )
    return solve_noise_multiplier(EPSILON, run)


def partition(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """Who holds which record."""
    rng = np.random.default_rng([seed, 1])
    while True:
        held: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
        for label in range(10):
            rows = rng.permutation(np.flatnonzero(labels == label))
            ends = (np.cumsum(rng.dirichlet([ALPHA] * CLIENTS))[:-1] * len(rows)).astype(int)
            for client, part in enumerate(np.split(rows, ends)):
                held[client].append(part)
        parts = [rng.permutation(np.concatenate(part)) for part in held]
        if min(map(len, parts)) >= FEWEST:
            return parts


def trained(
    task: Task, seed: int, sigma: float, rate: float, schedule: str, method: Method
) -> dict[str, tuple[float, float]]:
    """Accuracies of the last model and of the average."""
    inputs, labels = task.train
    parts = partition(labels, seed)
    draws, cohorts = np.random.default_rng([seed, 7]), np.random.default_rng([seed, 9])
    theta, phi = initial(seed), (sigma / BATCH) ** 2
    average = [np.zeros_like(part) for part in theta]
    moments, update = [np.zeros(()) for _ in SHAPES], [np.zeros_like(part) for part in theta]
    for t in range(ROUNDS):
        mean = [np.zeros_like(part) for part in theta]
        seen = [0.0] * len(SHAPES)
        for client in cohorts.choice(CLIENTS, COHORT, replace=False):
            rows = parts[client][draws.random(len(parts[client])) < BATCH / RECORDS]
            for m, total in enumerate(clipped_sum(theta, inputs[rows], labels[rows])):
                noise = np.float32(sigma) * draws.standard_normal(SHAPES[m], dtype=np.float32)
                gradient = (total + noise) / np.float32(BATCH)
                if method.denominator == "none":
                    mean[m] += gradient / COHORT
                    continue
                square = np.square(gradient, dtype=np.float64)
                if method.denominator == "block":
                    square = square.mean()
                moment = BETA2 * moments[m] + (1 - BETA2) * square
                seen[m] += float(np.mean(moment)) / COHORT
                corrected = moment / (1 - BETA2 ** (t + 1)) - phi
                mean[m] += (
                    gradient / np.sqrt(np.maximum(corrected, phi)).astype(np.float32) / COHORT
                )
        moments = [np.asarray(value) for value in seen]
        update = [
            g + np.float32(method.alignment) * old for g, old in zip(mean, update, strict=True)
        ]
        step = np.float32(rate * SCHEDULES[schedule][t])
        theta = [part - step * moved for part, moved in zip(theta, update, strict=True)]
        weight = np.float32((POWER + 1) / (t + 1 + POWER))
        average = [a + weight * (part - a) for a, part in zip(average, theta, strict=True)]
    return {"last": right(theta, task), "average": right(average, task)}


def main() -> None:
    """Print a row for each method, schedule and model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    task, sigma = read(parser.parse_args().folder), noise_multiplier()
    print("| method | schedule | model | rate | accuracy | over the first row |")
    print("|---|---|---|---|---|---|")
    first = None
    for name, method in METHODS.items():
        unit = 1.0 if method.denominator == "none" else sigma / BATCH * (1 - method.alignment)
        for schedule in SCHEDULES:

            def of(seed: int, rate: float, schedule: str = schedule, method: Method = method):  # type: ignore[no-untyped-def]
                return trained(task, seed, sigma, rate, schedule, method)

            tried = {rate: [of(seed, rate * unit) for seed in TRIALS] for rate in RATES}
            for model in ("last", "average"):
                best = max(RATES, key=lambda r: np.mean([one[model][0] for one in tried[r]]))
                reached = 100 * np.array([of(seed, best * unit)[model][1] for seed in REPORTED])
                first = reached if first is None else first
                gain = reached - first
                half = stats.t.ppf(0.975, len(gain) - 1) * stats.sem(gain)
                over = f"{gain.mean():+.1f} [{gain.mean() - half:+.1f}, {gain.mean() + half:+.1f}]"
                said = "–" if first is reached else over
                print(
                    f"| {name} | {schedule} | {model} | {best:g} | {reached.mean():.1f} ± "
                    f"{reached.std(ddof=1):.1f} | {said} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
