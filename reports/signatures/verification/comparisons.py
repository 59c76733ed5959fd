"""Checks a signed comparison: its forms, who signed them, and that all say the same of the runs."""

from __future__ import annotations

import os

from reports.errors import KeyFileError, PdfSignatureError, SourceError, local
from reports.files import Snapshot, clean, mapping, parse_json, sequence
from reports.signatures import comparisons, pades, signing
from reports.signatures.dsse import COMPARISON_TYPE, SHA256, Statement
from reports.signatures.verification import envelopes
from reports.signatures.verification.envelopes import Trust
from reports.signatures.verification.results import Found

_ATTACHMENT = "comparison.json"


def is_comparison(files: Snapshot) -> bool:
    """Return whether a folder holds a signed comparison, and no run."""
    return any(map(files.holds, comparisons.ENVELOPES.values())) and not files.holds("ledger.jsonl")


def check(files: Snapshot, trust: Trust, found: Found) -> None:
    """Check every comparison in a folder, and that nothing else lies beside them.

    Args:
        files: The folder's files.
        trust: What the caller brings along.
        found: Gets what does not hold, and the signatures that do.
    """
    keys = envelopes.check_keys(files, trust, found, ("auditor",))
    covered = {signing.AUDITOR_KEY}
    for audience, envelope in comparisons.ENVELOPES.items():
        if not files.holds(envelope):
            continue
        covered |= {envelope, envelope + signing.STAMP_SUFFIX}
        statement = envelopes.open_envelope(
            files, "auditor", envelope, COMPARISON_TYPE, keys.get("auditor"), trust, found
        )
        if statement is None:
            continue
        covered |= set(statement.subjects)
        _check_files(files, statement, envelope, comparisons.STEMS[audience], found)
        pages = (f"{comparisons.STEMS[audience]}.pdf",)
        envelopes.check_pages(files, keys.get("auditor"), trust, found, pages)
        _check_data(files, statement, envelope, audience, found)
    for name in sorted(os.listdir(files.folder)):
        if name not in covered:
            found.add(clean(name, 200), "is not covered by the signature of a comparison")


def _check_files(
    files: Snapshot, statement: Statement, envelope: str, stem: str, found: Found
) -> None:
    """Check that the forms are there, and unchanged."""
    known = {*(f"{stem}.{kind}" for kind in comparisons.KINDS), signing.AUDITOR_KEY}
    for name in sorted(known - set(statement.subjects)):
        found.add(name, f"is not covered by {envelope}")
    for name, (kind, digest) in statement.subjects.items():
        # Only names that a comparison has are opened, so a subject cannot point elsewhere.
        if name not in known | {signing.AUDITOR_ROTATIONS} or kind != SHA256:
            found.add(envelope, f"names {clean(name, 80)}, which is no file of a comparison")
            continue
        try:
            if files.sha256(name) != digest:
                found.add(name, f"changed since {envelope} was signed")
        except SourceError as error:
            found.add_error(name, local(error, files.folder))


def _check_data(
    files: Snapshot, statement: Statement, envelope: str, audience: str, found: Found
) -> None:
    """Check that envelope, data and pages speak of the same runs, and say what that is worth."""
    stem = comparisons.STEMS[audience]
    try:
        data = files.read(f"{stem}.json")
        shown = mapping(parse_json(data, f"{stem}.json"))
        if pades.attached(files.read(f"{stem}.pdf"), f"{stem}.pdf", _ATTACHMENT) != data:
            found.add(f"{stem}.pdf", f"carries other data than {stem}.json beside it")
    except (SourceError, PdfSignatureError, KeyFileError) as error:
        told = local(error, files.folder)
        of_pages = told.startswith(f"{stem}.pdf: ")
        found.add_error(f"{stem}.{'pdf' if of_pages else 'json'}", told)
        return
    if statement.predicate.get("audience") != audience or shown.get("audience") != audience:
        found.add(envelope, f"is not about the {audience} comparison")
    stated = [
        (one.get("run"), one.get("verdict"), mapping(one.get("digests")))
        for one in map(mapping, sequence(statement.predicate.get("runs")))
    ]
    listed = [
        (row.get("run"), row.get("audit"), mapping(row.get("hashes")))
        for group in map(mapping, sequence(shown.get("groups")))
        for entry in map(mapping, sequence(group.get("entries")))
        for row in map(mapping, sequence(entry.get("runs")))
    ]
    # The envelope names the runs' own attestations besides, which the tables have no room for.
    agree = len(stated) == len(listed) and all(
        (run, verdict) == (theirs, audit) and hashes.items() <= digests.items()
        for (run, verdict, digests), (theirs, audit, hashes) in zip(stated, listed, strict=False)
    )
    if not agree:
        found.add(envelope, f"names other runs, verdicts or digests than {stem}.json")
    found.say(
        f"{envelope} names {len(stated)} runs by their digests. What holds of each is for its own "
        "signatures to say: check each run with dpfedadamw verify, and compare its digests."
    )
