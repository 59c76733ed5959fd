"""Envelopes and statements: DSSE v1 around in-toto Statement v1, laid out for line tools.

The envelope has its payload and its signature on lines of their own, and the statement has one
subject a line, so that sed, sha256sum and openssl can check everything without this package.
Sources: DSSE protocol v1.0.2 (pre-authentication encoding); in-toto Attestation Framework v1.

Every attestation has a number, and says which one of its run it supersedes. Each new signature has
the next number and names the SHA-256 of the envelope that it replaces. Anyone who knows the latest
number, or its digest, sees that an earlier signed state was put back. The run directory alone
cannot show that, because the earlier state has valid signatures too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import EnvelopeError, SourceError, local
from reports.files import clean, integer, mapping, parse_json, read_bytes, sequence
from reports.signatures import keys
from reports.signatures.keys import fingerprint

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREFIX = "urn:dpfedadamw:attestation:"
TRAINING_TYPE = f"{_PREFIX}training:v2"
RUN_TYPE = f"{_PREFIX}run:v2"
PUBLIC_TYPE = f"{_PREFIX}public:v1"
COMPARISON_TYPE = f"{_PREFIX}comparison:v1"
# What is read but not written any more: types whose names were addresses, under a domain that is
# not the project's, and among them the form before sequence numbers.
_ADDRESS = "https://dpfedadamw.org/attestation/"
_EARLIER = {TRAINING_TYPE: f"{_ADDRESS}training/v1", RUN_TYPE: f"{_ADDRESS}run/v1"}
SHA256 = "sha256"
SALTED = "hmacSha256"
_HEXADECIMAL = re.compile(r"[0-9a-f]{64}")
# Of an honest run some tens are signed; its evidence is one.
MOST_SUBJECTS = 100_000


@dataclass(frozen=True)
class Envelope:
    """A signed payload.

    Attributes:
        payload: The signed bytes.
        keyid: Fingerprint of the key that the envelope says signed; a hint, never trusted.
        signature: ECDSA signature, DER.
    """

    payload: bytes
    keyid: str
    signature: bytes


@dataclass(frozen=True)
class Statement:
    """An in-toto statement.

    Attributes:
        subjects: Name to (digest name, hexadecimal digest), in the order signed.
        predicate_type: URI of the predicate's schema.
        predicate: What is said about the subjects.
    """

    subjects: dict[str, tuple[str, str]]
    predicate_type: str
    predicate: dict[str, Any]

    @property
    def is_numbered(self) -> bool:
        """Whether it has today's form: a sequence number, a low s, the findings covered."""
        return self.predicate_type not in _EARLIER.values()


