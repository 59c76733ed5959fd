"""A transparency log for tests: entries, its signed checkpoint, and proofs of inclusion."""

from __future__ import annotations

import base64
import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


class TransparencyLog:
    """Entries that anybody can read, by RFC 9162's recursive definition of the tree."""

    def __init__(self, name: str = "log.example/intents") -> None:
        self.name, self.entries = name, list[bytes]()
        self._private = Ed25519PrivateKey.generate()
        public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._key = b"\x01" + public
        self._identifier = hashlib.sha256(name.encode() + b"\n" + self._key).digest()[:4]

    @property
    def key(self) -> str:
        """NAME+HASH+KEY."""
        return f"{self.name}+{self._identifier.hex()}+{_encoded(self._key)}"

    def proof(self, index: int) -> bytes:
        """The proof for an entry."""
        body = f"{self.name}\n{len(self.entries)}\n{_encoded(self._root(self.entries))}\n"
        signature = self._identifier + self._private.sign(body.encode())
        path = "".join(f"{_encoded(one)}\n" for one in self._path(index, self.entries))
        head = f"c2sp.org/tlog-proof@v1\nindex {index}\n{path}\n"
        return f"{head}{body}\n— {self.name} {_encoded(signature)}\n".encode()

    def _root(self, entries: list[bytes]) -> bytes:
        if len(entries) == 1:
            return hashlib.sha256(b"\x00" + entries[0]).digest()
        left = _split(len(entries))
        both = self._root(entries[:left]) + self._root(entries[left:])
        return hashlib.sha256(b"\x01" + both).digest()

    def _path(self, index: int, entries: list[bytes]) -> list[bytes]:
        if len(entries) == 1:
            return []
        left = _split(len(entries))
        if index < left:
            return [*self._path(index, entries[:left]), self._root(entries[left:])]
        return [*self._path(index - left, entries[left:]), self._root(entries[:left])]


def _split(count: int) -> int:
    """The largest power of two below a count."""
    return 1 << (count - 1).bit_length() - 1
