"""Sharpness-aware local steps: DP-FedSAM at record level (Foret et al. 2021; DP-FedSAM, eq. (6)).

The perturbation is made of a noised gradient and the step follows a second one, so nothing is used
that was not paid for: two queries on one batch, jointly one Gaussian of multiplier σ/√2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpfedadamw.algorithms.base import Algorithm, Broadcast, GradientOracle, Observer, Upload
from dpfedadamw.algorithms.keys import (
    DescentKeys,
    LastModelServer,
    SparsificationSpec,
    TopSparsification,
)
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.sgd import descend
from dpfedadamw.algorithms.sparse import averaged
from dpfedadamw.spec.section import Section, key

if TYPE_CHECKING:
    from torch import Tensor


class SamSpec(Section, title="Sharpness-aware minimisation"):
    """How far the second query of a step looks."""

    radius: float = key(
        0.05,
        "Length ρ of the perturbation along the first noised gradient; at 0 there is none, "
        "and both queries are still made and paid for.",
        ge=0,
        le=1000,
        examples=(0.05, 0),
    )


class RandomSparsification(SparsificationSpec, title="Random sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: Literal["random"] = key(
        "random",
        "random: coordinates drawn from public randomness each round, the same for all "
        "clients, scaled by d/k before clipping; noise on these alone.",
    )


class SamKeys(DescentKeys, title="DP-FedSAM"):
    """Local sharpness-aware steps; two queries each, noised with unit record."""

    sam: SamSpec = SamSpec()


class RandomSamKeys(SamKeys, title="DP-FedSAM, rand-k"):
    """Local sharpness-aware steps, updates cut to public random coordinates."""

    sparsification: RandomSparsification = RandomSparsification()
    server: LastModelServer = LastModelServer()


class TopSamKeys(SamKeys, title="DP-FedSAM, top-k"):
    """Local sharpness-aware steps, updates cut to their largest coordinates."""

    sparsification: TopSparsification = TopSparsification()
    server: LastModelServer = LastModelServer()


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


def _sharpness_aware(setup: AlgorithmSetup[SamKeys]) -> Algorithm:
    """Local descent by the gradient at a perturbed point, averaged."""
    local = SharpnessAware(setup.spec.weight_decay, setup.spec.sam.radius)
    return averaged(setup, local)


register(
    AlgorithmEntry(
        name="dp-fedsam",
        keys=SamKeys,
        units=("record", "client"),
        summary="local sharpness-aware steps of two queries, each noised at record level",
        source="DP-FedSAM, Algorithm 1 (at record level eq. (6)); Foret et al. 2021",
        assemble=_sharpness_aware,
        relatives={"none": "fedavg"},
        queries_per_step=2,
    ),
    AlgorithmEntry(
        name="dp-fedsam-randk",
        keys=RandomSamKeys,
        units=("client",),
        summary="dp-fedsam, updates cut to public random coordinates before clipping",
        source="DP-FedSAM, section 6.1; Hu et al. 2022 (Fed-SMP)",
        assemble=_sharpness_aware,
        relatives={"record": "dp-fedsam", "none": "fedavg"},
        queries_per_step=2,
    ),
    AlgorithmEntry(
        name="dp-fedsam-topk",
        keys=TopSamKeys,
        units=("client",),
        summary="dp-fedsam, updates cut to their largest coordinates before clipping",
        source="DP-FedSAM, section 6.1",
        assemble=_sharpness_aware,
        relatives={"record": "dp-fedsam", "none": "fedavg"},
        queries_per_step=2,
    ),
)
