"""What a run's files say: unchanged, complete, and about this run, this model and this audit."""

from __future__ import annotations

import json
from pathlib import Path

from audit.untrusted.files import UNFINISHED
from reports.content import findings, guarantee
from reports.content.parts import PUBLIC
from reports.errors import PdfSignatureError, SourceError, local
from reports.reading.files import clean, mapping, parse_json, sequence
from reports.reading.snapshot import Snapshot
from reports.reading.source import RunSource
from reports.signatures import pades, signing
from reports.signatures.dsse import SALTED, SHA256, Statement
from reports.signatures.inventory import (
    CHECKPOINT,
    EVIDENCE,
    EvidenceDigests,
    evidence_digests,
    has_evidence,
    list_run,
)
from reports.signatures.verification.results import Found

_REPORTS = ("report", "report-public")
_MODEL = "model.safetensors"


def check_files(files: Snapshot, statements: dict[str, Statement], found: Found) -> None:
    """Check that every signed file is unchanged, and nothing unsigned lies beside them."""
    try:
        names, problems = list_run(files.folder)
    except SourceError as error:
        found.add_error(files.folder.name, error)
        return
    found.problems.extend(problems)
    _check_unlisted(files, found)
    present = set(names)
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
                found_digest = files.sha256(name)
            except SourceError as error:
                found.add_error(name, error)
                continue
            if found_digest != digest:
                found.add(name, f"changed since {envelope} was signed")
    training = statements.get(signing.TRAINING_ENVELOPE)
    run = statements.get(signing.RUN_ENVELOPE)
    if run is not None:
        for name in sorted(present - set(run.subjects) - signing.NOT_COVERED):
            found.add(name, f"is not covered by {signing.RUN_ENVELOPE}")
    if training is not None:
        for name in signing.TRAINED_FILES:
            if name not in training.subjects:
                found.add(name, f"is not covered by {signing.TRAINING_ENVELOPE}")


def _check_unlisted(files: Snapshot, found: Found) -> None:
    """Note what no signature covers: the state to resume from, and writes that did not end."""
    if files.holds(UNFINISHED):
        found.add(
            UNFINISHED,
            "a write to this run was cut off or is going on; dpfedadamw run --resume RUN_DIR "
            "finishes it",
        )
    if files.holds(CHECKPOINT):
        found.add(
            CHECKPOINT,
            "is not signed, and a finished run has none; older runs kept theirs: move it out of "
            "the run directory",
        )


def check_evidence(run_dir: Path, statements: dict[str, Statement], found: Found) -> None:
    """Check the salted digest of the evidence, where the evidence is here."""
    signed = {name: s.subjects.get(EVIDENCE) for name, s in statements.items()}
    if not has_evidence(run_dir):
        if any(signed.values()):
            found.say("The evidence is not here, so its signed digest could not be checked.")
        return
    try:
        digests = evidence_digests(run_dir)
    except SourceError as error:
        found.add(str(error).split(":")[0], str(error).partition(": ")[2])
        return
    for envelope, subject in signed.items():
        if subject is None:
            found.add(EVIDENCE, f"is not covered by {envelope}")
        elif subject != (SALTED, _due(envelope, statements[envelope], digests)):
            found.add(EVIDENCE, f"changed since {envelope} was signed, or its salt did")


def _due(envelope: str, statement: Statement, digests: EvidenceDigests) -> str:
    """Return the digest that an envelope should name: the auditor's covers the findings too.

    In the form before sequence numbers neither did.
    """
    judged = envelope == signing.RUN_ENVELOPE and statement.is_numbered
    return digests.judged if judged else digests.trained


def check_claims(source: RunSource, statements: dict[str, Statement], found: Found) -> None:
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
    verdict = findings.verdict(source, PUBLIC).value
    if run.predicate.get("verdict") != verdict:
        found.add(signing.RUN_ENVELOPE, "states another verdict than audit.json")
    found.say(f"The audit's verdict is {verdict}; {_MEANING.get(verdict, '')}.")


_MEANING = {
    "PASS": "no check contradicts the claim, which is not a proof",
    "FAIL": "the guarantee is contradicted, and valid signatures do not mend that",
    "NOT VERIFIED": "the guarantee is unproven, and valid signatures do not mend that",
    "NOT AUDITED": "the guarantee is unproven, and valid signatures do not mend that",
    "NO CLAIM": "no differential privacy is claimed",
}


def check_reports(files: Snapshot, source: RunSource, found: Found) -> None:
    """Check that the reports beside the model are about this run, this model and this audit."""
    for stem in _REPORTS:
        for suffix, check in (
            (".json", _report_data),
            (".pdf", _report_pages),
            (".html", _report_pages),
        ):
            name = stem + suffix
            try:
                data = files.read(name)
            except SourceError as error:
                needed = stem == "report" and suffix != ".html"
                if needed or files.holds(name):
                    found.add_error(name, local(error, files.folder))
                continue
            try:
                check(data, name, source, found)
            except SourceError as error:
                found.add_error(name, error)
            if suffix == ".pdf":
                _check_attachment(files, stem, data, found)


def _check_attachment(files: Snapshot, stem: str, pages: bytes, found: Found) -> None:
    """Check that the pages carry the data that lie beside them, so that both say the same."""
    try:
        if pades.attached(pages, f"{stem}.pdf") != files.read(f"{stem}.json"):
            found.add(f"{stem}.pdf", f"carries other data than {stem}.json beside it")
    except PdfSignatureError as error:
        found.add_error(f"{stem}.pdf", error)
    except SourceError:
        pass  # Named already: the data are missing.


def _report_data(data: bytes, name: str, source: RunSource, found: Found) -> None:
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
    verdict = findings.verdict(source, PUBLIC).value
    if mapping(report.get("verdict")).get("value") != verdict:
        found.add(name, f"states another verdict than the audit's, {verdict}")


def _report_pages(data: bytes, name: str, source: RunSource, found: Found) -> None:
    # PDF/A keeps its metadata readable, and the keywords of PDF and page carry run and model.
    model = source.hashes.get(_MODEL)
    if f"run {source.run}".encode() not in data:
        found.add(name, f"is about another run than {source.run}")
    elif model is None or f"model sha256:{model}".encode() not in data:
        found.add(name, f"is about another model than {_MODEL} beside it")
