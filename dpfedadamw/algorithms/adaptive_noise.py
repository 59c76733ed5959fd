"""Noise that falls while the model learns: Adap DP-FL (Fu, Chen & Han 2022), as ALI-DPFL has it.

The noise multiplier shrinks by a factor after so many rounds in a row in which the loss fell. The
paper's server measures the loss on validation records of its own. Here no loss is read: a round's
first noised gradients, taken at the new model, tell whether the loss falls along the last global
update, and their noise is independent of it. For a convex loss F and the step from θ' to θ,
F(θ') − F(θ) ≥ ⟨∇F(θ), θ' − θ⟩, so a positive mean is evidence of a fall, not only of a slope.

What is left open, and what is chosen: how many rounds (`patience`, 4 as ALI-DPFL says), by how much
(`factor`), and that there is an end to it (`floor`), without which nothing could be promised before
the run. The adaptive clipping of Fu et al. is not offered: it reads clean gradient norms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import (
    GLOBAL_UPDATE,
    Algorithm,
    Broadcast,
    GradientOracle,
    Observer,
    ScheduledRound,
    ScheduleInputs,
    ServerState,
    Upload,
)
from dpfedadamw.algorithms.keys import DescentKeys, LastModelServer
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import descend
from dpfedadamw.spec.algorithm_section import NoiseDecaySpec

if TYPE_CHECKING:
    from torch import Tensor

SLOPE = "slope"
FALLS = "falls"
DECAYS = "decays"


class AdaptiveNoiseKeys(DescentKeys, title="Adap DP-FL"):
    """Local stochastic gradient descent under noise that falls while the model learns."""

    noise_decay: NoiseDecaySpec = NoiseDecaySpec()
    server: LastModelServer = LastModelServer()


@dataclass(frozen=True)
class WatchedDescent:
    """Follow g̃, and upload ⟨g̃_1, Δ_G⟩: whether the last global update still leads downhill.

    Δ_G is the last global update over −Kη, so it points against the step that was taken, and a
    positive product means that the loss fell. One number, made of released values.

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
    """

    weight_decay: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        del observer  # there is no second moment to show
        slopes: list[Tensor] = []

        def watched(parameters: Tensor) -> Tensor:
            gradient = oracle.gradient(parameters)
            if not slopes:
                slopes.append((gradient @ broadcast.state[GLOBAL_UPDATE]).reshape(1))
            return gradient

        update = descend(broadcast, oracle, self.weight_decay, watched)
        return Upload(update, {SLOPE: slopes[0]})


@dataclass(frozen=True)
class FallingServer:
    """θ ← θ + η_s·mean_i Δθ_i, and counts rounds in a row in which the mean slope was positive.

    Attributes:
        patience: Such rounds before one decay, after which the count starts again; at least 1.
        learning_rate: η_s > 0.
    """

    patience: int
    learning_rate: float = 1.0

    def start(self, parameters: Tensor) -> ServerState:
        """The initial parameters, nothing counted."""
        started = self._average.start(parameters)
        nothing = {FALLS: parameters.new_zeros(1), DECAYS: parameters.new_zeros(1)}
        return replace(started, state={**started.state, **nothing})

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """Average the updates and count."""
        averaged = self._average.combine(state, uploads, broadcast)
        falls, decays = state.state[FALLS], state.state[DECAYS]
        falls = (falls + 1.0) * (averaged.state[SLOPE] > 0.0)
        if float(falls) >= self.patience:
            falls, decays = falls - falls, decays + 1.0
        return replace(averaged, state={**averaged.state, FALLS: falls, DECAYS: decays})

    @property
    def _average(self) -> Averaging:
        return Averaging({SLOPE: 1}, True, self.learning_rate)


@dataclass(frozen=True)
class NoiseSchedule:
    """The noise multiplier of the next round: the first one's times max(floor, β^decays).

    Attributes:
        factor: β in (0, 1]; 1 is DP-FedAvg.
        floor: Least noise multiplier over the first round's, in (0, 1].
    """

    factor: float
    floor: float

    def next_round(self, state: ServerState, inputs: ScheduleInputs) -> ScheduledRound:
        """The next round's noise; its steps are the spec's."""
        decays = int(state.state[DECAYS])
        return ScheduledRound(inputs.local_steps, max(self.floor, self.factor**decays))

    def readings(self, state: ServerState) -> Mapping[str, float]:
        """The mean slope that was counted in the round."""
        return {SLOPE: float(state.state[SLOPE])}


def _adaptive_noise(setup: AlgorithmSetup[AdaptiveNoiseKeys]) -> Algorithm:
    """Local gradient descent, averaged, under noise that falls while the model learns."""
    section = setup.spec.noise_decay
    return Algorithm(
        WatchedDescent(setup.spec.weight_decay),
        FallingServer(section.patience, setup.server_rate),
        round_schedule=NoiseSchedule(section.factor, section.floor),
    )


register(
    AlgorithmEntry(
        name="adap-dpfl",
        keys=AdaptiveNoiseKeys,
        units=("record",),
        summary="local DP-SGD whose noise multiplier falls while the released loss estimate does",
        source="Fu, Chen & Han 2022, as in ALI-DPFL, section V",
        assemble=_adaptive_noise,
        relatives={"none": "fedavg"},
        adaptive=True,
    )
)
