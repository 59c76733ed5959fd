"""What a key folder holds, told without opening a private key."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from audit.untrusted.files import FileError, read_chosen
from reports.errors import EnvelopeError, KeyFileError, SourceError
from reports.files import read_bytes
from reports.signatures import certificates, statements
from reports.signatures.keyring import Generation, generations
from reports.signatures.keys import ROLES, fingerprint, load_private, load_public
from reports.signatures.statements import own_revocations

_ALGORITHM = "ECDSA P-256, SHA-256"
_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"


@dataclass(frozen=True)
class KeyInformation:
    """One key as its holder sees it.

    Attributes:
        name: Name of its files without suffix.
        role: "trainer" or "auditor".
        state: "in use", "replaced" or "revoked".
        fingerprint: Of the public key.
        algorithm: What it signs with.
        created: Date from its certificate, or None.
        certificate: Whose certificate, and how long it is valid.
        protection: How the private key is kept.
        revoked: Since when and why, or None.
        follows: Fingerprint of the key that vouched for it, or None.
    """

    name: str
    role: str
    state: str
    fingerprint: str
    algorithm: str
    created: str | None
    certificate: str
    protection: str
    revoked: str | None
    follows: str | None


def inspect(directory: Path) -> tuple[KeyInformation, ...]:
    """Describe every key of a folder, the trainer's first, the oldest first.

    Raises:
        KeyFileError: The folder or a public file in it cannot be read.
        EnvelopeError: A list of rotations or revocations is damaged.
    """
    found = []
    for role in ROLES:
        every = generations(role, directory)
        found += [_describe(entry, entry is every[-1]) for entry in every]
    return tuple(found)


def to_json(entry: KeyInformation) -> dict[str, Any]:
    """Return a key's description for a machine."""
    return asdict(entry)


def _describe(entry: Generation, newest: bool) -> KeyInformation:
    public = (
        load_public(entry.public)
        if entry.public.exists()
        else load_private(entry.private).public_key()
    )
    revocation = own_revocations(entry.directory).get(fingerprint(public))
    created, certificate = _certificate(entry)
    return KeyInformation(
        name=entry.stem,
        role=entry.role,
        state="revoked" if revocation else "in use" if newest else "replaced",
        fingerprint=fingerprint(public),
        algorithm=_ALGORITHM,
        created=created,
        certificate=certificate,
        protection=_protection(entry.private),
        revoked=(
            f"since {statements.written_time(revocation.since)}, {revocation.reason}"
            if revocation
            else None
        ),
        follows=_previous(entry),
    )


def _certificate(entry: Generation) -> tuple[str | None, str]:
    if not os.path.lexists(entry.certificate):
        return None, "none; one is made for each signature"
    try:
        data = read_bytes(entry.certificate)
    except SourceError as error:
        raise KeyFileError(f"{entry.directory}/{error}") from error
    chain = certificates.parse_chain(data, str(entry.certificate))
    leaf = chain[0]
    own = certificates.is_self_signed(leaf)
    issuer = "self-signed" if own else f"issued by {certificates.issuer_name(leaf)}"
    problem = certificates.expiry_problem(chain, certificates.now())
    until = f"valid until {leaf.not_valid_after_utc:%Y-%m-%d}"
    return f"{leaf.not_valid_before_utc:%Y-%m-%d}", f"{issuer}, {problem or until}"


def _protection(path: Path) -> str:
    try:
        beginning, mode = read_chosen(path, len(_ENCRYPTED))
    except FileError as error:
        return f"cannot be read ({error.detail})"
    kept = "encrypted with a passphrase" if beginning == _ENCRYPTED else "not encrypted"
    if mode & 0o077:
        return f"{kept}, and OTHERS MAY READ IT (mode {mode:04o}): run chmod 600"
    return f"{kept}, mode {mode:04o}"


def _previous(entry: Generation) -> str | None:
    chain = statements.rotations_of(entry.rotations)
    if not chain:
        return None
    for older in generations(entry.role, entry.directory):
        try:
            public = load_public(older.public)
            return statements.read_rotation(chain[-1], public, str(entry.rotations)).previous
        except (EnvelopeError, KeyFileError):
            continue
    return "a key that is not in this folder"
