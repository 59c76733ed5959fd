"""Further local rules, replayed: adaptive ones, and descent that is held back or measured.

FedLADA's amended AMSGrad (Sun et al. 2023, section 3) and FAFED's shared denominator (Wu et al.
2022, Algorithm 2, with what the paper leaves open filled in as the package documents it); PE-DPFL,
whose plain descent is pulled to the broadcast model; Adap DP-FL and ALI-DPFL, which also upload a
number or two, made of noised gradients, from which the server works out the noise or the local
steps of later rounds; that those follow, the check "promise" sees from the ledger.
"""

from __future__ import annotations

import math
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
from audit.replay.descent import descend, gradient_descent
from audit.replay.rounding import ROUNDING, Rounded, exact
from audit.replay.servers import Uploads, average, mean_upload, moved, start_average
from audit.untrusted.archives import Floats

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


SECANT, STRONG_CONVEXITY = "secant", "strong_convexity"
SLOPE, FALLS, DECAYS = "slope", "falls", "decays"


def proximal(setting: Conditions, released: Released) -> Produced:
    """Follow g̃ + ρ·(θ − θ_start)."""
    weight = option(setting, "proximal_weight")

    def pulled_back(point: Rounded) -> Rounded:
        return (point - released.parameters) * weight + released.ask(point)

    return Produced({UPDATE: descend(setting, released, pulled_back)})


def slope_reported(setting: Conditions, released: Released) -> Produced:
    """Follow g̃; upload ⟨g̃_1, Δ_G⟩."""
    setting.need_whole("an inner product takes all coordinates")
    produced = gradient_descent(setting, released)
    products = exact(released.gradients[0]) * released.of_broadcast(GLOBAL_UPDATE)
    return Produced({**produced.upload, SLOPE: _total(products)})


def secant(setting: Conditions, released: Released) -> Produced:
    """Follow g̃; upload ‖g̃_K − g̃_1‖² − 2dΦ and the squared distance of their points."""
    produced = gradient_descent(setting, released)
    if not option(setting, "local_iterations", "estimate", default=1.0):
        return produced
    setting.need_whole("a distance takes all coordinates")
    both = [exact(np.zeros(1)), exact(np.zeros(1))]
    if setting.steps > 1:
        difference = exact(released.gradients[-1]) - released.gradients[0]
        noise = 2.0 * len(released.parameters) * setting.noise_variance
        moved = released.points[-1] - released.points[0]
        both = [_total(difference.square()) - noise, _total(moved.square())]
    joined = Rounded(
        np.concatenate([one.value for one in both]), np.concatenate([one.bound for one in both])
    )
    return Produced({**produced.upload, SECANT: joined})


def start_falls(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
    """Δ_G = 0, nothing counted."""
    del setting
    one = np.zeros(1)
    return {GLOBAL_UPDATE: np.zeros(len(parameters)), SLOPE: one, FALLS: one, DECAYS: one}


def count_falls(setting: Conditions, before: ServerValues, uploads: Uploads) -> ServerValues:
    """Average; count rounds in a row with a positive mean slope, and a decay for a full count."""
    update, slope = mean_upload(uploads), mean_upload(uploads, SLOPE)
    falls, decays = before.state[FALLS], before.state[DECAYS]
    counted = float(falls.value[0]) + 1.0 if slope.value[0] > 0.0 else 0.0
    full = counted >= option(setting, "noise_decay", "patience")
    unsure = falls.bound + decays.bound + np.where(np.abs(slope.value) <= slope.bound, np.inf, 0.0)
    state = {
        GLOBAL_UPDATE: update / -(setting.learning_rate * setting.steps),
        SLOPE: slope,
        FALLS: Rounded(np.full(1, 0.0 if full else counted), unsure),
        DECAYS: Rounded(decays.value + float(full), unsure),
    }
    return ServerValues(moved(setting, before, update), state)


def start_convexity(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
    """The public μ that the first rounds go by, where it is estimated later."""
    del parameters
    if not option(setting, "local_iterations", "estimate", default=1.0):
        return {}
    return {STRONG_CONVEXITY: np.full(1, option(setting, "local_iterations", "strong_convexity"))}


def estimate_convexity(setting: Conditions, before: ServerValues, uploads: Uploads) -> ServerValues:
    """Average; μ² ← mean(gradients' squared distance)/mean(points') where both are positive."""
    averaged = average(setting, before, uploads)
    if STRONG_CONVEXITY not in before.state:
        return averaged
    mean = mean_upload(uploads, SECANT)
    estimate = before.state[STRONG_CONVEXITY]
    if (mean.value > 0.0).all():
        gradients, points = mean.at(np.array([0])), mean.at(np.array([1]))
        estimate = (gradients / points).root()
    if (np.abs(mean.value) <= mean.bound).any() and mean.bound.any():
        estimate = Rounded(estimate.value, np.full(1, np.inf))
    return ServerValues(averaged.parameters, {STRONG_CONVEXITY: estimate})


def _total(terms: Rounded) -> Rounded:
    """The sum of all coordinates, [1], whose roundings in float32 add up like a random walk."""
    sizes = float(np.abs(terms.value).sum())
    rounding = ROUNDING * math.sqrt(len(terms.value)) * sizes
    return Rounded(np.full(1, terms.value.sum()), np.full(1, float(terms.bound.sum()) + rounding))


REPLAYS = {
    "dp-fedlada": Replay(amended, start_amended, average_moments),
    "dp-fafed": Replay(variance_reduced, start_reduced, move_reduced),
    "pe-dpfl": Replay(proximal, start_average, average),
    "adap-dpfl": Replay(slope_reported, start_falls, count_falls),
    "ali-dpfl": Replay(secant, start_convexity, estimate_convexity),
}
