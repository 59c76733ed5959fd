"""Every algorithm once more, in NumPy and from the papers, to work out what a client must upload.

`REPLAYS` has one line a name. A new algorithm needs a local rule and a server rule here (most share
those of another) and its line; until then the check "uploads" says that it cannot judge it.
"""

from __future__ import annotations

from collections.abc import Mapping

from audit.replay import adamw, adaptive, descent, servers
from audit.replay import adaptive_schedules as watching
from audit.replay.base import Replay

_AVERAGED = (servers.start_average, servers.average)
_MOMENTS = (servers.start_moments, servers.average_moments)

# With records protected: local rule and server rule.
REPLAYS: Mapping[str, Replay] = {
    "dp-fedadamw": Replay(adamw.adamw, *_MOMENTS),
    "dp-localadamw": Replay(adamw.adamw, *_MOMENTS),
    "dp-fedavg": Replay(descent.gradient_descent, *_AVERAGED),
    "dp-scaffold": Replay(descent.scaffold, servers.start_controls, servers.move_controls),
    "dp-fedavg-ls": Replay(descent.smoothed, *_AVERAGED),
    "dp-fedsam": Replay(descent.sharpness_aware, *_AVERAGED),
    "dp-fedopt": Replay(descent.gradient_descent, servers.start_adaptive, servers.adapt),
    "dp-fafed": Replay(adaptive.variance_reduced, servers.start_reduced, servers.move_reduced),
    "dp-fedlada": Replay(adaptive.amended, servers.start_amended, servers.average_moments),
    "pe-dpfl": Replay(watching.proximal, *_AVERAGED),
    "adap-dpfl": Replay(watching.watched, watching.start_falls, watching.count_falls),
    "ali-dpfl": Replay(watching.secant, watching.start_convexity, watching.estimate_convexity),
}

# With clients protected a participant's steps are not noised and so not replayed; what leaves is
# the noised mean update, which the server must apply as it is: θ ← θ + mean.
APPLY_THE_MEAN = frozenset(
    {
        "dp-fedavg",
        "dp-fedsam",
        "fed-smp",
        "dp-fedsam-randk",
        "dp-fedsam-topk",
        "blur",
        "blurs",
    }
)

__all__ = ["APPLY_THE_MEAN", "REPLAYS", "Replay"]
