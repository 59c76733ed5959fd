"""Signs a run: the trainer what was run, the auditor what was found.

Two envelopes, so that another auditor can judge and sign again without invalidating the trainer's
signature. Attestations are public: their claims are the worst case against the server and the
third party's, never a loss that tells how often clients took part.

VERIFY.md says how to check the run with sed, sha256sum, openssl and pdfsig alone. Its commands are
one script, templates/verify.sh, in the one fenced block of the page; the test suite runs exactly
that. It relies on the layout that `dsse` gives envelopes and statements. It is fed to a bash of its
own, so that it may be pasted into any shell: that shell's options, aliases and variables do not
reach it, and a failure ends only the check.
"""

from __future__ import annotations

import hashlib
import os
import re
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from reports.content import findings
from reports.content.assurance import facts_of
from reports.content.guarantee import attested_claims
from reports.content.parts import PUBLIC
from reports.errors import ReportError, SourceError
from reports.files import Snapshot, clean, read_bytes, sha256_file, write_atomic
from reports.signatures import dsse, pades
from reports.signatures.dsse import (
    PUBLIC_TYPE,
    RUN_TYPE,
    SALTED,
    SHA256,
    TRAINING_TYPE,
    Statement,
    seal,
    write_statement,
)
from reports.signatures.inventory import (
    BUNDLE,
    CHALLENGE,
    EVIDENCE,
    INTENT,
    evidence_digests,
    has_evidence,
    list_run,
)
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import Role, fingerprint, parse_public, public_pem
from reports.signatures.statements import write_bundle
from reports.signatures.timestamps import Authority
from reports.source import RunSource, load

# The identifier stands inside shell commands.
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SAME_KEY = "\n**Both signatures are by one key: they prove integrity, not independence.**\n"


def verify_page(
    run: str,
    trainer: ec.EllipticCurvePublicKey,
    auditor: ec.EllipticCurvePublicKey,
    public: bool = False,
) -> str:
    """Return the text of VERIFY.md, or of VERIFY-public.md.

    Args:
        run: The run's identifier.
        trainer: The key that signed training.attestation.json.
        auditor: The key that will sign attestation.json.
        public: For readers who have only the public files.

    Raises:
        SourceError: The identifier has characters that a shell would not take literally.
    """
    if not _RUN.fullmatch(run):
        raise SourceError(f"ledger.jsonl: the run's identifier {clean(run, 60)!r} is not accepted")
    fingerprints = fingerprint(trainer), fingerprint(auditor)
    page, kind = ("VERIFY-public.md", "public") if public else ("VERIFY.md", "run")
    return (
        _template(page)
        .replace("@SCRIPT@", _template("verify.sh").replace("@KIND@", kind))
        .replace("@TRAINER@", fingerprints[0])
        .replace("@AUDITOR@", fingerprints[1])
        .replace("@SAME@", _SAME_KEY if fingerprints[0] == fingerprints[1] else "")
        .replace("@RUN@", run)
    )


def _template(name: str) -> str:
    folder = resources.files("reports.signatures").joinpath("templates")
    return folder.joinpath(name).read_text("utf-8")


TRAINING_ENVELOPE = "training.attestation.json"
RUN_ENVELOPE = "attestation.json"
PUBLIC_ENVELOPE = "attestation-public.json"
TRAINER_KEY, TRAINER_ROTATIONS = "trainer.pub", "trainer.rotations.json"
AUDITOR_KEY, AUDITOR_ROTATIONS = "auditor.pub", "auditor.rotations.json"
ROTATIONS: dict[Role, str] = {"trainer": TRAINER_ROTATIONS, "auditor": AUDITOR_ROTATIONS}
INSTRUCTIONS, PUBLIC_INSTRUCTIONS = "VERIFY.md", "VERIFY-public.md"
STAMP_SUFFIX, PROOF_SUFFIX = ".tsr", ".tlog"
SIGNED_PAGES = frozenset({"report.pdf", "report-public.pdf"})
TRAINED_FILES = (
    "spec.yaml",
    "ledger.jsonl",
    "metrics.jsonl",
    "model.safetensors",
    "model.json",
    TRAINER_KEY,
)
# What was signed before training, where an auditor had a part in it.
ANNOUNCED_FILES = (
    INTENT, INTENT + STAMP_SUFFIX, INTENT + PROOF_SUFFIX,
    CHALLENGE,
)  # fmt: skip
PUBLIC_REPORTS = ("report-public.json", "report-public.pdf", "report-public.html")
# What everybody may hold: nothing of it, and no digest of anything else, tells participation.
PUBLIC_FILES = (
    "model.safetensors",
    "model.json",
    "metrics.jsonl",
    *PUBLIC_REPORTS,
    TRAINER_KEY,
    AUDITOR_KEY,
    PUBLIC_INSTRUCTIONS,
)
# Further public files, where a run has them.
PUBLIC_EXTRAS = (BUNDLE, TRAINER_ROTATIONS, AUDITOR_ROTATIONS, *ANNOUNCED_FILES)


