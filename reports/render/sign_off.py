"""An annex on which a person signs off a report: unsigned, so that any PDF reader can sign it.

The report itself is certified and allows no change, not even another signature. The annex names it
by its digests, says what it promises, what is stated of the processing and what is still to be
answered, and lies outside the run, whose files are all signed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.content.build import build
from reports.content.findings import Qualifications, Verdict
from reports.content.identity import Identity
from reports.content.parts import INTERNAL, Report
from reports.content.serialise import as_json
from reports.document import AUDIENCES_IN_WORDS, Document, Section, ended, sentence
from reports.document.blocks import LEFT, Text, blank, code, fields, paragraph, table
from reports.errors import SourceError
from reports.reading.files import clean, mapping, parse_json, sequence, write_atomic
from reports.reading.snapshot import Snapshot
from reports.reading.source import Auditing
from reports.render import pdf
from reports.render.pages import first
from reports.render.pages.run import date_in_words
from reports.sections.governance import Governance
from reports.sections.meaning import Meaning

ATTACHMENT = "sign-off.json"
_FORMAT = 1
_MODEL = "model.safetensors"
_DECISION = (
    "Decision (approved, approved with conditions, refused), and conditions",
    "Name and office",
    "Date and signature",
)


def write(run_dir: Path, target: Path, audience: str = INTERNAL) -> None:
    """Write the annex on a run's report.

    Args:
        run_dir: A run with its signed report.
        target: The PDF to write. It must not exist, and must not lie in the run.
        audience: Which report it is about: "internal" or "public".

    Raises:
        SourceError: The target is taken or lies in the run, or a file of the run is missing.
        ReportError: The run cannot be read, or the pages cannot be made.
    """
    if target.exists() or target.is_symlink():
        raise SourceError(f"{target}: exists and is never overwritten; choose another name")
    if run_dir.resolve() in target.resolve().parents:
        raise SourceError(f"{target}: lies in the run, whose files are all signed; choose another")
    files = Snapshot(run_dir)
    stem = "report" if audience == INTERNAL else f"report-{audience}"
    digests = {name: files.sha256(name) for name in (f"{stem}.pdf", f"{stem}.json", _MODEL)}
    signed = _auditing(files, f"{stem}.json")
    pages = pdf.typeset(document(build(run_dir, audience, signed), digests))
    write_atomic(target, pages, 0o600 if audience == INTERNAL else 0o644)


def _auditing(files: Snapshot, name: str) -> Auditing | None:
    """Return by whose keys the report says that it is signed, where it calls its audit independent.

    `verify` holds it to that.
    """
    trust = mapping(mapping(parse_json(files.read(name), name)).get("trust"))
    keys = [clean(key, 200) for key in sequence(trust.get("keys"))]
    if trust.get("auditor") != "another key" or len(keys) != 2:
        return None
    return Auditing(keys[0], keys[1], one_hand=False)


def document(report: Report, digests: dict[str, str]) -> Document:
    """Return what the annex shows.

    Args:
        report: The report on the run.
        digests: SHA-256 of what is signed off, by file.
    """
    identity, verdict = report[Identity], report[Verdict]
    stated = {one.label: one.text for one in report[Governance].root if one.text is not None}
    left = [one.label for one in report[Governance].root if one.text is None]
    data: dict[str, Any] = {
        "format": _FORMAT,
        "run": identity.run,
        "files": digests,
        "verdict": verdict.value,
        "audit": verdict.statement,
        "promise": report[Meaning].promise,
        "stated": stated,
        "open": left,
    }
    rows: list[list[Text]] = [[name, [code(digest)]] for name, digest in digests.items()]
    subject = (
        paragraph(
            "This annex is about these files and no others. Compare their digests (sha256sum) "
            "before you sign. It is not signed yet: fill it in and sign it with whatever your "
            "office signs PDF files with."
        ),
        table("SHA-256 of what is signed off", ("File", "SHA-256"), rows, (LEFT, LEFT), (0, 1)),
    )
    sections = [
        Section("subject", "What is signed off", subject),
        Section("stated", "Stated before the run", (fields(list(stated.items())),)),
        Section("open", "To be answered", (blank(left),)),
        Section("decision", "Decision", (blank(_DECISION),)),
    ]
    kept = {"stated": bool(stated), "open": bool(left)}
    return Document(
        title=f"Sign-off: {identity.name}",
        label="Annex to a privacy report",
        audience=AUDIENCES_IN_WORDS[report.audience],
        description=f"To be signed by whoever answers for the processing: {identity.name}.",
        keywords=(f"run {identity.run}", report.audience, verdict.value),
        identifier=identity.run,
        created=identity.created,
        date=f"Run of {date_in_words(identity.created)}",
        paper=identity.paper,
        band=first.band(report),
        qualifications=tuple(ended(sentence(text)) for text in report[Qualifications].root),
        introduction="",
        claim=first.claim(report),
        front=(),
        summary=(),
        glance=(),
        sections=tuple(one for one in sections if kept.get(one.identifier, True)),
        pictures={},
        footer="Annex, to be signed",
        attachment=ATTACHMENT,
        data=as_json(data),
    )
