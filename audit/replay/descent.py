"""Local rules that are gradient descent but for the direction of a step, replayed.

θ ← θ − η·direction − η·λ·θ, K times. FedAvg (McMahan et al. 2017; Noble et al. 2022) follows the
noised gradient itself, SCAFFOLD (Karimireddy et al. 2020) corrects it by control variates, SAM
(Foret et al. 2021) takes it at a perturbed point, Laplacian smoothing (Osher et al. 2022) smooths
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from audit.replay.base import (
    FIRST_MOMENT,
    SECOND_MOMENT,
    UPDATE,
    Conditions,
    Produced,
    Released,
    Replay,
    ServerValues,
    option,
    word,
)
from audit.replay.rounding import ROUNDING, Rounded, exact, known
from audit.replay.servers import Uploads, average, mean_upload, moved, start_average
from audit.untrusted.archives import Floats

CONTROL = "control"
# A float32 transform of n coordinates is off by a few times 2^-24 log2(n) of the input's root mean
# square, evenly over its output (Higham 2002, section 24.1): allowed are eight times that a level,
# for lengths that need a longer transform and for the largest of many coordinates.
_TRANSFORM = 8.0 * ROUNDING


def descend(
    setting: Conditions,
    released: Released,
    direction: Callable[[Rounded], Rounded],
    decay: float | None = None,
) -> Rounded:
    """Take the steps; returns the update [d'].

    Args:
        setting: Learning rate, steps and weight decay.
        released: Where the round starts.
        direction: A step's direction at a point, which asks for gradients.
        decay: λ where it is not the spec's.
    """
    rate = setting.learning_rate
    decay = option(setting, "weight_decay") if decay is None else decay
    point = exact(released.parameters)
    for _ in range(setting.steps):
        step = direction(point)
        point = point * (1.0 - rate * decay) - step * rate
    return point - released.parameters


def gradient_descent(setting: Conditions, released: Released) -> Produced:
    """Follow the noised gradient."""
    update = descend(setting, released, lambda point: exact(released.ask(point)))
    return Produced({UPDATE: update})


def scaffold(setting: Conditions, released: Released) -> Produced:
    """Follow g − c_i + c; upload c_i⁺ − c_i too, and keep c_i⁺, the mean noised gradient."""
    size = len(released.parameters)
    own = exact(released.memory.get(CONTROL, np.zeros(size)))
    correction = exact(released.of_broadcast(CONTROL)) - own
    total = exact(np.zeros(size))

    def corrected(point: Rounded) -> Rounded:
        nonlocal total
        gradient = released.ask(point)
        total = total + gradient
        return correction + gradient

    update = descend(setting, released, corrected)
    mean = total / float(setting.steps)
    return Produced({UPDATE: update, CONTROL: mean - own}, {CONTROL: mean})


def sharpness_aware(setting: Conditions, released: Released) -> Produced:
    """Follow the noised gradient at θ + ρ·g/‖g‖, of which g is noised too."""
    radius = option(setting, "sam", "radius")

    def ascend_first(point: Rounded) -> Rounded:
        noised = released.ask(point)
        squared = float(released.last_square_sums().sum())
        if squared == 0.0:
            return exact(released.ask(point))
        # The norm is a float32 sum of all coordinates, whose roundings add up like a random walk.
        terms = float(setting.partition.sizes.sum())
        reach = known(np.full(1, radius / math.sqrt(squared)), ROUNDING * math.sqrt(terms))
        return exact(released.ask(point + reach * noised))

    return Produced({UPDATE: descend(setting, released, ascend_first)})


def smoothed(setting: Conditions, released: Released) -> Produced:
    """Follow (I − s·L)⁻¹ g with the second difference L on a ring."""
    setting.need_whole("smoothing mixes all coordinates")
    strength = option(setting, "smoothing", "strength")
    tensors = setting.partition.tensors
    lengths = tensors if word(setting, "smoothing", "scope") == "tensor" else [tensors.sum()]
    edges = np.concatenate([[0], np.cumsum(lengths)])

    def smooth(point: Rounded) -> Rounded:
        gradient = released.ask(point)
        parts = [gradient[a:b] for a, b in pairwise(edges)]
        values = np.concatenate([_smooth(part, strength) for part in parts])
        bounds = [
            np.full(len(part), _TRANSFORM * (1.0 + math.log2(len(part))) * _rms(part))
            for part in parts
        ]
        return Rounded(values, np.concatenate(bounds))

    return Produced({UPDATE: descend(setting, released, smooth)})


def start_controls(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
    """C = 0."""
    del setting
    return {CONTROL: np.zeros(len(parameters))}


def move_controls(setting: Conditions, before: ServerValues, uploads: Uploads) -> ServerValues:
    """θ ← θ + η_s·mean Δθ, c ← c + (S/N)·mean Δc."""
    share = len(uploads) / setting.clients
    control = before.state[CONTROL] + mean_upload(uploads, CONTROL) * share
    return ServerValues(moved(setting, before, mean_upload(uploads)), {CONTROL: control})


def start_adaptive(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
    """M = 0, v = τ²."""
    size = len(parameters)
    square = option(setting, "server", "epsilon") ** 2
    return {FIRST_MOMENT: np.zeros(size), SECOND_MOMENT: np.full(size, square)}


def adapt(setting: Conditions, before: ServerValues, uploads: Uploads) -> ServerValues:
    """θ ← θ + η_s·m/(√v + τ), with Adam's or Yogi's v."""
    beta1, beta2 = option(setting, "server", "beta1"), option(setting, "server", "beta2")
    update = mean_upload(uploads)
    square = update.square()
    first = before.state[FIRST_MOMENT] * beta1 + update * (1.0 - beta1)
    second = before.state[SECOND_MOMENT]
    if word(setting, "server", "rule", default="adam") == "yogi":
        second = second - square * (1.0 - beta2) * (second - square).signs()
    else:
        second = second * beta2 + square * (1.0 - beta2)
    step = first / (second.root() + option(setting, "server", "epsilon"))
    rate = option(setting, "server", "learning_rate")
    state = {FIRST_MOMENT: first, SECOND_MOMENT: second}
    return ServerValues(before.parameters + step * rate, state)


def _rms(part: Floats) -> float:
    return math.sqrt(float(np.mean(np.square(part))))


def _smooth(part: Floats, strength: float) -> Floats:
    """Solve (I − s·L) x = part by the discrete Fourier transform."""
    size = len(part)
    angle = 2.0 * np.pi * np.arange(size // 2 + 1) / size
    divisor = 1.0 + 2.0 * strength * (1.0 - np.cos(angle))
    return np.fft.irfft(np.fft.rfft(part) / divisor, size)


REPLAYS = {
    "dp-fedavg": Replay(gradient_descent, start_average, average),
    "dp-fedsam": Replay(sharpness_aware, start_average, average),
    "dp-fedavg-ls": Replay(smoothed, start_average, average),
    "dp-scaffold": Replay(scaffold, start_controls, move_controls),
    "dp-fedopt": Replay(gradient_descent, start_adaptive, adapt),
}
