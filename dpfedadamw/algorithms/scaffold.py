"""Control variates against client drift: SCAFFOLD and DP-SCAFFOLD.

Karimireddy et al. 2020 (Algorithm 1), and Noble et al. 2022 over noised gradients. A client's
control variate is the mean of its noised gradients of a round, so it is a function of what was
released: the server could work it out from the uploads. It persists between the client's
participations as the client's memory, which the federation keeps and checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import (
    Algorithm,
    Broadcast,
    GradientOracle,
    Observer,
    ServerState,
    Upload,
)
from dpfedadamw.algorithms.keys import DescentKeys
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging, mean_of
from dpfedadamw.algorithms.sgd import descend

if TYPE_CHECKING:
    from torch import Tensor

CONTROL = "control"


class ScaffoldKeys(DescentKeys, title="SCAFFOLD"):
    """Local stochastic gradient descent with control variates; uploads twice as much."""


@dataclass(frozen=True)
class Scaffold:
    """Follow g̃ − c_i + c, and upload c_i⁺ − c_i along with the update: twice FedAvg's upload.

    c_i⁺ = (1/K) Σ_k g̃_k. That is option II of Karimireddy et al., c_i − c + (θ − θ_i)/(Kη),
    wherever only gradients move the weights; with weight decay it keeps the decay out of the
    control variate. Option I would ask for one more gradient. All control variates start at 0
    (Noble et al. also describe a warm start, which spends budget on rounds that do not train).

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
    """

    weight_decay: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        import torch

        del observer  # there is no second moment to show
        own = broadcast.memory.get(CONTROL)
        if own is None:
            own = torch.zeros_like(broadcast.parameters)
        correction = broadcast.state[CONTROL] - own
        total = torch.zeros_like(own)

        def corrected(parameters: Tensor) -> Tensor:
            gradient = oracle.gradient(parameters)
            total.add_(gradient)
            return gradient + correction

        update = descend(broadcast, oracle, self.weight_decay, corrected)
        mean = total / broadcast.local_steps
        return Upload(update, {CONTROL: mean - own}, {CONTROL: mean})


@dataclass(frozen=True)
class ScaffoldServer:
    """θ ← θ + η_s·mean_i Δθ_i and c ← c + (S/N)·mean_i Δc_i.

    Attributes:
        clients: N, all clients of the federation: those that do not take part keep theirs.
        learning_rate: η_s > 0 of the server.
    """

    clients: int
    learning_rate: float

    def start(self, parameters: Tensor) -> ServerState:
        """The initial parameters, c = 0."""
        import torch

        return ServerState(parameters.clone(), {CONTROL: torch.zeros_like(parameters)})

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """Average the updates and move the control variate."""
        averaged = Averaging({}, False, self.learning_rate).combine(state, uploads, broadcast)
        share = len(uploads) / self.clients
        control = state.state[CONTROL] + share * mean_of(uploads, CONTROL)
        return replace(averaged, state={CONTROL: control})


def _scaffold(setup: AlgorithmSetup[ScaffoldKeys]) -> Algorithm:
    """Local gradient descent with control variates."""
    server = ScaffoldServer(setup.clients, setup.spec.server.learning_rate)
    return Algorithm(Scaffold(setup.spec.weight_decay), server)


register(
    AlgorithmEntry(
        name="dp-scaffold",
        keys=ScaffoldKeys,
        units=("record",),
        summary="local DP-SGD with control variates made of noised gradients",
        source="Noble et al. 2022; Karimireddy et al. 2020",
        assemble=_scaffold,
        relatives={"none": "scaffold"},
    ),
    AlgorithmEntry(
        name="scaffold",
        keys=ScaffoldKeys,
        units=("none",),
        summary="local SGD with control variates",
        source="Karimireddy et al. 2020",
        assemble=_scaffold,
        relatives={"record": "dp-scaffold", "client": "dp-scaffold"},
    ),
)
