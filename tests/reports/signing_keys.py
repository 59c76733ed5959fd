"""Keys for tests: a pair in files, and one with a certificate that it signs for itself."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from reports.signatures import certificates, keys
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import KeyFiles, Role


def create(role: Role, directory: Path, passphrase: str | None = None) -> KeyFiles:
    """A key pair named after its role, without a certificate."""
    return keys.store(ec.generate_private_key(ec.SECP256R1()), directory, role, passphrase)


def fresh(role: Role) -> SigningKey:
    """A key that is in no file, with its own certificate."""
    private = ec.generate_private_key(ec.SECP256R1())
    return SigningKey(role, private, (certificates.self_signed(private, role),))
