"""A small client-level federation in float64, and NumPy references to hold it against.

The real federation runs: worker, gradient oracle, clipping, messages, noise, server rule. Only the
evidence is replaced by a list, which keeps each round's cohort and noise for the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.algorithms.registry import build
from dpfedadamw.clipping.engines import PlainSum
from dpfedadamw.evidence.client_level import UpdateRelease
from dpfedadamw.federation.client import ClientLevel
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.federation.worker import Worker
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.privacy.grid import Grid
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.units.client import WholeClients
from dpfedadamw.units.registry import make_plan
from dpfedadamw.vectors.flat import FlatParameters
from tests.runs import played

CLIENTS, RECORDS, FEATURES, CLASSES = 9, 6, 3, 2
SIZE = FEATURES * CLASSES + CLASSES
ROUNDS, RATE, DECAY, CLIP, EXPECTED, SEED = 3, 0.7, 0.02, 0.4, 5, 11


class Ungridded(WholeClients):
    """Whole clients on a grid that is as fine as float64: what is referred to is the algorithm."""

    grid = Grid(update=52, vectors=52, summaries=52, weights=52)


@dataclass
class Recorder:
    """Stands in for the evidence writer."""

    cohorts: list[list[int]] = field(default_factory=list)
    releases: list[UpdateRelease] = field(default_factory=list)
    servers: None = None

    @property
    def uploads(self) -> Recorder:
        return self

    def release(self, index, messages, released) -> None:
        """What is replayed by the auditor is of no interest here."""

    def commit(self, clipped) -> bytes:
        return bytes(32)

    def witness(self) -> None:
        """Nobody looks at batches."""

    def write_round(self, index, attempt, clients, release, rows, witnessed) -> None:
        assert (index, attempt) == (len(self.releases), 1)
        self.cohorts.append([int(client) for client in clients])
        self.releases.append(release)

    def noise(self, index: int) -> np.ndarray:
        """The noise on a round's sum, at the coordinates that are released."""
        release = self.releases[index]
        return (release.noisy_sum - release.clean_sum).numpy()


def records(client: int) -> tuple[np.ndarray, np.ndarray]:
    """One client's inputs and labels."""
    random = np.random.default_rng([17, client])
    return random.normal(size=(RECORDS, FEATURES)), random.integers(0, CLASSES, RECORDS)


def spec_of(section: str, steps: int, by: str, noise: float):
    return specs.loads(
        f"""
data: {{dataset: digits, clients: {CLIENTS}, seed: {SEED}}}
model: {{name: mlp, hidden: []}}
algorithm: {section}
federation: {{rounds: {ROUNDS}, clients_per_round: {EXPECTED}, local_steps: {steps}}}
privacy:
  {{unit: client, clipping_norm: {CLIP}, noise_multiplier: {noise}, delta: 1.0e-3,
   noise_added_by: {by}}}
randomness: {{mode: reproducible, seed: 5}}
"""
    )


def play(
    section: str, path: Path, steps: int = 3, by: str = "server", noise: float = 0.3
) -> tuple[list[np.ndarray], Recorder, np.ndarray]:
    """θ after each round, what was recorded, and θ before the first."""
    federation, state, recorder = federated(section, path, steps, by, noise)
    start = state.parameters.numpy().copy()
    thetas = [result.state.parameters.numpy().copy() for result in played(federation, state)]
    assert any(recorder.cohorts), "somebody must take part"
    return thetas, recorder, start


def federated(
    section: str,
    path: Path,
    steps: int = 3,
    by: str = "server",
    noise: float = 0.3,
    schedule: str = "constant",
) -> tuple[Federation, ServerState, Recorder]:
    """A federation, its state before the first round, and what records its rounds."""
    section = f"{section[:-1]}, learning_rate: {RATE}, schedule: {schedule}}}"
    spec = spec_of(section, steps, by, noise)
    torch.manual_seed(3)
    model = MultiLayerPerceptron((FEATURES,), [], CLASSES).double()
    flat = FlatParameters(model)
    algorithm = build(spec.algorithm, model, CLIENTS, SEED, CLIP)
    sizes = (RECORDS,) * CLIENTS
    plan = make_plan(spec, sizes, algorithm.local.queries_per_step, algorithm.sparsification)
    plan = replace(plan, unit=Ungridded())
    randomness, recorder = ReproducibleRandomness(5), Recorder()
    worker = Worker(
        rule=algorithm.local,
        unit=ClientLevel(evidence=recorder, randomness=randomness),
        engine=PlainSum(model, record_loss),
        flat=flat,
        randomness=randomness,
    )
    clients = [ClientData(*map(torch.from_numpy, records(client))) for client in range(CLIENTS)]
    ledger = Ledger(path / "ledger.jsonl")
    federation = Federation(
        spec=spec,
        plan=plan,
        worker=worker,
        server=algorithm.server,
        round_schedule=None,
        clients=clients,
        ledger=ledger,
        charge=partial(ledger.append_all, "spend"),
    )
    return federation, algorithm.server.start(flat.vector), recorder


def gradient(client: int, theta: np.ndarray) -> np.ndarray:
    """Mean cross-entropy gradient of softmax regression: weights by class first, then biases."""
    inputs, labels = records(client)
    weight, bias = theta[: FEATURES * CLASSES].reshape(CLASSES, FEATURES), theta[-CLASSES:]
    scores = inputs @ weight.T + bias
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(RECORDS), labels] -= 1.0
    return np.concatenate([(shares.T @ inputs).ravel(), shares.sum(0)]) / RECORDS
