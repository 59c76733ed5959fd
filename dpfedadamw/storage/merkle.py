"""One digest over many pieces, any of which can be shown to belong to it: a Merkle tree.

Source: RFC 9162, section 2.1. `audit.untrusted.merkle` follows paths, for the auditor.
"""

from __future__ import annotations

import hashlib

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
        found = []
        for level in self._levels[:-1]:
            beside = (place ^ 1) * DIGEST_BYTES
            # The last of an odd number stands for itself on the level above.
            found.append(level[beside : beside + DIGEST_BYTES])
            place //= 2
        return b"".join(found)


def _above(level: bytes) -> bytes:
    pair = 2 * DIGEST_BYTES
    return b"".join(
        hashlib.sha256(NODE + level[start : start + pair]).digest()
        if start + pair <= len(level)
        else level[start:]
        for start in range(0, len(level), pair)
    )
