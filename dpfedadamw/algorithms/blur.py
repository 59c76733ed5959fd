"""Bounded local update regularisation: BLUR (Cheng et al. 2022, as DP-FedSAM compares with it).

An update that is shorter than C loses nothing to clipping. BLUR asks for one from the start: beyond
a distance S from where the round began, the local loss grows with the squared distance. DP-FedSAM
names the method and prints no formula; the one here is R(θ) = (λ/2)·max(0, ‖θ − θ_t‖² − S²).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, GradientOracle, Observer, Upload
from dpfedadamw.algorithms.sgd import descend


@dataclass(frozen=True)
class BoundedDescent:
    """Follow g(θ) + λ·(θ − θ_t) beyond distance S of θ_t, and g(θ) alone within it.

    On the sphere itself, where R has no gradient, the subgradient 0 is taken.

    Attributes:
        weight_decay: Of the parameters, ≥ 0, decoupled from the gradient.
        weight: λ ≥ 0; 0 is FedAvg.
        bound: S ≥ 0; 0 is a proximal term at every distance (FedProx, Li et al. 2020).
    """

    weight_decay: float
    weight: float
    bound: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        del observer  # there is no second moment to show
        start = broadcast.parameters

        def held_back(parameters: Tensor) -> Tensor:
            gradient = oracle.gradient(parameters)
            moved = parameters - start
            if float(moved.norm()) > self.bound:
                gradient = gradient.add(moved, alpha=self.weight)
            return gradient

        return Upload(descend(broadcast, oracle, self.weight_decay, held_back))
