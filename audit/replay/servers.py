"""How a server combines uploads, replayed: the plain average, and what more than one rule needs.

A server with its own rule is placed with the local rule that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from audit.replay.base import UPDATE, Conditions, ServerValues, server_rate
from audit.replay.rounding import Rounded, mean_of
from audit.untrusted.archives import Floats

Uploads = Sequence[Mapping[str, Rounded]]


def mean_upload(uploads: Uploads, name: str = UPDATE) -> Rounded:
    """The mean of one uploaded tensor, each client weighing the same."""
    return mean_of([upload[name] for upload in uploads])


def start_average(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
    """No state at all."""
    del setting, parameters
    return {}


def average(setting: Conditions, before: ServerValues, uploads: Uploads) -> ServerValues:
    """θ ← θ + η_s·mean of the updates."""
    return ServerValues(moved(setting, before, mean_upload(uploads)))


def moved(setting: Conditions, before: ServerValues, update: Rounded) -> Rounded:
    """θ + η_s·update."""
    rate = server_rate(setting.algorithm)
    return before.parameters + (update if rate == 1.0 else update * rate)
