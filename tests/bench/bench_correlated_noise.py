"""What noise correlated over a client's steps could gain, before anything of it is built: by hand.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_correlated_noise
    OMP_NUM_THREADS=1 python -m tests.bench.bench_correlated_noise --simulate data/mnist

Banded matrix factorisation (Choquette-Choo et al. 2023): at step t noise (C⁻¹z)_t is added in
place of z_t, where C is lower triangular with b bands and columns of norm 1. Each record is in one
of b groups, and step t draws from group t mod b alone, at b times the rate. Columns b apart have no
row in common, so that a record's steps are n/b Poisson-subsampled Gaussian mechanisms of rate b·q.

First what the accountant says: σ for each number of bands at equal ε, and how much noise the
iterates then carry beside independent noise (root of the mean square over all of them, cosine
schedule, with and without momentum of 0.9, the best Toeplitz C). Then, in NumPy alone, what it
comes to on replication-confirmation-mnist's task: a perceptron 784-64-10, ten clients, Dirichlet
0.1, 100 rounds of one step; rates tuned on three seeds, ten others reported. What came out stands
in docs/method.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import optimize, stats
from scipy.linalg import solve_triangular, toeplitz

from dpfedadamw.accounting.calibration import PlannedRun, solve_noise_multiplier
from dpfedadamw.data.formats.idx import mnist
from dpfedadamw.privacy.sampling import PoissonSampling

STEPS, CLIENTS, BATCH, RECORDS, DELTA = 100, 10, 64.0, 6000, 1e-5
EPSILONS, BANDS, MOMENTA = (1, 4, 8), (1, 2, 4, 8, 16), (0.0, 0.9)
SIMULATED = (1, 4, 8)
COSINE = 0.5 * (1 + np.cos(np.pi * np.arange(STEPS) / STEPS))
RATES = {0.0: (1.5, 3, 6, 12, 24, 48), 0.9: (0.15, 0.3, 0.6, 1.2, 2.4, 4.8)}
TRIALS, REPORTED = (100, 101, 102), range(10)


def noise_multiplier(epsilon: float, bands: int) -> float:
    """σ of each step at which n/b steps of rate b·q spend ε."""
    sampling = PoissonSampling(BATCH, stated_rate=bands * BATCH / RECORDS)
    steps = -(-STEPS // bands)
    run = PlannedRun(
        sampling=sampling,
        records=(RECORDS,),
        noise_multiplier=1.0,
        rounds=steps,
        local_steps=1,
        delta=DELTA,
    )
    return solve_noise_multiplier(epsilon, run)


def workload(momentum: float) -> np.ndarray:
    """What the iterates are of the gradients: [n, n]."""
    sums = np.tril(np.ones((STEPS, STEPS))) * COSINE
    return sums @ toeplitz(momentum ** np.arange(STEPS), np.zeros(STEPS))


def factor(bands: np.ndarray) -> np.ndarray:
    """C, banded and with columns of norm 1: [n, n]."""
    first = np.zeros(STEPS)
    first[: len(bands)] = bands
    matrix = toeplitz(first, np.zeros(STEPS))
    return matrix / np.linalg.norm(matrix, axis=0)


def error(bands: np.ndarray, sums: np.ndarray) -> float:
    """Root of the iterates' mean squared noise at σ = 1."""
    noise = solve_triangular(factor(bands).T, sums.T).T
    return float(np.sqrt((noise**2).sum() / STEPS))


def best_bands(number: int, sums: np.ndarray) -> np.ndarray:
    """The bands of least error; the search begins at those of the prefix sums' square root."""
    if number == 1:
        return np.ones(1)
    k = np.arange(1, number)
    root = np.cumprod((2 * k - 1) / (2 * k))
    found = [
        optimize.minimize(lambda rest: error(np.r_[1, rest], sums), scale * root, method="L-BFGS-B")
        for scale in (1.0, 0.3)
    ]
    return np.r_[1, min(found, key=lambda one: one.fun).x]


