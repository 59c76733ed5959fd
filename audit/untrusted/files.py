"""Plain files in hostile folders: no links, no pipes, bounded; and writes that are whole or absent.

The only place that opens files by descriptor, so the only one that must know which guards an
operating system has. `list_files` gives what lies below a folder, with links and special files as
refused, which are never followed or read; `keyed_digest` is one digest over all of its files.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from io import BufferedReader
from pathlib import Path, PurePath

from audit.untrusted import UntrustedError

# Some seconds' work; what is judged by its content has smaller bounds of its own.
MOST_HASHED_BYTES = 1 << 33
# While somebody writes to a run directory this folder lies in it, with all that is not whole yet.
UNFINISHED = ".unfinished"


def _flags(*names: str) -> int:
    """The flags among these that this operating system has."""
    return sum(getattr(os, name, 0) for name in names)


# Without O_NONBLOCK, opening a named pipe waits for somebody who writes to it.
_READ = os.O_RDONLY | _flags("O_CLOEXEC", "O_BINARY", "O_NONBLOCK")
# The path was looked at before; a link that is put there meanwhile is not followed either.
_NO_LINK = _flags("O_NOFOLLOW")
# To open what lies in it; with O_PATH nobody needs to be allowed to list it.
_FOLDER = os.O_RDONLY | _flags("O_CLOEXEC", "O_DIRECTORY", "O_PATH")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _flags("O_CLOEXEC", "O_BINARY")


class Refusal(Enum):
    """Why a file is refused; the values are how `FileError` puts it."""

    MISSING = "is missing"
    LINK = "is or lies behind a symbolic link, which is refused"
    NOT_PLAIN = "is not a plain file"
    TOO_LARGE = "is larger than {detail} bytes"
    WRONG_SIZE = "is not {detail} bytes"
    CANNOT_OPEN = "cannot be opened ({detail})"
    CANNOT_READ = "cannot be read"
    CANNOT_WRITE = "cannot be written ({detail})"
    CANNOT_LIST = "cannot be listed"
    TOO_DEEP = "has folders that lie too deep"
    TOO_MANY = "has more than {detail} files"
    UNUSUAL_NAME = "has a file with an unusual name"


class FileError(UntrustedError):
    """A file or folder that is refused, or cannot be read or written.

    Attributes:
        name: its name below the folder that was given; the path where there was no folder.
        refusal: why.
        detail: the bound that it breaks, or the operating system's reason.
        what: why, in words.
    """

    def __init__(self, name: str, refusal: Refusal, detail: object = "") -> None:
        """Note what is wrong with which file."""
        self.name, self.refusal, self.detail = name, refusal, str(detail)
        self.what = refusal.value.format(detail=detail)
        super().__init__(f"{name}: {self.what}")


def _open_plain(path: Path, name: str, flags: int, folder: int | None = None) -> BufferedReader:
    """Open a plain file for reading.

    Args:
        path: the file.
        name: what errors call it.
        flags: more than those that all have.
        folder: a descriptor of the folder in which it lies; None to look for the path.
    """
    try:
        place = path if folder is None else path.name
        descriptor = os.open(place, _READ | flags, dir_fd=folder)
    except FileNotFoundError as error:
        raise FileError(name, Refusal.MISSING, error.strerror) from error
    except ValueError as error:
        raise FileError(name, Refusal.CANNOT_OPEN, "not a path") from error
    except OSError as error:
        if flags & _NO_LINK and path.is_symlink():
            raise FileError(name, Refusal.LINK) from error
        raise FileError(name, Refusal.CANNOT_OPEN, error.strerror or "unknown reason") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError(name, Refusal.NOT_PLAIN, "not a plain file")
    return os.fdopen(descriptor, "rb")


def read_chosen(path: Path, limit: int) -> tuple[bytes, int]:
    """Read a plain file that the user chose, whose links are therefore followed.

    It is opened once and judged by its descriptor, so that no swap in between can fool a check.

    Args:
        path: the file.
        limit: at most so many bytes are read of it.

    Returns:
        Its bytes, and its permission bits.

    Raises:
        FileError: missing, a pipe, a folder, a device or unreadable.
    """
    with _open_plain(path, str(path), 0) as stream:
        try:
            found = os.fstat(stream.fileno())
            return _at_most(stream, found.st_size, limit), stat.S_IMODE(found.st_mode)
        except OSError as error:
            raise FileError(str(path), Refusal.CANNOT_OPEN, error.strerror) from error


def _at_most(stream: BufferedReader, size: int, limit: int) -> bytes:
    """Read at most `limit` bytes; room is taken for the file's own size, not for the limit."""
    # A byte more than it has, so that a file that has grown since is noticed.
    return stream.read(min(size + 1, limit))


def _open_below(root: Path, name: str, limit: int) -> BufferedReader:
    """Open a plain file of at most `limit` bytes below a folder."""
    parts = PurePath(name)
    if parts.is_absolute() or ".." in parts.parts:
        raise FileError(name, Refusal.NOT_PLAIN)
    path = root
    for part in parts.parts:
        path = path / part
        if path.is_symlink():
            raise FileError(name, Refusal.LINK)
    with _folder_of(root, parts, name) as folder:
        stream = _open_plain(path, name, _NO_LINK, folder)
    if os.fstat(stream.fileno()).st_size > limit:
        stream.close()
        raise FileError(name, Refusal.TOO_LARGE, limit)
    return stream


