"""Local adaptive steps amended by the global offset: FedLADA (Sun et al. 2023, section 3).

Its server is plain averaging with the global update kept (``server.Averaging``). Over a private
oracle it is DP-FedLADA of DP-FedAdamW's Table 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import (
    GLOBAL_UPDATE,
    SECOND_MOMENT,
    Algorithm,
    Broadcast,
    GradientOracle,
    Observer,
    Upload,
)
from dpfedadamw.algorithms.keys import CoupledDecay, LocalWeight, MomentKeys
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import descend

if TYPE_CHECKING:
    from torch import Tensor


class AmendedKeys(MomentKeys, title="FedLADA"):
    """Local AMSGrad amended by the last global update."""

    weight_decay: CoupledDecay = 0.01
    local_weight: LocalWeight = 0.1


@dataclass(frozen=True)
class LocalAdaptiveAmended:
    """Follow α·m/√v̂ + (1−α)·Δ_G, where v̂ is the running maximum of v (AMSGrad).

        m ← β1·m + (1−β1)·g̃         v ← β2·v + (1−β2)·g̃²         v̂ ← max(v̂, v)

    m restarts at 0; v and v̂ start at the server's mean of the clients' last v̂, and at ϵ² in the
    first round, so the denominator needs no further ϵ. There is no bias correction. The noise's
    part of v is not subtracted. v̂ is a maximum, not a linear recursion of the squared gradients:
    its noise has no known mean and so none is shown to the observer.

    Attributes:
        beta1: In [0, 1).
        beta2: In [0, 1).
        epsilon: ϵ > 0; √v̂ is never below it.
        weight_decay: λ ≥ 0, coupled: λθ is added to each gradient, as in Adam.
        local_weight: α in (0, 1], weight of the local adaptive step; the rest is the offset's.
    """

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    local_weight: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        import torch

        del observer  # there is no second moment to show
        first = torch.zeros_like(broadcast.parameters)
        second = broadcast.state[SECOND_MOMENT].clamp(min=self.epsilon**2)
        largest = second.clone()
        offset = (1.0 - self.local_weight) * broadcast.state[GLOBAL_UPDATE]

        def amended(parameters: Tensor) -> Tensor:
            gradient = oracle.gradient(parameters).add(parameters, alpha=self.weight_decay)
            first.mul_(self.beta1).add_(gradient, alpha=1.0 - self.beta1)
            second.mul_(self.beta2).addcmul_(gradient, gradient, value=1.0 - self.beta2)
            torch.maximum(largest, second, out=largest)
            return offset.add(first / largest.sqrt(), alpha=self.local_weight)

        update = descend(broadcast, oracle, 0.0, amended)
        return Upload(update, {SECOND_MOMENT: largest})


def _amended_adaptive(setup: AlgorithmSetup[AmendedKeys]) -> Algorithm:
    """Local AMSGrad mixed with the last global update; update and v averaged."""
    spec = setup.spec
    local = LocalAdaptiveAmended(
        spec.beta1, spec.beta2, spec.epsilon, spec.weight_decay, spec.local_weight
    )
    return Algorithm(local, Averaging({SECOND_MOMENT: setup.size}, True, setup.server_rate))


register(
    AlgorithmEntry(
        name="dp-fedlada",
        keys=AmendedKeys,
        units=("record",),
        summary="local AMSGrad amended by the last global update",
        source="Sun et al. 2023, section 3; DP-FedAdamW, Table 9",
        assemble=_amended_adaptive,
        relatives={"none": "fedlada"},
    ),
    AlgorithmEntry(
        name="fedlada",
        keys=AmendedKeys,
        units=("none",),
        summary="local AMSGrad amended by the last global update",
        source="Sun et al. 2023, section 3",
        assemble=_amended_adaptive,
        relatives={"record": "dp-fedlada", "client": "dp-fedlada"},
    ),
)
