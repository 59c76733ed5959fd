"""Bounded local update regularisation: BLUR (Cheng et al. 2022, as DP-FedSAM compares with it).

An update that is shorter than C loses nothing to clipping. BLUR asks for one from the start: beyond
a distance S from where the round began, the local loss grows with the squared distance. DP-FedSAM
names the method and prints no formula; the one here is R(θ) = (λ/2)·max(0, ‖θ − θ_t‖² − S²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import Algorithm, Broadcast, GradientOracle, Observer, Upload
from dpfedadamw.algorithms.keys import DescentKeys, LastModelServer, TopSparsification
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.sgd import descend
from dpfedadamw.algorithms.sparse import averaged
from dpfedadamw.spec.section import Section, key

if TYPE_CHECKING:
    from torch import Tensor


class BlurSpec(Section, title="Bounded local update regularisation"):
    """A penalty on local steps that go far: λ/2 · max(0, ‖θ − θ_t‖² − S²).

    θ_t is where the round began.
    """

    weight: float = key(
        0.1, "Weight λ of the penalty; 0 is none.", ge=0, le=1_000_000, examples=(0.1, 0)
    )
    bound: float | None = key(
        None,
        "Distance S from the start of the round within which there is no penalty; null uses the "
        "clipping norm.",
        ge=0,
        le=1_000_000_000,
        examples=(None, 0.5),
    )


class BlurKeys(DescentKeys, title="BLUR"):
    """Local stochastic gradient descent, held back beyond a distance from its start."""

    blur: BlurSpec = BlurSpec()
    server: LastModelServer = LastModelServer()


class SparseBlurKeys(BlurKeys, title="BLURS"):
    """BLUR, updates cut to their largest coordinates."""

    sparsification: TopSparsification = TopSparsification()


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


def _bounded_descent(setup: AlgorithmSetup[BlurKeys]) -> Algorithm:
    """Local gradient descent that is held back beyond a bound, averaged."""
    blur = setup.spec.blur
    bound = blur.bound if blur.bound is not None else setup.clipping_norm
    # Without a clipping norm nothing says where an update is too long.
    bound = bound if bound is not None else math.inf
    return averaged(setup, BoundedDescent(setup.spec.weight_decay, blur.weight, bound))


register(
    AlgorithmEntry(
        name="blur",
        keys=BlurKeys,
        units=("client",),
        summary="dp-fedavg, local steps held back beyond a distance from their start",
        source="Cheng et al. 2022 (BLUR), as ERRATA.md says",
        assemble=_bounded_descent,
        relatives={"record": "dp-fedavg", "none": "fedavg"},
    ),
    AlgorithmEntry(
        name="blurs",
        keys=SparseBlurKeys,
        units=("client",),
        summary="blur, updates cut to their largest coordinates before clipping",
        source="Cheng et al. 2022 (BLUR and LUS), as ERRATA.md says",
        assemble=_bounded_descent,
        relatives={"record": "dp-fedavg", "none": "fedavg"},
    ),
)
