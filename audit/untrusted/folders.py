"""What lies below a hostile folder: its plain files by name, and one keyed digest over all of them.

Links and special files are listed as refused and never followed or read.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.untrusted.files import FileError, Refusal, hash_file, read_bytes

KEY_BYTES = 32
MOST_DEPTH = 8
MOST_FILES = 1_000_000
# Names that sed, sha256sum and a shell take literally.
_NAME = re.compile(r"[A-Za-z0-9._+][A-Za-z0-9._+@=,-]*(/[A-Za-z0-9._+][A-Za-z0-9._+@=,-]*)*")


@dataclass(frozen=True)
class Listing:
    """The plain files below a folder, and what else lies there.

    Attributes:
        files: relative names with forward slashes, sorted.
        refused: links, special files, names and depths that are not accepted.
    """

    files: tuple[str, ...]
    refused: tuple[FileError, ...]


def list_files(root: Path, leave_out: Collection[str] = ()) -> Listing:
    """List a folder without following a link below it.

    Args:
        root: the folder.
        leave_out: names directly below it that are not listed.

    Raises:
        FileError: a folder cannot be listed, or there are too many files.
    """
    files: list[str] = []
    refused: list[FileError] = []
    _walk(root, "", 0, leave_out, files, refused)
    return Listing(tuple(sorted(files)), tuple(refused))


def _walk(
    folder: Path,
    prefix: str,
    depth: int,
    leave_out: Collection[str],
    files: list[str],
    refused: list[FileError],
) -> None:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        where = prefix.rstrip("/") or folder.name
        raise FileError(where, Refusal.CANNOT_LIST, error.strerror) from error
    if len(files) + len(found) > MOST_FILES:
        raise FileError(prefix.rstrip("/") or folder.name, Refusal.TOO_MANY, MOST_FILES)
    for entry in found:
        if not prefix and entry.name in leave_out:
            continue
        name = prefix + entry.name
        if entry.is_symlink():
            refused.append(FileError(name, Refusal.LINK))
        elif entry.is_dir(follow_symlinks=False):
            if depth >= MOST_DEPTH:
                refused.append(FileError(name, Refusal.TOO_DEEP))
            else:
                _walk(folder / entry.name, f"{name}/", depth + 1, (), files, refused)
        elif not entry.is_file(follow_symlinks=False):
            refused.append(FileError(name, Refusal.NOT_PLAIN))
        elif not _NAME.fullmatch(name):
            refused.append(FileError(name, Refusal.UNUSUAL_NAME))
        else:
            files.append(name)


def keyed_digest(root: Path, folder: str, key: str, uncovered: Collection[str] = ()) -> str:
    """The one digest of `keyed_digests` for one choice of what is left out."""
    return keyed_digests(root, folder, key, (uncovered,))[0]


def keyed_digests(
    root: Path, folder: str, key: str, choices: Sequence[Collection[str]]
) -> tuple[str, ...]:
    """Digests of a folder's content at which nobody can guess who lacks the key.

    Each is HMAC-SHA256 over the lines "sha256  relative/path" of all files below the folder but the
    key and those left out, sorted by their bytes. Every file is read once for all of them.

    Args:
        root: where the folder lies.
        folder: its name.
        key: name of the file in it that holds the key.
        choices: for each digest the names directly below it that it does not cover.

    Raises:
        FileError: the key is missing or has another length, or the folder holds what is no plain
            file. The name is relative to `root`.
    """
    where = f"{folder}/{key}"
    secret = read_bytes(root, where, KEY_BYTES)
    if len(secret) != KEY_BYTES:
        raise FileError(where, Refusal.WRONG_SIZE, KEY_BYTES)
    try:
        listing = list_files(root / folder, (key,))
        if listing.refused:
            raise listing.refused[0]
    except FileError as error:
        below = "" if error.name == folder else f"/{error.name}"
        raise FileError(f"{folder}{below}", error.refusal, error.detail) from error
    left_out = set.intersection(*map(set, choices)) if choices else set()
    names = [name for name in listing.files if name not in left_out]
    lines = sorted((f"{hash_file(root, f'{folder}/{name}')}  {name}\n", name) for name in names)
    texts = ("".join(line for line, name in lines if name not in chosen) for chosen in choices)
    codes = (hmac.new(secret, text.encode("ascii"), hashlib.sha256) for text in texts)
    return tuple(code.hexdigest() for code in codes)
