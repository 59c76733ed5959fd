"""Adaptive server steps over any local rule: FedAdam, FedYogi (Reddi et al. 2021, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedadamw.algorithms.base import (
    FIRST_MOMENT,
    SECOND_MOMENT,
    Broadcast,
    ServerState,
    Upload,
)
from dpfedadamw.algorithms.server import mean_update


@dataclass(frozen=True)
class Adaptive:
    """θ ← θ + η_s·m/(√v + τ) with m, v moving over rounds on Δ = mean_i Δθ_i.

        m ← β1·m + (1−β1)·Δ
        v ← β2·v + (1−β2)·Δ²                          (adam)
        v ← v − (1−β2)·Δ²·sign(v − Δ²)                (yogi)

    m starts at 0 and v at τ²; there is no bias correction, as in the paper. Both moments are
    functions of uploads, so the clients' privacy is that of the local rule.

    The moments are part of the state and so travel with the broadcast, though no client needs them.

    Attributes:
        rule: "adam" or "yogi".
        learning_rate: η_s > 0.
        beta1: In [0, 1).
        beta2: In [0, 1).
        epsilon: τ > 0, degree of adaptivity.
    """

    rule: str
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float

    def start(self, parameters: Tensor) -> ServerState:
        """The initial parameters, m = 0, v = τ²."""
        first = torch.zeros_like(parameters)
        second = torch.full_like(parameters, self.epsilon**2)
        return ServerState(parameters.clone(), {FIRST_MOMENT: first, SECOND_MOMENT: second})

    def combine(
        self,
        state: ServerState,
        uploads: Sequence[Upload],
        broadcast: Broadcast,
    ) -> ServerState:
        """One step of the server's optimiser."""
        del broadcast  # the server's step has a rate of its own
        update = mean_update(uploads)
        first = self.beta1 * state.state[FIRST_MOMENT] + (1.0 - self.beta1) * update
        second, square = state.state[SECOND_MOMENT], update.square()
        if self.rule == "yogi":
            second = second - (1.0 - self.beta2) * square * torch.sign(second - square)
        else:
            second = self.beta2 * second + (1.0 - self.beta2) * square
        step = self.learning_rate * first / (second.sqrt() + self.epsilon)
        return ServerState(state.parameters + step, {FIRST_MOMENT: first, SECOND_MOMENT: second})
