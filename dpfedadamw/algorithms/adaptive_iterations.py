"""As many local steps a round as convergence theory asks for: ALI-DPFL (Ling et al. 2023).

Algorithm 2 is DP-FedAvg but for τ, the local steps of the next round, which eq. (9) derives from
seven numbers. Where each comes from:

* d, C, σ and B̂, in eq. (9) only as C² and as σ²C²d/B̂² = d·Φ: the spec's, public. B̂ is the fixed
  expected batch size.
* C also stands for the bound on gradients (Assumption 3), which clipping makes true.
* Γ, how unlike the clients are: a public constant of the spec, as in the paper (10 by default).
* R_c, the steps that the budget affords: from the accountant, before the run (Algorithm 3).
* T = min(R_s·τ, R_c): from τ of the round before.
* μ, the strong convexity: estimated each round from noised gradients, or a public constant.
* L, the smoothness: cancels in eq. (9).

The paper estimates μ from clean gradients, which would be a second release, unpaid for. Here a
client compares its first and last noised gradients of the round, which were paid for. Like the
paper's, the quotient lies between μ and L, so it says no more than where μ could be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import (
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
from dpfedadamw.algorithms.server import Averaging, mean_of
from dpfedadamw.algorithms.sgd import GradientDescent, descend
from dpfedadamw.spec.algorithm_section import LocalIterationsSpec
from dpfedadamw.spec.section import Contradictions, Values

if TYPE_CHECKING:
    from torch import Tensor

SECANT = "secant"
STRONG_CONVEXITY = "strong_convexity"


class AdaptiveIterationsKeys(DescentKeys, title="ALI-DPFL"):
    """Local stochastic gradient descent with adaptive local iterations.

    privacy.noise_multiplier and privacy.target_epsilon are both needed.
    """

    local_iterations: LocalIterationsSpec = LocalIterationsSpec()
    server: LastModelServer = LastModelServer()


def best_local_steps(
    strong_convexity: float,
    heterogeneity: float,
    total_steps: float,
    clipping_norm: float,
    noise_energy: float,
) -> float:
    """τ* of ALI-DPFL eq. (9), as it is printed; ERRATA.md says what is doubtful in it.

    Args:
        strong_convexity: μ > 0.
        heterogeneity: Γ ≥ 0.
        total_steps: T ≥ 1, local steps of the whole run.
        clipping_norm: C > 0.
        noise_energy: σ²C²d/B̂² = d·Φ, expected squared norm of the noise on one gradient.

    Returns:
        A real number, at least 1.
    """
    square = clipping_norm**2
    above = (
        4.0 / strong_convexity**2
        + 3.0 * square
        + 2.0 * heterogeneity * total_steps * strong_convexity
        + noise_energy
    )
    return math.sqrt(1.0 + above / ((2.0 + 1.0 / total_steps) * (square + noise_energy)))


@dataclass(frozen=True)
class SecantDescent:
    """Follow g̃, and upload how far apart the round's first and last noised gradients are.

    Uploads ‖g̃_K − g̃_1‖² − 2dΦ, from which the expected share of the noise is taken off, and the
    squared distance of the two points they were taken at: two numbers made of noised gradients.
    With one step there is nothing to compare, and both are 0.

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
    """

    weight_decay: float
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        del observer  # there is no second moment to show
        points: list[Tensor] = []
        gradients: list[Tensor] = []

        def noted(parameters: Tensor) -> Tensor:
            gradient = oracle.gradient(parameters)
            # The first stays, the last replaces what came between.
            del points[1:], gradients[1:]
            points.append(parameters.clone())
            gradients.append(gradient)
            return gradient

        update = descend(broadcast, oracle, self.weight_decay, noted)
        secant = update.new_zeros(2)
        if broadcast.local_steps > 1:
            noise = 2.0 * update.numel() * oracle.noise_variance
            secant[0] = (gradients[1] - gradients[0]).square().sum() - noise
            secant[1] = (points[1] - points[0]).square().sum()
        return Upload(update, {SECANT: secant})


@dataclass(frozen=True)
class ConvexityServer:
    """θ ← θ + η_s·mean_i Δθ_i and μ² ← mean_i(gradients' squared distance) / mean_i(points').

    Means are taken before the root and the quotient, because a client's own difference is mostly
    noise and may come out negative. A mean that is not positive says nothing: μ stays as it was.

    Attributes:
        strong_convexity: μ > 0 before the first estimate.
        learning_rate: η_s > 0.
    """

    strong_convexity: float
    learning_rate: float = 1.0

    def start(self, parameters: Tensor) -> ServerState:
        """The initial parameters and μ."""
        first = parameters.new_full((1,), self.strong_convexity)
        return ServerState(parameters.clone(), {STRONG_CONVEXITY: first})

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """Average the updates and renew the estimate."""
        import torch

        averaged = Averaging({}, False, self.learning_rate).combine(state, uploads, broadcast)
        estimate = state.state[STRONG_CONVEXITY]
        gradients, points = mean_of(uploads, SECANT).unbind()
        if bool(gradients > 0.0) and bool(points > 0.0):
            estimate = torch.sqrt(gradients / points).reshape(1)
        return replace(averaged, state={STRONG_CONVEXITY: estimate})


@dataclass(frozen=True)
class IterationSchedule:
    """τ of the next round: eq. (9), rounded, kept within bounds and within what is left of R_c.

    The first round takes the spec's local steps (the τ that Algorithm 2 is given). Where R_s ≥ R_c,
    rounds are no scarce resource and τ = 1 throughout (Lemma 1). The bounds win over both.

    Attributes:
        minimum: Fewest steps of a round but the last, which takes what is left; at least 1.
        maximum: Most steps of a round.
        heterogeneity: Γ ≥ 0, a public constant.
        strong_convexity: μ > 0 where it is not estimated.
    """

    minimum: int
    maximum: int
    heterogeneity: float
    strong_convexity: float

    def next_round(self, state: ServerState, inputs: ScheduleInputs) -> ScheduledRound:
        """The next round's local steps; 0 where R_c is used up."""
        limit = inputs.step_limit
        assert limit is not None, "local iterations adapt to a budget, and the plan has none"
        if inputs.rounds >= limit:
            wanted = 1
        elif inputs.round_index == 0:
            wanted = inputs.local_steps
        else:
            best = best_local_steps(
                self._strong_convexity(state),
                self.heterogeneity,
                float(min(inputs.rounds * inputs.previous_steps, limit)),
                inputs.clipping_norm,
                state.parameters.numel() * inputs.noise_variance,
            )
            wanted = math.floor(min(best, float(self.maximum)) + 0.5)
        bounded = max(self.minimum, min(self.maximum, wanted))
        return ScheduledRound(min(bounded, limit - inputs.spent_steps))

    def readings(self, state: ServerState) -> Mapping[str, float]:
        """The strong convexity that the next round goes by."""
        return {STRONG_CONVEXITY: self._strong_convexity(state)}

    def _strong_convexity(self, state: ServerState) -> float:
        estimate = state.state.get(STRONG_CONVEXITY)
        return self.strong_convexity if estimate is None else float(estimate)


