"""Adaptive server steps over any local rule: FedAdam, FedYogi (Reddi et al. 2021, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpfedadamw.algorithms.base import (
    FIRST_MOMENT,
    SECOND_MOMENT,
    Algorithm,
    Broadcast,
    ServerState,
    Upload,
)
from dpfedadamw.algorithms.keys import Beta1, Beta2, DescentKeys, Epsilon, ServerSpec
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import mean_update
from dpfedadamw.algorithms.sgd import GradientDescent
from dpfedadamw.spec.section import AbsentText, key

if TYPE_CHECKING:
    from torch import Tensor


class AdamServer(ServerSpec, title="Server"):
    """Adam on the server, applied to the mean update."""

    rule: AbsentText = None
    learning_rate: float = key(
        0.01, "Step size of the server's optimiser.", title="Server learning rate", gt=0, le=1000
    )
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    epsilon: Epsilon = 0.001


class AdaptiveServer(AdamServer, title="Server"):
    """The optimiser that the server applies to the mean update."""

    rule: Literal["adam", "yogi"] = key(
        "adam", "Optimiser of the server.", examples=("adam", "yogi")
    )


class FedAdamKeys(DescentKeys, title="FedAdam"):
    """Local stochastic gradient descent, Adam on the server."""

    server: AdamServer = AdamServer()


class AdaptiveServerKeys(FedAdamKeys, title="DP-FedOpt"):
    """Local stochastic gradient descent, an adaptive optimiser on the server."""

    server: AdaptiveServer = AdaptiveServer()


@dataclass(frozen=True)
class Adaptive:
    """θ ← θ + η_s·m/(√v + τ) with m, v moving over rounds on Δ = mean_i Δθ_i.

        m ← β1·m + (1−β1)·Δ
        v ← β2·v + (1−β2)·Δ²                          (adam)
        v ← v − (1−β2)·Δ²·sign(v − Δ²)                (yogi)

    m starts at 0 and v at τ²; there is no bias correction, as in the paper. Both moments are
    functions of uploads, so the clients' privacy is that of the local rule.

    The moments are part of the state and so travel with the broadcast, though no client needs them.

    Attributes:
        rule: "adam" or "yogi".
        learning_rate: η_s > 0.
        beta1: In [0, 1).
        beta2: In [0, 1).
        epsilon: τ > 0, degree of adaptivity.
    """

    rule: str
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float

    def start(self, parameters: Tensor) -> ServerState:
        """The initial parameters, m = 0, v = τ²."""
        import torch

        first = torch.zeros_like(parameters)
        second = torch.full_like(parameters, self.epsilon**2)
        return ServerState(parameters.clone(), {FIRST_MOMENT: first, SECOND_MOMENT: second})

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """One step of the server's optimiser."""
        import torch

        del broadcast  # the server's step has a rate of its own
        update = mean_update(uploads)
        first = self.beta1 * state.state[FIRST_MOMENT] + (1.0 - self.beta1) * update
        second, square = state.state[SECOND_MOMENT], update.square()
        if self.rule == "yogi":
            second = second - (1.0 - self.beta2) * square * torch.sign(second - square)
        else:
            second = self.beta2 * second + (1.0 - self.beta2) * square
        step = self.learning_rate * first / (second.sqrt() + self.epsilon)
        return ServerState(state.parameters + step, {FIRST_MOMENT: first, SECOND_MOMENT: second})


def _adaptive_server(setup: AlgorithmSetup[FedAdamKeys]) -> Algorithm:
    """Local gradient descent, Adam or Yogi on the server."""
    server = setup.spec.server
    rule = server.rule or "adam"
    step = Adaptive(rule, server.learning_rate, server.beta1, server.beta2, server.epsilon)
    return Algorithm(GradientDescent(setup.spec.weight_decay), step)


register(
    AlgorithmEntry(
        name="dp-fedopt",
        keys=AdaptiveServerKeys,
        units=("record",),
        summary="local DP-SGD, Adam or Yogi on the server",
        source="Reddi et al. 2021, Algorithm 2; DP-FedAdamW, Table 9",
        assemble=_adaptive_server,
        relatives={"none": "fedadam"},
    ),
    AlgorithmEntry(
        name="fedadam",
        keys=FedAdamKeys,
        units=("none",),
        summary="local SGD, Adam on the server",
        source="Reddi et al. 2021, Algorithm 2",
        assemble=_adaptive_server,
        relatives={"record": "dp-fedopt", "client": "dp-fedopt"},
    ),
)
