"""What noise correlated over a client's steps could gain, before anything of it is built: by hand.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_correlated_noise
    OMP_NUM_THREADS=1 python -m tests.bench.bench_correlated_noise --simulate data/mnist
    OMP_NUM_THREADS=1 python -m tests.bench.bench_correlated_noise --together data/mnist

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
from collections.abc import Callable, Iterable, Sequence
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
BLOCK_RATES = (1.0, 1.8, 3.2, 5.7, 10.0, 18.0, 32.0)  # of the noise's deviation, over 1 − γ
# Of the other networks, which take a minute where a perceptron takes a second.
FEW_RATES, FEW_BLOCK_RATES, FEW_TRIALS = (1.0, 3.0, 9.0, 27.0), (1.8, 5.7, 18.0, 57.0), (100, 101)
TRIALS, REPORTED = (100, 101, 102), range(20)
POWER, BETA2 = 8, 0.999
SHAPES = ((784, 64), (64,), (64, 10), (10,))


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


@dataclass(frozen=True)
class Method:
    """How clients and server use the noised gradients.

    Attributes:
        momentum: Of the server.
        averaged: The model is the average of all rounds' models, round t counting by t⁸, at a
            constant rate. Otherwise it is the last, after a cosine schedule.
        block: Clients divide each block by the root of its debiased second moment.
        alignment: γ: how much of the last global update a step adds.
    """

    momentum: float = 0.0
    averaged: bool = False
    block: bool = False
    alignment: float = 0.0


DESCENT = Method()
TOGETHER = {
    "DP-FedAvg": DESCENT,
    "DP-FedAvg, averaged": Method(averaged=True),
    "DP-FedAdamW, block, averaged": Method(averaged=True, block=True, alignment=0.5),
    "DP-FedAdamW, block, averaged, γ = 0.9": Method(averaged=True, block=True, alignment=0.9),
}


def workload(method: Method, published: bool = False) -> np.ndarray:
    """What the models at which gradients are taken are of the gradients: [n, n].

    Args:
        method: How the gradients are used.
        published: Of the averages so far, the last of which is published, in place of the models.
    """
    sums = np.tril(np.ones((STEPS, STEPS)))
    if not method.averaged:
        sums = sums * COSINE
    kept = method.alignment or method.momentum
    sums = sums @ toeplitz(kept ** np.arange(STEPS), np.zeros(STEPS))
    return averaging() @ sums if published else sums


def averaging() -> np.ndarray:
    """Each round's average of the models so far, round t counting by t⁸: [n, n]."""
    rows = np.zeros((STEPS, STEPS))
    for t in range(STEPS):
        weight = (POWER + 1) / (t + 1 + POWER)
        rows[t] = (1 - weight) * (rows[t - 1] if t else 0)
        rows[t, t] += weight
    return rows


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


def clipped_sum(
    theta: list[np.ndarray], inputs: np.ndarray, labels: np.ndarray
) -> list[np.ndarray]:
    """The sum of the records' gradients, each clipped to 1."""
    hidden = inputs @ theta[0] + theta[1]
    active = np.maximum(hidden, 0)
    logits = active @ theta[2] + theta[3]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    back = (p @ theta[2].T) * (hidden > 0)
    squares = (p**2).sum(1) * ((active**2).sum(1) + 1)
    squares = squares + (back**2).sum(1) * ((inputs**2).sum(1) + 1)
    clip = np.minimum(1, 1 / np.maximum(np.sqrt(squares), 1e-12)).astype(np.float32)[:, None]
    back, p = clip * back, clip * p
    return [inputs.T @ back, back.sum(0), active.T @ p, p.sum(0)]


def initial(seed: int) -> list[np.ndarray]:
    """The initial weights."""
    rng = np.random.default_rng([seed, 2])
    first = rng.uniform(-1, 1, SHAPES[0]) / 28
    whole = [first, np.zeros(64), rng.uniform(-1, 1, SHAPES[2]) / 8, np.zeros(10)]
    return [part.astype(np.float32) for part in whole]


