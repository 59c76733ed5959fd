"""Each purpose, round, client and attempt has a stream of its own; no two overlap.

`ReleaseRandomness` takes 256 bits from the operating system and expands them by AES-256 in counter
mode; nobody who lacks the key can predict a bit. `ReproducibleRandomness` expands a published seed
in the same way, so that a run can be repeated, and is a privacy guarantee to nobody who knows the
seed. Both hand out one independent `Stream` for each (purpose, round, client, attempt), each under
a key of its own, so that no two streams overlap and nothing depends on the order in which clients
are run.

In release mode every round and client has a leaf key (`key_tree`), and streams follow from it, from
the auditor's nonce and from what the ledger was charged before. `OpenedRandomness` gives the same
streams to a reader who was shown some leaf keys but not the key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise.key_tree import (
    KEY_BYTES,
    NO_COIN,
    NO_HISTORY,
    KeyTree,
    PublicCoin,
    data_salt,
    key_commitment,
    leaf_key,
    stream_key,
)
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, write_atomically
from dpfedadamw.storage.foreign import read_chosen

# A key has a line of 65; each resume with another adds one.
_MOST_ESCROW_BYTES = 1 << 16

__all__ = [
    "OpenedRandomness",
    "RandomSource",
    "ReleaseRandomness",
    "ReproducibleRandomness",
    "Stream",
]


class RandomSource(Protocol):
    """What the rest of the engine knows of randomness: named streams and a commitment."""

    @property
    def mode(self) -> str:
        """`release` or `reproducible`."""
        ...

    @property
    def commitment(self) -> str | None:
        """The key's commitment as sha256 hex, or None where there is no secret."""
        ...

    def stream(
        self,
        purpose: str,
        round: int,
        client: int,
        attempt: int = 1,
        history: bytes = NO_HISTORY,
    ) -> Stream:
        """Open the stream of one purpose, round, client and attempt, under a ledger's history."""
        ...


