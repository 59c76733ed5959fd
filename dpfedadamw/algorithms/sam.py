"""Sharpness-aware local steps: DP-FedSAM at record level (Foret et al. 2021; DP-FedSAM, eq. (6)).

The perturbation is made of a noised gradient and the step follows a second one, so nothing is used
that was not paid for: two queries on one batch, jointly one Gaussian of multiplier σ/√2.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, GradientOracle, Observer, Upload
from dpfedadamw.algorithms.sgd import descend


@dataclass(frozen=True)
class SharpnessAware:
    """Follow g̃(θ + ρ·g̃(θ)/‖g̃(θ)‖₂), both on the same batch.

    The step is taken at θ, not at the perturbed point. The paper's experiments add a local momentum
    that its Algorithm 1 does not have; there is none here. A gradient of 0 leaves θ where it is.

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
        radius: ρ ≥ 0, length of the perturbation; at 0 both queries are at θ and the second counts.
    """

    weight_decay: float
    radius: float
    queries_per_step: int = 2

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        del observer  # there is no second moment to show

        def ascend_first(parameters: Tensor) -> Tensor:
            noised = oracle.gradient(parameters)
            norm = float(noised.norm())
            reach = self.radius / norm if norm > 0.0 else 0.0
            return oracle.gradient(parameters.add(noised, alpha=reach))

        return Upload(descend(broadcast, oracle, self.weight_decay, ascend_first))