def scores(theta: list[np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """The logits."""
    return np.maximum(inputs @ theta[0] + theta[1], 0) @ theta[2] + theta[3]


@dataclass(frozen=True)
class Network:
    """A model: its initial weights, its clipped sums, and its logits."""

    initial: Callable[[int], list[np.ndarray]]
    clipped_sum: Callable[[list[np.ndarray], np.ndarray, np.ndarray], list[np.ndarray]]
    scores: Callable[[list[np.ndarray], np.ndarray], np.ndarray]


PERCEPTRON = Network(initial, clipped_sum, scores)
OTHERS = {
    "cnn": "model={name: cnn, channels: [8, 16], groups: 4}",
    "vit": "model={name: vit, patch: 7, width: 32, depth: 2, heads: 4, mlp_ratio: 2}",
}


def of_torch(setting: str) -> Network:
    """One of the package's own models, whose gradients torch forms record by record."""
    import torch
    from torch.func import functional_call, grad, vmap

    from dpfedadamw import spec as specs
    from dpfedadamw.models.registry import build

    images_of_28 = "data={dataset: fashion-mnist, path: data/fashion-mnist, clients: 10}"
    chosen = specs.load("quickstart", overrides=(images_of_28, setting)).model
    model = build(chosen, (1, 28, 28), 10, 0)
    names = [name for name, _ in model.named_parameters()]

    def weights(theta: list[np.ndarray]) -> dict[str, torch.Tensor]:
        return {n: torch.from_numpy(part) for n, part in zip(names, theta, strict=True)}

    def images(inputs: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(inputs).reshape(-1, 1, 28, 28)

    def loss(theta: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor):  # type: ignore[no-untyped-def]
        found = functional_call(model, theta, (image[None],))
        return torch.nn.functional.cross_entropy(found, label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def clipped(
        theta: list[np.ndarray], inputs: np.ndarray, labels: np.ndarray
    ) -> list[np.ndarray]:
        total = [np.zeros_like(part) for part in theta]
        truth = torch.from_numpy(labels).long()
        for at in range(0, len(labels), 128):
            rows = slice(at, at + 128)
            found = gradients(weights(theta), images(inputs[rows]), truth[rows])
            parts = [found[name].flatten(1) for name in names]
            norms = torch.stack([part.square().sum(1) for part in parts]).sum(0).sqrt()
            factors = (1 / norms.clamp_min(1e-12)).clamp_max(1)
            for m, part in enumerate(parts):
                total[m] += (factors @ part).reshape(total[m].shape).numpy()
        return total

    def logits(theta: list[np.ndarray], inputs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            parts = [
                functional_call(model, weights(theta), (images(inputs[at : at + 1000]),)).numpy()
                for at in range(0, len(inputs), 1000)
            ]
        return np.concatenate(parts)

    def first(seed: int) -> list[np.ndarray]:
        fresh = build(chosen, (1, 28, 28), 10, seed)
        return [part.detach().numpy().copy() for part in fresh.parameters()]

    return Network(first, clipped, logits)


def right(
    theta: list[np.ndarray], task: Task, network: Network = PERCEPTRON
) -> tuple[float, float]:
    """Accuracy on 5,000 test records to choose by, and on the 5,000 others."""
    inputs, truth = task.test
    found = network.scores(theta, inputs).argmax(1) == truth
    found = found[np.random.default_rng(5).permutation(len(truth))]
    return float(found[:5000].mean()), float(found[5000:].mean())


def variances(matrix: np.ndarray) -> np.ndarray:
    """The variance of the noise of each step at σ = 1: [n]."""
    return (np.linalg.inv(matrix) ** 2).sum(1)


def noises(
    draws: np.random.Generator, matrix: np.ndarray, b: int, shapes: Sequence[tuple[int, ...]]
) -> Callable[[int], list[np.ndarray]]:
    """A client's noise (C⁻¹z)_t at σ = 1, when asked for t = 0, 1, …"""
    earlier: list[list[np.ndarray]] = []

    def at(t: int) -> list[np.ndarray]:
        drawn = [draws.standard_normal(shape, dtype=np.float32) for shape in shapes]
        for k in range(1, min(b, t + 1)):
            drawn = [
                z - np.float32(matrix[t, t - k]) * old
                for z, old in zip(drawn, earlier[-k], strict=True)
            ]
        drawn = [z / np.float32(matrix[t, t]) for z in drawn]
        earlier[:] = [*earlier, drawn][-(b - 1) :] if b > 1 else []
        return drawn

    return at


def accuracies(
    task: Task,
    seed: int,
    sigma: float,
    rate: float,
    bands: np.ndarray,
    method: Method,
    network: Network = PERCEPTRON,
) -> tuple[float, float]:
    """Accuracy on 5,000 test records to choose by, and on the 5,000 others.

    Where clients do not divide by anything of their own, the noise of ten clients is drawn as one
    of √10 times theirs, which has the same law.
    """
    inputs, labels = task.train
    draws = np.random.default_rng([seed, 7])
    b, matrix = len(bands), factor(bands)
    variance = variances(matrix)
    groups = [[part[j::b] for j in range(b)] for part in partition(labels, seed)]
    if not method.block:
        groups = [[np.concatenate([one[j] for one in groups]) for j in range(b)]]
    share, scale = CLIENTS / len(groups), np.float32(sigma * np.sqrt(CLIENTS / len(groups)))
    theta = network.initial(seed)
    shapes = [part.shape for part in theta]
    noise = [noises(draws, matrix, b, shapes) for _ in groups]
    average = [np.zeros_like(part) for part in theta]
    update = [np.zeros_like(part) for part in theta]
    moments, phi = np.zeros(len(shapes)), 0.0
    for t in range(STEPS):
        phi = BETA2 * phi + (1 - BETA2) * (sigma / BATCH) ** 2 * variance[t]
        mean = [np.zeros_like(part) for part in theta]
        seen = np.zeros(len(shapes))
        for held, drawn in zip(groups, noise, strict=True):
            rows = held[t % b][draws.random(len(held[t % b])) < b * BATCH / RECORDS]
            total, added = network.clipped_sum(theta, inputs[rows], labels[rows]), drawn(t)
            for m in range(len(shapes)):
                gradient = (total[m] + scale * added[m]) / np.float32(BATCH * share)
                if method.block:
                    square = float(np.mean(np.square(gradient, dtype=np.float64)))
                    moment = BETA2 * moments[m] + (1 - BETA2) * square
                    seen[m] += moment / len(groups)
                    least = phi / (1 - BETA2 ** (t + 1))
                    root = np.sqrt(max(moment / (1 - BETA2 ** (t + 1)) - least, least))
                    gradient = gradient / np.float32(root)
                mean[m] += gradient / len(groups)
        moments = seen
        kept = np.float32(method.alignment or method.momentum)
        update = [g + kept * old for g, old in zip(mean, update, strict=True)]
        step = np.float32(rate * (1.0 if method.averaged else COSINE[t]))
        theta = [part - step * moved for part, moved in zip(theta, update, strict=True)]
        weight = np.float32((POWER + 1) / (t + 1 + POWER))
        average = [a + weight * (part - a) for a, part in zip(average, theta, strict=True)]
    return right(average if method.averaged else theta, task, network)


def accounted() -> None:
    """Print what the accountant says."""
    print("| ε | b | σ | noise of the iterates | with momentum 0.9 |\n|---|---|---|---|---|")
    works = {m: workload(Method(momentum=m)) for m in MOMENTA}
    errors = {(m, b): error(best_bands(b, works[m]), works[m]) for m in MOMENTA for b in BANDS}
    for epsilon in EPSILONS:
        sigma = {b: noise_multiplier(epsilon, b) for b in BANDS}
        for b in BANDS:
            of = [sigma[b] * errors[m, b] / (sigma[1] * errors[m, 1]) for m in MOMENTA]
            print(f"| {epsilon} | {b} | {sigma[b]:.3f} | {of[0]:.2f} | {of[1]:.2f} |", flush=True)


@dataclass(frozen=True)
class Search:
    """What is tried for a method, and on how many fresh seeds the best is reported.

    Attributes:
        rates: Of methods that divide by nothing.
        block_rates: Of the others.
        trials: Seeds of the search.
        seeds: How many others are reported.
        averages: Whether the bands that are best for the averages of the models are tried as well
            as those that are best for the models at which gradients are taken.
    """

    rates: Sequence[float]
    block_rates: Sequence[float] = BLOCK_RATES
    trials: Sequence[int] = TRIALS
    seeds: int = len(REPORTED)
    averages: bool = True


def searched(
    task: Task, epsilon: float, b: int, method: Method, search: Search, network: Network
) -> tuple[float, np.ndarray]:
    """The best rate on seeds of its own, and the accuracies in percent that it then reaches."""
    sigma = noise_multiplier(epsilon, b)
    unit = sigma / BATCH * (1 - method.alignment) if method.block else 1.0
    also = search.averages and method.averaged and b > 1
    works = [workload(method, published) for published in {False, also}]
    rates = search.block_rates if method.block else search.rates
    candidates = [(rate, best_bands(b, work)) for work in works for rate in rates]

    def reached(seeds: Iterable[int], of: tuple[float, np.ndarray], half: int) -> np.ndarray:
        rate, bands = of
        return 100 * np.array(
            [accuracies(task, s, sigma, rate * unit, bands, method, network)[half] for s in seeds]
        )

    tried = [reached(search.trials, one, 0).mean() for one in candidates]
    best = candidates[int(np.argmax(tried))]
    return best[0], reached(range(search.seeds), best, 1)


def difference(reached: np.ndarray, other: np.ndarray) -> str:
    """Mean and Student's 95 % interval of paired differences."""
    gain = reached - other
    half = stats.t.ppf(0.975, len(gain) - 1) * stats.sem(gain)
    return f"{gain.mean():+.1f} [{gain.mean() - half:+.1f}, {gain.mean() + half:+.1f}]"


def simulated(folder: Path) -> None:
    """Print what it comes to in accuracy."""
    task = read(folder)
    print("| ε | momentum | b | rate | accuracy | over b = 1 |\n|---|---|---|---|---|---|")
    for epsilon in EPSILONS:
        for momentum in MOMENTA:
            plain = None
            for b in SIMULATED:
                search = Search(RATES[momentum])
                rate, reached = searched(task, epsilon, b, Method(momentum), search, PERCEPTRON)
                over = "–" if plain is None else difference(reached, plain)
                plain = reached if plain is None else plain
                row = f"| {epsilon} | {momentum:g} | {b} | {rate:g} | {reached.mean():.1f} ± "
                print(f"{row}{reached.std(ddof=1):.1f} | {over} |", flush=True)


def together(
    folder: Path,
    epsilons: Sequence[float],
    network: Network,
    search: Search,
    methods: Sequence[str],
) -> None:
    """Print what it comes to with averaged models and one denominator a block.

    Args:
        folder: The data.
        epsilons: Each of them.
        network: The model.
        search: What is tried.
        methods: Of `TOGETHER`, at least one that divides by nothing.
    """
    task = read(folder)
    print("| ε | method | b | rate | accuracy | over b = 1 | over the best descent at b = 1 |")
    print("|---|---|---|---|---|---|---|")
    for epsilon in epsilons:
        found: dict[tuple[str, int], np.ndarray] = {}
        for b in (1, 8):
            for name in methods:
                method = TOGETHER[name]
                rate, reached = searched(task, epsilon, b, method, search, network)
                found[name, b] = reached
                over = best = "–"
                if b > 1:
                    descents = [found[n, 1] for n in methods if not TOGETHER[n].block]
                    over = difference(reached, found[name, 1])
                    best = difference(reached, max(descents, key=np.mean))
                row = f"| {epsilon:g} | {name} | {b} | {rate:g} | {reached.mean():.1f} ± "
                print(f"{row}{reached.std(ddof=1):.1f} | {over} | {best} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulate", type=Path, metavar="FOLDER")
    parser.add_argument("--together", type=Path, metavar="FOLDER")
    parser.add_argument("--epsilon", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--network", choices=("perceptron", *OTHERS), default="perceptron")
    parser.add_argument("--seeds", type=int, default=len(REPORTED))
    parser.add_argument("--methods", nargs="+", choices=TOGETHER, default=list(TOGETHER))
    chosen = parser.parse_args()
    if chosen.simulate is not None:
        simulated(chosen.simulate)
    elif chosen.together is None:
        accounted()
    elif chosen.network == "perceptron":
        search = Search(RATES[0.0], seeds=chosen.seeds)
        together(chosen.together, chosen.epsilon, PERCEPTRON, search, chosen.methods)
    else:
        search = Search(FEW_RATES, FEW_BLOCK_RATES, FEW_TRIALS, chosen.seeds, averages=False)
        together(
            chosen.together,
            chosen.epsilon,
            of_torch(OTHERS[chosen.network]),
            search,
            chosen.methods,
        )
