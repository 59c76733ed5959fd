"""How servers start and combine uploads, replayed.

Plain averages (DP-FedAdamW, Algorithm 1 lines 21-23), SCAFFOLD's control variate, the adaptive
servers of Reddi et al. 2021 (Algorithm 2), and FAFED's last move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from audit.replay.adamw import aggregation, shares_first
from audit.replay.adaptive import PREVIOUS
from audit.replay.base import (
    FIRST_MOMENT,
    GLOBAL_UPDATE,
    SECOND_MOMENT,
    UPDATE,
    ServerValues,
    Setting,
    option,
    word,
)
from audit.replay.descent import CONTROL
from audit.replay.rounding import Rounded, exact, mean_of
from audit.untrusted.arrays import Floats

Uploads = Sequence[Mapping[str, Rounded]]


def mean_upload(uploads: Uploads, name: str = UPDATE) -> Rounded:
    """The mean of one uploaded tensor, each client weighing the same."""
    return mean_of([upload[name] for upload in uploads])


def start_average(setting: Setting, parameters: Floats) -> Mapping[str, Floats]:
    """No state at all."""
    del setting, parameters
    return {}


def average(setting: Setting, before: ServerValues, uploads: Uploads) -> ServerValues:
    """θ ← θ + mean of the updates."""
    del setting
    return ServerValues(before.parameters + mean_upload(uploads))


def start_moments(setting: Setting, parameters: Floats) -> Mapping[str, Floats]:
    """Zeros for whatever of moments and global update is shared."""
    zero = np.zeros(len(parameters))
    state = {}
    if shares_first(setting):
        state[FIRST_MOMENT] = zero
    if aggregation(setting) != "none":
        blocks = aggregation(setting) != "full"
        state[SECOND_MOMENT] = np.zeros(len(setting.partition.sizes)) if blocks else zero
    if option(setting, "alignment"):
        state[GLOBAL_UPDATE] = zero
    return state


def average_moments(setting: Setting, before: ServerValues, uploads: Uploads) -> ServerValues:
    """Averages of update and moments, and Δ_G = −mean/(K·η)."""
    update = mean_upload(uploads)
    names = [name for name in before.state if name != GLOBAL_UPDATE]
    state = {name: mean_upload(uploads, name) for name in names}
    if GLOBAL_UPDATE in before.state:
        state[GLOBAL_UPDATE] = update / -(setting.learning_rate * setting.steps)
    return ServerValues(before.parameters + update, state)


def start_amended(setting: Setting, parameters: Floats) -> Mapping[str, Floats]:
    """V = 0 and Δ_G = 0."""
    del setting
    zero = np.zeros(len(parameters))
    return {SECOND_MOMENT: zero, GLOBAL_UPDATE: zero}


def start_controls(setting: Setting, parameters: Floats) -> Mapping[str, Floats]:
    """C = 0."""
    del setting
    return {CONTROL: np.zeros(len(parameters))}


def move_controls(setting: Setting, before: ServerValues, uploads: Uploads) -> ServerValues:
    """θ ← θ + η_s·mean Δθ, c ← c + (S/N)·mean Δc."""
    rate = option(setting, "server", "learning_rate", default=1.0)
    share = len(uploads) / setting.clients
    control = before.state[CONTROL] + mean_upload(uploads, CONTROL) * share
    return ServerValues(before.parameters + mean_upload(uploads) * rate, {CONTROL: control})


def start_adaptive(setting: Setting, parameters: Floats) -> Mapping[str, Floats]:
    """M = 0, v = τ²."""
    size = len(parameters)
    square = option(setting, "server", "epsilon") ** 2
    return {FIRST_MOMENT: np.zeros(size), SECOND_MOMENT: np.full(size, square)}


def adapt(setting: Setting, before: ServerValues, uploads: Uploads) -> ServerValues:
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


def start_reduced(setting: Setting, parameters: Floats) -> Mapping[str, Floats]:
    """Both moments 0, θ' = θ."""
    del setting
    zero = np.zeros(len(parameters))
    return {FIRST_MOMENT: zero, SECOND_MOMENT: zero, PREVIOUS: parameters}


def move_reduced(setting: Setting, before: ServerValues, uploads: Uploads) -> ServerValues:
    """Average iterates and moments, then θ ← θ̄ − η·m̄/(√v̄ + ϵ)."""
    mean = before.parameters + mean_upload(uploads)
    first, second = mean_upload(uploads, FIRST_MOMENT), mean_upload(uploads, SECOND_MOMENT)
    step = first / (second.root() + option(setting, "epsilon"))
    state = {FIRST_MOMENT: first, SECOND_MOMENT: second, PREVIOUS: exact(mean)}
    return ServerValues(mean - step * setting.learning_rate, state)
