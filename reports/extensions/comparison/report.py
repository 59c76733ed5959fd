"""Writes a comparison as a report of its own: JSON, PDF and one web page, signed or not."""

from __future__ import annotations

import json
from pathlib import Path

from reports.content.build import check
from reports.content.parts import INTERNAL
from reports.errors import SourceError
from reports.extensions.comparison import Comparison
from reports.extensions.comparison.data import RunData, as_report
from reports.extensions.comparison.pages import document
from reports.files import sha256_file
from reports.render import html, pdf
from reports.signatures import signing
from reports.signatures.keyring import SigningKey
from reports.signatures.timestamps import Authority
from reports.signatures.verification import comparisons
from reports.signatures.verification.comparisons import KINDS, NamedRun

# The attestation that covers all of a run that the audience may know.
_ENVELOPES = {"internal": signing.RUN_ENVELOPE, "public": signing.PUBLIC_ENVELOPE}


def write(
    comparison: Comparison,
    folder: Path,
    key: SigningKey | None = None,
    authority: Authority | None = None,
) -> dict[str, Path]:
    """Write comparison.json, comparison.pdf and comparison.html into a folder.

    Args:
        comparison: What `compare` found.
        folder: Made if missing; files of the same names are replaced. The public comparison's are
            called comparison-public; an internal one is for its owner alone, because it shows who
            took part how often.
        key: The auditor's key, which signs them; None leaves them unsigned, and takes away what
            was signed of an earlier comparison there.
        authority: Timestamps the signatures.

    Returns:
        The files by their kind, the signature among them as "signature". Each is replaced as a
        whole, and all only after all could be made.

    Raises:
        ReportError: The pages cannot be made, the key or the authority fails, or the folder cannot
            be written.
    """
    shown = document(comparison, key.fingerprint if key is not None else None)
    check(json.loads(shown.data), "comparison")
    made = {"json": shown.data, "pdf": pdf.typeset(shown), "html": html.typeset(shown)}
    audience = comparison.audience
    stem, envelope = comparisons.STEMS[audience], comparisons.ENVELOPES[audience]
    files: dict[str, bytes | None]
    if key is not None:
        files = comparisons.sign(made, _named(comparison), audience, key, authority)
    else:
        files = {f"{stem}.{kind}": made[kind] for kind in KINDS}
        files |= {envelope: None, envelope + signing.STAMP_SUFFIX: None}
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            # Whatever the umask; a folder that was there keeps what its owner chose.
            folder.chmod(0o700 if audience == INTERNAL else 0o755)
    except OSError as error:
        raise SourceError(f"{folder}: cannot be made ({error.strerror})") from error
    comparisons.write(folder, files, audience)
    written = {kind: folder / f"{stem}.{kind}" for kind in KINDS}
    return written | ({"signature": folder / envelope} if key is not None else {})


def _named(comparison: Comparison) -> list[NamedRun]:
    """Return the runs as the signature names them, in the order of the data."""
    data = as_report(comparison)
    return [
        _name(row, run.path, comparison.audience)
        for group, shown in zip(comparison.groups, data.groups, strict=True)
        for entry, told in zip(group.entries, shown.entries, strict=True)
        for run, row in zip(entry.runs, told.runs, strict=True)
    ]


def _name(row: RunData, path: Path, audience: str) -> NamedRun:
    envelope = path / _ENVELOPES[audience]
    attested = {envelope.name: sha256_file(envelope)} if envelope.is_file() else {}
    return NamedRun(row.run, row.audit, row.signature.state, row.hashes | attested)
