"""The running average of the server's models, replayed: what is published where a spec says so.

θ̄_t = θ̄_{t−1} + (p + 1)/(t + p)·(θ_t − θ̄_{t−1}) (Shamir & Zhang 2013, section 4), in which t counts
the rounds that moved the model and p is the spec's `algorithm.server.averaging`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from audit.replay.base import Conditions, Replay, ServerValues
from audit.replay.rounding import Rounded
from audit.untrusted import fields
from audit.untrusted.arrays import Floats

AVERAGED_MODEL = "averaged_model"


def power_of(algorithm: Mapping[str, Any]) -> float | None:
    """The spec's power p; None where the last round's model is published.

    Raises:
        FieldError: it is no number of 0 or more.
    """
    server = algorithm.get("server")
    if not isinstance(server, Mapping) or server.get("averaging") is None:
        return None
    return fields.number(server, "averaging", least=0.0)


def with_average(replay: Replay, algorithm: Mapping[str, Any]) -> Replay:
    """The replay of an algorithm whose server also averages its models, where the spec says so."""
    power = power_of(algorithm)
    if power is None:
        return replay

    def start(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
        return {**replay.start(setting, parameters), AVERAGED_MODEL: parameters}

    def combine(
        setting: Conditions, before: ServerValues, uploads: Sequence[Mapping[str, Rounded]]
    ) -> ServerValues:
        state = dict(before.state)
        average = state.pop(AVERAGED_MODEL)
        after = replay.combine(setting, ServerValues(before.parameters, state), uploads)
        rounds = setting.earlier_steps // setting.steps + 1
        weight = (power + 1.0) / (rounds + power)
        moved = average + (after.parameters - average) * weight
        return ServerValues(after.parameters, {**after.state, AVERAGED_MODEL: moved})

    return Replay(replay.local, start, combine)


def published(after: ServerValues) -> Rounded:
    """The model that is published if no round follows, [d']."""
    return after.state.get(AVERAGED_MODEL, after.parameters)
