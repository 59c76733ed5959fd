"""How a server combines uploads, replayed: the plain average, and what more than one rule needs.

A server with a rule of its own stands beside the local rule that it goes with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from audit.replay.base import UPDATE, Conditions, ServerValues
from audit.replay.registration import register_applied_mean
from audit.replay.rounding import Rounded, mean_of
from audit.untrusted.arrays import Floats

Uploads = Sequence[Mapping[str, Rounded]]


def mean_upload(uploads: Uploads, name: str = UPDATE) -> Rounded:
    """The mean of one uploaded tensor, each client weighing the same."""
    return mean_of([upload[name] for upload in uploads])


def start_average(setting: Conditions, parameters: Floats) -> Mapping[str, Floats]:
    """No state at all."""
    del setting, parameters
    return {}


def average(setting: Conditions, before: ServerValues, uploads: Uploads) -> ServerValues:
    """θ ← θ + mean of the updates."""
    del setting
    return ServerValues(before.parameters + mean_upload(uploads))


# With clients protected a participant's steps are not noised and so not replayed; what leaves is
# the noised mean update, which these servers must apply as it is: θ ← θ + mean.
for _name in (
    "dp-fedavg",
    "dp-fedsam",
    "fed-smp",
    "dp-fedsam-randk",
    "dp-fedsam-topk",
    "blur",
    "blurs",
):
    register_applied_mean(_name)
