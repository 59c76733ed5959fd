"""A running average of the server's models, which is what a run then releases.

Noise moves every model of a run, and each of them differently: their mean is moved less. It is made
of broadcasts alone, so that it costs no privacy (Polyak & Juditsky 1992; with later models weighing
more, Shamir & Zhang 2013, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import AVERAGED_MODEL, Broadcast, ServerRule, ServerState, Upload

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AveragedModel:
    """Any server rule, and the average of the models that it goes through.

        θ̄_t = θ̄_{t−1} + (p + 1)/(t + p)·(θ_t − θ̄_{t−1}),   t = 1, 2, …

    θ_s then counts in proportion to s(s+1)…(s+p−1) for a whole p, about s^p: p = 0 is the plain
    mean of all rounds, and at p = 8 half of the weight lies on the last 7 % of them.

    Rounds go on from θ_t; only what is evaluated and published is θ̄_t. It is part of the state, so
    that it travels with the broadcast, though no client needs it, and anybody can compute it again.

    Attributes:
        inner: Moves θ.
        power: p ≥ 0.
    """

    inner: ServerRule
    power: float

    def start(self, parameters: Tensor) -> ServerState:
        """The inner rule's start; the initial parameters are no part of any average."""
        begun = self.inner.start(parameters)
        return replace(begun, state={**begun.state, AVERAGED_MODEL: begun.parameters.clone()})

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """One round of the inner rule, and its model added to the average."""
        import torch

        own = dict(state.state)
        before = own.pop(AVERAGED_MODEL)
        moved = self.inner.combine(replace(state, state=own), uploads, broadcast)
        # Rounds that moved the model so far, this one included: all of them take K steps.
        rounds = broadcast.earlier_steps // broadcast.local_steps + 1
        weight = (self.power + 1.0) / (rounds + self.power)
        average = torch.lerp(before, moved.parameters, weight)
        return replace(moved, state={**moved.state, AVERAGED_MODEL: average})
