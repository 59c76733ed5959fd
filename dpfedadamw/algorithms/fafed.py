"""Variance-reduced momentum under one adaptive denominator: FAFED (Wu et al. 2022, Algorithm 2).

Over a private oracle it is DP-FAFED of DP-FedAdamW's Table 9. The momentum compares gradients at
two points on one batch: two queries, charged as such, whose noises do not cancel but add up in m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import (
    FIRST_MOMENT,
    SECOND_MOMENT,
    Algorithm,
    Broadcast,
    GradientOracle,
    Observer,
    ServerState,
    Upload,
)
from dpfedadamw.algorithms.keys import CoupledDecay, MomentKeys
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import mean_of, mean_update

if TYPE_CHECKING:
    from torch import Tensor

PREVIOUS = "previous"


class FasterAdaptiveKeys(MomentKeys, title="DP-FAFED"):
    """Local variance-reduced momentum under a shared denominator; two noised queries a step."""

    weight_decay: CoupledDecay = 0.01


@dataclass(frozen=True)
class FasterAdaptive:
    """Local steps of FAFED; ∇ is the noised gradient, θ' the iterate before θ.

        m ← ∇(θ) + β1·(m − ∇(θ'))        v ← β2·v + (1−β2)·∇(θ)²        θ', θ ← θ, θ − η·m/A

    on one batch for both gradients, K times, the K-th without the move: the server makes it after
    averaging. A = √v̄ + ϵ stays as broadcast for the whole round, the same at every client.

    What the paper leaves open or asks for beyond a query a step:

    * θ' at the start of a round is the server's mean of the clients' last iterates, where the paper
      lets each client keep its own: clients that take part rarely would keep a stale one.
    * The paper begins with one gradient at θ_0 on a larger batch. Here the first step's second
      query, which is at θ_0 anyhow, is that gradient: m starts at it.
    * v starts at its mean square over all coordinates, not at its square: single coordinates of one
      noised gradient may be almost 0, and A divides by them.

    The noise's part of v is not subtracted, and v mixes a mean square with squares: none is shown
    to the observer.

    Attributes:
        beta1: 1 − α of the paper, in [0, 1); 0 is no momentum.
        beta2: β of the paper, in [0, 1).
        epsilon: ρ of the paper, > 0.
        weight_decay: λ ≥ 0, coupled: ∇ contains λθ.
    """

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    queries_per_step: int = 2

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        del observer  # there is no second moment to show

        def gradient(parameters: Tensor) -> Tensor:
            return oracle.gradient(parameters).add(parameters, alpha=self.weight_decay)

        current = broadcast.parameters
        previous = broadcast.state[PREVIOUS]
        first = broadcast.state[FIRST_MOMENT]
        second = broadcast.state[SECOND_MOMENT]
        divisor = second.sqrt() + self.epsilon
        for step in range(1, broadcast.local_steps + 1):
            oracle.next_batch()
            here, there = gradient(current), gradient(previous)
            if broadcast.earlier_steps == 0 and step == 1:
                first, second = there, there.square().mean().expand_as(there)
                divisor = second.sqrt() + self.epsilon
            first = here + self.beta1 * (first - there)
            second = self.beta2 * second + (1.0 - self.beta2) * here.square()
            if step < broadcast.local_steps:
                previous, current = current, current - broadcast.learning_rate * first / divisor
        update = current - broadcast.parameters
        return Upload(update, {FIRST_MOMENT: first, SECOND_MOMENT: second})


@dataclass(frozen=True)
class FasterAdaptiveServer:
    """Average iterates and moments, then make the round's last move: θ ← θ̄ − η·m̄/(√v̄ + ϵ).

    θ̄ = θ + η_s·mean_i Δθ_i, the mean of the clients' iterates where η_s = 1.

    Attributes:
        epsilon: ϵ of the local rule.
        learning_rate: η_s > 0.
    """

    epsilon: float
    learning_rate: float = 1.0

    def start(self, parameters: Tensor) -> ServerState:
        """The initial parameters, θ' = θ; the first clients fill the moments."""
        import torch

        zero = torch.zeros_like(parameters)
        state = {FIRST_MOMENT: zero, SECOND_MOMENT: zero.clone(), PREVIOUS: parameters.clone()}
        return ServerState(parameters.clone(), state)

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """The state after a round; the mean iterate becomes θ'."""
        mean = state.parameters + self.learning_rate * mean_update(uploads)
        first, second = mean_of(uploads, FIRST_MOMENT), mean_of(uploads, SECOND_MOMENT)
        moved = mean - broadcast.learning_rate * first / (second.sqrt() + self.epsilon)
        return ServerState(moved, {FIRST_MOMENT: first, SECOND_MOMENT: second, PREVIOUS: mean})


def _variance_reduced(setup: AlgorithmSetup[FasterAdaptiveKeys]) -> Algorithm:
    """Variance-reduced local momentum; iterates and both moments averaged."""
    spec = setup.spec
    local = FasterAdaptive(spec.beta1, spec.beta2, spec.epsilon, spec.weight_decay)
    return Algorithm(local, FasterAdaptiveServer(spec.epsilon, setup.server_rate))


register(
    AlgorithmEntry(
        name="dp-fafed",
        keys=FasterAdaptiveKeys,
        units=("record",),
        summary="variance-reduced local momentum under a shared denominator, two noised queries "
        "a step",
        source="Wu et al. 2022, Algorithm 2; DP-FedAdamW, Table 9",
        assemble=_variance_reduced,
        relatives={"none": "fedlada"},
        queries_per_step=2,
    )
)
