"""No one can choose the noise: every stream's key follows from one that was committed before.

A trainer who announces a run signs the root of the tree before an auditor answers with a nonce.
Every stream follows from a leaf key, the nonce and what the ledger was charged before, so that
nobody could choose the noise: not the trainer, whose keys were fixed before the nonce was known,
and not the auditor, who does not know the keys. After the run a few leaf keys are opened, each with
its path to the root; they tell the noise of their own round and client, and of no other.

Sources: HKDF is RFC 5869 with SHA-256; the tree and its paths are RFC 9162, section 2.1.
`audit.reading.openings` has the same once more, for the auditor.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from dpfedadamw.errors import PrivacyError
from dpfedadamw.storage.merkle import DIGEST_BYTES, LEAF, MerkleTree

KEY_BYTES = 32
# The server's own place next to the clients': its streams are the cohort's and the release's.
SERVER = -1
# A ledger in which nothing was charged yet.
NO_HISTORY = bytes(32)
# What one tree may hold: its making takes ten seconds, and 64 MB.
MOST_LEAVES = 1_000_000
# Named in the ledger's header, so that a reader knows how streams follow from keys.
DERIVATION = "hkdf leaf keys 1"

_COMMITMENT = b"dpfedadamw release key commitment 1\x00"
_LEAF = b"dpfedadamw leaf key 1\x00"
_COMMITTED = b"dpfedadamw leaf commitment 1\x00"
_STREAM = b"dpfedadamw release stream 1\x00"
_SALT = b"dpfedadamw data salt 1\x00"
_DATA = b"dpfedadamw data commitment 1\x00"


@dataclass(frozen=True)
class PublicCoin:
    """What a run's streams are bound to in addition to its keys.

    Attributes:
        nonce: 32 bytes that the auditor drew after the keys were fixed; empty without an auditor.
        run: Identifier that the intent gave the run; empty without one.
    """

    nonce: bytes = b""
    run: str = ""


NO_COIN = PublicCoin()


def key_commitment(key: bytes) -> str:
    """The sha256 hex digest of a run's key behind a domain separator."""
    return hashlib.sha256(_COMMITMENT + key).hexdigest()


def leaf_key(key: bytes, round: int, client: int) -> bytes:
    """The key of one client's part in one round, 32 bytes; client -1 is the server."""
    return _expanded(key, _LEAF + _numbers(round, client))


def stream_key(
    leaf: bytes,
    coin: PublicCoin,
    purpose: str,
    round: int,
    client: int,
    attempt: int,
    history: bytes,
) -> bytes:
    """The key of one stream, 32 bytes: HKDF of the leaf key, with the nonce as its salt.

    Args:
        leaf: The leaf key of round and client.
        coin: Nonce and identifier of the run.
        purpose: What the bits are for, such as "noise".
        round: t, from 0.
        client: The client, from 0; -1 for the server.
        attempt: From 1.
        history: The ledger's, 32 bytes: a round's noise cannot exist before what it is bound to.
    """
    texts = [text.encode() for text in (coin.run, purpose)]
    named = b"".join(len(text).to_bytes(4, "big") + text for text in texts)
    info = _STREAM + named + _numbers(round, client, attempt) + history
    # RFC 5869: a missing salt is a string of zeros.
    extracted = hmac.digest(coin.nonce or bytes(DIGEST_BYTES), leaf, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def data_salt(key: bytes, client: int) -> bytes:
    """What hides a client's data in its commitment, 32 bytes; opened where the data are checked."""
    return _expanded(key, _SALT + _numbers(client))


def data_commitment(salt: bytes, client: int, digest: bytes) -> str:
    """The commitment (sha256 hex) to what a client holds (`data.digests`)."""
    return hashlib.sha256(_DATA + salt + _numbers(client) + digest).hexdigest()


def _expanded(key: bytes, info: bytes) -> bytes:
    """The first block of HKDF's expansion; the key is uniform, so nothing is extracted first."""
    return hmac.digest(key, info + b"\x01", "sha256")


def _numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "big", signed=True) for value in values)


class KeyTree:
    """The Merkle tree over the commitments to all leaf keys of a run.

    Leaf round · (clients + 1) + client + 1 commits to the key of (round, client); the server is
    client -1. A leaf key has 256 uniform bits, so its commitment needs no salt to hide it.

    Args:
        key: The run's key, 32 bytes.
        rounds: T, at least 1.
        clients: K, at least 1.

    Raises:
        PrivacyError: If the tree would have more than a million leaves.
    """

    def __init__(self, key: bytes, rounds: int, clients: int) -> None:
        self.rounds, self.clients = rounds, clients
        self.leaves = rounds * (clients + 1)
        if self.leaves > MOST_LEAVES:
            raise PrivacyError(
                f"federation.rounds: {rounds} rounds of {clients} clients and a server are "
                f"{self.leaves} keys to commit to; use at most {MOST_LEAVES} in a run that an "
                "auditor is to look into"
            )
        bottom = bytearray()
        for round in range(rounds):
            for client in range(SERVER, clients):
                bottom += leaf_digest(round, client, leaf_key(key, round, client))
        self._tree = MerkleTree(bytes(bottom))

    @property
    def root(self) -> str:
        """The tree's root, sha256 hex."""
        return self._tree.root.hex()

    def path(self, round: int, client: int) -> list[str]:
        """The digests (hex) that lead from a leaf to the root, lowest first."""
        joined = self._tree.path(self.place(round, client))
        starts = range(0, len(joined), DIGEST_BYTES)
        return [joined[start : start + DIGEST_BYTES].hex() for start in starts]

    def place(self, round: int, client: int) -> int:
        """The leaf's number, from 0.

        Raises:
            PrivacyError: If the tree has no such leaf.
        """
        if not (0 <= round < self.rounds and SERVER <= client < self.clients):
            raise PrivacyError(
                f"there is no key of round {round} and client {client}: the run has {self.rounds} "
                f"rounds and {self.clients} clients"
            )
        return round * (self.clients + 1) + client + 1


def leaf_digest(round: int, client: int, leaf: bytes) -> bytes:
    """The digest that stands for a leaf key at the bottom of the tree."""
    content = LEAF + _COMMITTED + _numbers(round, client) + leaf
    return hashlib.sha256(content).digest()
