"""Without noise and clipping, DP-FedAdamW walks exactly along FedAdamW (its Algorithm 2).

The reference is written here in NumPy float64 from the equations and shares nothing with the
engine: own gradients of softmax regression, own moments, own server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from dpfedadamw.algorithms.rules.adamw import AdamW
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.clipping.engines import PlainSum, choose
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.federation.unprotected import Unprotected, record_loss
from dpfedadamw.federation.worker import Worker
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.privacy.sampling import FullBatch
from dpfedadamw.spec import loads
from dpfedadamw.units.none import Nothing
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import FlatParameters, blocks_of
from tests.runs import played

FEATURES, CLASSES, CLIENTS, ROUNDS, STEPS = 6, 3, 4, 3, 5
RATE, DECAY, ALIGNMENT, BETA1, BETA2, EPSILON = 0.05, 0.02, 0.5, 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Reference:
    """FedAdamW in NumPy: blocks are the weight matrix and the bias, each one block."""

    records: list[tuple[np.ndarray, np.ndarray]]
    aggregation: str

    def gradient(self, theta: np.ndarray, client: int) -> np.ndarray:
        inputs, labels = self.records[client]
        weight = theta[: FEATURES * CLASSES].reshape(CLASSES, FEATURES)
        scores = inputs @ weight.T + theta[FEATURES * CLASSES :]
        scores -= scores.max(1, keepdims=True)
        share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        share[np.arange(len(labels)), labels] -= 1.0
        share /= len(labels)
        return np.concatenate([(share.T @ inputs).ravel(), share.sum(0)])

    def block_means(self, v: np.ndarray) -> np.ndarray:
        if self.aggregation == "full":
            return v.copy()
        cut = FEATURES * CLASSES
        if self.aggregation == "heads":  # a layer is one block
            return np.full_like(v, v.mean())
        return np.concatenate([np.full(cut, v[:cut].mean()), np.full(CLASSES, v[cut:].mean())])

    def run(self, theta: np.ndarray) -> list[np.ndarray]:
        v_bar, global_update, path = np.zeros_like(theta), np.zeros_like(theta), []
        for t in range(ROUNDS):
            rate = RATE * 0.5 * (1 + math.cos(math.pi * t / ROUNDS))
            updates, moments = [], []
            for client in range(CLIENTS):
                local, m = theta.copy(), np.zeros_like(theta)
                v = np.zeros_like(theta) if self.aggregation == "none" else v_bar.copy()
                for k in range(1, STEPS + 1):
                    g = self.gradient(local, client)
                    m = BETA1 * m + (1 - BETA1) * g
                    v = BETA2 * v + (1 - BETA2) * g * g
                    steps = k if self.aggregation == "none" else t * STEPS + k
                    m_hat, v_hat = m / (1 - BETA1**k), v / (1 - BETA2**steps)
                    step = m_hat / (np.sqrt(v_hat) + EPSILON) + ALIGNMENT * global_update
                    local = local - rate * step - rate * DECAY * local
                updates.append(local - theta)
                moments.append(self.block_means(v))
            theta = theta + np.mean(updates, 0)
            v_bar = np.mean(moments, 0)
            global_update = -np.sum(updates, 0) / (CLIENTS * STEPS * rate)
            path.append(theta)
        return path


def _records() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(5)
    return [
        (generator.normal(size=(n, FEATURES)), generator.integers(0, CLASSES, n))
        for n in (7, 12, 9, 20)
    ]


def _spec() -> object:
    return loads(
        f"""
version: 1
name: reference
data: {{dataset: digits, clients: {CLIENTS}}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: fedadamw, learning_rate: {RATE}, schedule: cosine}}
federation: {{rounds: {ROUNDS}, clients_per_round: {CLIENTS}, local_steps: {STEPS}}}
privacy: {{unit: none, sampling: {{kind: full}}}}
randomness: reproducible
"""
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engine", ["plain", "loop", "book-keeping"])
@pytest.mark.parametrize("aggregation", ["tensor", "heads", "full", "none"])
def test_without_noise_and_clipping_the_trajectory_is_fedadamws(
    engine: str, aggregation: str, tmp_path
) -> None:
    records = _records()
    model = MultiLayerPerceptron((FEATURES,), [], CLASSES).double()
    flat = FlatParameters(model)
    start = flat.vector.clone()
    blocks = None if aggregation in ("full", "none") else blocks_of(model, aggregation)
    rule = AdamW(
        beta1=BETA1,
        beta2=BETA2,
        epsilon=EPSILON,
        weight_decay=DECAY,
        alignment=ALIGNMENT,
        blocks=blocks,
        aggregate_first=False,
        aggregate_second=aggregation != "none",
        debias=True,  # subtracts a noise variance of 0
        counter="global",
        relative_floor=1.0,
        absolute_floor=None,
        block_denominator=False,
    )
    sizes = {"second_moment": len(blocks.names) if blocks else flat.layout.size}
    server = Averaging({} if aggregation == "none" else sizes, keep_global_update=True)
    plan = RunPlan(
        unit=Nothing(),
        adjacency="none",
        clipping_norm=math.inf,
        noise_multiplier=0.0,
        delta=None,
        sampling=FullBatch(),
        records=tuple(len(labels) for _, labels in records),
        rounds=ROUNDS,
        local_steps=STEPS,
        clients_per_round=CLIENTS,
        queries_per_step=1,
    )
    clipped = (
        PlainSum(model, record_loss)
        if engine == "plain"
        else choose(model, record_loss, math.inf, engine=engine)
    )
    worker = Worker(
        rule=rule,
        unit=Unprotected(),
        engine=clipped,
        flat=flat,
        randomness=ReproducibleRandomness(0),
    )
    clients = [ClientData(torch.from_numpy(x), torch.from_numpy(y)) for x, y in records]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    federation = Federation(
        spec=_spec(),
        plan=plan,
        worker=worker,
        server=server,
        round_schedule=None,
        clients=clients,
        ledger=ledger,
        charge=partial(ledger.append_all, "spend"),
    )
    states = [result.state for result in played(federation, server.start(start))]

    expected = Reference(records, aggregation).run(start.numpy().copy())
    for state, reference in zip(states, expected, strict=True):
        # 15 float64 steps at magnitude 1: rounding stays some orders below 1e-10.
        np.testing.assert_allclose(state.parameters.numpy(), reference, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - start.numpy()).max() > 0.1, "the reference must move at all"
