"""Runs as they were signed while predicate types had addresses as names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from reports.signatures import signing
from reports.signatures.dsse import SHA256, Statement, parse_envelope, seal, write_statement
from reports.signatures.keyring import SigningKey

ADDRESS = "https://dpfedadamw.org/attestation"


def earlier(kind: str) -> str:
    """Return the name that a predicate type had: urn:dpfedadamw:attestation:NAME:vN is today's."""
    name, version = kind.split(":")[3:]
    return f"{ADDRESS}/{name}/{version}"


def rename(run: Path, trainer: SigningKey, auditor: SigningKey) -> None:
    """Sign a run again under the earlier names; what names an envelope follows it."""
    changed: dict[str, str] = {}
    for name, key in (
        (signing.TRAINING_ENVELOPE, trainer),
        (signing.PUBLIC_ENVELOPE, auditor),
        (signing.RUN_ENVELOPE, auditor),
    ):
        if not (run / name).exists():
            continue
        said = json.loads(parse_envelope((run / name).read_bytes(), name).payload)
        subjects = {one["name"]: next(iter(one["digest"].items())) for one in said["subject"]}
        subjects |= {file: (SHA256, to) for file, to in changed.items() if file in subjects}
        statement = Statement(subjects, earlier(said["predicateType"]), said["predicate"])
        data = seal(write_statement(statement), key.private)
        (run / name).write_bytes(data)
        changed[name] = hashlib.sha256(data).hexdigest()