def sign(
    run_dir: Path,
    trainer: SigningKey | None = None,
    auditor: SigningKey | None = None,
    authority: Authority | None = None,
    bundle: bytes | None = None,
) -> tuple[Path, ...]:
    """Sign in one role or in both, and write only after everything is made.

    The trainer signs what was run: trainer.pub and training.attestation.json, and what belongs
    to the key: its rotations, and a timestamp where an authority is given.

    The auditor signs what was found: first the report's PDF itself (`pades`), then attestation.json
    over every file of the run, the signed PDF among them, but itself and its own timestamp;
    evidence, the findings in it included, by its salted digest. VERIFY.md and auditor.pub come
    with it. Where the public report was written, attestation-public.json is over the public files
    alone, so that a reader who has no others can check them.

    Each envelope has a number, one above that of the envelope that it supersedes (`dsse`).

    Args:
        run_dir: A finished run; one that its trainer signed and that is audited if the auditor
            signs.
        trainer: The trainer's key, to sign what was run.
        auditor: The auditor's key, to sign what was found.
        authority: Timestamps the PDFs' signatures and the envelopes.
        bundle: The model's own signature (`bundles`), to be filed as model.sig.

    Returns:
        The paths of the envelopes, the trainer's first.

    Raises:
        ReportError: A file that must be signed is missing, a link, or cannot be read; the trainer's
            envelope or audit.json is missing; an envelope to be superseded is damaged; the model
            keeps a signature that is not the trainer's key's; a key or the authority fails.
            Nothing was written.
    """
    source, files = load(run_dir), _Files(run_dir)
    if bundle is not None:
        files.put(BUNDLE, bundle)
    elif trainer is not None and files.exists(BUNDLE):
        _refuse_other_bundle(run_dir, trainer)
    evidence = evidence_digests(run_dir) if has_evidence(run_dir) else None
    envelopes = []
    if trainer is not None:
        files.put(TRAINER_KEY, public_pem(trainer.public))
        files.put(TRAINER_ROTATIONS, _rotations(trainer))
        names = (*TRAINED_FILES, *filter(files.exists, ANNOUNCED_FILES))
        subjects = {name: (SHA256, files.sha256(name)) for name in names}
        if evidence is not None:
            subjects[EVIDENCE] = (SALTED, evidence.trained)
        place = dsse.numbered_entry(run_dir, TRAINING_ENVELOPE, TRAINING_TYPE, source.run)
        statement = Statement(subjects, TRAINING_TYPE, training_predicate(source) | place)
        envelopes.append(_seal(files, TRAINING_ENVELOPE, statement, trainer, authority))
    if auditor is not None:
        _sign_findings(source, files, auditor, authority)
        _sign_public(source, files, auditor, authority)
        # The timestamp is over the envelope, so it comes after it, and says itself if it holds.
        itself = (RUN_ENVELOPE, RUN_ENVELOPE + STAMP_SUFFIX)
        left = (name for name in files.names() if name not in itself)
        subjects = {name: (SHA256, files.sha256(name)) for name in left}
        if evidence is not None:
            subjects[EVIDENCE] = (SALTED, evidence.judged)
        place = dsse.numbered_entry(run_dir, RUN_ENVELOPE, RUN_TYPE, source.run)
        statement = Statement(subjects, RUN_TYPE, run_predicate(source) | place)
        envelopes.append(_seal(files, RUN_ENVELOPE, statement, auditor, authority))
    files.write()
    return tuple(envelopes)


def _refuse_other_bundle(run_dir: Path, trainer: SigningKey) -> None:
    """Refuse to sign next to a model's own signature that the trainer's key did not make."""
    # Few runs have one, so how it is checked is read here.
    from reports.signatures.bundles import check_bundle

    for problem in check_bundle(Snapshot(run_dir), trainer.public):
        raise ReportError(
            f"{problem}; nothing was signed; have the model signed by this key too "
            f"(--model-signing), or move {BUNDLE} out of the run"
        )


def _sign_findings(
    source: RunSource, files: _Files, key: SigningKey, authority: Authority | None
) -> None:
    """Prepare what the auditor adds before the envelope: key, instructions, signed pages."""
    for name, remedy in (
        (TRAINING_ENVELOPE, "the trainer signs first"),
        (TRAINER_KEY, "the trainer signs first"),
        ("audit.json", "there is no finding to sign"),
    ):
        if not files.exists(name):
            raise SourceError(f"{name}: missing; {remedy}")
    if source.audit is None:
        reasons = [note for note in source.notes if note.startswith("audit.json")]
        raise ReportError(reasons[0] if reasons else "audit.json: cannot be used")
    trainer = parse_public(files.read(TRAINER_KEY), TRAINER_KEY)
    files.put(AUDITOR_KEY, public_pem(key.public))
    files.put(AUDITOR_ROTATIONS, _rotations(key))
    files.put(INSTRUCTIONS, verify_page(source.run, trainer, key.public).encode("utf-8"))
    for name in sorted(SIGNED_PAGES & set(files.names())):
        files.put(name, pades.sign(files.read(name), key, name, authority))


