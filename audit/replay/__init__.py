"""Every algorithm once more, in NumPy and from the papers, to work out what a client must upload.

One file a family, each of which registers its algorithms; `registration` says how, and how another
package brings one. Until an algorithm has a replay the check "uploads" says so.
"""

from __future__ import annotations

from audit.replay.base import Replay
from audit.replay.registration import (
    Found,
    find_applied_mean,
    find_replay,
    own_algorithms,
    register,
    register_applied_mean,
)

__all__ = [
    "Found",
    "Replay",
    "find_applied_mean",
    "find_replay",
    "own_algorithms",
    "register",
    "register_applied_mean",
]
