"""Plain files below a run directory, for the auditor: a refusal becomes an error of the audit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from audit.errors import RunDirectoryError, UntrustedFileError
from audit.untrusted import UntrustedError, files
from audit.untrusted.files import FileError, Refusal


@contextmanager
def refusals_of(name: str) -> Iterator[None]:
    """Turn what is refused while a file is read or parsed into an error that names the file.

    Raises:
        UntrustedFileError: in place of any `UntrustedError`.
    """
    try:
        yield
    except FileError as error:
        missing = error.refusal is Refusal.MISSING
        raise UntrustedFileError(error.name, error.what, missing=missing) from error
    except UntrustedError as error:
        raise UntrustedFileError(name, str(error)) from error


def read_bytes(root: Path, name: str, limit: int) -> bytes:
    """Read a plain file of at most `limit` bytes.

    Raises:
        UntrustedFileError: missing, too large, a link, a pipe or unreadable.
    """
    with refusals_of(name):
        return files.read_bytes(root, name, limit)


def hash_file(root: Path, name: str) -> str:
    """Sha256 (hex) of a plain file, read piecewise.

    Raises:
        UntrustedFileError: as `read_bytes` does.
    """
    with refusals_of(name):
        return files.hash_file(root, name)


def write_atomically(path: Path, content: bytes, mode: int) -> None:
    """Write a file so that a reader sees the old or the new one, never a part.

    Raises:
        RunDirectoryError: the file cannot be written.
    """
    try:
        files.write_atomically(path, content, mode)
    except FileError as error:
        raise RunDirectoryError(str(error)) from error
