"""Whether pieces belong to a digest that was taken over all of them: paths in a Merkle tree.

Source: RFC 9162, section 2.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

DIGEST_BYTES = 32


def leaf_digest(content: bytes | memoryview) -> bytes:
    """What stands for a piece at the bottom of the tree."""
    digest = hashlib.sha256(b"\x00")
    digest.update(content)
    return digest.digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root over the digests of all leaves, one at least."""
    level = list(leaves)
    while len(level) > 1:
        above = [_node(*level[start : start + 2]) for start in range(0, len(level) - 1, 2)]
        level = above + level[len(level) - len(level) % 2 :]
    return level[0]


def path_length(place: int, leaves: int) -> int:
    """How many digests lead from leaf `place` of so many to the root."""
    length, last = 0, leaves - 1
    while last:
        length += place % 2 or place != last
        place, last = place // 2, last // 2
    return length


def root_above(leaf: bytes, place: int, leaves: int, path: Sequence[bytes]) -> bytes:
    """The root that a leaf's digest and its path, of the right length, lead to."""
    digest, last, siblings = leaf, leaves - 1, iter(path)
    while last:
        if place % 2:
            digest = _node(next(siblings), digest)
        elif place != last:
            digest = _node(digest, next(siblings))
        place, last = place // 2, last // 2
    return digest


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
