"""The keys that an auditor holds, and what can be computed again with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfedadamw.privacy.noise.key_tree import NO_COIN, PublicCoin
from dpfedadamw.privacy.noise.randomness import (
    OpenedRandomness,
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.reexecution.results import ReexecutionError


@dataclass(frozen=True)
class Keys:
    """Gives the streams of a run, as often as they are asked for.

    Attributes:
        source: The streams of the key with a commitment, None in reproducible mode; raises
            ReexecutionError where there is no such key.
        opened: Round and client of the leaf keys that are there, client -1 being the server; None
            where the keys open everything.
    """

    source: Callable[[str | None], RandomSource]
    opened: frozenset[tuple[int, int]] | None = None

    def open(self, round: int, clients: Iterable[int]) -> bool:
        """Whether the streams of all these clients in a round are there."""
        return self.opened is None or self.opened.issuperset((round, one) for one in clients)


def escrowed(files: Sequence[Path], coin: PublicCoin = NO_COIN) -> Keys:
    """Keys from escrow: of a run that was cut off, one for each time that it was taken up.

    Args:
        files: Written by ``run --escrow`` or ``challenge intent --escrow``.
        coin: What an auditor's nonce binds the streams to, if there is one.

    Raises:
        PrivacyError: If a file cannot be read, or holds no key.
    """
    every = [key for path in files for key in ReleaseRandomness.all_from_escrow(path, coin)]
    known = {key.commitment: key for key in every}

    def source(commitment: str | None) -> RandomSource:
        key = known.get(commitment or "")
        if key is None:
            raise ReexecutionError(
                "the escrow holds no key with the commitment that the ledger names; give the file "
                "that `run --escrow` wrote for this run. A run that was cut off draws another key "
                "when it goes on, which `run --resume RUN_DIR --escrow FILE` adds to the file"
            )
        return OpenedRandomness(key.leaf, key.coin)

    return Keys(source)


def opened(leaves: Mapping[tuple[int, int], bytes], coin: PublicCoin) -> Keys:
    """Leaf keys that a trainer opened for a draw, whose commitments whoever read them has checked.

    Args:
        leaves: 32 bytes each, by round and client; client -1 is the server.
        coin: What the streams are bound to.
    """
    source = OpenedRandomness(lambda round, client: leaves.get((round, client)), coin)
    return Keys(lambda _: source, frozenset(leaves))


def published(seed: int) -> Keys:
    """The seed of a reproducible run, which its spec names."""
    return Keys(lambda _: ReproducibleRandomness(seed))


def held(key: RandomSource) -> Keys:
    """The key that this process has trained with.

    Args:
        key: Where the run's streams came from.
    """
    if isinstance(key, ReproducibleRandomness):
        return published(key.seed)

    def source(commitment: str | None) -> RandomSource:
        if not isinstance(key, ReleaseRandomness) or commitment != key.commitment:
            raise ReexecutionError(
                "the key of rounds before the run was cut off is gone; `run --escrow` keeps it"
            )
        return OpenedRandomness(key.leaf, key.coin)

    return Keys(source)
