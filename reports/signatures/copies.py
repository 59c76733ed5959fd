"""Copies of a signed run for its readers, and the erasure of its private part.

`copy` writes a folder with exactly the files that an audience may hold. `erase` deletes the
evidence once it is not needed any more, and files under the auditor's signature that it did.
Whatever is copied holds by itself: `verification.verify` checks a folder with exactly these files,
and names anything that is missing or added.

* public: model, metrics, public report and keys, under the auditor's attestation of them alone.
  Neither these files nor the digests in them tell who took part.
* archive: all but the evidence, to be kept when the evidence is destroyed. Restricted: the ledger
  and the internal report tell who took part how often.
* auditor: all of it. The evidence is private data.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from audit.untrusted.files import FileError, list_files, open_plain
from reports.errors import EnvelopeError, ReportError, SourceError
from reports.files import mapping, parse_json, read_bytes, write_atomic
from reports.signatures import signing
from reports.signatures.dsse import PUBLIC_TYPE, RUN_TYPE, SHA256, parse_envelope, parse_statement
from reports.signatures.inventory import EVIDENCE, has_evidence, list_run
from reports.signatures.keyring import SigningKey
from reports.signatures.timestamps import Authority
from reports.source import load

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


# Says that the evidence was erased, when and why.
ERASURE = "erasure.json"
NOT_NEEDED = "the evidence is not needed any more"
_FORMAT = 1
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_CHUNK = 1 << 20
# What a copy is called, with a dot before its name, while it is made.
_PARTIAL = ".partial"


def copy(run_dir: Path, audience: Audience, target: Path) -> tuple[str, ...]:
    """Write a folder that holds what an audience may have of a run, and nothing else.

    It appears once it is whole. What is not public is readable by its owner alone.

    Args:
        run_dir: A signed run.
        audience: "public", "auditor" or "archive".
        target: The folder to make; it must not exist yet, and must not lie in the run.

    Returns:
        The names of the files, sorted.

    Raises:
        SourceError: The folder exists, lies in the run or cannot be written, or a file cannot be
            read.
        ReportError: The run has not what this audience needs.
    """
    names = files_for(run_dir, audience)
    if os.path.lexists(target):
        raise SourceError(f"{target}: exists and is never overwritten; choose another name")
    # The next audit would sign it as part of the run, and no erasure would find evidence in it.
    if run_dir.resolve() in target.resolve().parents:
        raise SourceError(f"{target}: lies in the run, whose files are all signed; choose another")
    partial = target.with_name(f".{target.name}{_PARTIAL}")
    folder_mode, file_mode = (0o755, 0o644) if audience == "public" else (0o700, 0o600)
    with removed_if_it_fails(partial, target):
        partial.mkdir(parents=True, mode=0o700)
        for folder in sorted({one for name in names for one in Path(name).parents} - {Path()}):
            (partial / folder).mkdir(mode=0o700)
        for name in names:
            copy_file(run_dir, name, partial / name, file_mode)
        partial.chmod(folder_mode)
        partial.rename(target)
    return names


def discard(target: Path) -> None:
    """Remove a copy again."""
    shutil.rmtree(target)


@contextmanager
def removed_if_it_fails(partial: Path, target: Path) -> Iterator[None]:
    """Take away what a copy that was cut off left, before it begins and where it fails.

    Args:
        partial: The folder that it is made in.
        target: Where it is to be; named in the error.
    """
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise SourceError(f"{target}: cannot be written ({error.strerror})") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def copy_file(run_dir: Path, name: str, place: Path, mode: int) -> None:
    """Copy one plain file piece by piece, through to the disk.

    Raises:
        SourceError: It is missing, a link or behind one, a pipe or unreadable.
    """
    try:
        source = open_plain(run_dir, name)
    except FileError as error:
        raise SourceError(str(error)) from error
    with source as read, place.open("xb") as write:
        while piece := read.read(_CHUNK):
            write.write(piece)
        write.flush()
        os.fsync(write.fileno())
    place.chmod(mode)


def erased_at(run_dir: Path) -> str | None:
    """When a run's evidence was erased, as its record says; None where there is no record."""
    if not os.path.lexists(run_dir / ERASURE):
        return None
    record = mapping(parse_json(read_bytes(run_dir / ERASURE), ERASURE))
    return str(record.get("erased"))


