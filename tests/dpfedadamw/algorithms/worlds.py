"""A small federation for algorithms alone: known gradients, known noise, no records.

A client's answer to a query is a fixed smooth function of the parameters plus noise from a fixed
list, so that a reference written in NumPy can be given the very same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpfedadamw import spec
from dpfedadamw.algorithms.base import (
    Algorithm,
    Broadcast,
    ScheduledRound,
    ScheduleInputs,
    SecondMoment,
    ServerState,
    Upload,
)
from dpfedadamw.algorithms.registry import ALGORITHMS, build
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron

CLIENTS, STEPS, SIZE = 3, 4, 8
CLIPPING_NORM, STEP_LIMIT = 0.7, 40
# Who takes part: client 1 pauses in the second round, client 0 in the third.
COHORTS = ((0, 1), (2, 0), (1, 2))
RATES = (0.1, 0.07, 0.03)
NOISE_VARIANCE = 0.01

Answer = Callable[[int, int, int, int, np.ndarray], np.ndarray]


def answer(client: int, round_index: int, step: int, query: int, theta: np.ndarray) -> np.ndarray:
    """The noised gradient of a client at θ in a step's query (all counted from 0)."""
    scale = np.linspace(0.5, 2.0, SIZE) * (1 + client)
    centre = np.cos(np.arange(SIZE) + client)
    noise = np.random.default_rng([client, round_index, step, query]).normal(size=SIZE)
    return np.tanh(scale * (theta - centre)) + np.sqrt(NOISE_VARIANCE) * noise


@dataclass
class Oracle:
    """Answers for one client and round, and counts."""

    client: int
    round_index: int
    noise_variance: float = NOISE_VARIANCE
    steps: int = 0
    asked: int = 0
    queries: int = 0

    def next_batch(self) -> None:
        self.steps += 1
        self.asked = 0

    def gradient(self, parameters: torch.Tensor) -> torch.Tensor:
        assert self.steps, "a gradient was asked for before a batch was drawn"
        values = answer(
            self.client, self.round_index, self.steps - 1, self.asked, parameters.numpy().copy()
        )
        self.asked += 1
        self.queries += 1
        return torch.from_numpy(values)


class Silent:
    def second_moment(self, look: Callable[[], SecondMoment]) -> None:
        pass


def model() -> MultiLayerPerceptron:
    """Softmax regression of 3 features and 2 classes: tensors of 6 and 2 coordinates."""
    return MultiLayerPerceptron((3,), [], 2).double()


def algorithm(section: str) -> Algorithm:
    """The algorithm of a spec's section, such as ``{name: dp-fedavg}``."""
    return build(section_of(section), model(), CLIENTS)


def section_of(section: str) -> spec.AlgorithmSpec:
    name = section.removeprefix("{name: ").split(",")[0].rstrip("}")
    unit = ALGORITHMS[name].unit
    privacy = "{unit: none, sampling: {kind: full}}"
    if unit == "client":
        privacy = "{unit: client, clipping_norm: 1, noise_multiplier: 1, delta: 1e-5}"
    if unit == "record":
        privacy = (
            "{unit: record, clipping_norm: 1, noise_multiplier: 1, target_epsilon: 8, "
            "delta: 1e-5, sampling: {kind: poisson, expected_batch_size: 8}}"
        )
    return spec.loads(
        f"data: {{dataset: digits, clients: {CLIENTS}}}\nmodel: {{name: mlp}}\n"
        f"algorithm: {section}\nfederation: {{rounds: 3, clients_per_round: 2}}\n"
        f"privacy: {privacy}\n"
    ).algorithm


def first_parameters() -> np.ndarray:
    return np.sin(np.arange(SIZE, dtype=float))


def play(
    system: Algorithm,
    cohorts: Sequence[Sequence[int]] = COHORTS,
    steps: int = STEPS,
    noise_variance: float = NOISE_VARIANCE,
) -> list[np.ndarray]:
    """θ after each round."""
    return [state.parameters.numpy() for state, _ in rounds(system, cohorts, steps, noise_variance)]


def rounds(
    system: Algorithm,
    cohorts: Sequence[Sequence[int]] = COHORTS,
    steps: int = STEPS,
    noise_variance: float = NOISE_VARIANCE,
) -> list[tuple[ServerState, list[Oracle]]]:
    """The server's state after each round, and the round's used oracles.

    A schedule goes by a budget of ``STEP_LIMIT`` steps, and ends the run when they are used up.
    """
    state = system.server.start(torch.from_numpy(first_parameters()))
    memories: dict[int, dict[str, torch.Tensor]] = {}
    path = []
    taken: list[int] = []
    for index, cohort in enumerate(cohorts):
        uploads: list[Upload] = []
        oracles = []
        scheduled = ScheduledRound(steps)
        if system.round_schedule is not None:
            previous = taken[-1] if taken else steps
            inputs = ScheduleInputs(
                round_index=index,
                rounds=len(cohorts),
                local_steps=steps,
                previous_steps=previous,
                spent_steps=sum(taken),
                step_limit=STEP_LIMIT,
                clipping_norm=CLIPPING_NORM,
                noise_variance=noise_variance,
            )
            scheduled = system.round_schedule.next_round(state, inputs)
            if scheduled.local_steps == 0:
                break
        rate = RATES[index % len(RATES)]
        common = (state.parameters, state.state, rate, scheduled.local_steps, sum(taken))
        taken.append(scheduled.local_steps)
        for client in cohort:
            oracle = Oracle(client, index, noise_variance)
            start = Broadcast(*common, memories.get(client, {}))
            before = start.parameters.clone(), {k: v.clone() for k, v in start.state.items()}
            uploads.append(system.local.run(start, oracle, Silent()))
            # A rule that writes into the broadcast would leak into the next client's start.
            assert torch.equal(start.parameters, before[0])
            assert all(torch.equal(start.state[key], old) for key, old in before[1].items())
            memories[client] = dict(uploads[-1].memory)
            oracles.append(oracle)
        state = system.server.combine(state, uploads, Broadcast(*common))
        path.append((state, oracles))
    return path
