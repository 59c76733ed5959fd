"""A folder's files, each read once: what is judged is what was hashed.

A check that opens a file twice, once for its digest and once for its content, could be shown two
files. Through a snapshot every reader gets the same bytes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from reports.errors import SourceError
from reports.reading.files import FILE_LIMIT, OversizeError, read_bytes, sha256_file


class Snapshot:
    """The files of one folder as they were when each was first asked for.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self.folder = folder
        self._content: dict[str, bytes | SourceError] = {}
        self._digests: dict[str, str] = {}

    def holds(self, name: str) -> bool:
        """Return whether something of that name is there; a link counts."""
        return os.path.lexists(self.folder / name)

    def read(self, name: str, limit: int = FILE_LIMIT) -> bytes:
        """Return a regular file's bytes.

        Args:
            name: Its name in the folder.
            limit: Largest accepted size in bytes, at most `FILE_LIMIT`.

        Raises:
            SourceError: The file is missing, a link, unreadable, or larger than `limit`.
        """
        if name not in self._content:
            try:
                self._content[name] = read_bytes(self.folder / name)
            except SourceError as error:
                self._content[name] = error
        found = self._content[name]
        if isinstance(found, SourceError):
            raise found
        if len(found) > limit:
            raise OversizeError(f"{name}: larger than the accepted {limit} bytes")
        return found

    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a regular file as 64 hexadecimal digits.

        A file too large to be kept is read in pieces, once.

        Raises:
            SourceError: The file is missing, a link, or unreadable.
        """
        if name not in self._digests:
            try:
                self._digests[name] = hashlib.sha256(self.read(name)).hexdigest()
            except OversizeError:
                self._digests[name] = sha256_file(self.folder / name)
        return self._digests[name]
