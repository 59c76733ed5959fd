"""Who sent an upload: each client's Ed25519 key, and what it signs.

A client signs the digest of each upload together with what it answers: the run, the round, the
broadcast. The server and the auditor check it against the public key that the federation's facts
name, so that neither can later hold another upload to be the client's.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.storage.disk import PRIVATE_MODE, write_atomically

# What is signed begins with what it is: no text that a server chooses makes one statement pass for
# another, be it of an upload, of who a client is, or of what its owner allows.
UPLOAD = b"dpfedadamw client statement 1\x00"
INTRODUCTION = b"dpfedadamw client introduction 1\x00"
PIN = b"dpfedadamw client pin 1\x00"
_MOST_KEY_BYTES = 1 << 10
_SEAL = b"dpfedadamw client seal 1\x00"


def make_key(path: Path) -> str:
    """Draw a client's key into a new file of mode 0600; the public key, 64 hex digits."""
    key = Ed25519PrivateKey.generate()
    raw = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    write_atomically(path, raw.hex().encode() + b"\n", PRIVATE_MODE)
    return public_of(key)


def read_key(path: Path) -> Ed25519PrivateKey:
    """Read what `make_key` wrote.

    Raises:
        DeploymentError: If it is no key.
    """
    try:
        with path.open("rb") as file:
            # A longer file is no key, and may have no end.
            text = file.read(_MOST_KEY_BYTES).decode("ascii")
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text.strip()))
    except (OSError, ValueError) as error:
        kind = type(error).__name__
        raise DeploymentError(
            f"{path}: is not a readable signing key of a client ({kind})"
        ) from None


def public_of(key: Ed25519PrivateKey) -> str:
    """The public key, 64 hex digits."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def sign(key: Ed25519PrivateKey, domain: bytes, statement: Mapping[str, Any]) -> bytes:
    """Sign plain values as what the domain says, 64 bytes."""
    return key.sign(domain + _canonical(statement))


def is_signed(public: str, signature: bytes, domain: bytes, statement: Mapping[str, Any]) -> bool:
    """Whether the key signed just these values as what the domain says."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(signature, domain + _canonical(statement))
    except (InvalidSignature, ValueError):
        return False
    return True


def sealed(key: Ed25519PrivateKey, content: bytes) -> str:
    """A digest that only the key's holder can make, hexadecimal: others cannot try contents out."""
    raw = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    return hmac.digest(hashlib.sha256(_SEAL + raw).digest(), content, "sha256").hex()


def _canonical(statement: Mapping[str, Any]) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