def pre_authentication_encoding(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Return the bytes that are signed: type and payload, each with its length in bytes."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def write_statement(statement: Statement) -> bytes:
    """Return a statement as JSON with one subject a line."""
    subjects = ",\n".join(
        json.dumps({"name": name, "digest": {kind: digest}})
        for name, (kind, digest) in statement.subjects.items()
    )
    predicate = json.dumps(
        statement.predicate, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False
    )
    text = (
        f'{{\n"_type": {json.dumps(STATEMENT_TYPE)},\n"subject": [\n{subjects}\n],\n'
        f'"predicateType": {json.dumps(statement.predicate_type)},\n"predicate": {predicate}\n}}\n'
    )
    return text.encode("utf-8")


def seal(payload: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Sign a payload with ECDSA P-256 and SHA-256 and return the envelope as JSON."""
    signature = keys.sign(key, pre_authentication_encoding(payload))
    return write_envelope(Envelope(payload, fingerprint(key.public_key()), signature))


def write_envelope(envelope: Envelope) -> bytes:
    """Return an envelope as JSON in the one layout that this package writes and accepts."""
    return (
        "{\n"
        f'"payloadType": {json.dumps(PAYLOAD_TYPE)},\n'
        f'"payload": "{base64.b64encode(envelope.payload).decode("ascii")}",\n'
        '"signatures": [{\n'
        f'"keyid": {json.dumps(envelope.keyid)},\n'
        f'"sig": "{base64.b64encode(envelope.signature).decode("ascii")}"\n'
        "}]\n}\n"
    ).encode("ascii")


def parse_envelope(data: bytes, where: str) -> Envelope:
    """Read an envelope that holds exactly one signature, in the layout that `seal` writes.

    The layout is not signed, so any other is refused: no byte may change unnoticed, and VERIFY.md's
    commands read what is read here.

    Raises:
        EnvelopeError: `data` is no such envelope; `where` names it.
    """
    document = parse_document(data, where)
    envelope = parse_signed(document, where)
    if write_envelope(envelope) != data:
        raise EnvelopeError(f"{where}: is not laid out as envelopes are; it was changed")
    return envelope


def parse_document(data: bytes, where: str) -> dict[str, Any]:
    """Read a JSON object; anything else is an empty one.

    Raises:
        EnvelopeError: `data` is no strict JSON; `where` names it.
    """
    try:
        return mapping(parse_json(data, where))
    except SourceError as error:
        raise EnvelopeError(str(error)) from error


def parse_signed(document: dict[str, Any], where: str) -> Envelope:
    """Read an envelope from JSON that is parsed already.

    Raises:
        EnvelopeError: `document` is no such envelope; `where` names it.
    """
    if document.get("payloadType") != PAYLOAD_TYPE:
        raise EnvelopeError(f"{where}: payloadType must be {PAYLOAD_TYPE}")
    signatures = sequence(document.get("signatures"))
    if len(signatures) != 1:
        raise EnvelopeError(f"{where}: exactly one signature is needed, found {len(signatures)}")
    entry = mapping(signatures[0])
    return Envelope(
        payload=_base64(document.get("payload"), where, "payload"),
        keyid=clean(entry.get("keyid"), 100),
        signature=_base64(entry.get("sig"), where, "sig"),
    )


def _base64(value: Any, where: str, name: str) -> bytes:
    if not isinstance(value, str) or not value:
        raise EnvelopeError(f"{where}: {name} must be base64 text")
    try:
        return base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise EnvelopeError(f"{where}: {name} is not valid base64") from error


def check_signature(envelope: Envelope, key: ec.EllipticCurvePublicKey, where: str) -> None:
    """Check an envelope's signature.

    Raises:
        EnvelopeError: The signature is not by this key over this payload.
    """
    try:
        key.verify(
            envelope.signature,
            pre_authentication_encoding(envelope.payload),
            ec.ECDSA(hashes.SHA256()),
        )
    except InvalidSignature as error:
        raise EnvelopeError(
            f"{where}: the signature is not by the key {fingerprint(key)}, or the content was "
            f"changed"
        ) from error


def refuse_high_s(envelope: Envelope, where: str) -> None:
    """Refuse the other form (r, n - s) of a signature, in which it holds as well.

    Raises:
        EnvelopeError: The signature is not in the form that is made here.
    """
    if not keys.has_low_s(envelope.signature):
        raise EnvelopeError(
            f"{where}: the signature was rewritten; only its form with the lower s is accepted"
        )


def _names(predicate_type: str) -> tuple[str, ...]:
    """Return the names under which a predicate type is read, today's first."""
    if not predicate_type.startswith(_PREFIX):
        return (predicate_type,)
    name, version = predicate_type.removeprefix(_PREFIX).split(":")
    earlier = _EARLIER.get(predicate_type)
    return (predicate_type, f"{_ADDRESS}{name}/{version}", *([earlier] if earlier else ()))


def parse_statement(payload: bytes, predicate_type: str, where: str) -> Statement:
    """Read a statement of one predicate type, under today's name or an earlier one.

    Raises:
        EnvelopeError: The payload is no such statement, names a subject twice, or names too many.
    """
    document = parse_document(payload, where)
    if document.get("_type") != STATEMENT_TYPE:
        raise EnvelopeError(f"{where}: _type must be {STATEMENT_TYPE}")
    stated = document.get("predicateType")
    if stated not in _names(predicate_type):
        raise EnvelopeError(f"{where}: predicateType must be {predicate_type}")
    subjects: dict[str, tuple[str, str]] = {}
    listed = sequence(document.get("subject"))
    if len(listed) > MOST_SUBJECTS:
        raise EnvelopeError(f"{where}: names more than {MOST_SUBJECTS} files")
    for raw in listed:
        entry = mapping(raw)
        name, digests = entry.get("name"), mapping(entry.get("digest"))
        kind, digest = next(iter(digests.items())) if len(digests) == 1 else (None, None)
        if (
            not isinstance(name, str)
            or kind not in (SHA256, SALTED)
            or not isinstance(digest, str)
            or not _HEXADECIMAL.fullmatch(digest)
        ):
            raise EnvelopeError(f"{where}: a subject lacks a name or one known digest")
        if name in subjects:
            raise EnvelopeError(f"{where}: the subject {clean(name, 80)} appears twice")
        subjects[name] = (kind, digest)
    if not subjects:
        raise EnvelopeError(f"{where}: it covers no file")
    return Statement(subjects, stated, mapping(document.get("predicate")))


# Whole numbers up to here are the same in every reader of JSON.
_MOST = 2**53 - 1


def sequence_number(statement: Statement, where: str) -> int:
    """Return a statement's number, counted from 1; 0 for one of the form before numbers.

    Raises:
        EnvelopeError: It has none, or one out of range.
    """
    if not statement.is_numbered:
        return 0
    found = integer(statement.predicate.get("sequence"))
    if found is None or not 1 <= found <= _MOST:
        raise EnvelopeError(f"{where}: its sequence number must be from 1 to {_MOST}")
    return found


def numbered_entry(run_dir: Path, name: str, kind: str, run: str) -> dict[str, Any]:
    """Return what a new attestation says of its place: its number, and what it supersedes.

    Args:
        run_dir: The run directory.
        name: The envelope's file, in which the superseded one lies if there is one.
        kind: The predicate's type.
        run: The run's identifier; an envelope that was copied from another run counts as none.

    Raises:
        SourceError: The envelope there cannot be read.
        EnvelopeError: It is damaged, so what follows it is unknown.
    """
    if not os.path.lexists(run_dir / name):
        return {"sequence": 1, "supersedes": None}
    data = read_bytes(run_dir / name)
    try:
        statement = parse_statement(parse_envelope(data, name).payload, kind, name)
        before = sequence_number(statement, name)
    except EnvelopeError as error:
        raise EnvelopeError(
            f"{local(error, run_dir)}; what a new signature supersedes is unknown: put the file "
            "back as it was, or move it out of the run directory and begin at number 1"
        ) from error
    if statement.predicate.get("run") != run:
        return {"sequence": 1, "supersedes": None}
    if before == _MOST:
        raise EnvelopeError(f"{name}: no number is left for another signature")
    # The form before numbers was some first signature, so what follows it is the second.
    return {"sequence": max(before, 1) + 1, "supersedes": hashlib.sha256(data).hexdigest()}
