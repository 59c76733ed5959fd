"""Local stochastic gradient descent: FedAvg, and DP-FedAvg over a private oracle."""

from __future__ import annotations

from dataclasses import dataclass

from dpfedadamw.algorithms.base import Broadcast, GradientOracle, Observer, Upload


@dataclass(frozen=True)
class GradientDescent:
    """θ ← θ − η·g̃ − η·λ·θ, K times.

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
    """

    weight_decay: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:  # noqa: ARG002
        """Take the local steps of one client."""
        parameters = broadcast.parameters.clone()
        rate = broadcast.learning_rate
        for _ in range(broadcast.local_steps):
            oracle.next_batch()
            gradient = oracle.gradient(parameters)
            parameters.mul_(1.0 - rate * self.weight_decay).sub_(gradient, alpha=rate)
        return Upload(parameters - broadcast.parameters)
