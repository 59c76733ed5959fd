"""Draws the participations that are computed again, and says what a liar's chances are.

The draw is made after the run is over, from bits that the trainer could not know while it trained:
the auditor's own, or the second nonce of a challenge. It is a function of these bits and of the
ledger alone, so that anybody who has both can repeat it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

_DOMAIN = b"dpfedadamw drawn participations 1\x00"
SEED_BYTES = 32

Item = TypeVar("Item")


def draw(items: Sequence[Item], count: int, seed: bytes) -> tuple[Item, ...]:
    """Draw without replacement, every ordered choice equally likely.

    Args:
        items: What there is, in an order that everybody agrees on.
        count: How many; all of them where there are fewer.
        seed: 32 bytes that nobody could know while the items were made.

    Returns:
        Those drawn, in the order in which they were drawn.
    """
    left = list(items)
    words = _words(seed)
    for place in range(min(count, len(left))):
        other = place + _below(len(left) - place, words)
        left[place], left[other] = left[other], left[place]
    return tuple(left[: min(count, len(left))])


def escape_probability(participations: int, falsified: int, drawn: int) -> float:
    """The chance that none of the falsified participations is drawn (hypergeometric).

    Args:
        participations: M.
        falsified: How many of them are false, in 0 … M.
        drawn: N.
    """
    honest, drawn = participations - falsified, min(drawn, participations)
    if drawn > honest:
        return 0.0
    # C(honest, drawn) / C(M, drawn), as a product of N factors, each at most 1.
    return math.prod((honest - place) / (participations - place) for place in range(drawn))


def participations_needed(participations: int, falsified: int, chance: float) -> int:
    """The fewest to draw so that falsified ones escape with at most this chance."""
    for drawn in range(participations + 1):
        if escape_probability(participations, falsified, drawn) <= chance:
            return drawn
    return participations


def _words(seed: bytes) -> Iterator[int]:
    """Numbers of 64 bits, without end."""
    number = 0
    while True:
        block = hashlib.sha256(_DOMAIN + seed + number.to_bytes(8, "big")).digest()
        for start in range(0, len(block), 8):
            yield int.from_bytes(block[start : start + 8], "big")
        number += 1


def _below(bound: int, words: Iterator[int]) -> int:
    """A number in 0 … bound − 1, exactly uniform: what would favour small ones is thrown away."""
    limit = 2**64 - 2**64 % bound
    return next(word for word in words if word < limit) % bound
