"""Random sources: the two declared modes of a run, and the keys of its streams.

`ReleaseRandomness` takes 256 bits from the operating system and expands them by AES-256 in counter
mode; nobody who lacks the key can predict a bit. `ReproducibleRandomness` expands a published seed
in the same way, so that a run can be repeated, and is a privacy guarantee to nobody who knows the
seed. Both hand out one independent `Stream` for each (purpose, round, client, attempt), each under
a key of its own, so that no two streams overlap and nothing depends on the order in which clients
are run.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from pathlib import Path
from typing import Protocol

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise.streams import Stream

__all__ = ["RandomSource", "ReleaseRandomness", "ReproducibleRandomness", "Stream"]

_KEY_BYTES = 32


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

    def stream(self, purpose: str, round: int, client: int, attempt: int = 1) -> Stream:
        """Open the stream of one purpose, round, client and attempt."""
        ...


class ReleaseRandomness:
    """Streams from a secret 256-bit key: the mode for models that leave the house."""

    mode = "release"

    def __init__(self, key: bytes | None = None) -> None:
        """Take a key, or draw one from the operating system.

        Args:
            key: 32 secret bytes (from an escrow file); None draws fresh ones.

        Raises:
            PrivacyError: if the key does not have 32 bytes.
        """
        key = os.urandom(_KEY_BYTES) if key is None else key
        if len(key) != _KEY_BYTES:
            raise PrivacyError(f"a release key has {_KEY_BYTES} bytes, not {len(key)}")
        self._key = bytes(key)
        # One bit a client: a run opens streams by the ten thousand, and remembers all of them.
        self._opened: dict[tuple[str, int, int], int] = {}
        self._opening = threading.Lock()

    @classmethod
    def from_escrow(cls, path: str | Path) -> ReleaseRandomness:
        """Read a key that `write_escrow` wrote, to replay a run's noise.

        Raises:
            PrivacyError: if the file cannot be read or does not hold a key.
        """
        try:
            key = bytes.fromhex(Path(path).read_text(encoding="ascii").strip())
        except (OSError, ValueError) as error:
            raise PrivacyError(f"{path} is not a readable key escrow of 64 hex digits") from error
        return cls(key)

    def __repr__(self) -> str:
        """Show the commitment, and never the key."""
        return f"ReleaseRandomness(commitment={self.commitment!r})"

    @property
    def commitment(self) -> str:
        """The sha256 hex digest of the key behind a domain separator."""
        return hashlib.sha256(b"dpfedadamw release key commitment 1\x00" + self._key).hexdigest()

    def stream(self, purpose: str, round: int, client: int, attempt: int = 1) -> Stream:
        """Open a stream that was not opened before.

        Args:
            purpose: what the bits are for, such as "noise" or "sampling".
            round: the round, from 0; -1 where no round is meant.
            client: the client, from 0; -1 for the server.
            attempt: 1, and one more each time a round is run again after a crash.

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
        return Stream(_stream_key(self._key, purpose, round, client, attempt))

    def write_escrow(self, path: str | Path) -> None:
        """Write the key as hex to a new file that only its owner can read.

        Whoever holds this file can subtract the noise of the whole run.

        Raises:
            PrivacyError: if the file exists already or cannot be created.
        """
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            reason = error.strerror or "it cannot be created"
            raise PrivacyError(f"cannot write the key escrow {path}: {reason}") from error
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(self._key.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())


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

    def stream(self, purpose: str, round: int, client: int, attempt: int = 1) -> Stream:
        """Open a stream; opening it again gives the same numbers.

        Args:
            purpose: what the bits are for.
            round: the round, from 0; -1 where no round is meant.
            client: the client, from 0; -1 for the server.
            attempt: ignored, so that a round run again replays the identical noise on the
                identical batch and the resumed run equals one that was never interrupted.
        """
        del attempt
        return Stream(_stream_key(self._root, purpose, round, client, 1))


def _stream_key(root: bytes, purpose: str, round: int, client: int, attempt: int) -> bytes:
    name = purpose.encode("utf-8")
    parts = [len(name).to_bytes(4, "big"), name]
    parts += [value.to_bytes(8, "big", signed=True) for value in (round, client, attempt)]
    return hmac.new(root, b"dpfedadamw stream 1\x00" + b"".join(parts), hashlib.sha256).digest()