def _sign_public(
    source: RunSource, files: _Files, key: SigningKey, authority: Authority | None
) -> None:
    """Prepare the envelope over the public files; without a public report there is none."""
    if not all(map(files.exists, PUBLIC_REPORTS)):
        for name in (PUBLIC_INSTRUCTIONS, PUBLIC_ENVELOPE, PUBLIC_ENVELOPE + STAMP_SUFFIX):
            files.put(name, None)
        return
    trainer = parse_public(files.read(TRAINER_KEY), TRAINER_KEY)
    page = verify_page(source.run, trainer, key.public, public=True)
    files.put(PUBLIC_INSTRUCTIONS, page.encode("utf-8"))
    names = (*PUBLIC_FILES, *filter(files.exists, PUBLIC_EXTRAS))
    subjects = {name: (SHA256, files.sha256(name)) for name in names}
    place = dsse.numbered_entry(files.run_dir, PUBLIC_ENVELOPE, PUBLIC_TYPE, source.run)
    statement = Statement(subjects, PUBLIC_TYPE, run_predicate(source) | place)
    _seal(files, PUBLIC_ENVELOPE, statement, key, authority)


class _Files:
    """What signing changes in a run, kept until everything is made."""

    def __init__(self, run_dir: Path) -> None:
        """Start without a change."""
        self.run_dir = run_dir
        self._changes: dict[str, bytes | None] = {}

    def put(self, name: str, data: bytes | None) -> None:
        """Write a file later, or take an old one away if there is nothing to write."""
        self._changes[name] = data

    def exists(self, name: str) -> bool:
        """Return whether a regular file will be there."""
        return (
            self._changes[name] is not None if name in self._changes else self.path(name).is_file()
        )

    def read(self, name: str) -> bytes:
        """Return a file's bytes as they will be."""
        data = self._changes.get(name)
        return data if data is not None else read_bytes(self.path(name))

    def sha256(self, name: str) -> str:
        """Return a file's digest as it will be."""
        data = self._changes.get(name)
        return sha256_file(self.path(name)) if data is None else hashlib.sha256(data).hexdigest()

    def names(self) -> list[str]:
        """Return the names of all files that will be there, sorted.

        Raises:
            SourceError: The run holds a link, or a name that cannot be signed.
        """
        present, problems = list_run(self.run_dir)
        if problems:
            raise SourceError(str(problems[0]))
        removed = {name for name, data in self._changes.items() if data is None}
        return sorted((set(present) | set(self._changes)) - removed)

    def write(self) -> None:
        """Write and remove, in the order in which it was asked for."""
        for name, data in self._changes.items():
            if data is not None:
                write_atomic(self.run_dir / name, data)
            elif os.path.lexists(self.run_dir / name):
                (self.run_dir / name).unlink()

    def path(self, name: str) -> Path:
        """Return a file's path."""
        return self.run_dir / name


def training_predicate(source: RunSource) -> dict[str, Any]:
    """Return what the trainer says; its schema is training-attestation.schema.json."""
    return {
        **_predicate(source, "trainer"),
        "tools": {"package": clean(source.header.get("package"), 60), **libraries("cryptography")},
    }


def run_predicate(source: RunSource) -> dict[str, Any]:
    """Return what the auditor says; its schema is run-attestation.schema.json."""
    found = {entry.name: entry.version for entry in findings.auditor(source)}
    return {
        **_predicate(source, "auditor"),
        "verdict": findings.verdict(source, PUBLIC).value,
        "reexecution": facts_of(source).attested(),
        "qualifications": findings.qualifications(source, PUBLIC),
        "tools": {**found, **libraries("cryptography", "pyhanko", "typst")},
    }


def _predicate(source: RunSource, role: Role) -> dict[str, Any]:
    return {"run": source.run, "role": role, "claims": attested_claims(source)}


def libraries(*names: str) -> dict[str, str]:
    """Return the versions of libraries that made a signature, by their names."""
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def _rotations(key: SigningKey) -> bytes | None:
    return write_bundle("rotations", key.rotations) if key.rotations else None


def _seal(
    files: _Files,
    name: str,
    statement: Statement,
    key: SigningKey,
    authority: Authority | None,
) -> Path:
    envelope = seal(write_statement(statement), key.private)
    # An old timestamp would be over an old envelope.
    stamp = authority.stamp(envelope) if authority is not None else None
    files.put(name, envelope)
    files.put(name + STAMP_SUFFIX, stamp)
    return files.path(name)
