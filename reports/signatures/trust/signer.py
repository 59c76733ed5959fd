"""One key ready to sign: in a file or in hardware, with its certificates and its history."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import KeyFileError
from reports.files import read_bytes
from reports.signatures.keys import Role, fingerprint, load_private
from reports.signatures.trust import certificates
from reports.signatures.trust.certificates import Chain
from reports.signatures.trust.revocations import own_revocations
from reports.signatures.trust.statements import Sealed, consented, rotations_of

HARDWARE_SCHEME = "pkcs11:"
CERTIFICATE_SUFFIX, ROTATIONS_SUFFIX = ".crt", ".rotations.json"


@dataclass(frozen=True)
class SigningKey:
    """What a signer holds.

    Attributes:
        role: "trainer" or "auditor".
        private: The key; one in hardware signs there and cannot be read out.
        chain: Its certificate, and those above it.
        rotations: The statements that lead from the holder's first key to this one.
        location: The key's file, or None if it is not in one.
    """

    role: Role
    private: ec.EllipticCurvePrivateKey
    chain: Chain
    rotations: tuple[Sealed, ...] = ()
    location: Path | None = None

    @property
    def public(self) -> ec.EllipticCurvePublicKey:
        """The public half."""
        return self.private.public_key()

    @property
    def fingerprint(self) -> str:
        """The public half's fingerprint."""
        return fingerprint(self.public)


def load(role: Role, location: Path | str, passphrase: str | None = None) -> SigningKey:
    """Load a key that is to sign now.

    Args:
        role: What it will sign as.
        location: A PKCS#8 PEM file, beside which STEM.crt and STEM.rotations.json are read where
            they exist; or a PKCS#11 address (RFC 7512) such as "pkcs11:token=Audit;object=key".
        passphrase: Of the file, or the token's PIN.

    Raises:
        KeyFileError: It cannot be read or used, its certificate has expired or is of the future, or
            it is revoked.
        EnvelopeError: The statements beside it are damaged.
    """
    if str(location).startswith(HARDWARE_SCHEME):
        from reports.signatures.trust import hardware

        private, chain = hardware.open_key(str(location), passphrase)
        key = SigningKey(role, private, chain or (certificates.self_signed(private, role),))
    else:
        key = _load_file(role, Path(location), passphrase)
    moment = certificates.now()
    problem = certificates.expiry_problem(key.chain, moment)
    if problem and certificates.is_early(key.chain, moment):
        raise KeyFileError(
            f"{location}: {problem}, and this machine's clock says {moment:%Y-%m-%d %H:%M} UTC; "
            "set the clock right"
        )
    if problem:
        raise KeyFileError(f"{location}: {problem}; make a successor with: dpfedadamw keys rotate")
    return key


def _load_file(role: Role, path: Path, passphrase: str | None) -> SigningKey:
    private = load_private(path, passphrase)
    stem = path.with_suffix("")
    own = own_revocations(path.parent).get(fingerprint(private.public_key()))
    if own is not None:
        raise KeyFileError(
            f"{path}: this key is revoked since {own.since:%Y-%m-%d} ({own.reason}) and signs no "
            f"more; make a new one with: dpfedadamw keys new --role {role}"
        )
    certificate_path = stem.with_name(stem.name + CERTIFICATE_SUFFIX)
    rotations_path = stem.with_name(stem.name + ROTATIONS_SUFFIX)
    chain: Chain = ()
    if os.path.lexists(certificate_path):
        data = read_bytes(certificate_path, certificates.MOST_BYTES)
        chain = certificates.parse_chain(data, str(certificate_path))
        certificates.check_chain(chain, private.public_key(), str(certificate_path))
    chain = chain or (certificates.self_signed(private, role),)
    rotations = consenting(rotations_of(rotations_path), private, str(rotations_path))
    return SigningKey(role, private, chain, rotations, path)


def consenting(
    rotations: tuple[Sealed, ...], private: ec.EllipticCurvePrivateKey, where: str
) -> tuple[Sealed, ...]:
    """Return the statements that lead to a key, the last one with the key's consent.

    In the form of before, the old key signed alone. Anyone who keeps such a list next to
    the key and signs with it consents to it.

    Raises:
        EnvelopeError: They lead to another key.
    """
    if not rotations or rotations[-1].consent is not None:
        return rotations
    return (*rotations[:-1], consented(rotations[-1], private, where))
