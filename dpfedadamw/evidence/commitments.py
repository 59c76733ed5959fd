"""What binds a trainer to one story of each participation, whether or not it is kept for replay.

A participation's commitment is a keyed digest of all that passed between its rule and its oracle:
the records of every batch, every point at which a gradient was asked for, and every noised gradient
that was handed out. Who computes the participation again, from data and key, must find the same
digest; who wrote another story into the evidence has another one.

The key is the run's salt, so that a digest reveals nothing about the records to anyone without the
key.

The digest is BLAKE3's in its keyed mode (O'Connor et al. 2020): it hashes all vectors of each step,
a hundred megabytes of a ResNet-18, in a quarter of the time of SHA-256. The ledger's header says so
(``commitments``); runs of versions that did not say it have HMAC-SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.errors import PrivacyError

BLAKE3, HMAC = "blake3", "hmac-sha256"
_DOMAIN = b"dpfedadamw participation 1\x00"
# Shorter contents are gathered to so many bytes: a hash of a quarter of a megabyte costs less than
# ten of a tenth of it, because it works on many parts side by side.
_GATHERED_BYTES = 2**18


Vector = Tensor | NDArray[np.float32]
"""A vector [d]: a tensor is copied, an array is taken as it is and not written to afterwards."""


class _KeyedHash(Protocol):
    def update(self, data: bytes | memoryview, /) -> object: ...

    def digest(self) -> bytes: ...


class Commitment:
    """Gathers one participation, step by step, in the order in which it happened.

    Args:
        salt: The run's, 32 bytes.
        hashing: `BLAKE3` or `HMAC`.

    Raises:
        PrivacyError: If the run's ledger names another digest.
    """

    def __init__(self, salt: bytes, hashing: str = BLAKE3) -> None:
        if hashing not in (BLAKE3, HMAC):
            raise PrivacyError(
                f"the ledger's header names commitments by {hashing!r}, which this version does "
                f"not support; it supports {BLAKE3} and {HMAC}"
            )
        self._mac: _KeyedHash = (
            blake3(key=salt) if hashing == BLAKE3 else hmac.new(salt, digestmod=hashlib.sha256)
        )
        self._gathered: list[bytes | memoryview] = [_DOMAIN]
        self._bytes = len(_DOMAIN)

    def batch(self, indices: NDArray[np.int64]) -> None:
        """Take note of the records of a step's batch, int64 [b]."""
        self._add(b"batch", indices.astype("<i8").tobytes())

    def point(self, parameters: Vector) -> None:
        """Take note of the parameters [d] at which a gradient is asked for."""
        self._add(b"point", *_raw(parameters))

    def gradient(self, gradient: Vector) -> None:
        """Take note of a noised gradient [d] that is handed out."""
        self._add(b"gradient", *_raw(gradient))

    def update(self, update: Tensor) -> None:
        """Take note of a clipped update [d] before noise, where whole clients are protected."""
        self._add(b"update", *_raw(update))

    def digest(self) -> bytes:
        """The digest of all noted so far, 32 bytes."""
        self._hash_gathered()
        return self._mac.digest()

    def _add(self, kind: bytes, content: bytes | memoryview, lasts: bool = True) -> None:
        # Lengths go in, so that no two stories have the same bytes.
        self._gathered.append(b"%s %d\x00" % (kind, len(content)))
        if len(content) < _GATHERED_BYTES:
            self._gathered.append(content if lasts else bytes(content))
            self._bytes += len(content)
            if self._bytes >= _GATHERED_BYTES:
                self._hash_gathered()
        else:
            self._hash_gathered()
            self._mac.update(content)

    def _hash_gathered(self) -> None:
        self._mac.update(b"".join(self._gathered))
        self._gathered, self._bytes = [], 0


class SealedCommitment(Commitment):
    """The commitment of a participation that was noted in another process; nothing is added to it.

    Args:
        sealed: Its digest, 32 bytes.
    """

    def __init__(self, sealed: bytes) -> None:
        self._sealed = sealed

    def digest(self) -> bytes:
        """The digest of all that was noted there, 32 bytes."""
        return self._sealed


def commitments_of(header: Mapping[str, Any]) -> str:
    """How a run's participations are hashed, as its ledger's header says."""
    return str(header.get("commitments", HMAC))


def digest_of_commitments(commitments: Sequence[bytes]) -> str:
    """Sha256 (hex) over the commitments of a round's clients, in their order."""
    return hashlib.sha256(b"".join(commitments)).hexdigest()


def commitment_rows(commitments: Sequence[bytes]) -> NDArray[np.uint8]:
    """Commitments as the rows of an array, uint8 [S, 32]."""
    return np.frombuffer(b"".join(commitments), dtype=np.uint8).reshape(-1, 32)


def _raw(vector: Vector) -> tuple[memoryview, bool]:
    """The bytes of a vector [d] where they lie in this machine's memory, and whether they last."""
    # The owner of a tensor may write into it afterwards.
    lasts = isinstance(vector, np.ndarray)
    values = vector if isinstance(vector, np.ndarray) else vector.numpy(force=True)
    return np.ascontiguousarray(values).data.cast("B"), lasts
