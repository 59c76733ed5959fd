"""Checks a signed run: signatures, files, evidence, and that all parts belong together.

The reader's end of `signing`. Every input may be hostile: nothing is followed out of the run
directory, and whatever is wrong becomes a `Problem` that names the file. The result says how far
the check reaches: keys taken from the run itself prove integrity only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from reports import findings, guarantee, signing
from reports.dsse import (
    RUN_TYPE,
    SALTED,
    SHA256,
    TRAINING_TYPE,
    Statement,
    check_signature,
    parse_envelope,
    parse_statement,
)
from reports.errors import EnvelopeError, KeyFileError, ReportError, SourceError
from reports.inventory import EVIDENCE, Problem, evidence_digest, has_evidence, list_run
from reports.keys import Role, fingerprint, load_public, parse_public
from reports.runfiles import clean, mapping, parse_json, read_bytes, sequence, sha256_file
from reports.source import RunSource, load

_REPORTS = ("report", "report-public")
_MODEL = "model.safetensors"


@dataclass(frozen=True)
class Signer:
    """Who signed what.

    Attributes:
        role: "trainer" or "auditor".
        fingerprint: Of the key under which the signature holds.
        envelope: Name of the signed file.
        pinned: Whether the key was given by the caller rather than found in the run.
    """

    role: Role
    fingerprint: str
    envelope: str
    pinned: bool


@dataclass(frozen=True)
class VerificationResult:
    """What was found.

    Attributes:
        ok: Whether there is no problem.
        problems: What does not hold, each naming its file.
        statements: How far the check reaches: integrity, independence, the verdict, evidence.
        signers: The signatures that hold.
    """

    ok: bool
    problems: tuple[Problem, ...]
    statements: tuple[str, ...]
    signers: tuple[Signer, ...]


@dataclass
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    signers: list[Signer] = field(default_factory=list)

    def add(self, file: str, reason: str) -> None:
        problem = Problem(file, reason)
        if problem not in self.problems:
            self.problems.append(problem)

    def add_error(self, file: str, error: ReportError) -> None:
        self.add(file, str(error).removeprefix(f"{file}: ").rstrip("."))


def verify(
    run_dir: Path, trainer_key: Path | None = None, auditor_key: Path | None = None
) -> VerificationResult:
    """Check a signed run.

    Args:
        run_dir: The run directory; links in it are refused, not followed.
        trainer_key: Public key that the trainer's signature must be by; the run's own if not given.
        auditor_key: The same for the auditor.

    Returns:
        Problems, statements and signers. Nothing in the run directory makes this raise.

    Raises:
        KeyFileError: A key that the caller gave cannot be read.
    """
    pinned = {
        "trainer": load_public(trainer_key) if trainer_key is not None else None,
        "auditor": load_public(auditor_key) if auditor_key is not None else None,
    }
    found = _Findings()
    if not run_dir.is_dir():
        found.add(clean(run_dir.name, 200), "no such run directory")
        return _result(found)
    statements: dict[str, Statement] = {}
    for role, envelope, key_file, kind in _SIGNATURES:
        statement = _open(run_dir, role, envelope, key_file, kind, pinned[role], found)
        if statement is not None:
            statements[envelope] = statement
    _check_files(run_dir, statements, found)
    _check_evidence(run_dir, statements, found)
    try:
        source = load(run_dir)
    except SourceError as error:
        found.add(str(error).split(":")[0].split(",")[0], str(error).partition(": ")[2])
    else:
        _check_claims(source, statements, found)
        _check_reports(run_dir, source, found)
    _judge_signers(found)
    return _result(found)


_SIGNATURES: tuple[tuple[Role, str, str, str], ...] = (
    ("trainer", signing.TRAINING_ENVELOPE, signing.TRAINER_KEY, TRAINING_TYPE),
    ("auditor", signing.RUN_ENVELOPE, signing.AUDITOR_KEY, RUN_TYPE),
)


def _result(found: _Findings) -> VerificationResult:
    return VerificationResult(
        not found.problems, tuple(found.problems), tuple(found.statements), tuple(found.signers)
    )


def _open(
    run_dir: Path,
    role: Role,
    envelope_name: str,
    key_name: str,
    kind: str,
    pinned: ec.EllipticCurvePublicKey | None,
    found: _Findings,
) -> Statement | None:
    """Return a statement whose signature holds, or None and a problem."""
    embedded: ec.EllipticCurvePublicKey | None = None
    try:
        embedded = parse_public(read_bytes(run_dir / key_name, 16_384), key_name)
    except (SourceError, KeyFileError) as error:
        found.add_error(key_name, _local(error, run_dir))
    if pinned is not None and embedded is not None and fingerprint(pinned) != fingerprint(embedded):
        found.add(
            key_name, f"is {fingerprint(embedded)}, not the key you gave, {fingerprint(pinned)}"
        )
    key = pinned or embedded
    try:
        envelope = parse_envelope(read_bytes(run_dir / envelope_name), envelope_name)
        if key is None:
            return None
        check_signature(envelope, key, envelope_name)
        statement = parse_statement(envelope.payload, kind, envelope_name)
    except (SourceError, EnvelopeError) as error:
        found.add_error(envelope_name, _local(error, run_dir))
        return None
    found.signers.append(Signer(role, fingerprint(key), envelope_name, pinned is not None))
    if envelope.keyid != fingerprint(key):
        found.add(envelope_name, "its keyid names another key than the one that signed")
    if statement.predicate.get("role") != role:
        found.add(envelope_name, f"was not signed in the role of the {role}")
    return statement


def _local(error: ReportError, run_dir: Path) -> ReportError:
    """Return the error without the folder's path, which the caller knows and a report need not."""
    return ReportError(str(error).replace(f" in {run_dir}", ""))


