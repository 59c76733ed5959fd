"""The heavy ball once more, in NumPy, for the auditor. It needs neither torch nor the engine."""

from __future__ import annotations

import numpy as np

from audit.replay.base import UPDATE, Conditions, Produced, Released, Replay, option
from audit.replay.descent import descend
from audit.replay.rounding import Rounded, exact
from audit.replay.servers import average, start_average


def heavy_ball(conditions: Conditions, released: Released) -> Produced:
    """Follow m ← μ·m + g̃."""
    momentum = option(conditions, "momentum")
    direction = exact(np.zeros(len(released.parameters)))

    def heavier(point: Rounded) -> Rounded:
        nonlocal direction
        direction = direction * momentum + exact(released.ask(point))
        return direction

    return Produced({UPDATE: descend(conditions, released, heavier)})


REPLAY = Replay(heavy_ball, start_average, average)
