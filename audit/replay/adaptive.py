"""Other adaptive local rules, replayed: FedLADA's amended AMSGrad and FAFED's shared denominator.

Sun et al. 2023 (section 3), and Wu et al. 2022 (Algorithm 2) with what the paper leaves open filled
in as the package documents it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from audit.replay.adamw import average_moments
from audit.replay.base import (
    FIRST_MOMENT,
    GLOBAL_UPDATE,
    SECOND_MOMENT,
    UPDATE,
    Conditions,
    Produced,
    Released,
    Replay,
    ServerValues,
    option,
    zeros,
)
from audit.replay.descent import descend
from audit.replay.registration import register
from audit.replay.rounding import ROUNDING, Rounded, exact
from audit.replay.servers import Uploads, mean_upload, moved
from audit.untrusted.arrays import Floats

PREVIOUS = "previous"


def amended(setting: Conditions, released: Released) -> Produced:
    """Follow α·m/√v̂ + (1−α)·Δ_G with v̂ the running maximum of v."""
    beta1, beta2 = option(setting, "beta1"), option(setting, "beta2")
    decay, weight = option(setting, "weight_decay"), option(setting, "local_weight")
    first = zeros(len(released.parameters))
    second = exact(released.of_broadcast(SECOND_MOMENT)).at_least(option(setting, "epsilon") ** 2)
    largest = second
    offset = exact(released.of_broadcast(GLOBAL_UPDATE)) * (1.0 - weight)

    def direction(point: Rounded) -> Rounded:
        nonlocal first, second, largest
        gradient = point * decay + released.ask(point)
        first = first * beta1 + gradient * (1.0 - beta1)
        second = second * beta2 + gradient.square() * (1.0 - beta2)
        largest = largest.at_least(second)
        return offset + first / largest.root() * weight

    # λ is in the gradient already.
    update = descend(setting, released, direction, decay=0.0)
    return Produced({UPDATE: update, SECOND_MOMENT: largest})


def variance_reduced(setting: Conditions, released: Released) -> Produced:
    """M ← ∇(θ) + β1·(m − ∇(θ')), both on one batch; the last step's move is the server's."""
    beta1, beta2 = option(setting, "beta1"), option(setting, "beta2")
    decay, epsilon = option(setting, "weight_decay"), option(setting, "epsilon")
    current = exact(released.parameters)
    previous = exact(released.of_broadcast(PREVIOUS))
    first = exact(released.of_broadcast(FIRST_MOMENT))
    second = exact(released.of_broadcast(SECOND_MOMENT))
    divisor = second.root() + epsilon
    for step in range(1, setting.steps + 1):
        here = current * decay + released.ask(current)
        there = previous * decay + released.ask(previous)
        if setting.earlier_steps == 0 and step == 1:
            setting.need_whole("the first round starts from a mean over all coordinates")
            first, second = there, _mean_square(there)
            divisor = second.root() + epsilon
        first = here + (first - there) * beta1
        second = second * beta2 + here.square() * (1.0 - beta2)
        if step < setting.steps:
            previous, current = current, current - first * setting.learning_rate / divisor
    upload = {UPDATE: current - released.parameters, FIRST_MOMENT: first, SECOND_MOMENT: second}
    return Produced(upload)


def start_amended(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
    """V = 0 and Δ_G = 0."""
    del setting
    zero = np.zeros(len(parameters))
    return {SECOND_MOMENT: zero, GLOBAL_UPDATE: zero}


def start_reduced(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
    """Both moments 0, θ' = θ."""
    del setting
    zero = np.zeros(len(parameters))
    return {FIRST_MOMENT: zero, SECOND_MOMENT: zero, PREVIOUS: parameters}


def move_reduced(setting: Conditions, before: ServerValues, uploads: Uploads) -> ServerValues:
    """Average iterates and moments, then θ ← θ̄ − η·m̄/(√v̄ + ϵ)."""
    mean = moved(setting, before, mean_upload(uploads))
    first, second = mean_upload(uploads, FIRST_MOMENT), mean_upload(uploads, SECOND_MOMENT)
    step = first / (second.root() + option(setting, "epsilon"))
    state = {FIRST_MOMENT: first, SECOND_MOMENT: second, PREVIOUS: exact(mean)}
    return ServerValues(mean - step * setting.learning_rate, state)


def _mean_square(vector: Rounded) -> Rounded:
    """The mean square of all coordinates, at each coordinate."""
    square = vector.square()
    mean = float(square.value.mean())
    # A float32 sum of d squares: its roundings add up like a random walk.
    walk = ROUNDING * np.sqrt(len(square.value))
    bound = float(square.bound.mean()) + walk * mean
    return Rounded(np.full_like(square.value, mean), np.full_like(square.value, bound))


register("dp-fedlada", Replay(amended, start_amended, average_moments))
register("dp-fafed", Replay(variance_reduced, start_reduced, move_reduced))