def _check_files(run_dir: Path, statements: dict[str, Statement], found: _Findings) -> None:
    try:
        inventory = list_run(run_dir)
    except SourceError as error:
        found.add_error(run_dir.name, error)
        return
    found.problems.extend(inventory.problems)
    present = set(inventory.files)
    digests: dict[str, str] = {}
    for envelope, statement in statements.items():
        for name, (kind, digest) in statement.subjects.items():
            if kind != SHA256:
                if name != EVIDENCE:
                    found.add(clean(name, 200), f"{envelope} gives only a salted digest")
                continue
            # Only names that the listing found are opened, so a subject cannot point elsewhere.
            if name not in present:
                found.add(clean(name, 200), f"missing, though {envelope} covers it")
                continue
            try:
                digests[name] = digests.get(name) or sha256_file(run_dir / name)
            except SourceError as error:
                found.add_error(name, error)
                continue
            if digests[name] != digest:
                found.add(name, f"changed since {envelope} was signed")
    training, run = (statements.get(entry[1]) for entry in _SIGNATURES)
    if run is not None:
        for name in sorted(present - set(run.subjects) - {signing.RUN_ENVELOPE}):
            found.add(name, f"is not covered by {signing.RUN_ENVELOPE}")
    if training is not None:
        for name in signing.TRAINED_FILES:
            if name not in training.subjects:
                found.add(name, f"is not covered by {signing.TRAINING_ENVELOPE}")


def _check_evidence(run_dir: Path, statements: dict[str, Statement], found: _Findings) -> None:
    signed = {name: s.subjects.get(EVIDENCE) for name, s in statements.items()}
    if not has_evidence(run_dir):
        if any(signed.values()):
            found.statements.append(
                "The evidence is not here, so its signed digest could not be checked."
            )
        return
    try:
        digest = evidence_digest(run_dir)
    except SourceError as error:
        found.add(str(error).split(":")[0], str(error).partition(": ")[2])
        return
    for envelope, subject in signed.items():
        if subject is None:
            found.add(EVIDENCE, f"is not covered by {envelope}")
        elif subject != (SALTED, digest):
            found.add(EVIDENCE, f"changed since {envelope} was signed, or its salt did")