def _adaptive_iterations(setup: AlgorithmSetup[AdaptiveIterationsKeys]) -> Algorithm:
    """Local gradient descent, averaged, for as many steps a round as theory asks for."""
    section, weight_decay = setup.spec.local_iterations, setup.spec.weight_decay
    first = section.strong_convexity
    schedule = IterationSchedule(section.minimum, section.maximum, section.heterogeneity, first)
    if not section.estimate:
        descent = GradientDescent(weight_decay)
        average = Averaging({}, False, setup.server_rate)
        return Algorithm(descent, average, round_schedule=schedule)
    server = ConvexityServer(first, setup.server_rate)
    return Algorithm(SecantDescent(weight_decay), server, round_schedule=schedule)


def _check_local_iterations(get: Values) -> Contradictions:
    """The fewest steps of a round are not more than the most, and the first round's between."""
    section = ("algorithm", "local_iterations")
    fewest, most = get(*section, "minimum"), get(*section, "maximum")
    if fewest is None or most is None:
        return
    path = ("federation", "local_steps")
    steps = get(*path)
    if fewest > most:
        message = f"found {fewest}, but {get.shown(*section, 'maximum')}; must be at most {most}"
        yield (*section, "minimum"), message
    elif steps is not None and not fewest <= steps <= most:
        message = (
            f"{get.found(*path)}, the first round's, but algorithm.local_iterations allows "
            f"{fewest} to {most}; choose one of these, or change minimum or maximum"
        )
        yield path, message


register(
    AlgorithmEntry(
        name="ali-dpfl",
        keys=AdaptiveIterationsKeys,
        units=("record",),
        summary="local DP-SGD with as many local steps a round as its convergence bound and budget "
        "ask for",
        source="ALI-DPFL, Algorithms 2 and 3, corrected as ERRATA.md says",
        assemble=_adaptive_iterations,
        relatives={"none": "fedavg"},
        adaptive=True,
        budgeted=True,
        check=_check_local_iterations,
    )
)
