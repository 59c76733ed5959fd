"""Which coordinates of a round's sum are public choices, found again from public values.

At client level updates may be cut to k of d coordinates. Where the choice is public, it follows
from the spec's seed, the round and, for some kinds, what the round before released; this module
repeats it. Where each client chooses its own, there is nothing public to repeat: noise must then
cover every coordinate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.untrusted import fields
from audit.untrusted.arrays import Floats, Integers
from audit.untrusted.fields import FieldError

KINDS = ("random", "released-top", "local-top")
# Under which name a broadcast carries public coordinates that follow from releases.
BROADCAST_NAME = "kept_coordinates"
DIGEST_BYTES = 32
# Beyond this, finding the coordinates again would take more memory than an auditor may have.
MOST_COORDINATES = 1 << 28
_DOMAIN = b"dpfedadamw public coordinates 1\x00"


@dataclass(frozen=True)
class Sparsification:
    """What a ledger's header says of sparse updates.

    Attributes:
        kind: one of KINDS.
        size: d, coordinates of an update.
        kept: k of them survive.
        seed: public seed of the choices.
    """

    kind: str
    size: int
    kept: int
    seed: int

    @property
    def public(self) -> bool:
        """Whether the same k coordinates hold for all clients, and anyone can find them."""
        return self.kind != "local-top"


def read_sparsification(source: Mapping[str, Any]) -> Sparsification:
    """The header's section as a Sparsification."""
    size = fields.integer(source, "size", least=1, most=10**11)
    return Sparsification(
        fields.choice(source, "kind", KINDS),
        size,
        fields.integer(source, "kept", least=1, most=size),
        fields.integer(source, "seed", least=-(2**63), most=2**63),
    )


def promised(spec: Mapping[str, Any], size: int) -> Sparsification | None:
    """What a spec says of sparse updates, for d coordinates; None where it keeps them whole.

    Raises:
        FieldError: a field is missing or has a wrong type or range.
    """
    algorithm = fields.mapping(spec, "algorithm")
    if algorithm.get("sparsification") is None:
        return None
    section = fields.mapping(algorithm, "sparsification")
    fraction = fields.positive(section, "fraction", most=1.0)
    seed = fields.integer(fields.mapping(spec, "data"), "seed", least=-(2**63), most=2**63)
    kind = fields.choice(section, "kind", KINDS)
    return Sparsification(kind, size, max(1, round(fraction * size)), seed)


def public_choices(
    sparsification: Sparsification, releases: Iterator[Floats | None]
) -> Iterator[Integers]:
    """The public coordinates of every round, ascending, one array [k] a round.

    Args:
        sparsification: of a public kind.
        releases: what each round released at its coordinates, [k]; read only as far as needed.

    Raises:
        FieldError: a release that the next choice rests on is missing.
    """
    before: Integers | None = None
    last: Floats | None = None
    for index, released in enumerate(releases):
        draws = _draws(sparsification, index)
        if before is None or sparsification.kind == "random":
            chosen = _lowest(draws, np.arange(sparsification.size), sparsification.kept)
        else:
            if last is None:
                raise FieldError("released is missing")
            # Half stay by how far they moved; equal moves are decided by the lower coordinate.
            ranks = np.lexsort((before, -np.abs(last.astype(np.float32))))
            stay = before[ranks[: sparsification.kept // 2]]
            free = np.ones(sparsification.size, dtype=bool)
            free[stay] = False
            drawn = _lowest(draws, np.flatnonzero(free), sparsification.kept - len(stay))
            chosen = np.sort(np.concatenate([stay, drawn]))
        yield chosen
        if released is not None and len(released) != sparsification.kept:
            raise FieldError("released does not have one value for each kept coordinate")
        before, last = chosen, released


def digest(coordinates: Integers) -> bytes:
    """SHA-256 of coordinates, each as eight bytes, lowest first."""
    return hashlib.sha256(coordinates.astype("<i8").tobytes()).digest()


def kept_by_block(coordinates: Integers, sizes: Integers) -> Integers:
    """How many coordinates lie in each of consecutive blocks, [B]."""
    ends = np.cumsum(sizes)
    return np.bincount(
        np.searchsorted(ends, coordinates, side="right"), minlength=len(sizes)
    ).astype(np.int64)


def _draws(sparsification: Sparsification, index: int) -> NDArray[np.uint64]:
    """One raw word of Philox for each coordinate, keyed by seed and round."""
    name = _DOMAIN + f"{sparsification.seed} {index}".encode()
    key = int.from_bytes(hashlib.sha256(name).digest()[:16], "little")
    words: NDArray[np.uint64] = np.random.Philox(key=key).random_raw(sparsification.size)
    return words


def _lowest(draws: NDArray[np.uint64], among: Integers, count: int) -> Integers:
    """The coordinates with the lowest draws, ascending."""
    order = np.argsort(draws[among], kind="stable")
    return np.sort(among[order[:count]])
