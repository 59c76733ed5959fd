"""Signs a run: the trainer what was run, the auditor what was found.

Two envelopes, so that another auditor can judge and sign anew without making the trainer's
signature void. Attestations are public: their claims are the worst case towards the server and the
third party's, never a loss that tells how often clients took part.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from reports import findings, instructions
from reports.dsse import (
    RUN_TYPE,
    SALTED,
    SHA256,
    TRAINING_TYPE,
    Statement,
    seal,
    write_statement,
)
from reports.errors import ReportError, SourceError
from reports.guarantee import PUBLIC, attested_claims
from reports.inventory import EVIDENCE, evidence_digest, has_evidence, list_run
from reports.keys import Role, parse_public, public_pem
from reports.runfiles import clean, read_bytes, sha256_file, write_atomic
from reports.source import RunSource, load

TRAINING_ENVELOPE = "training.attestation.json"
RUN_ENVELOPE = "attestation.json"
TRAINER_KEY = "trainer.pub"
AUDITOR_KEY = "auditor.pub"
INSTRUCTIONS = "VERIFY.md"
TRAINED_FILES = (
    "spec.yaml",
    "ledger.jsonl",
    "metrics.jsonl",
    "model.safetensors",
    "model.json",
    TRAINER_KEY,
)


def attest_training(run_dir: Path, private_key: ec.EllipticCurvePrivateKey) -> Path:
    """Sign what was run, with the trainer's key.

    Writes trainer.pub and training.attestation.json.

    Args:
        run_dir: A finished run.
        private_key: The trainer's key.

    Returns:
        The path of the envelope.

    Raises:
        ReportError: A file that must be signed is missing, a link, or cannot be read.
    """
    source = load(run_dir)
    write_atomic(run_dir / TRAINER_KEY, public_pem(private_key.public_key()))
    subjects = {name: (SHA256, sha256_file(run_dir / name)) for name in TRAINED_FILES}
    subjects |= _evidence_subject(run_dir)
    statement = Statement(subjects, TRAINING_TYPE, training_predicate(source))
    return _write(run_dir / TRAINING_ENVELOPE, statement, private_key)


def attest_run(run_dir: Path, private_key: ec.EllipticCurvePrivateKey) -> Path:
    """Sign what was found, with the auditor's key.

    Writes VERIFY.md, auditor.pub and attestation.json, which covers every file of the run but
    checkpoint/ and itself, evidence by its salted digest.

    Args:
        run_dir: A run that its trainer signed and an auditor judged.
        private_key: The auditor's key.

    Returns:
        The path of the envelope.

    Raises:
        ReportError: The trainer's envelope or audit.json is missing, or a file cannot be signed.
    """
    source = load(run_dir)
    for name, remedy in (
        (TRAINING_ENVELOPE, "the trainer signs first"),
        (TRAINER_KEY, "the trainer signs first"),
        ("audit.json", "there is no finding to sign"),
    ):
        if not (run_dir / name).is_file():
            raise SourceError(f"{name}: missing; {remedy}")
    if source.audit is None:
        reasons = [note for note in source.notes if note.startswith("audit.json")]
        raise ReportError(reasons[0] if reasons else "audit.json: cannot be used")
    trainer = parse_public(read_bytes(run_dir / TRAINER_KEY), TRAINER_KEY)
    auditor = private_key.public_key()
    write_atomic(run_dir / AUDITOR_KEY, public_pem(auditor))
    write_atomic(
        run_dir / INSTRUCTIONS, instructions.write(source.run, trainer, auditor).encode("utf-8")
    )
    inventory = list_run(run_dir)
    if inventory.problems:
        raise SourceError(str(inventory.problems[0]))
    subjects = {
        name: (SHA256, sha256_file(run_dir / name))
        for name in inventory.files
        if name != RUN_ENVELOPE
    }
    subjects |= _evidence_subject(run_dir)
    statement = Statement(subjects, RUN_TYPE, run_predicate(source))
    return _write(run_dir / RUN_ENVELOPE, statement, private_key)


def training_predicate(source: RunSource) -> dict[str, Any]:
    """Return what the trainer says; its schema is training-attestation.schema.json."""
    return {
        **_predicate(source, "trainer"),
        "tools": {"package": clean(source.header.get("package"), 60), **_libraries("cryptography")},
    }


def run_predicate(source: RunSource) -> dict[str, Any]:
    """Return what the auditor says; its schema is run-attestation.schema.json."""
    found = {entry["name"]: entry["version"] for entry in findings.auditor(source)}
    return {
        **_predicate(source, "auditor"),
        "verdict": findings.verdict(source, PUBLIC)["value"],
        "qualifications": findings.qualifications(source, PUBLIC),
        "tools": {**found, **_libraries("cryptography", "typst")},
    }


def _predicate(source: RunSource, role: Role) -> dict[str, Any]:
    return {"run": source.run, "role": role, "claims": attested_claims(source)}


def _libraries(*names: str) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def _evidence_subject(run_dir: Path) -> dict[str, tuple[str, str]]:
    if not has_evidence(run_dir):
        return {}
    return {EVIDENCE: (SALTED, evidence_digest(run_dir))}


def _write(path: Path, statement: Statement, key: ec.EllipticCurvePrivateKey) -> Path:
    write_atomic(path, seal(write_statement(statement), key))
    return path


__all__ = [
    "attest_run",
    "attest_training",
    "run_predicate",
    "training_predicate",
]
