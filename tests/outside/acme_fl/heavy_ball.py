"""Local descent with heavy-ball momentum (Polyak 1964), averaged by the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpfedadamw.algorithms.base import Algorithm, Broadcast, GradientOracle, Observer, Upload
from dpfedadamw.algorithms.keys import DescentKeys
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import descend
from dpfedadamw.spec.section import key

if TYPE_CHECKING:
    from torch import Tensor


class HeavyBallKeys(DescentKeys, title="Heavy ball"):
    """Local steps that follow a moving sum of noised gradients."""

    name: Literal["acme-heavy-ball"] = "acme-heavy-ball"
    momentum: float = key(
        0.5, "Share of the last step's direction that the next one keeps.", unit="1", ge=0, lt=1
    )


@dataclass(frozen=True)
class HeavyBall:
    """Follow m ← μ·m + g̃, which starts at 0 in every round."""

    weight_decay: float
    momentum: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        direction = broadcast.parameters.new_zeros(len(broadcast.parameters))

        def heavier(parameters: Tensor) -> Tensor:
            return direction.mul_(self.momentum).add_(oracle.gradient(parameters))

        return Upload(descend(broadcast, oracle, self.weight_decay, heavier))


def _assemble(setup: AlgorithmSetup[HeavyBallKeys]) -> Algorithm:
    local = HeavyBall(setup.spec.weight_decay, setup.spec.momentum)
    return Algorithm(local, Averaging({}, False))


register(
    AlgorithmEntry(
        name="acme-heavy-ball",
        keys=HeavyBallKeys,
        units=("record",),
        summary="local DP-SGD with heavy-ball momentum, averaged",
        source="Polyak 1964",
        assemble=_assemble,
        relatives={"none": "fedavg"},
    )
)
