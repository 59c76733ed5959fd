"""Lists and hashes what a run directory holds, for signing and for checking.

Links and special files are never followed or read. Evidence is private, so it enters an attestation
only as one digest keyed with a secret salt: without the salt nobody can confirm a guess at its
content.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from audit.untrusted.files import UNFINISHED, FileError, Refusal, keyed_digests, list_files
from reports.errors import SourceError
from reports.files import clean

EVIDENCE, CHECKPOINT, SALT = "evidence", "checkpoint", "salt"
# What few runs have: the announcement before training and the draw after it, and the model's own
# signature. What makes and checks them is read where one of these files is.
INTENT, CHALLENGE, DRAW = "intent.json", "challenge.json", "draw.json"
BUNDLE = "model.sig"
_FINDINGS = "findings.json"
_REASONS = {
    Refusal.MISSING: "missing",
    Refusal.LINK: "is a link; a run holds regular files only",
    Refusal.NOT_PLAIN: "is not a regular file",
    Refusal.TOO_LARGE: "larger than the accepted {detail} bytes",
    Refusal.WRONG_SIZE: "{detail} bytes are needed",
    Refusal.CANNOT_OPEN: "{detail}; a regular file is needed",
    Refusal.CANNOT_LIST: "cannot be listed ({detail})",
    Refusal.TOO_DEEP: "lies too deep",
    Refusal.UNUSUAL_NAME: "has a name with unusual characters",
}


@dataclass(frozen=True)
class Problem:
    """Something that does not hold.

    Attributes:
        file: Name inside the run directory.
        reason: Why, in one sentence without a full stop.
    """

    file: str
    reason: str

    def __str__(self) -> str:
        """Return "file: reason"."""
        return f"{self.file}: {self.reason}"


def list_run(run_dir: Path) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """List a run directory without its evidence, its checkpoint, and writes that go on.

    Returns:
        The regular files' relative names with forward slashes, sorted; and links, special files,
        names and depths that are not accepted.

    Raises:
        SourceError: The folder cannot be read.
    """
    try:
        listing = list_files(run_dir, (CHECKPOINT, EVIDENCE, UNFINISHED))
    except FileError as error:
        raise SourceError(str(_problem(error))) from error
    return listing.files, tuple(map(_problem, listing.refused))


def has_evidence(run_dir: Path) -> bool:
    """Return whether evidence is there; a link counts, and is refused when it is read."""
    return os.path.lexists(run_dir / EVIDENCE)


@dataclass(frozen=True)
class EvidenceDigests:
    """The salted digests of a run's evidence.

    Attributes:
        trained: Of what the engine wrote: without the auditor's findings.json, which is not there
            yet when the trainer signs.
        judged: Of all of it, for the auditor.
    """

    trained: str
    judged: str


def evidence_digests(run_dir: Path) -> EvidenceDigests:
    """Return the salted digests of a run's evidence, for which each file is read once.

    Raises:
        SourceError: Evidence or salt is missing, a link, or has unusual names.
    """
    folder = run_dir / EVIDENCE
    if folder.is_symlink() or not folder.is_dir():
        raise SourceError(f"{EVIDENCE}: a folder is needed, not a link")
    try:
        return EvidenceDigests(*keyed_digests(run_dir, EVIDENCE, SALT, ((_FINDINGS,), ())))
    except FileError as error:
        raise SourceError(str(_problem(error))) from error


def _problem(error: FileError) -> Problem:
    reason = _REASONS.get(error.refusal, error.what)
    return Problem(clean(error.name, 200), reason.format(detail=error.detail))
