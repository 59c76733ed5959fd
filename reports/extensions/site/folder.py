"""Writes the site: the page, its data, and the public files of runs, in a folder that is whole.

Anyone who gets the folder gets every byte of it. So each file comes from one of two places: from
`SiteData`, or from a run's public attestation, whose digests are compared again as it is copied.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from reports.content.build import as_json, check
from reports.content.parts import plain
from reports.errors import SourceError
from reports.extensions.site import FORMAT, SiteData
from reports.extensions.site.page import compose
from reports.extensions.site.reading import Keys, SeenRun, read_all, run_folders
from reports.extensions.site.spending import spent
from reports.files import parse_json, read_bytes, sha256_file
from reports.signatures import copies, signing
from reports.signatures.dsse import PUBLIC_TYPE, SHA256, parse_envelope, parse_statement

PAGE, DATA, FILES = "index.html", "site.json", "runs"
_MODEL = "model.safetensors"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


def write(
    folder: Path,
    target: Path,
    *,
    title: str = "Training runs",
    keys: Keys | None = None,
    models: bool = False,
) -> SiteData:
    """Write a site on all runs in a folder and below it.

    Args:
        folder: Where the runs lie.
        target: The folder to write: new, empty, or an earlier site, which is replaced as a whole.
        title: The page's title.
        keys: Public keys that signatures may be by, besides those of the caller's key folder.
        models: Whether models are copied too, so that each run's folder verifies by itself.

    Returns:
        What the page shows.

    Raises:
        SourceError: There is no run, the target holds something else, or cannot be written.
        ReportError: Runs cannot be read, a line each. Nothing was written.
    """
    target = target.resolve()
    _check_target(target, folder.resolve())
    seen = read_all(run_folders(folder), keys or Keys())
    shown = [one for one in seen if one.finished and not one.planted]
    if not shown:
        raise SourceError(f"{folder}: holds no finished run that may be shown")
    partial = target.with_name(f".{target.name}.partial")
    with copies.removed_if_it_fails(partial, target):
        partial.mkdir(parents=True, mode=0o755)
        rows = []
        for place, one in zip(_places(shown), shown, strict=True):
            files = _hand_on(one, partial / FILES / place, models)
            names = tuple(f"{FILES}/{place}/{name}" for name in files)
            rows.append(one.row.model_copy(update={"files": names}))
        data = SiteData(format=FORMAT, title=title, runs=tuple(rows), spent=spent(seen))
        stated = as_json(plain(data))
        check(json.loads(stated), "site")
        (partial / DATA).write_bytes(stated)
        (partial / PAGE).write_bytes(compose(data))
        _open_up(partial)
        _put_in_place(partial, target)
    return data


def _check_target(target: Path, folder: Path) -> None:
    if target == folder or target in folder.parents:
        raise SourceError(f"{target}: holds the runs; choose a folder of its own")
    inside = [parent for parent in (target, *target.parents) if (parent / "ledger.jsonl").exists()]
    if inside:
        raise SourceError(f"{target}: lies in a run, whose files are all signed; choose another")
    if os.path.lexists(target) and not (target.is_dir() and _is_ours(target)):
        raise SourceError(
            f"{target}: holds something that is no site; nothing is overwritten, choose another"
        )


def _is_ours(target: Path) -> bool:
    names = {entry.name for entry in target.iterdir()}
    if not names:
        return True
    if not names <= {PAGE, DATA, FILES} or DATA not in names:
        return False
    found = parse_json(read_bytes(target / DATA), DATA)
    return isinstance(found, dict) and set(found) == set(SiteData.model_fields)


def _places(shown: Sequence[SeenRun]) -> list[str]:
    """Return a folder's name for each run: its identifier where that is a name, each once."""
    found: list[str] = []
    for index, one in enumerate(shown):
        name = one.row.run if _NAME.fullmatch(one.row.run) else f"run-{index + 1}"
        found.append(name if name not in found else f"{name}-{index + 1}")
    return found


def _hand_on(one: SeenRun, place: Path, models: bool) -> tuple[str, ...]:
    """Copy a run's public files, each as the auditor attested it.

    Raises:
        SourceError: A file is not what was attested: it was changed while this was going on.
    """
    if not one.public:
        return ()
    envelope = read_bytes(one.path / signing.PUBLIC_ENVELOPE)
    payload = parse_envelope(envelope, signing.PUBLIC_ENVELOPE).payload
    attested = parse_statement(payload, PUBLIC_TYPE, signing.PUBLIC_ENVELOPE).subjects
    place.mkdir(parents=True)
    names = tuple(name for name in one.public if models or name != _MODEL)
    for name in names:
        copies.copy_file(one.path, name, place / name, 0o644)
        found = (SHA256, sha256_file(place / name))
        if name in attested and attested[name] != found:
            raise SourceError(f"{one.path}: {name} was changed while it was copied")
    if read_bytes(place / signing.PUBLIC_ENVELOPE) != envelope:
        raise SourceError(f"{one.path}: {signing.PUBLIC_ENVELOPE} was changed while it was copied")
    return names


def _open_up(folder: Path) -> None:
    """Let everybody read it, whatever the umask: that is what it is for."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _put_in_place(partial: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)
