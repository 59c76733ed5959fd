"""Local descent that is held near the broadcast model: PE-DPFL (Shen, Liu & Zhang 2022).

ALI-DPFL (section V) describes the baseline in one sentence: a regularisation term in the
objective, and noise that is added to the model before it is uploaded. The term is here. The noise
is not on the model but in every gradient that the oracle answers with: how far one record moves a
model in several clipped steps has no bound that an accountant here covers, because the other
records' gradients move with it. For one local step the two are the same: noise σC/B on the gradient
is noise ησC/B on the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import Algorithm, Broadcast, GradientOracle, Observer, Upload
from dpfedadamw.algorithms.keys import DescentKeys
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import descend
from dpfedadamw.spec.section import key

if TYPE_CHECKING:
    from torch import Tensor


class ProximalKeys(DescentKeys, title="PE-DPFL"):
    """Local stochastic gradient descent with a proximal term."""

    proximal_weight: float = key(
        0.1,
        "Weight ρ of the proximal term (ρ/2)·‖θ − θ_start‖² in the local objective; at 0 "
        "there is none.",
        ge=0,
        le=1_000_000,
        examples=(0.1, 0),
    )


@dataclass(frozen=True)
class ProximalDescent:
    """Follow g̃(θ) + ρ·(θ − θ_start), the gradient of the loss plus (ρ/2)·‖θ − θ_start‖².

    The term reads no record and costs nothing. In a round's first step it is 0.

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
        proximal_weight: ρ ≥ 0; 0 is DP-FedAvg.
    """

    weight_decay: float
    proximal_weight: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        del observer  # there is no second moment to show

        def pulled_back(parameters: Tensor) -> Tensor:
            away = parameters - broadcast.parameters
            return oracle.gradient(parameters).add(away, alpha=self.proximal_weight)

        return Upload(descend(broadcast, oracle, self.weight_decay, pulled_back))


def _proximal_descent(setup: AlgorithmSetup[ProximalKeys]) -> Algorithm:
    """Local descent held near the broadcast model, averaged."""
    local = ProximalDescent(setup.spec.weight_decay, setup.spec.proximal_weight)
    return Algorithm(local, Averaging({}, False, setup.server_rate))


register(
    AlgorithmEntry(
        name="pe-dpfl",
        keys=ProximalKeys,
        units=("record",),
        summary="local DP-SGD held near the broadcast model by a proximal term",
        source="Shen, Liu & Zhang 2022, as in ALI-DPFL, section V",
        assemble=_proximal_descent,
        relatives={"none": "fedavg"},
    )
)
