"""Local rules that are gradient descent but for the direction of a step.

FedAvg and DP-FedAvg follow the gradient itself; FedCM mixes it with the last global update; SAM
(``sam``), Laplacian smoothing (``smoothing``) and SCAFFOLD (``scaffold``) are one function each
over the same loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpfedadamw.algorithms.base import (
    GLOBAL_UPDATE,
    Algorithm,
    Broadcast,
    GradientOracle,
    Observer,
    Upload,
)
from dpfedadamw.algorithms.keys import DescentKeys, LastModelServer, LocalWeight, SparsificationSpec
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sparse import averaged
from dpfedadamw.spec.section import key

if TYPE_CHECKING:
    from torch import Tensor


class AveragingKeys(DescentKeys, title="Federated averaging"):
    """Local stochastic gradient descent."""


class PublicSparsification(SparsificationSpec, title="Public sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: Literal["random", "released-top"] = key(
        "random",
        "random: coordinates drawn from public randomness each round, the same for all "
        "clients, scaled by d/k before clipping; noise on these alone. released-top: public "
        "coordinates too, half of them those that the last release moved most, the rest "
        "drawn.",
    )


class SparseAveragingKeys(DescentKeys, title="Fed-SMP"):
    """Local stochastic gradient descent, updates cut to public coordinates."""

    sparsification: PublicSparsification = PublicSparsification()
    server: LastModelServer = LastModelServer()


class ClientMomentumKeys(DescentKeys, title="FedCM"):
    """Local stochastic gradient descent mixed with the last global update."""

    local_weight: LocalWeight = 0.1


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
        # Else it would stay while the next gradient is formed.
        del step
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


def _averaged_descent(setup: AlgorithmSetup[DescentKeys]) -> Algorithm:
    """Local gradient descent, averaged."""
    return averaged(setup, GradientDescent(setup.spec.weight_decay))


def _client_momentum(setup: AlgorithmSetup[ClientMomentumKeys]) -> Algorithm:
    """Local descent mixed with the last global update, averaged."""
    local = ClientMomentum(setup.spec.weight_decay, setup.spec.local_weight)
    return Algorithm(local, Averaging({}, True, setup.server_rate))


register(
    AlgorithmEntry(
        name="dp-fedavg",
        keys=AveragingKeys,
        units=("record", "client"),
        summary="local DP-SGD, averaged; at client level plain SGD, whole updates noised",
        source="Noble et al. 2022; McMahan et al. 2017",
        assemble=_averaged_descent,
        relatives={"none": "fedavg"},
    ),
    AlgorithmEntry(
        name="fedavg",
        keys=AveragingKeys,
        units=("none",),
        summary="local SGD, averaged",
        source="McMahan et al. 2017",
        assemble=_averaged_descent,
        relatives={"record": "dp-fedavg", "client": "dp-fedavg"},
    ),
    AlgorithmEntry(
        name="fed-smp",
        keys=SparseAveragingKeys,
        units=("client",),
        summary="dp-fedavg, updates cut to public coordinates before clipping",
        source="Hu et al. 2022 (Fed-SMP), rand-k and top-k as ERRATA.md says",
        assemble=_averaged_descent,
        relatives={"record": "dp-fedavg", "none": "fedavg"},
    ),
    AlgorithmEntry(
        name="fedcm",
        keys=ClientMomentumKeys,
        units=("none",),
        summary="local SGD mixed with the last global update",
        source="Xu et al. 2021",
        assemble=_client_momentum,
        relatives={"record": "dp-fedavg", "client": "dp-fedavg"},
    ),
)
