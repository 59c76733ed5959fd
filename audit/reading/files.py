"""Plain files below a run directory, from hands that are not trusted: no links, no pipes, bounded.

`bundle` reads every file of a run through these two functions.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from audit.errors import UntrustedFileError

MAXIMUM_HASHED_BYTES = 1 << 37


def _open(root: Path, name: str, limit: int) -> tuple[int, int]:
    """Open a plain file below root for reading; returns descriptor and size."""
    path = root
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            raise UntrustedFileError(name, "is or lies behind a symbolic link, which is refused")
    try:
        # Neither follow a link put there meanwhile nor wait for the other end of a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise UntrustedFileError(name, "is missing", missing=True) from error
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise UntrustedFileError(name, f"cannot be opened ({reason})") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UntrustedFileError(name, "is not a plain file")
    if status.st_size > limit:
        os.close(descriptor)
        raise UntrustedFileError(name, f"is larger than {limit} bytes")
    return descriptor, status.st_size


def read_bytes(root: Path, name: str, limit: int) -> bytes:
    """Read a plain file of at most `limit` bytes.

    Raises:
        UntrustedFileError: missing, too large, a link, a pipe or unreadable.
    """
    descriptor, _ = _open(root, name, limit)
    with os.fdopen(descriptor, "rb") as stream:
        try:
            raw = stream.read(limit + 1)
        except OSError as error:
            raise UntrustedFileError(name, "cannot be read") from error
    if len(raw) > limit:
        raise UntrustedFileError(name, f"is larger than {limit} bytes")
    return raw


def hash_file(root: Path, name: str) -> str:
    """Sha256 (hex) of a plain file, read piecewise."""
    descriptor, _ = _open(root, name, MAXIMUM_HASHED_BYTES)
    with os.fdopen(descriptor, "rb") as stream:
        try:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise UntrustedFileError(name, "cannot be read") from error
