"""One digest stands for many pieces, and each can be shown to belong to it: a Merkle tree.

Source: RFC 9162, section 2.1. `audit.untrusted.merkle` follows paths, for the auditor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 32
# A leaf is hashed behind another byte than a node, so that neither can pose as the other.
LEAF, NODE = b"\x00", b"\x01"


class MerkleTree:
    """The tree over digests of leaves.

    Args:
        leaves: The sha256 of each piece behind `LEAF`, joined; one at least.
    """

    def __init__(self, leaves: bytes) -> None:
        self._levels = [leaves]
        while len(self._levels[-1]) > DIGEST_BYTES:
            self._levels.append(_above(self._levels[-1]))

    @property
    def root(self) -> bytes:
        """The one digest, 32 bytes."""
        return self._levels[-1]

    def path(self, place: int) -> bytes:
        """The digests that lead from leaf ``place`` (from 0) to the root, lowest first, joined."""
        return self.paths([place])

    def paths(self, places: Sequence[int] | NDArray[np.int64]) -> bytes:
        """The paths of several leaves, one behind the other."""
        at = np.asarray(places, dtype=np.int64)
        found = np.zeros((len(at), len(self._levels) - 1, DIGEST_BYTES), np.uint8)
        there = np.zeros(found.shape[:2], np.bool_)
        for height, level in enumerate(self._levels[:-1]):
            digests = np.frombuffer(level, np.uint8).reshape(-1, DIGEST_BYTES)
            beside = (at >> height) ^ 1
            # The last of an odd number stands for itself on the level above.
            there[:, height] = beside < len(digests)
            known = there[:, height]
            found[known, height] = digests[beside[known]]
        return found[there].tobytes()


def _above(level: bytes) -> bytes:
    pair = 2 * DIGEST_BYTES
    whole = len(level) // pair * pair
    sha256 = hashlib.sha256
    nodes = [sha256(NODE + level[at : at + pair]).digest() for at in range(0, whole, pair)]
    return b"".join(nodes) + level[whole:]