class ReleaseRandomness:
    """Streams from a secret 256-bit key: the mode for models that leave the house."""

    mode = "release"

    def __init__(self, key: bytes | None = None, coin: PublicCoin = NO_COIN) -> None:
        """Take a key, or draw one from the operating system.

        Args:
            key: 32 secret bytes (from an escrow file); None draws fresh ones.
            coin: What an auditor's nonce binds the streams to, if there is one.

        Raises:
            PrivacyError: if the key does not have 32 bytes.
        """
        key = os.urandom(KEY_BYTES) if key is None else key
        if len(key) != KEY_BYTES:
            raise PrivacyError(f"a release key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = bytes(key)
        self.coin = coin
        # One bit a client: a run opens streams by the ten thousand, and remembers all of them.
        self._opened: dict[tuple[str, int, int], int] = {}
        self._opening = threading.Lock()

    @classmethod
    def from_escrow(cls, path: str | Path, coin: PublicCoin = NO_COIN) -> ReleaseRandomness:
        """Read the one key that `write_escrow` wrote.

        Raises:
            PrivacyError: if the file cannot be read or does not hold one key.
        """
        keys = cls.all_from_escrow(path, coin)
        if len(keys) > 1:
            raise PrivacyError(
                f"{path} holds {len(keys)} keys, from a run that was interrupted and resumed "
                "without an auditor's challenge; exactly one key is needed here"
            )
        return keys[0]

    @classmethod
    def all_from_escrow(
        cls, path: str | Path, coin: PublicCoin = NO_COIN
    ) -> list[ReleaseRandomness]:
        """Read all keys of an escrow file, the run's first one first; at least one.

        Raises:
            PrivacyError: if the file cannot be read or does not hold keys.
        """
        try:
            lines = read_chosen(Path(path), _MOST_ESCROW_BYTES).decode("ascii").split()
            return [cls(bytes.fromhex(line), coin) for line in lines or [""]]
        except (OSError, ValueError, PrivacyError) as error:
            raise PrivacyError(
                f"{path} is not a readable key escrow with 64 hex digits per line"
            ) from error

    def __repr__(self) -> str:
        """Show the commitment, and never the key."""
        return f"ReleaseRandomness(commitment={self.commitment!r})"

    @property
    def commitment(self) -> str:
        """The sha256 hex digest of the key behind a domain separator."""
        return key_commitment(self._key)

    def tree(self, rounds: int, clients: int) -> KeyTree:
        """The tree over the leaf keys of all rounds and clients.

        Raises:
            PrivacyError: if it would be too large.
        """
        return KeyTree(self._key, rounds, clients)

    def data_salt(self, client: int) -> bytes:
        """What hides a client's data in the commitment to them."""
        return data_salt(self._key, client)

    def leaf(self, round: int, client: int) -> bytes:
        """The key that opens the streams of one round and client, and no others; -1: the server."""
        return leaf_key(self._key, round, client)

    def stream(
        self,
        purpose: str,
        round: int,
        client: int,
        attempt: int = 1,
        history: bytes = NO_HISTORY,
    ) -> Stream:
        """Open a stream that was not opened before.

        Args:
            purpose: what the bits are for, such as "noise" or "sampling".
            round: the round, from 0; -1 where no round is meant.
            client: the client, from 0; -1 for the server.
            attempt: 1, and one more each time a round is run again after a crash.
            history: digest of what the ledger was charged (`Ledger.history`), 32 bytes.

        Raises:
            PrivacyError: if this stream was opened before in this process: the same noise on two
                different sums would reveal their difference.
        """
        name, mine = (purpose, round, attempt), 1 << (client + 1)
        # One step, so that two threads cannot both find the stream unused.
        with self._opening:
            before = self._opened.get(name, 0)
            self._opened[name] = before | mine
        if before & mine:
            raise PrivacyError(
                f"the stream '{purpose}' of round {round}, client {client}, attempt {attempt} was "
                "already used; a repeated round needs the next attempt number"
            )
        leaf = self.leaf(round, client)
        return Stream(stream_key(leaf, self.coin, purpose, round, client, attempt, history))

    def write_escrow(self, path: str | Path) -> None:
        """Write the key as hex to a new file that only its owner can read, and wait for the disk.

        Anyone who holds this file can subtract the noise of the whole run.

        Raises:
            PrivacyError: if the file exists already or cannot be created.
        """
        path = Path(path)
        try:
            file = DISK.create(path, PRIVATE_MODE)
            try:
                DISK.write(file, self._key.hex().encode() + b"\n")
                DISK.sync(file)
            except BaseException:
                # Half a key is none.
                DISK.remove(path)
                raise
            finally:
                DISK.close(file)
            DISK.sync_folder(path.parent)
        except OSError as error:
            reason = error.strerror or "it cannot be created"
            raise PrivacyError(f"cannot write the key escrow {path}: {reason}") from error

    def add_to_escrow(self, path: str | Path, known: Collection[str]) -> None:
        """Add the key to the run's escrow file, as its last line, and wait for the disk.

        A file that is not there yet is made; then it lacks what the run used before.

        Args:
            path: The file.
            known: Commitments of the keys that the run used before.

        Raises:
            PrivacyError: if the file cannot be read or written, or holds keys of another run.
        """
        if not DISK.exists(Path(path)):
            self.write_escrow(path)
            return
        before = self.all_from_escrow(path)
        if not any(key.commitment in known for key in before):
            raise PrivacyError(
                f"{path} holds no key of this run; give the file that `run --escrow` wrote for it, "
                "or the name of a new file"
            )
        lines = "".join(f"{key._key.hex()}\n" for key in (*before, self))
        try:
            # Behind a link lies the file that others read.
            write_atomically(Path(path).resolve(), lines.encode(), PRIVATE_MODE)
        except OSError as error:
            reason = error.strerror or "it cannot be written"
            raise PrivacyError(f"cannot write the key escrow {path}: {reason}") from error


class OpenedRandomness:
    """The streams of a release run whose leaf keys are open, for a replay.

    Args:
        leaf: The leaf key of a round and client, 32 bytes, None where it is not open; client -1 is
            the server.
        coin: Nonce and identifier of the run.
    """

    mode = "release"
    commitment: str | None = None

    def __init__(self, leaf: Callable[[int, int], bytes | None], coin: PublicCoin) -> None:
        self._leaf = leaf
        self.coin = coin

    def stream(
        self,
        purpose: str,
        round: int,
        client: int,
        attempt: int = 1,
        history: bytes = NO_HISTORY,
    ) -> Stream:
        """Open a stream, as often as one likes: nothing new is released by a replay.

        Args:
            purpose: what the bits are for.
            round: the round, from 0.
            client: the client, from 0; -1 for the server.
            attempt: the attempt that the ledger charged.
            history: digest of what the ledger was charged when the stream was first opened.

        Raises:
            PrivacyError: if the leaf key of this round and client was not opened.
        """
        leaf = self._leaf(round, client)
        if leaf is None:
            raise PrivacyError(f"the key of round {round}, client {client} was not opened")
        return Stream(stream_key(leaf, self.coin, purpose, round, client, attempt, history))


class ReproducibleRandomness:
    """Streams from a published seed: for research and tests, never for a release."""

    mode = "reproducible"
    commitment: str | None = None

    def __init__(self, seed: int) -> None:
        """Take the seed, any integer."""
        self.seed = seed
        self._root = hashlib.sha256(b"dpfedadamw reproducible seed 1\x00%d" % seed).digest()

    def __repr__(self) -> str:
        """Show the seed, which is public."""
        return f"ReproducibleRandomness(seed={self.seed})"

    def stream(
        self,
        purpose: str,
        round: int,
        client: int,
        attempt: int = 1,
        history: bytes = NO_HISTORY,
    ) -> Stream:
        """Open a stream; opening it again gives the same numbers.

        Args:
            purpose: what the bits are for.
            round: the round, from 0; -1 where no round is meant.
            client: the client, from 0; -1 for the server.
            attempt: ignored, so that a round run again replays the identical noise on the
                identical batch and the resumed run equals one that was never interrupted.
            history: ignored for the same reason.
        """
        del attempt, history
        return Stream(_stream_key(self._root, purpose, round, client, 1))


def _stream_key(root: bytes, purpose: str, round: int, client: int, attempt: int) -> bytes:
    name = purpose.encode("utf-8")
    parts = [len(name).to_bytes(4, "big"), name]
    parts += [value.to_bytes(8, "big", signed=True) for value in (round, client, attempt)]
    return hmac.new(root, b"dpfedadamw stream 1\x00" + b"".join(parts), hashlib.sha256).digest()
