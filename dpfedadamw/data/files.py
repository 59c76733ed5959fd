"""Files that nobody vouches for: opened, measured, decompressed within bounds, and fingerprinted.

What is too large, not a plain file, cut off or packed beyond reason is refused before it fills
memory or disk. A fingerprint can be repeated with coreutils: one file's is its ``sha256sum``;
several files' is the ``sha256sum`` of what ``sha256sum`` prints of them, names in byte order.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dpfedadamw.errors import DataError

MAXIMUM_BYTES = 2**40
# Real data hardly packs better than ten to one; gzip's worst is a thousand to one.
_UNPACKED_FREELY = 64 * 2**20
_UNPACKED_RATIO = 200
_BLOCK = 2**20
_LARGEST_HOLE = 2**30


def where(path: Path) -> str:
    """How messages call a file."""
    return f"data.path: {path}"


def most_unpacked(size: int) -> int:
    """How many bytes a compressed file of real data may hold.

    Args:
        size: Bytes that the file has.
    """
    return _UNPACKED_FREELY + _UNPACKED_RATIO * size


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a plain file for reading; whatever fails while it is open becomes one clear line.

    Raises:
        DataError: If it is missing, forbidden, not a plain file, or damaged.
    """
    try:
        # Non-blocking, so that a named pipe is refused instead of waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DataError(f"{where(path)}: not a plain file; give the publisher's file")
            _refuse_holes(descriptor, path)
            yield stream
    except FileNotFoundError:
        raise DataError(f"{where(path)}: there is no such file") from None
    except IsADirectoryError:
        raise DataError(f"{where(path)}: a folder; give a file") from None
    except PermissionError:
        raise DataError(f"{where(path)}: may not be read; check its permissions") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{where(path)}: damaged or cut off ({error}); download it again") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{where(path)}: cannot be read ({reason})") from None


class Unpacked(io.RawIOBase):
    """Reads a file, gzip or plain, and refuses to unpack more than its size can justify."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        magic = stream.read(2)
        stream.seek(0)
        self._path = path
        self.compressed = magic == b"\x1f\x8b"
        self._stream: BinaryIO | gzip.GzipFile = (
            gzip.GzipFile(fileobj=stream) if self.compressed else stream
        )
        self.limit = size = os.fstat(stream.fileno()).st_size
        if self.compressed:
            self.limit = most_unpacked(size)
        self._read = 0

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes.

        Raises:
            DataError: If the file unpacks to more than is plausible.
        """
        content = self._stream.read(size if size >= 0 else self.limit - self._read + 1)
        self._read += len(content)
        if self._read > self.limit:
            raise DataError(
                f"{where(self._path)}: unpacks to more than {self.limit} bytes, which no data of "
                "this kind do; the file is not what it claims to be"
            )
        return content

    def exactly(self, size: int, what: str) -> bytes:
        """The next ``size`` bytes.

        Raises:
            DataError: If the file ends before.
        """
        content = self.read(size)
        if len(content) != size:
            raise DataError(
                f"{where(self._path)}: ends within {what}; the file is cut off, download it again"
            )
        return content


@dataclass(frozen=True)
class Fingerprint:
    """What files held when they were looked at.

    Attributes:
        sha256: Their digest, hexadecimal.
        stamps: Path, size and time of change of each.
    """

    sha256: str
    stamps: tuple[tuple[Path, int, int], ...]

    def check_unchanged(self) -> None:
        """Check that no file was changed since.

        Raises:
            DataError: If one was.
        """
        for path, size, changed in self.stamps:
            try:
                status = path.stat()
            except OSError:
                raise DataError(f"{where(path)}: vanished while it was read") from None
            if (status.st_size, status.st_mtime_ns) != (size, changed):
                raise DataError(f"{where(path)}: was changed while it was read; start again")


def fingerprint(paths: Sequence[Path], root: Path) -> Fingerprint:
    """The fingerprint of files, their names seen from ``root``, or their paths if two are alike.

    Raises:
        DataError: If one cannot be read.
    """
    lines, stamps = [], []
    paths = tuple(dict.fromkeys(paths))
    named = {_name(path, root): path for path in paths}
    if len(named) < len(paths):
        named = {str(path): path for path in paths}
    for name, path in sorted(named.items(), key=lambda item: os.fsencode(item[0])):
        digest = hashlib.sha256()
        with opened(path) as stream:
            status = os.fstat(stream.fileno())
            if status.st_size > MAXIMUM_BYTES:
                raise DataError(f"{where(path)}: {status.st_size} bytes, more than can be read")
            while block := stream.read(_BLOCK):
                digest.update(block)
        lines.append((digest.hexdigest(), name))
        stamps.append((path, status.st_size, status.st_mtime_ns))
    if len(lines) == 1:
        return Fingerprint(lines[0][0], tuple(stamps))
    listing = "".join(f"{digest}  {name}\n" for digest, name in lines)
    return Fingerprint(hashlib.sha256(os.fsencode(listing)).hexdigest(), tuple(stamps))


def _refuse_holes(file: int, path: Path) -> None:
    """Refuse a sparse file: holes take no disk, and minutes to read. The file is at its start."""
    size = os.fstat(file).st_size
    if size <= _LARGEST_HOLE or not hasattr(os, "SEEK_HOLE"):
        return
    begin = os.lseek(file, 0, os.SEEK_HOLE)
    end = _data_after(file, begin, size)
    os.lseek(file, 0, os.SEEK_SET)
    if end - begin > _LARGEST_HOLE:
        raise DataError(
            f"{where(path)}: has no content from byte {begin} to {end}, a hole in a sparse file; "
            "give the whole file"
        )


def _data_after(file: int, begin: int, size: int) -> int:
    """Where content begins again behind a hole, or the file's end."""
    try:
        return os.lseek(file, begin, os.SEEK_DATA)
    except OSError:
        return size


def _name(path: Path, root: Path) -> str:
    """How a listing calls a file."""
    inside = path != root and path.is_relative_to(root)
    return path.relative_to(root).as_posix() if inside else str(path)


def folder(path: Path) -> Path:
    """The path, if it is a folder that may be read.

    Raises:
        DataError: If not.
    """
    try:
        os.scandir(path).close()
    except NotADirectoryError:
        raise DataError(f"{where(path)}: a file; give the folder that holds it") from None
    except FileNotFoundError:
        raise DataError(f"{where(path)}: there is no such folder") from None
    except OSError as error:
        raise DataError(f"{where(path)}: the folder may not be read ({error.strerror})") from None
    return path


def find(root: Path, names: Sequence[str]) -> Path:
    """The first of several names that a folder holds.

    Raises:
        DataError: If it holds none of them.
    """
    for name in names:
        if os.path.lexists(root / name):
            return root / name
    wanted = " or ".join(dict.fromkeys(name.removesuffix(".gz") for name in names))
    raise DataError(f"{where(root)}: holds no {wanted}; see docs/datasets.md for the layout")