@contextlib.contextmanager
def _folder_of(root: Path, parts: PurePath, name: str) -> Iterator[int | None]:
    """A descriptor of the folder in which a file lies; None where folders cannot be opened.

    Each folder is opened in the one above it, so that a link that is put there meanwhile is not
    followed.
    """
    if os.open not in os.supports_dir_fd or not parts.parts:
        yield None
        return
    opened: list[int] = []
    try:
        try:
            opened.append(os.open(root, _FOLDER))
            for part in parts.parts[:-1]:
                opened.append(os.open(part, _FOLDER | _NO_LINK, dir_fd=opened[-1]))
        except FileNotFoundError as error:
            raise FileError(name, Refusal.MISSING, error.strerror) from error
        except ValueError as error:
            raise FileError(name, Refusal.CANNOT_OPEN, "not a path") from error
        except OSError as error:
            reason = error.strerror or "unknown reason"
            raise FileError(name, Refusal.CANNOT_OPEN, reason) from error
        yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def open_plain(root: Path, name: str) -> BufferedReader:
    """Open a plain file below a folder, to be read piecewise.

    Raises:
        FileError: as `read_bytes` does.
    """
    return _open_below(root, name, MOST_HASHED_BYTES)


def read_bytes(root: Path, name: str, limit: int) -> bytes:
    """Read a plain file of at most `limit` bytes below a folder.

    Raises:
        FileError: missing, too large, a link or behind one, a pipe or unreadable.
    """
    with _open_below(root, name, limit) as stream:
        try:
            raw = _at_most(stream, os.fstat(stream.fileno()).st_size, limit + 1)
        except OSError as error:
            raise FileError(name, Refusal.CANNOT_READ) from error
    # It may have grown since its size was looked at.
    if len(raw) > limit:
        raise FileError(name, Refusal.TOO_LARGE, limit)
    return raw


def hash_file(root: Path, name: str) -> str:
    """Sha256 (hex) of a plain file below a folder, read piecewise.

    Raises:
        FileError: as `read_bytes` does.
    """
    with _open_below(root, name, MOST_HASHED_BYTES) as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise FileError(name, Refusal.CANNOT_READ) from error


# What a run's folder has and a gate's has not.
_OF_A_RUN = (
    "spec.yaml", "audit.json", "report.json", "report-public.json", "trainer.pub", "auditor.pub",
    "training.attestation.json", "attestation.json", "attestation-public.json",
)  # fmt: skip


def folder_of_gate(path: Path) -> Path | None:
    """The folder of a gate's ledger, which is the one given or `ledger` in it; None of a run.

    A gate's ledger that was copied into a run must not be judged in the run's place.
    """
    inner = path / "ledger"
    if any(os.path.lexists(folder / name) for folder in (path, inner) for name in _OF_A_RUN):
        return None
    if (path / "head.json").is_file():
        return path
    is_gate = (inner / "head.json").is_file() and not os.path.lexists(path / "ledger.jsonl")
    return inner if is_gate else None


def create(path: Path, content: bytes, mode: int) -> None:
    """Write a file that does not exist yet: afterwards it is whole and on the disk, or not there.

    Even a process that is killed, or a machine that loses its power, leaves no part of it under its
    name.

    Args:
        path: the file; whatever is there, a link too, is neither followed nor replaced.
        content: its bytes.
        mode: permission bits, whatever the umask.

    Raises:
        OSError: it exists, or cannot be written; its `filename` is `path`.
    """
    temporary = _temporary(path)
    try:
        _write_new(temporary, content, mode)
        try:
            _name_new(temporary, path)
        finally:
            # The file has its name, or another error is told: a second name does no harm.
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, _CREATE | _NO_LINK, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, mode)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _name_new(temporary: Path, path: Path) -> None:
    """Give a file its name, unless something has it already."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except (OSError, AttributeError, NotImplementedError):
        # Without hard links the name is taken by an empty file of ours first. A process that is
        # killed right here leaves that one.
        os.close(os.open(path, _CREATE | _NO_LINK, 0o600))
        try:
            temporary.replace(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old or the new one, never a part.

    Until it is whole it lies in the `UNFINISHED` folder of the run that it belongs to, if there is
    one, else next to its final place. When this returns, file and name are on the disk.

    Args:
        path: the file; what is there is replaced, a link too.
        content: its new bytes.
        mode: permission bits, whatever the umask.

    Raises:
        FileError: it cannot be written.
    """
    temporary = _temporary(_unfinished(path) / path.name)
    try:
        _write_new(temporary, content, mode)
        try:
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise FileError(str(path), Refusal.CANNOT_WRITE, error.strerror) from error


def _unfinished(path: Path) -> Path:
    """Where a file lies until it is whole; a link that poses as the folder is not followed."""
    for folder in (path.parent, path.parent.parent):
        place = folder / UNFINISHED
        if place.is_dir() and not place.is_symlink():
            return place
    return path.parent


def _sync_folder(folder: Path) -> None:
    """Wait until a folder's names are on the disk, where the operating system opens folders."""
    directory = getattr(os, "O_DIRECTORY", None)
    if directory is None:
        return
    descriptor = os.open(folder, os.O_RDONLY | directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
