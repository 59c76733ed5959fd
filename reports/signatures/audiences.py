"""Which files of a signed run each audience may hold.

Whatever is handed out holds by itself: `verification.verify` checks a folder with exactly these
files, and names anything that is missing or added.

* public: model, metrics, public report and keys, under the auditor's attestation of them alone.
  Neither these files nor the digests in them tell who took part.
* archive: all but the evidence, to be kept when the evidence is destroyed. Restricted: the ledger
  and the internal report tell who took part how often.
* auditor: all of it. The evidence is private data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from audit.untrusted.files import FileError, list_files
from reports.errors import EnvelopeError, SourceError
from reports.files import read_bytes
from reports.signatures import signing
from reports.signatures.dsse import PUBLIC_TYPE, parse_envelope, parse_statement
from reports.signatures.inventory import EVIDENCE, has_evidence, list_run

Audience = Literal["public", "auditor", "archive"]
AUDIENCES: tuple[Audience, ...] = ("public", "auditor", "archive")


def files_for(run_dir: Path, audience: Audience) -> tuple[str, ...]:
    """Return the files that an audience may hold.

    Args:
        run_dir: A signed run. Whether it holds is for `verify` to say, of the run and of what was
            handed out.
        audience: "public", "auditor" or "archive".

    Returns:
        Names relative to the run directory with forward slashes, sorted.

    Raises:
        SourceError: The run holds a link, cannot be listed, or lacks what this audience needs.
        EnvelopeError: The public attestation is damaged, or names what is not public.
    """
    if audience == "public":
        return _public(run_dir)
    names, problems = list_run(run_dir)
    if problems:
        raise SourceError(str(problems[0]))
    if audience == "auditor":
        names = (*names, *_evidence(run_dir))
    return tuple(sorted(names))


def _public(run_dir: Path) -> tuple[str, ...]:
    """Return what the auditor attested for the public, and the attestation itself."""
    name = signing.PUBLIC_ENVELOPE
    if not os.path.lexists(run_dir / name):
        raise SourceError(
            f"{name}: missing; the auditor writes it with the public report: dpfedadamw report "
            "RUN_DIR --audience public"
        )
    payload = parse_envelope(read_bytes(run_dir / name), name).payload
    subjects = set(parse_statement(payload, PUBLIC_TYPE, name).subjects)
    withheld = subjects - {*signing.PUBLIC_FILES, *signing.PUBLIC_EXTRAS}
    if withheld:
        raise EnvelopeError(f"{name}: names {min(withheld)}, which is not public")
    stamp = name + signing.STAMP_SUFFIX
    return tuple(sorted({*subjects, name, *([stamp] if (run_dir / stamp).exists() else [])}))


def _evidence(run_dir: Path) -> tuple[str, ...]:
    if not has_evidence(run_dir):
        raise SourceError(f"{EVIDENCE}: missing; without it nothing can be audited")
    try:
        listing = list_files(run_dir / EVIDENCE)
    except FileError as error:
        raise SourceError(str(error)) from error
    if listing.refused:
        raise SourceError(f"{EVIDENCE}/{listing.refused[0]}")
    return tuple(f"{EVIDENCE}/{name}" for name in listing.files)