@dataclass(frozen=True)
class Task:
    """Images and labels of training and test."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def read(folder: Path) -> Task:
    """The four files of MNIST or Fashion-MNIST."""
    parts = {}
    for name, chunks in mnist(folder).read().parts.items():
        held = list(chunks)
        pixels = np.concatenate([one.content.pixels for one in held]).reshape(-1, 784)
        scaled = (pixels.astype(np.float32) / 255 - 0.1307) / 0.3081
        parts[name] = scaled, np.concatenate([one.labels for one in held])
    return Task(parts["train"], parts["test"])


def partition(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """Who holds which record: Dirichlet 0.1, at least 1,000 each."""
    rng = np.random.default_rng([seed, 1])
    while True:
        held: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
        for label in range(10):
            rows = rng.permutation(np.flatnonzero(labels == label))
            ends = (np.cumsum(rng.dirichlet([0.1] * CLIENTS))[:-1] * len(rows)).astype(int)
            for client, part in enumerate(np.split(rows, ends)):
                held[client].append(part)
        parts = [rng.permutation(np.concatenate(part)) for part in held]
        if min(map(len, parts)) >= 1000:
            return parts


def accuracies(
    task: Task, seed: int, sigma: float, rate: float, bands: np.ndarray, momentum: float
) -> tuple[float, float]:
    """Accuracy on 5,000 test records to choose by, and on the 5,000 others.

    The noise of ten clients is drawn as one of √10 times theirs, which has the same law.
    """
    (inputs, labels), (unseen, truth) = task.train, task.test
    draws, weights = np.random.default_rng([seed, 7]), np.random.default_rng([seed, 2])
    b, matrix = len(bands), factor(bands)
    groups = [[part[j::b] for j in range(b)] for part in partition(labels, seed)]
    shapes = ((784, 64), (64,), (64, 10), (10,))
    first = weights.uniform(-1, 1, shapes[0]) / 28, np.zeros(64)
    theta = [*first, weights.uniform(-1, 1, shapes[2]) / 8, np.zeros(10)]
    theta = [part.astype(np.float32) for part in theta]
    velocity = [np.zeros_like(part) for part in theta]
    earlier: list[list[np.ndarray]] = []
    for t in range(STEPS):
        chance = b * BATCH / RECORDS
        rows = np.concatenate([g[t % b][draws.random(len(g[t % b])) < chance] for g in groups])
        a = inputs[rows]
        hidden = a @ theta[0] + theta[1]
        r = np.maximum(hidden, 0)
        logits = r @ theta[2] + theta[3]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(rows)), labels[rows]] -= 1
        back = (p @ theta[2].T) * (hidden > 0)
        norms = np.sqrt(
            (p**2).sum(1) * ((r**2).sum(1) + 1) + (back**2).sum(1) * ((a**2).sum(1) + 1)
        )
        clip = np.minimum(1, 1 / np.maximum(norms, 1e-12)).astype(np.float32)[:, None]
        back, p = clip * back, clip * p
        gradients = a.T @ back, back.sum(0), r.T @ p, p.sum(0)
        noise = [draws.standard_normal(shape, dtype=np.float32) for shape in shapes]
        for k in range(1, min(b, t + 1)):
            noise = [
                z - np.float32(matrix[t, t - k]) * old
                for z, old in zip(noise, earlier[-k], strict=True)
            ]
        noise = [z / np.float32(matrix[t, t]) for z in noise]
        earlier = [*earlier, noise][-(b - 1) :] if b > 1 else []
        scale = np.float32(sigma * np.sqrt(CLIENTS))
        for m, gradient in enumerate(gradients):
            mean = (gradient + scale * noise[m]) / (BATCH * CLIENTS)
            velocity[m] = momentum * velocity[m] + mean
            theta[m] = theta[m] - np.float32(rate * COSINE[t]) * velocity[m]
    logits = np.maximum(unseen @ theta[0] + theta[1], 0) @ theta[2] + theta[3]
    right = (logits.argmax(1) == truth)[np.random.default_rng(5).permutation(len(truth))]
    return float(right[:5000].mean()), float(right[5000:].mean())


def accounted() -> None:
    """Print what the accountant says."""
    print("| ε | b | σ | noise of the iterates | with momentum 0.9 |\n|---|---|---|---|---|")
    errors = {
        (m, b): error(best_bands(b, workload(m)), workload(m)) for m in MOMENTA for b in BANDS
    }
    for epsilon in EPSILONS:
        sigma = {b: noise_multiplier(epsilon, b) for b in BANDS}
        for b in BANDS:
            of = [sigma[b] * errors[m, b] / (sigma[1] * errors[m, 1]) for m in MOMENTA]
            print(f"| {epsilon} | {b} | {sigma[b]:.3f} | {of[0]:.2f} | {of[1]:.2f} |", flush=True)


def simulated(folder: Path) -> None:
    """Print what it comes to in accuracy."""
    task = read(folder)
    print("| ε | momentum | b | rate | accuracy | over b = 1 |\n|---|---|---|---|---|---|")
    for epsilon in EPSILONS:
        for momentum in MOMENTA:
            plain = None
            for b in SIMULATED:
                sigma, bands = noise_multiplier(epsilon, b), best_bands(b, workload(momentum))
                how = bands, momentum
                tried = {
                    rate: np.mean([accuracies(task, s, sigma, rate, *how)[0] for s in TRIALS])
                    for rate in RATES[momentum]
                }
                rate = max(tried, key=lambda one: tried[one])
                reached = 100 * np.array(
                    [accuracies(task, seed, sigma, rate, *how)[1] for seed in REPORTED]
                )
                plain = reached if plain is None else plain
                gain = reached - plain
                half = stats.t.ppf(0.975, len(gain) - 1) * stats.sem(gain)
                over = f"{gain.mean():+.1f} [{gain.mean() - half:+.1f}, {gain.mean() + half:+.1f}]"
                row = f"| {epsilon} | {momentum:g} | {b} | {rate:g} | {reached.mean():.1f} ± "
                print(f"{row}{reached.std(ddof=1):.1f} | {over if b > 1 else '–'} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulate", type=Path, metavar="FOLDER")
    chosen = parser.parse_args()
    if chosen.simulate is None:
        accounted()
    else:
        simulated(chosen.simulate)