def _check_claims(source: RunSource, statements: dict[str, Statement], found: _Findings) -> None:
    """Check that what was signed is what the files say."""
    for note in source.notes:
        file, _, reason = note.rstrip(".").partition(": ")
        found.add(file, reason)
    expected = json.loads(json.dumps(guarantee.attested_claims(source)))
    for envelope, statement in statements.items():
        if statement.predicate.get("run") != source.run:
            found.add(envelope, f"speaks of another run than the ledger, {source.run}")
        if statement.predicate.get("claims") != expected:
            found.add(envelope, "claims something else than the ledger")
    run = statements.get(signing.RUN_ENVELOPE)
    if run is None:
        return
    verdict = findings.verdict(source, guarantee.PUBLIC)["value"]
    if run.predicate.get("verdict") != verdict:
        found.add(signing.RUN_ENVELOPE, "states another verdict than audit.json")
    found.statements.append(f"The audit's verdict is {verdict}; {_MEANING.get(verdict, '')}.")


_MEANING = {
    "PASS": "no check contradicts the claim, which is not a proof",
    "FAIL": "the guarantee is contradicted, and valid signatures do not mend that",
    "NOT VERIFIED": "the guarantee is unproven, and valid signatures do not mend that",
    "NOT AUDITED": "the guarantee is unproven, and valid signatures do not mend that",
    "NO CLAIM": "no differential privacy is claimed",
}


def _check_reports(run_dir: Path, source: RunSource, found: _Findings) -> None:
    """Check that the reports beside the model are about this run, this model and this audit."""
    for stem in _REPORTS:
        for suffix, check in ((".json", _report_data), (".pdf", _report_pages)):
            name = stem + suffix
            try:
                data = read_bytes(run_dir / name)
            except SourceError as error:
                if stem == "report" or (run_dir / name).is_symlink():
                    found.add_error(name, _local(error, run_dir))
                continue
            try:
                check(data, name, source, found)
            except SourceError as error:
                found.add_error(name, error)


def _report_data(data: bytes, name: str, source: RunSource, found: _Findings) -> None:
    report = mapping(parse_json(data, name))
    identity = mapping(report.get("identity"))
    if identity.get("run") != source.run:
        found.add(name, f"is about another run than {source.run}")
    stated = {
        clean(mapping(entry).get("file"), 200): mapping(entry).get("sha256")
        for entry in sequence(identity.get("hashes"))
    }
    if stated.get(_MODEL) != source.hashes.get(_MODEL):
        found.add(name, f"is about another model than {_MODEL} beside it")
    for file, digest in sorted(stated.items()):
        if file != _MODEL and digest != source.hashes.get(file):
            found.add(name, f"was made with another {file}")
    verdict = findings.verdict(source, guarantee.PUBLIC)["value"]
    if mapping(report.get("verdict")).get("value") != verdict:
        found.add(name, f"states another verdict than the audit's, {verdict}")


def _report_pages(data: bytes, name: str, source: RunSource, found: _Findings) -> None:
    # PDF/A keeps its metadata readable, and the page's keywords carry run and model.
    model = source.hashes.get(_MODEL)
    if f"run {source.run}".encode() not in data:
        found.add(name, f"is about another run than {source.run}")
    elif model is None or f"model sha256:{model}".encode() not in data:
        found.add(name, f"is about another model than {_MODEL} beside it")


def _judge_signers(found: _Findings) -> None:
    """Say how far the signatures reach."""
    if not found.signers:
        return
    unpinned = [signer.role for signer in found.signers if not signer.pinned]
    if unpinned:
        whose = " and the ".join(unpinned)
        found.statements.append(
            f"The key of the {whose} was taken from the run itself: this proves integrity only. "
            "Give a key that you received another way to learn who signed."
        )
    keys = [signer.fingerprint for signer in found.signers]
    if len(keys) == 2 and keys[0] == keys[1]:
        found.statements.append(
            "Trainer and auditor signed with the same key: integrity, not independence."
        )
    elif len(keys) == 2:
        found.statements.append(
            "Trainer and auditor signed with different keys. If both keys are in one hand, that is "
            "integrity, not independence; no signature can tell."
        )
