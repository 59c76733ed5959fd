"""What a holder signs about keys: this key replaces that one; that key is not to be trusted since.

A replacement is signed by both keys. The old one alone could name anybody's key as its successor,
and so pass that holder's works off as its own. Both kinds are in-toto Statements in DSSE envelopes
like a run's attestations, so that the same few lines of shell check them. A statement of either
kind may carry an RFC 3161 timestamp over its envelope. Their schemas are key-rotation.schema.json
and key-revocation.schema.json.

Holders give out lists of revocations, which are read here too.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import EnvelopeError, KeyFileError, SourceError, local
from reports.files import clean, mapping, read_bytes, sequence
from reports.signatures.dsse import (
    SHA256,
    Envelope,
    Statement,
    check_signature,
    parse_document,
    parse_envelope,
    parse_statement,
    seal,
    write_statement,
)
from reports.signatures.keys import (
    ROLES,
    fingerprint,
    fingerprint_digest,
    parse_public,
    public_pem,
    refuse_open,
)

ROTATION_TYPE = "urn:dpfedadamw:attestation:key-rotation:v1"
REVOCATION_TYPE = "urn:dpfedadamw:attestation:key-revocation:v1"
Reason = Literal["key-compromise", "superseded", "cessation-of-operation", "unspecified"]
REASONS: tuple[Reason, ...] = get_args(Reason)
MOST_STATEMENTS = 64
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Sealed:
    """A signed statement as it is kept in a file.

    Attributes:
        envelope: Bytes of the DSSE envelope.
        timestamp: RFC 3161 response over these bytes, or None.
        consent: Of a rotation: the envelope in which the following key signs the same statement;
            None in the form of before, by the old key alone.
    """

    envelope: bytes
    timestamp: bytes | None = None
    consent: bytes | None = None


@dataclass(frozen=True)
class Rotation:
    """A key's holder says which key comes after it.

    Attributes:
        role: "trainer" or "auditor".
        previous: Fingerprint of the key that signed this.
        following: The key that replaces it.
        created: When, as the holder says.
        sealed: The envelope it was read from.
        is_consented: Whether the following key signed it too.
    """

    role: str
    previous: str
    following: ec.EllipticCurvePublicKey
    created: datetime
    sealed: Sealed
    is_consented: bool


@dataclass(frozen=True)
class Revocation:
    """A key is not to be trusted since a date.

    Attributes:
        role: "trainer" or "auditor".
        key: Fingerprint of the revoked key.
        since: From when on.
        reason: One of `REASONS`.
        issuer: Fingerprint of the key that signed this: the revoked one, or a successor.
    """

    role: str
    key: str
    since: datetime
    reason: str
    issuer: str


def write_rotation(
    role: str,
    private: ec.EllipticCurvePrivateKey,
    following: ec.EllipticCurvePublicKey,
    created: datetime,
) -> bytes:
    """Return the envelope in which a key names its successor; see `consented`."""
    predicate = {
        "role": role,
        "previous": fingerprint(private.public_key()),
        "previous_key": public_pem(private.public_key()).decode("ascii"),
        "following": fingerprint(following),
        "public_key": public_pem(following).decode("ascii"),
        "created": written_time(created),
    }
    subjects = {"following": (SHA256, fingerprint_digest(following))}
    return seal(write_statement(Statement(subjects, ROTATION_TYPE, predicate)), private)


def consented(sealed: Sealed, following: ec.EllipticCurvePrivateKey, where: str) -> Sealed:
    """Return a rotation with the consent of the key that it names as the successor.

    Raises:
        EnvelopeError: It is no rotation to that key.
    """
    payload = parse_envelope(sealed.envelope, where).payload
    named = parse_statement(payload, ROTATION_TYPE, where).predicate.get("following")
    if named != fingerprint(following.public_key()):
        raise EnvelopeError(f"{where}: names another key as the successor")
    return replace(sealed, consent=seal(payload, following))


def signer_of(sealed: Sealed, where: str) -> ec.EllipticCurvePublicKey | None:
    """Return the key that a rotation says signed it, None in the form of before, which lacks it.

    Raises:
        EnvelopeError: It is no rotation.
    """
    payload = parse_envelope(sealed.envelope, where).payload
    said = parse_statement(payload, ROTATION_TYPE, where).predicate.get("previous_key")
    return None if said is None else _public(said, where)


def read_rotation(sealed: Sealed, signer: ec.EllipticCurvePublicKey, where: str) -> Rotation:
    """Read a rotation that must be signed by a key.

    Raises:
        EnvelopeError: It is not, or is no rotation, or its consent is not by the key that follows.
    """
    envelope = parse_envelope(sealed.envelope, where)
    _check_signature(envelope, signer, where)
    statement = parse_statement(envelope.payload, ROTATION_TYPE, where)
    said = statement.predicate
    following = _public(said.get("public_key"), where)
    if (
        said.get("previous") != fingerprint(signer)
        or said.get("previous_key", public_pem(signer).decode("ascii"))
        != public_pem(signer).decode("ascii")
        or said.get("following") != fingerprint(following)
        or statement.subjects != {"following": (SHA256, fingerprint_digest(following))}
    ):
        raise EnvelopeError(f"{where}: its keys contradict one another")
    if sealed.consent is not None:
        consent = parse_envelope(sealed.consent, where)
        _check_signature(consent, following, where)
        if consent.payload != envelope.payload:
            raise EnvelopeError(f"{where}: the key that follows consents to something else")
    return Rotation(
        _role(said.get("role"), where),
        fingerprint(signer),
        following,
        read_time(said.get("created"), where),
        sealed,
        sealed.consent is not None,
    )


def write_revocation(
    revocation: Revocation,
    revoked: ec.EllipticCurvePublicKey,
    private: ec.EllipticCurvePrivateKey,
    rotations: tuple[Sealed, ...],
    issued: datetime,
) -> bytes:
    """Return the envelope in which a key, or a successor of it, says that it is revoked.

    Args:
        revocation: What is said.
        revoked: The revoked key.
        private: The key that signs.
        rotations: The statements that lead from the revoked key to the one that signs; empty if
            they are the same.
        issued: When.
    """
    predicate = {
        "role": revocation.role,
        "revoked": revocation.key,
        "revoked_key": public_pem(revoked).decode("ascii"),
        "since": written_time(revocation.since),
        "reason": revocation.reason,
        "issued": written_time(issued),
        "issuer_key": public_pem(private.public_key()).decode("ascii"),
        # Who revokes signs this and so consents.
        "rotations": [_sealed_to_json(replace(entry, consent=None)) for entry in rotations],
    }
    subjects = {"revoked": (SHA256, fingerprint_digest(revoked))}
    return seal(write_statement(Statement(subjects, REVOCATION_TYPE, predicate)), private)


def read_revocation(data: bytes, where: str) -> Revocation:
    """Read a revocation, and check that its signer may revoke the key.

    That is the key itself, or one to which its own rotations lead. A thief of the key could make
    both, which does no harm: the key is then rightly revoked.

    Raises:
        EnvelopeError: The signature does not hold, or the signer has no say over the key.
    """
    envelope = parse_envelope(data, where)
    # The key stands in what it signs: read first, believed only after the signature was checked.
    claimed = parse_statement(envelope.payload, REVOCATION_TYPE, where)
    said = claimed.predicate
    issuer, revoked = (
        _public(said.get("issuer_key"), where),
        _public(said.get("revoked_key"), where),
    )
    _check_signature(envelope, issuer, where)
    if said.get("revoked") != fingerprint(revoked) or claimed.subjects != {
        "revoked": (SHA256, fingerprint_digest(revoked))
    }:
        raise EnvelopeError(f"{where}: its keys contradict one another")
    chain = tuple(_sealed_from_json(entry, where) for entry in sequence(said.get("rotations")))
    key = revoked
    for sealed in chain[:MOST_STATEMENTS]:
        key = read_rotation(sealed, key, where).following
    if fingerprint(key) != fingerprint(issuer):
        raise EnvelopeError(
            f"{where}: is signed by {fingerprint(issuer)}, which has no say over "
            f"{fingerprint(revoked)}"
        )
    reason = said.get("reason")
    if reason not in REASONS:
        raise EnvelopeError(f"{where}: reason must be one of {', '.join(REASONS)}")
    return Revocation(
        _role(said.get("role"), where),
        fingerprint(revoked),
        read_time(said.get("since"), where),
        reason,
        fingerprint(issuer),
    )


def write_bundle(kind: str, entries: tuple[Sealed, ...]) -> bytes:
    """Return a file of sealed statements of one kind: "rotations" or "revocations"."""
    document = {"format": 1, kind: [_sealed_to_json(entry) for entry in entries]}
    return (json.dumps(document, indent=2) + "\n").encode("ascii")


def read_bundle(data: bytes, kind: str, where: str) -> tuple[Sealed, ...]:
    """Read a file of sealed statements in the layout of `write_bundle`.

    Signatures are not checked here.

    Raises:
        EnvelopeError: The bytes are no such file.
    """
    document = parse_document(data, where)
    entries = document.get(kind)
    if document.get("format") != 1 or not isinstance(entries, list) or not entries:
        raise EnvelopeError(f"{where}: is no list of {kind}")
    if len(entries) > MOST_STATEMENTS:
        raise EnvelopeError(f"{where}: more than {MOST_STATEMENTS} {kind}")
    found = tuple(_sealed_from_json(entry, where) for entry in entries)
    if write_bundle(kind, found) != data:
        raise EnvelopeError(f"{where}: is not laid out as lists of {kind} are; it was changed")
    return found


def rotations_of(path: Path) -> tuple[Sealed, ...]:
    """Return the statements that lead to a key from the file next to it; none if there is none.

    Raises:
        SourceError: The file cannot be read.
        EnvelopeError: It is no list of rotations.
    """
    if not os.path.lexists(path):
        return ()
    return read_bundle(read_bytes(path, MOST_BYTES), "rotations", str(path))


def written_time(moment: datetime) -> str:
    """Return a time as ISO 8601, UTC, in whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_time(value: Any, where: str) -> datetime:
    """Read a time that `written_time` wrote.

    Raises:
        EnvelopeError: The value is no such time.
    """
    try:
        return datetime.strptime(str(value), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise EnvelopeError(f"{where}: {clean(value, 40)!r} is no time in UTC") from error


def _check_signature(envelope: Envelope, key: ec.EllipticCurvePublicKey, where: str) -> None:
    check_signature(envelope, key, where)
    if envelope.keyid != fingerprint(key):
        raise EnvelopeError(f"{where}: its keyid names another key than the one that signed")


def _sealed_to_json(entry: Sealed) -> dict[str, str | None]:
    stamp = entry.timestamp
    return {
        "envelope": base64.b64encode(entry.envelope).decode("ascii"),
        "timestamp": base64.b64encode(stamp).decode("ascii") if stamp is not None else None,
        **(
            {"consent": base64.b64encode(entry.consent).decode("ascii")}
            if entry.consent is not None
            else {}
        ),
    }


def _sealed_from_json(value: Any, where: str) -> Sealed:
    entry = mapping(value)
    try:
        envelope = base64.b64decode(str(entry.get("envelope")), validate=True)
        stamp, consent = (
            base64.b64decode(str(entry[name]), validate=True) if entry.get(name) else None
            for name in ("timestamp", "consent")
        )
        return Sealed(envelope, stamp, consent)
    except (binascii.Error, ValueError) as error:
        raise EnvelopeError(f"{where}: holds something that is not base64") from error


def _public(value: Any, where: str) -> ec.EllipticCurvePublicKey:
    try:
        return parse_public(str(value).encode("utf-8"), where)
    except (KeyFileError, UnicodeEncodeError) as error:
        raise EnvelopeError(f"{where}: holds no usable public key") from error


def _role(value: Any, where: str) -> str:
    if value not in ROLES:
        raise EnvelopeError(f"{where}: role must be one of {', '.join(ROLES)}")
    return str(value)


MOST_LIST_BYTES = 4_000_000

Revoked = dict[str, Revocation]


def list_path(directory: Path, role: str) -> Path:
    """Return where a key folder keeps the revocations of one role's keys."""
    return directory / f"{role}.revocations.json"


def own_revocations(directory: Path) -> Revoked:
    """Return what a key folder says of revoked keys, by fingerprint.

    Raises:
        KeyFileError: A list cannot be read, or others may write to the folder.
        EnvelopeError: A list is damaged, or not signed by who may.
    """
    refuse_open(directory)
    paths = (list_path(directory, role) for role in ROLES)
    return read_lists(path for path in paths if os.path.lexists(path))


def read_lists(paths: Iterable[Path]) -> Revoked:
    """Read lists of revocations; of several for one key, the earliest date counts.

    Raises:
        KeyFileError: A file cannot be read.
        EnvelopeError: It is damaged, or a revocation is not signed by who may.
    """
    found: Revoked = {}
    for path in paths:
        for revocation in (read_revocation(e.envelope, str(path)) for e in read_entries(path)):
            known = found.get(revocation.key)
            if known is None or revocation.since < known.since:
                found[revocation.key] = revocation
    return found


def read_entries(path: Path) -> tuple[Sealed, ...]:
    """Return the signed entries of one list.

    Raises:
        KeyFileError: The file cannot be read.
        EnvelopeError: It is no such list.
    """
    try:
        data = read_bytes(path, MOST_LIST_BYTES)
    except SourceError as error:
        raise KeyFileError(f"{path.parent}/{local(error, path.parent)}") from error
    return read_bundle(data, "revocations", str(path))
