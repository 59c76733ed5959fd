"""A signature over a comparison: who set which runs side by side, and by which digests.

The auditor's key signs, as it does a report: first the PDF itself, then an envelope over all forms
of the comparison, which names each run by its model's digest and by that of its own attestation. So
a reader sees whether a run at hand is the run that was compared. What holds of each run is for its
own signatures to say.

Checking one asks for its forms, for who signed them, and whether all say the same of the runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.content.parts import INTERNAL
from reports.errors import KeyFileError, PdfSignatureError, SourceError, local
from reports.files import Snapshot, clean, mapping, parse_json, sequence, write_atomic
from reports.signatures import pades, signing
from reports.signatures.dsse import COMPARISON_TYPE, SHA256, Statement, seal, write_statement
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import public_pem
from reports.signatures.statements import write_bundle
from reports.signatures.timestamps import Authority
from reports.signatures.verification import envelopes
from reports.signatures.verification.envelopes import Trust
from reports.signatures.verification.results import Found

STEMS: Mapping[str, str] = {"internal": "comparison", "public": "comparison-public"}
ENVELOPES: Mapping[str, str] = {
    audience: f"{stem}.attestation.json" for audience, stem in STEMS.items()
}
KINDS = ("json", "pdf", "html")


@dataclass(frozen=True)
class NamedRun:
    """A run as a signed comparison names it.

    Attributes:
        run: The run's identifier.
        verdict: The report's verdict on it.
        signatures: Whether its signatures held when it was compared: holds, broken or unsigned.
        digests: SHA-256 of its files that the audience may know, by name; its attestation is one
            of them where it is signed.
    """

    run: str
    verdict: str
    signatures: str
    digests: Mapping[str, str]


def sign(
    forms: Mapping[str, bytes],
    runs: Sequence[NamedRun],
    audience: str,
    key: SigningKey,
    authority: Authority | None = None,
) -> dict[str, bytes | None]:
    """Return the files of a signed comparison.

    Args:
        forms: The comparison's bytes by kind: json, pdf and html.
        runs: The runs in it.
        audience: "internal" or "public".
        key: The auditor's key.
        authority: Timestamps the PDF's signature and the envelope.

    Returns:
        Bytes by name; None for a file of an earlier signature that has no place any more.

    Raises:
        ReportError: The key or the authority fails.
    """
    stem, envelope = STEMS[audience], ENVELOPES[audience]
    files: dict[str, bytes | None] = {f"{stem}.{kind}": forms[kind] for kind in KINDS}
    pages = f"{stem}.pdf"
    files[pages] = pades.sign(forms["pdf"], key, pages, authority)
    files[signing.AUDITOR_KEY] = public_pem(key.public)
    rotations = write_bundle("rotations", key.rotations) if key.rotations else None
    files[signing.AUDITOR_ROTATIONS] = rotations
    covered = {name: data for name, data in files.items() if data is not None}
    subjects = {
        name: (SHA256, hashlib.sha256(data).hexdigest()) for name, data in sorted(covered.items())
    }
    statement = Statement(subjects, COMPARISON_TYPE, predicate(runs, audience))
    sealed = seal(write_statement(statement), key.private)
    files[envelope] = sealed
    stamp = authority.stamp(sealed) if authority is not None else None
    files[envelope + signing.STAMP_SUFFIX] = stamp
    return files


def predicate(runs: Sequence[NamedRun], audience: str) -> dict[str, Any]:
    """Return what the signer says; its schema is comparison-attestation.schema.json."""
    return {
        "role": "auditor",
        "audience": audience,
        "runs": [
            {
                "run": one.run,
                "verdict": one.verdict,
                "signatures": one.signatures,
                "digests": dict(one.digests),
            }
            for one in runs
        ],
        "tools": signing.libraries("cryptography", "pyhanko", "typst"),
    }


def write(folder: Path, files: Mapping[str, bytes | None], audience: str) -> None:
    """Write the files of a comparison, the envelope last, and take away what has no place.

    Args:
        folder: It is there.
        files: By name.
        audience: What is internal is for its owner alone.

    Raises:
        SourceError: The folder cannot be written.
    """
    mode = 0o600 if audience == INTERNAL else 0o644
    envelope = ENVELOPES[audience]
    for name in sorted(files, key=lambda name: (name.startswith(envelope), name)):
        data = files[name]
        if data is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_atomic(folder / name, data, mode)


_ATTACHMENT = "comparison.json"


def is_comparison(files: Snapshot) -> bool:
    """Return whether a folder holds a signed comparison, and no run."""
    return any(map(files.holds, ENVELOPES.values())) and not files.holds("ledger.jsonl")


def check(files: Snapshot, trust: Trust, found: Found) -> None:
    """Check every comparison in a folder, and that the folder holds nothing else.

    Args:
        files: The folder's files.
        trust: What the caller brings along.
        found: Gets what does not hold, and the signatures that do.
    """
    keys = envelopes.check_keys(files, trust, found, ("auditor",))
    covered = {signing.AUDITOR_KEY}
    for audience, envelope in ENVELOPES.items():
        if not files.holds(envelope):
            continue
        covered |= {envelope, envelope + signing.STAMP_SUFFIX}
        statement = envelopes.open_envelope(
            files, "auditor", envelope, COMPARISON_TYPE, keys.get("auditor"), trust, found
        )
        if statement is None:
            continue
        covered |= set(statement.subjects)
        _check_files(files, statement, envelope, STEMS[audience], found)
        pages = (f"{STEMS[audience]}.pdf",)
        envelopes.check_pages(files, keys.get("auditor"), trust, found, pages)
        _check_data(files, statement, envelope, audience, found)
    for name in sorted(os.listdir(files.folder)):
        if name not in covered:
            found.add(clean(name, 200), "is not covered by the signature of a comparison")


def _check_files(
    files: Snapshot, statement: Statement, envelope: str, stem: str, found: Found
) -> None:
    """Check that the forms are there, and unchanged."""
    known = {*(f"{stem}.{kind}" for kind in KINDS), signing.AUDITOR_KEY}
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
    stem = STEMS[audience]
    try:
        data = files.read(f"{stem}.json")
        shown = mapping(parse_json(data, f"{stem}.json"))
        if pades.attached(files.read(f"{stem}.pdf"), f"{stem}.pdf", _ATTACHMENT) != data:
            found.add(f"{stem}.pdf", f"carries other data than {stem}.json in the same folder")
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
