"""The keys that an auditor holds, and what can be computed again with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dpfedadamw.privacy.noise.key_tree import NO_COIN, PublicCoin
from dpfedadamw.privacy.noise.randomness import (
    OpenedRandomness,
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.reexecution.results import ReexecutionError


class Keys(Protocol):
    """Gives the streams of a run.

    Attributes:
        whole: Whether every stream of a round is there, so that it can be run again as a whole.
    """

    @property
    def whole(self) -> bool:
        """Whether every stream of a round is there."""
        ...

    def source(self, commitment: str | None) -> RandomSource:
        """Streams of which none was opened yet.

        Args:
            commitment: That the ledger names for the round; None in reproducible mode.

        Raises:
            ReexecutionError: If there is no such key.
        """
        ...


class EscrowedKeys:
    """Keys from escrow files: of a run that was cut off, one for each time it was taken up.

    Args:
        files: Written by ``run --escrow`` or ``challenge intent --escrow``.
        coin: What an auditor's nonce binds the streams to, if there is one.

    Raises:
        PrivacyError: If a file cannot be read, or holds no key.
    """

    whole = True

    def __init__(self, files: Sequence[Path], coin: PublicCoin = NO_COIN) -> None:
        self._files = {ReleaseRandomness.from_escrow(path).commitment: path for path in files}
        self._coin = coin

    def source(self, commitment: str | None) -> RandomSource:
        """Streams of the key with this commitment."""
        path = self._files.get(commitment or "")
        if path is None:
            raise ReexecutionError(
                "the escrow holds no key with the commitment that the ledger names; give the file "
                "that `run --escrow` wrote for this run"
            )
        return ReleaseRandomness.from_escrow(path, self._coin)


class OpenedKeys:
    """Leaf keys that a trainer opened for a draw: of single participations, and no whole round.

    Args:
        leaves: 32 bytes each, by round and client; client -1 is the server.
        coin: What the streams are bound to.
    """

    whole = False

    def __init__(self, leaves: Mapping[tuple[int, int], bytes], coin: PublicCoin) -> None:
        self._leaves, self._coin = dict(leaves), coin

    def source(self, commitment: str | None) -> RandomSource:
        """Streams of what was opened, whose commitments whoever read them has checked."""
        del commitment
        return OpenedRandomness(self._leaves, self._coin)


class PublishedSeed:
    """The seed of a reproducible run, which its spec names.

    Args:
        seed: It.
    """

    whole = True

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def source(self, commitment: str | None) -> RandomSource:
        """Streams of the seed."""
        del commitment
        return ReproducibleRandomness(self._seed)
