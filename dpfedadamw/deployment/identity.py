"""Who sent an upload: each client's Ed25519 key, and what it signs.

A client signs the digest of each upload together with what it answers: the run, the round, the
broadcast. The server and the auditor check it against the public key that the federation's facts
name, so that neither can later hold another upload to be the client's.
"""

from __future__ import annotations

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

from dpfedadamw.deployment.errors import DeploymentError
from dpfedadamw.storage.disk import PRIVATE_MODE, write_atomically

_DOMAIN = b"dpfedadamw client statement 1\x00"


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
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text("ascii").strip()))
    except (OSError, ValueError) as error:
        kind = type(error).__name__
        raise DeploymentError(f"{path}: is no readable signing key of a client ({kind})") from None


def public_of(key: Ed25519PrivateKey) -> str:
    """The public key, 64 hex digits."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def sign(key: Ed25519PrivateKey, statement: Mapping[str, Any]) -> bytes:
    """Sign plain values, 64 bytes."""
    return key.sign(_DOMAIN + _canonical(statement))


def is_signed(public: str, signature: bytes, statement: Mapping[str, Any]) -> bool:
    """Whether the key signed just these values."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(signature, _DOMAIN + _canonical(statement))
    except (InvalidSignature, ValueError):
        return False
    return True


def _canonical(statement: Mapping[str, Any]) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
