"""The AdamW family, replayed: DP-FedAdamW with any of its parts off, and DP-LocalAdamW.

DP-FedAdamW (Algorithm 1) with the corrections that the package's errata list: the global counter,
a floor under v̂ − Φ, and weight decay that shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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
    word,
    zeros,
)
from audit.replay.rounding import ROUNDING, UNDERFLOW, Rounded, exact
from audit.replay.servers import Uploads, mean_upload, moved
from audit.untrusted.archives import Floats


def aggregation(setting: Conditions) -> str:
    """How the second moment is shared: by blocks, in full, or not at all."""
    return word(setting, "second_moment", "aggregation", default="none")


def shares_first(setting: Conditions) -> bool:
    """Whether the first moment is uploaded."""
    return word(setting, "first_moment", "aggregation", default="none") == "full"


def adamw(setting: Conditions, released: Released) -> Produced:
    """One client's local AdamW steps."""
    rate, decay = setting.learning_rate, option(setting, "weight_decay")
    beta1, beta2 = option(setting, "beta1"), option(setting, "beta2")
    coupled = word(setting, "decay") == "coupled"
    alignment = option(setting, "alignment")
    drift = exact(0.0)
    if alignment:
        drift = exact(released.of_broadcast(GLOBAL_UPDATE)) * (rate * alignment)
    point = exact(released.parameters)
    first = zeros(len(released.parameters))
    if shares_first(setting):
        first = exact(released.of_broadcast(FIRST_MOMENT))
    second = _Second(setting, released, beta2, coupled)
    for step in range(1, setting.steps + 1):
        gradient = exact(released.ask(point))
        if coupled:
            gradient = gradient + point * decay
        first = first * beta1 + gradient * (1.0 - beta1)
        second.follow(gradient)
        behind = step + setting.earlier_steps if shares_first(setting) else step
        direction = first / (1.0 - beta1**behind) / second.denominator(step)
        point = point * (1.0 if coupled else 1.0 - rate * decay) - direction * rate - drift
    upload = {UPDATE: point - released.parameters}
    if shares_first(setting):
        upload[FIRST_MOMENT] = first
    if aggregation(setting) != "none":
        upload[SECOND_MOMENT] = second.uploaded()
    return Produced(upload)


class _Second:
    """The second moment of one participation: each coordinate's, and the blocks' means.

    The recursion is linear, so the means follow from block sums of squares alone.
    """

    def __init__(
        self, setting: Conditions, released: Released, beta2: float, coupled: bool
    ) -> None:
        self._setting = setting
        self._released = released
        self._beta2 = beta2
        self._coupled = coupled
        self._shared = aggregation(setting) != "none"
        self._blocks = aggregation(setting) not in ("none", "full")
        if self._blocks and coupled:
            setting.need_whole("with coupled decay block means follow the weights as well")
        index = setting.partition.of_coordinate
        self.coordinates = zeros(len(index))
        self.means = zeros(len(setting.partition.sizes))
        if self._shared:
            received = exact(released.of_broadcast(SECOND_MOMENT))
            if self._blocks:
                self.means = received
                self.coordinates = received.at(index)
            else:
                self.coordinates = received

    def follow(self, gradient: Rounded) -> None:
        """Move along one gradient."""
        square = gradient.square()
        self.coordinates = self.coordinates * self._beta2 + square * (1.0 - self._beta2)
        if self._blocks:
            self.means = self.means * self._beta2 + self._mean_square(square) * (1.0 - self._beta2)

    def denominator(self, step: int) -> Rounded:
        """The root of the corrected, debiased and floored estimate, plus ϵ, [d']."""
        setting, moment = self._setting, "second_moment"
        counted = self._shared and word(setting, moment, "counter") == "global"
        behind = step + setting.earlier_steps if counted else step
        source = self.coordinates
        if self._blocks and word(setting, moment, "denominator") == "block":
            source = self.means.at(setting.partition.of_coordinate)
        estimate = source / (1.0 - self._beta2**behind)
        options = setting.algorithm.get(moment)
        if isinstance(options, dict) and options.get("debias") is True:
            relative = option(setting, moment, "floor", "relative", default=-1.0)
            floor = relative * setting.noise_variance
            if relative < 0.0:
                floor = option(setting, moment, "floor", "absolute")
            estimate = (estimate - setting.noise_variance).at_least(floor)
        return estimate.root() + option(setting, "epsilon")

    def uploaded(self) -> Rounded:
        """What leaves the client: block means, or all of it."""
        return self.means if self._blocks else self.coordinates

    def _mean_square(self, square: Rounded) -> Rounded:
        sizes = self._setting.partition.sizes
        if not self._coupled:
            means = self._released.last_square_sums() / sizes
            return Rounded(means, ROUNDING * means + UNDERFLOW)
        index = self._setting.partition.of_coordinate
        count = len(sizes)
        return Rounded(
            np.bincount(index, weights=square.value, minlength=count) / sizes,
            np.bincount(index, weights=square.bound, minlength=count) / sizes,
        )


def start_moments(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
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


def average_moments(setting: Conditions, before: ServerValues, uploads: Uploads) -> ServerValues:
    """Averages of update and moments, and Δ_G = −mean/(K·η)."""
    update = mean_upload(uploads)
    names = [name for name in before.state if name != GLOBAL_UPDATE]
    state = {name: mean_upload(uploads, name) for name in names}
    if GLOBAL_UPDATE in before.state:
        state[GLOBAL_UPDATE] = update / -(setting.learning_rate * setting.steps)
    return ServerValues(moved(setting, before, update), state)


_SHARED_MOMENTS = Replay(adamw, start_moments, average_moments)


REPLAYS = {
    "dp-fedadamw": _SHARED_MOMENTS,
    "dp-localadamw": _SHARED_MOMENTS,
}
