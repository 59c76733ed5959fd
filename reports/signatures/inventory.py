"""Lists and hashes what a run directory holds, for signing and for checking.

Links and special files are never followed or read. Evidence is private, so it enters an attestation
only as one digest keyed with a secret salt: without the salt nobody can confirm a guess at its
content.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path

from reports.errors import SourceError
from reports.reading.files import clean, read_bytes, sha256_file

EVIDENCE, CHECKPOINT, SALT = "evidence", "checkpoint", "salt"
_UNCOVERED_EVIDENCE = (SALT, "findings.json")
_SALT_BYTES = 32
_DEPTH = 8
# Names that sed, sha256sum and a shell take literally.
_NAME = re.compile(r"[A-Za-z0-9._+][A-Za-z0-9._+@=,-]*(/[A-Za-z0-9._+][A-Za-z0-9._+@=,-]*)*")


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


@dataclass(frozen=True)
class Inventory:
    """The regular files below a folder, and what else lies there.

    Attributes:
        files: Relative names with forward slashes, sorted.
        problems: Links, special files, names and depths that are not accepted.
    """

    files: tuple[str, ...]
    problems: tuple[Problem, ...]


def list_files(root: Path, leave_out: tuple[str, ...] = ()) -> Inventory:
    """List a folder without following a link.

    Args:
        root: The folder.
        leave_out: Names directly below `root` that are not listed.

    Raises:
        SourceError: The folder cannot be read.
    """
    files: list[str] = []
    problems: list[Problem] = []

    def walk(folder: Path, prefix: str, depth: int) -> None:
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            where = prefix.rstrip("/") or root.name
            raise SourceError(
                f"{clean(where, 200)}: cannot be listed ({error.strerror})"
            ) from error
        for entry in found:
            if not prefix and entry.name in leave_out:
                continue
            name = prefix + entry.name
            shown = clean(name, 200)
            if entry.is_symlink():
                problems.append(Problem(shown, "is a link; a run holds regular files only"))
            elif entry.is_dir(follow_symlinks=False):
                if depth >= _DEPTH:
                    problems.append(Problem(shown, "lies too deep"))
                else:
                    walk(folder / entry.name, f"{name}/", depth + 1)
            elif not entry.is_file(follow_symlinks=False):
                problems.append(Problem(shown, "is not a regular file"))
            elif not _NAME.fullmatch(name):
                problems.append(Problem(shown, "has a name with unusual characters"))
            else:
                files.append(name)

    walk(root, "", 0)
    return Inventory(tuple(sorted(files)), tuple(problems))


def list_run(run_dir: Path) -> Inventory:
    """List a run directory without its checkpoint and its evidence."""
    return list_files(run_dir, (CHECKPOINT, EVIDENCE))


def has_evidence(run_dir: Path) -> bool:
    """Return whether evidence is there; a link counts, and is refused when it is read."""
    return os.path.lexists(run_dir / EVIDENCE)


def evidence_digest(run_dir: Path) -> str:
    """Return the salted digest of a run's evidence.

    HMAC-SHA256, keyed with evidence/salt, over the lines "sha256  relative/path" of all files below
    evidence/ but the salt and the auditor's findings.json, sorted by their bytes.

    Raises:
        SourceError: Evidence or salt is missing, a link, or has unusual names.
    """
    folder = run_dir / EVIDENCE
    if folder.is_symlink() or not folder.is_dir():
        raise SourceError(f"{EVIDENCE}: a folder is needed, not a link")
    inventory = list_files(folder, _UNCOVERED_EVIDENCE)
    if inventory.problems:
        raise SourceError(f"{EVIDENCE}/{inventory.problems[0]}")
    try:
        salt = read_bytes(folder / SALT, _SALT_BYTES)
    except SourceError as error:
        raise SourceError(f"{EVIDENCE}/{str(error).replace(f' in {folder}', '')}") from error
    if len(salt) != _SALT_BYTES:
        raise SourceError(f"{EVIDENCE}/{SALT}: {_SALT_BYTES} bytes are needed")
    lines = sorted(f"{sha256_file(folder / name)}  {name}\n" for name in inventory.files)
    return hmac.new(salt, "".join(lines).encode("ascii"), hashlib.sha256).hexdigest()
