"""Are the files those that the trainer's attestation names? Digests alone; signatures are not read.

The check "integrity" calls this. Weights, metrics and much of the evidence bear no redundancy, so
only a digest taken at the moment of training can show that they were changed since. Whether the
attestation itself is the trainer's is what `verify` answers, with keys; a run that nobody has
attested to yet is judged without.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterator
from pathlib import Path

from audit.errors import UntrustedFileError
from audit.reading import fields
from audit.reading.documents import DocumentError, parse_json
from audit.reading.fields import FieldError
from audit.reading.files import hash_file, read_bytes

ENVELOPE, KEY = "training.attestation.json", "trainer.pub"
_EVIDENCE, _SALT = "evidence", "salt"
_UNCOVERED = (_SALT, "findings.json")
_MOST_BYTES, _DEPTH, _MOST_FILES, _MOST_SUBJECTS = 1 << 20, 8, 1_000_000, 64
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
        if error.missing and not os.path.lexists(root / KEY):
            return False
        unreadable.append(f"{ENVELOPE}: {error.what}")
        return True
    try:
        subjects = _subjects(raw)
    except (DocumentError, FieldError, binascii.Error, ValueError) as error:
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
    """HMAC-SHA256, keyed with the salt, over the sorted lines "sha256  path" of all evidence."""
    salt = read_bytes(root, f"{_EVIDENCE}/{_SALT}", 32)
    if len(salt) != 32:
        raise UntrustedFileError(f"{_EVIDENCE}/{_SALT}", "is not 32 bytes")
    lines = sorted(
        f"{hash_file(root, f'{_EVIDENCE}/{name}')}  {name}\n"
        for name in _files(root / _EVIDENCE, "", 0)
        if name not in _UNCOVERED
    )
    return hmac.new(salt, "".join(lines).encode("utf-8"), hashlib.sha256).hexdigest()


def _files(folder: Path, prefix: str, depth: int) -> Iterator[str]:
    """Relative names below a folder; what is no plain file is refused when it is hashed."""
    if depth > _DEPTH:
        raise UntrustedFileError(_EVIDENCE, "has folders that lie too deep")
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise UntrustedFileError(_EVIDENCE, "cannot be listed") from error
    if len(found) > _MOST_FILES:
        raise UntrustedFileError(_EVIDENCE, f"has more than {_MOST_FILES} files")
    for entry in found:
        name = prefix + entry.name
        if not name.isprintable() or not name.isascii():
            raise UntrustedFileError(_EVIDENCE, "has a file with an unusual name")
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder / entry.name, f"{name}/", depth + 1)
        else:
            yield name
