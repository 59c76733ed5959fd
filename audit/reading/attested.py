"""Are the files those that the trainer's attestation names? Digests alone; signatures are not read.

The check "integrity" calls this. Weights, metrics and much of the evidence bear no redundancy, so
only a digest taken at the moment of training can show that they were changed since. Whether the
attestation itself is the trainer's is what `verify` answers, with keys; a run that nobody has
attested to yet is judged without.
"""

from __future__ import annotations

import base64
import hmac
import os
from pathlib import Path

from audit.errors import UntrustedFileError
from audit.reading.files import hash_file, read_bytes
from audit.untrusted import fields
from audit.untrusted.documents import parse_json
from audit.untrusted.fields import FieldError
from audit.untrusted.files import FileError, Refusal, keyed_digest

ENVELOPE = "training.attestation.json"
# What is written together with the envelope or after it; where one of these lies, it was there.
_BESIDE = ("trainer.pub", "auditor.pub", "attestation.json")
_EVIDENCE, _SALT = "evidence", "salt"
_UNCOVERED = ("findings.json",)
_MOST_BYTES, _MOST_SUBJECTS = 1 << 20, 64
# What is wrong with the folder as a whole; a name that is no plain text is not repeated.
_OF_FOLDER = (Refusal.CANNOT_LIST, Refusal.TOO_DEEP, Refusal.TOO_MANY, Refusal.UNUSUAL_NAME)
_NAME = r"[A-Za-z0-9._][A-Za-z0-9._-]{0,99}"
_HEX = r"[0-9a-f]{64}"


def attestation_faults(root: Path, reasons: list[str], unreadable: list[str]) -> bool:
    """Compare every file that the trainer's attestation names with its digest there.

    Args:
        root: the run directory.
        reasons: gets a sentence for each file that is not the one named.
        unreadable: gets a sentence for what cannot be read.

    Returns:
        Whether there is an attestation.
    """
    try:
        raw = read_bytes(root, ENVELOPE, _MOST_BYTES)
    except UntrustedFileError as error:
        if error.missing and not any(os.path.lexists(root / name) for name in _BESIDE):
            return False
        unreadable.append(f"{ENVELOPE}: {error.what}")
        return True
    try:
        subjects = _subjects(raw)
    except ValueError as error:
        unreadable.append(f"{ENVELOPE}: {error}")
        return True
    for name, (kind, digest) in subjects.items():
        try:
            found = hash_file(root, name) if kind == "sha256" else _evidence_digest(root)
        except UntrustedFileError as error:
            unreadable.append(f"{error.file}: {error.what}")
            continue
        if not hmac.compare_digest(found, digest):
            reasons.append(f"{name}: is not what {ENVELOPE} names; it was changed since")
    return True


def _subjects(raw: bytes) -> dict[str, tuple[str, str]]:
    """Name to kind and value of its digest, from the envelope's payload."""
    encoded = fields.text(parse_json(raw), "payload", pattern=r"[A-Za-z0-9+/=]{0,1000000}")
    statement = parse_json(base64.b64decode(encoded, validate=True))
    found: dict[str, tuple[str, str]] = {}
    for entry in fields.sequence(statement, "subject", most=_MOST_SUBJECTS):
        name = fields.text(entry, "name", pattern=_NAME)
        kind = "hmacSha256" if name == _EVIDENCE else "sha256"
        digest = fields.text(fields.mapping(entry, "digest"), kind, pattern=_HEX)
        if name in found:
            raise FieldError(f"names {name} twice")
        found[name] = (kind, digest)
    if not {"ledger.jsonl", "model.safetensors", "spec.yaml"} <= set(found):
        raise FieldError("does not name spec, ledger and model")
    return found


def _evidence_digest(root: Path) -> str:
    try:
        return keyed_digest(root, _EVIDENCE, _SALT, _UNCOVERED)
    except FileError as error:
        plain = error.name.isascii() and error.name.isprintable()
        file = error.name if plain and error.refusal not in _OF_FOLDER else _EVIDENCE
        raise UntrustedFileError(file, error.what) from error