def is_erased(run_dir: Path) -> bool:
    """Whether the evidence is gone and the auditor's signature covers the record of it."""
    if erased_at(run_dir) is None or has_evidence(run_dir):
        return False
    signed = _signed(run_dir)
    digest = hashlib.sha256(read_bytes(run_dir / ERASURE)).hexdigest()
    return signed.get(ERASURE) == (SHA256, digest) and EVIDENCE not in signed


def is_cut_off(run_dir: Path) -> bool:
    """Whether there is a record of an erasure that the auditor's signature does not name yet."""
    return erased_at(run_dir) is not None and ERASURE not in _signed(run_dir)


def _signed(run_dir: Path) -> Mapping[str, tuple[str, str]]:
    name = signing.RUN_ENVELOPE
    payload = parse_envelope(read_bytes(run_dir / name), name).payload
    return parse_statement(payload, RUN_TYPE, name).subjects


def recorded_reason(run_dir: Path) -> str:
    """Why a run's evidence was erased, as its record says; the record is there."""
    return str(mapping(parse_json(read_bytes(run_dir / ERASURE), ERASURE)).get("reason"))


def erase(
    run_dir: Path, auditor: SigningKey, reason: str, authority: Authority | None = None
) -> None:
    """Delete a run's evidence for good, and sign that it was done.

    First the record is written, then the evidence goes, then the auditor signs again. If
    this is interrupted, erasing again finishes it, and the record stays as it is. The record does
    not say what the evidence was.
    What a copy next to the run left, if it was killed, is deleted too.

    Args:
        run_dir: A run that is finished and signed.
        auditor: The key that signs what is left.
        reason: Why, for the record.
        authority: Timestamps the signature.

    Raises:
        ReportError: The reason is no text in UTF-8, the record that is there is none of this run,
            or the run is not signed or cannot be written to.
    """
    source = load(run_dir)
    if not os.path.lexists(run_dir / signing.RUN_ENVELOPE):
        raise ReportError(
            f"{signing.RUN_ENVELOPE}: missing; evidence is erased from finished runs only, and "
            "what was found by it must be signed before"
        )
    when = erased_at(run_dir)
    if when is None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        write_atomic(run_dir / ERASURE, _record(source.run, reason, now))
    elif not _TIME.fullmatch(when) or read_bytes(run_dir / ERASURE) != _record(
        source.run, recorded_reason(run_dir), when
    ):
        # It would be signed, no matter who wrote it.
        raise ReportError(
            f"{ERASURE}: is no record that an erasure of this run wrote; nothing was erased; "
            "remove it"
        )
    # Of a copy that was killed nobody would know that evidence is in it.
    partials = run_dir.parent.glob(f".{glob.escape(run_dir.name)}-*{_PARTIAL}")
    for folder in (*partials, run_dir / EVIDENCE):
        _delete(folder, run_dir)
    signing.sign(run_dir, auditor=auditor, authority=authority)


def _record(run: str, reason: str, when: str) -> bytes:
    record: dict[str, Any] = {
        "format": _FORMAT,
        "run": run,
        "what": EVIDENCE,
        "reason": reason,
        "erased": when,
    }
    try:
        return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
    except UnicodeEncodeError as error:
        raise ReportError("reason: is no text in UTF-8; nothing was erased") from error


def _delete(folder: Path, run_dir: Path) -> None:
    try:
        if folder.is_symlink():
            folder.unlink()
        elif folder.is_dir():
            shutil.rmtree(folder)
    except OSError as error:
        # Files are deleted within an open folder, and then the error knows the last name alone.
        name = Path(os.fsdecode(error.filename or folder.name)).name
        file = name if name == folder.name else f"{folder.name}/{name}"
        raise ReportError(
            f"{file}: cannot be deleted ({error.strerror}), so what is left of the evidence is "
            f"still there; finish it: dpfedadamw erase {run_dir}"
        ) from error
