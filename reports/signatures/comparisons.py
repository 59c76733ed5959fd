"""A signature over a comparison: who set which runs side by side, and by which digests.

The auditor's key signs, as it does a report: first the PDF itself, then an envelope over all forms
of the comparison, which names each run by its model's digest and by that of its own attestation. So
a reader sees whether a run at hand is the run that was compared. What holds of each run is for its
own signatures to say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.content.parts import INTERNAL
from reports.files import write_atomic
from reports.signatures import pades, signing
from reports.signatures.dsse import COMPARISON_TYPE, SHA256, Statement, seal, write_statement
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import public_pem
from reports.signatures.statements import write_bundle
from reports.signatures.timestamps import Authority

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
