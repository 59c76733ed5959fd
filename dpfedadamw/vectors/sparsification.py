"""Public coordinates are functions of public values alone; private ones are noised in full.

Clients may drop most of an update before it is clipped. Which coordinates they keep must not tell
anything that no noise covers, so there are two ways and no third:

* public coordinates ("random", "released-top"): one choice a round, the same for every client, a
  function of the spec, the round and earlier releases alone. Anyone who has these can repeat it, as
  the auditor does, and noise is needed on the kept coordinates only.
* private coordinates ("local-top"): each client keeps its own largest. That choice is a function of
  its records, so noise must cover every coordinate of the sum; `privacy.updates` proves both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Under which the coordinates of the next round travel and are checkpointed.
KEPT = "kept_coordinates"
_DOMAIN = b"dpfedadamw public coordinates 1\x00"


@dataclass(frozen=True)
class Sparsification:
    """How a round's updates are made sparse.

    Attributes:
        kind: "random", "released-top" or "local-top".
        size: d, coordinates of an update.
        kept: k, coordinates that survive, in 1 … d.
        seed: The public seed of the draws: that of the spec's section data.
    """

    kind: str
    size: int
    kept: int
    seed: int

    @property
    def public(self) -> bool:
        """Whether every client keeps the same coordinates, and which is known to all."""
        return self.kind != "local-top"

    @property
    def scale(self) -> float:
        """By what a kept coordinate is multiplied before clipping.

        d/k where the coordinates are drawn at random, which makes the sparse update unbiased
        (Fed-SMP); 1 where the largest are kept, which is biased in any case.
        """
        return self.size / self.kept if self.kind == "random" else 1.0

    @property
    def released(self) -> int:
        """Coordinates of the sum that are released, each with noise."""
        return self.kept if self.public else self.size

    def draw(self, round_index: int) -> NDArray[np.int64]:
        """The coordinates of a round that rest on no release, ascending, int64 [k]."""
        return _smallest(_tickets(self.seed, round_index, self.size), self.kept)

    def renew(
        self, round_index: int, previous: NDArray[np.int64], released: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """The coordinates of a round after a release: half of them stay, half are redrawn.

        A release is zero off its coordinates, so the top k of the last release alone would be the
        same k for ever. Here the ⌊k/2⌋ coordinates that moved most stay, and the rest are drawn
        from all others.

        Args:
            round_index: t of the round that is chosen for, from 1.
            previous: Coordinates of the round before, ascending, [k].
            released: What was released at them, noise included, float32 [k].

        Returns:
            Ascending, int64 [k].
        """
        order = np.argsort(-np.abs(released), kind="stable")
        stay = previous[order[: self.kept // 2]]
        tickets = _tickets(self.seed, round_index, self.size)
        others = np.setdiff1d(np.arange(self.size, dtype=np.int64), stay, assume_unique=True)
        drawn = others[_smallest(tickets[others], self.kept - len(stay))]
        return np.sort(np.concatenate([stay, drawn]))


def sparsification(kind: str, fraction: float, size: int, seed: int) -> Sparsification:
    """Keep a fraction of d coordinates, rounded to a whole number and at least one.

    Args:
        kind: As in :class:`Sparsification`.
        fraction: p in (0, 1]; 1 keeps all.
        size: d.
        seed: Public.
    """
    return Sparsification(kind, size, max(1, round(fraction * size)), seed)


def _tickets(seed: int, round_index: int, size: int) -> NDArray[np.uint64]:
    """One 64-bit number a coordinate: the raw words of Philox, whose stream NumPy keeps fixed."""
    name = _DOMAIN + f"{seed} {round_index}".encode()
    key = int.from_bytes(hashlib.sha256(name).digest()[:16], "little")
    tickets: NDArray[np.uint64] = np.random.Philox(key=key).random_raw(size)
    return tickets


def _smallest(tickets: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """Positions of the smallest numbers, ascending; the lower position wins a tie."""
    limit = np.partition(tickets, count - 1)[count - 1]
    certain = np.flatnonzero(tickets < limit)
    tied = np.flatnonzero(tickets == limit)[: count - len(certain)]
    return np.sort(np.concatenate([certain, tied])).astype(np.int64)
