"""Files of a run directory for the reports: read, parsed and written without trusting a byte.

Lowest layer of the reports package. What may be read is decided by `audit.untrusted`, which the
auditor reads through as well; here a refusal becomes a `SourceError`, and text is cleaned of
characters that a page cannot show or that reorder what a reader sees.
"""

from __future__ import annotations

import hashlib
import math
import os
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from audit.untrusted import documents, files
from audit.untrusted.documents import DocumentError
from audit.untrusted.files import FileError, Refusal
from reports.errors import SourceError

TEXT_LIMIT = 4_000
FILE_LIMIT = 64 * 2**20
# Zero-width (non-)joiners shape Arabic and Indic words; every other format character is dropped,
# because bidirectional overrides can make a page read differently from its bytes.
_KEPT_FORMAT_CHARACTERS = "\u200c\u200d"
_REASONS = {
    Refusal.MISSING: "missing in {folder}",
    Refusal.LINK: "is a link; a regular file is needed",
    Refusal.NOT_PLAIN: "is not a regular file",
    Refusal.TOO_LARGE: "larger than the accepted {detail} bytes",
    Refusal.CANNOT_OPEN: "{detail}; a regular file is needed",
}


class OversizeError(SourceError):
    """A file is larger than its reader accepts."""


def _refused(path: Path, error: FileError) -> SourceError:
    kind = OversizeError if error.refusal is Refusal.TOO_LARGE else SourceError
    reason = _REASONS.get(error.refusal, error.what)
    return kind(f"{path.name}: {reason.format(folder=path.parent, detail=error.detail)}")


def read_bytes(path: Path, limit: int = FILE_LIMIT) -> bytes:
    """Return a regular file's bytes.

    Args:
        path: The file; links are refused.
        limit: Largest accepted size in bytes.

    Raises:
        SourceError: The file is missing, a link, unreadable, or larger than `limit`.
    """
    try:
        return files.read_bytes(path.parent, path.name, limit)
    except FileError as error:
        raise _refused(path, error) from error


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a regular file as 64 hexadecimal digits, read in pieces.

    Raises:
        SourceError: The file is missing, a link, or unreadable.
    """
    try:
        return files.hash_file(path.parent, path.name)
    except FileError as error:
        raise _refused(path, error) from error


def _malformed(where: str, form: str, error: DocumentError) -> SourceError:
    if error.nested:
        return SourceError(f"{where}: nested too deeply")
    return SourceError(f"{where}: not valid {form} ({clean(error.detail, 160)})")


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON strictly: UTF-8, no repeated keys, no NaN or infinity, bounded depth.

    Args:
        data: The JSON text.
        where: Name used in the error message.

    Raises:
        SourceError: `data` is no such JSON.
    """
    try:
        return documents.parse_json(data)
    except DocumentError as error:
        raise _malformed(where, "JSON", error) from error


def parse_json_lines(data: bytes, where: str) -> list[dict[str, Any]]:
    """Parse one JSON object a line.

    Raises:
        SourceError: A line is no JSON object; the message names the line, counted from 1.
    """
    rows: list[dict[str, Any]] = []
    for index, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        row = parse_json(line, f"{where}, line {index}")
        if not isinstance(row, dict):
            raise SourceError(f"{where}, line {index}: a JSON object is needed")
        rows.append(row)
    return rows


def parse_yaml(data: bytes, where: str) -> dict[str, Any]:
    """Parse a resolved spec: a YAML mapping without aliases.

    Raises:
        SourceError: `data` is no such YAML.
    """
    try:
        document = documents.parse_yaml(data)
    except DocumentError as error:
        raise _malformed(where, "YAML", error) from error
    if not isinstance(document, dict):
        raise SourceError(f"{where}: a YAML mapping is needed")
    return document


def clean(value: Any, limit: int = TEXT_LIMIT) -> str:
    """Return a value as text that a page can show safely.

    Control characters, bidirectional overrides, lone surrogates, private and unassigned code points
    become U+FFFD; white space collapses to single spaces except line breaks.

    Args:
        value: Anything; strings are taken as they are, others by `str`.
        limit: Longest text, in characters; longer text ends with an ellipsis.
    """
    raw = value if isinstance(value, str) else ("" if value is None else str(value))
    cut = raw[: limit + 1]
    if len(cut) <= limit and cut.isascii() and cut.isprintable() and "  " not in cut:
        # Nearly every text; what follows looks at each character.
        return cut.strip()
    characters = []
    for character in unicodedata.normalize("NFC", cut):
        category = unicodedata.category(character)
        if character == "\n" or category[0] not in "CZ":
            characters.append(character)
        elif category[0] == "Z" or character in "\t\r":
            characters.append(" ")
        elif category == "Cf":
            characters.append(character if character in _KEPT_FORMAT_CHARACTERS else "")
        else:
            characters.append("\ufffd")
    lines = (" ".join(line.split()) for line in "".join(characters).split("\n"))
    result = "\n".join(lines).strip()
    return result if len(result) <= limit else result[: limit - 1] + "…"


def number(value: Any) -> float | None:
    """Return a finite number as float, or None for anything else (booleans included)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def integer(value: Any) -> int | None:
    """Return a whole number within 63 bits, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        return None
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all.

    Args:
        path: Destination; replaced if it exists.
        data: Its new bytes.
        mode: Permission bits before the umask.

    Raises:
        SourceError: The folder cannot be written.
    """
    try:
        files.write_atomically(path, data, mode)
    except FileError as error:
        raise SourceError(str(error)) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder against others who do too, from a read of one of its files to its write.

    Two that wrote at once would each keep what they read and add their own: one's would be lost.

    Args:
        folder: It exists. Who holds it already is waited for.

    Raises:
        SourceError: The folder cannot be held.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise SourceError(f"{folder}: cannot be opened ({error.strerror})") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise SourceError(f"{folder}: cannot be locked ({error.strerror})") from error
        yield
    finally:
        os.close(descriptor)


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
