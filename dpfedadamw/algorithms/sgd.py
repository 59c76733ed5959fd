"""Local rules that are gradient descent but for the direction of a step.

FedAvg and DP-FedAvg follow the gradient itself; FedCM mixes it with the last global update; SAM
(``sam``), Laplacian smoothing (``smoothing``) and SCAFFOLD (``scaffold``) are one function each
over the same loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from dpfedadamw.algorithms.base import (
    GLOBAL_UPDATE,
    Broadcast,
    GradientOracle,
    Observer,
    Upload,
)


def descend(
    broadcast: Broadcast,
    oracle: GradientOracle,
    weight_decay: float,
    direction: Callable[[Tensor], Tensor],
) -> Tensor:
    """θ ← θ − η·direction(θ) − η·λ·θ, K times, each on a batch of its own.

    Args:
        broadcast: What the round starts from.
        oracle: Draws the batches; ``direction`` asks it for gradients.
        weight_decay: λ ≥ 0, decoupled from the gradient.
        direction: The step's direction [d] at flat parameters [d].

    Returns:
        θ after the steps minus θ before them, [d].
    """
    parameters = broadcast.parameters.clone()
    rate = broadcast.learning_rate
    for _ in range(broadcast.local_steps):
        oracle.next_batch()
        step = direction(parameters)
        parameters.mul_(1.0 - rate * weight_decay).sub_(step, alpha=rate)
    return parameters - broadcast.parameters


@dataclass(frozen=True)
class GradientDescent:
    """Follow g̃: FedAvg (McMahan et al. 2017), and DP-FedAvg over a private oracle.

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
    """

    weight_decay: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        del observer  # there is no second moment to show
        return Upload(descend(broadcast, oracle, self.weight_decay, oracle.gradient))


@dataclass(frozen=True)
class ClientMomentum:
    """Follow α·g + (1−α)·Δ_G: FedCM (Xu et al. 2021).

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
        local_weight: α in (0, 1], weight of the local gradient; 1 is FedAvg.
    """

    weight_decay: float
    local_weight: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        del observer  # there is no second moment to show
        momentum = (1.0 - self.local_weight) * broadcast.state[GLOBAL_UPDATE]

        def mixed(parameters: Tensor) -> Tensor:
            return momentum.add(oracle.gradient(parameters), alpha=self.local_weight)

        return Upload(descend(broadcast, oracle, self.weight_decay, mixed))
