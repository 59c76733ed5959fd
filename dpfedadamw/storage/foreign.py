"""Files that anybody may have made are plain, bounded and not executed, or they are refused.

The engine's one door to them. What is accepted is decided by `audit.untrusted`, which the auditor
and the reports read through as well: plain files alone, bounded, and neither pickle nor surprises.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit.untrusted import files
from audit.untrusted.documents import DocumentError, parse_json
from audit.untrusted.files import FileError
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.storage.disk import DISK, Disk

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_TEXT_BYTES = 1 << 28
MOST_ARRAY_BYTES = 1 << 30
SALT_BYTES = 32


class ForeignFileError(DpfedadamwError, ValueError):
    """A file's content is not accepted; the message names the file."""


def read_json(path: Path, disk: Disk = DISK) -> Any:
    """The one value of a file of JSON.

    Raises:
        OSError: If it is missing, a link, no plain file or too large.
        ForeignFileError: If it is no strict JSON.
    """
    return parse(disk.read(path, MOST_TEXT_BYTES), str(path))


def read_json_lines(path: Path, disk: Disk = DISK) -> list[dict[str, Any]]:
    """The mappings of a file that has one a line.

    Raises:
        OSError: As `read_json`.
        ForeignFileError: If a line is no strict JSON, or no mapping.
    """
    lines = disk.read(path, MOST_TEXT_BYTES).splitlines()
    return [_mapping(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def read_mapping(path: Path, disk: Disk = DISK) -> dict[str, Any]:
    """The mapping of a file of JSON.

    Raises:
        OSError: As `read_json`.
        ForeignFileError: If it is no strict JSON, or no mapping.
    """
    return _mapping(disk.read(path, MOST_TEXT_BYTES), str(path))


def read_arrays(path: Path, disk: Disk = DISK) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name; nothing is unpickled.

    Raises:
        OSError: As `read_json`.
        ForeignFileError: If it is no plain archive of numbers and texts.
    """
    # Commands that only ask where a run is are spared it.
    import numpy as np

    from audit.untrusted.archives import ArchiveError, read_archive

    raw = disk.read(path, MOST_ARRAY_BYTES)
    try:
        # Torch shares memory that can be written alone.
        return {name: np.array(values) for name, values in read_archive(raw).items()}
    except ArchiveError as error:
        raise ForeignFileError(f"{path}: {error}") from None


def parse(raw: bytes, where: str) -> Any:
    """The value of strict JSON.

    Raises:
        ForeignFileError: If it is none.
    """
    try:
        return parse_json(raw)
    except DocumentError as error:
        raise ForeignFileError(f"{where}: {error}") from None


def read_salt(path: Path) -> bytes:
    """The secret that keys what a run commits to.

    Raises:
        OSError: As `read_json`.
        ForeignFileError: If it has another length.
    """
    salt = DISK.read(path, 2 * SALT_BYTES)
    if len(salt) != SALT_BYTES:
        raise ForeignFileError(f"{path}: has {len(salt)} bytes, not {SALT_BYTES}; restore it")
    return salt


def read_chosen(path: Path, most: int) -> bytes:
    """The content of a plain file that the user names, whose links are therefore followed.

    Raises:
        OSError: If it is missing or no plain file.
        ForeignFileError: If it has more bytes.
    """
    try:
        content, _ = files.read_chosen(path, most + 1)
    except FileError as error:
        raise OSError(errno.EINVAL, error.what, str(path)) from None
    if len(content) > most:
        raise ForeignFileError(f"{path}: is larger than {most} bytes")
    return content


def _mapping(raw: bytes, where: str) -> dict[str, Any]:
    found = parse(raw, where)
    if not isinstance(found, dict):
        raise ForeignFileError(f"{where}: is no mapping")
    return found
