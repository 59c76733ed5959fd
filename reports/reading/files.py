"""Reading and writing files of a run directory without trusting a byte of it.

Lowest layer of the reports package. A run directory may come from anybody, so links are never
followed, sizes are bounded, JSON and YAML are parsed strictly, and text is cleaned of characters
that a page cannot show or that reorder what a reader sees.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import stat
import unicodedata
from pathlib import Path
from typing import Any

import yaml

from reports.errors import SourceError

TEXT_LIMIT = 4_000
FILE_LIMIT = 64 * 2**20
_CHUNK = 1 << 20
# Zero-width (non-)joiners shape Arabic and Indic words; every other format character is dropped,
# because bidirectional overrides can make a page read differently from its bytes.
_KEPT_FORMAT_CHARACTERS = "\u200c\u200d"


def open_regular(path: Path) -> int:
    """Open a regular file for reading and never follow a link.

    Args:
        path: The file.

    Returns:
        A file descriptor that the caller closes.

    Raises:
        SourceError: The file is missing, a link, not regular, or unreadable.
    """
    try:
        # O_NONBLOCK: a named pipe put in the place of a file must not hang the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SourceError(f"{path.name}: missing in {path.parent}") from error
    except OSError as error:
        reason = "is a link" if path.is_symlink() else (error.strerror or "cannot be opened")
        raise SourceError(f"{path.name}: {reason}; a regular file is needed") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(f"{path.name}: is not a regular file")
    return descriptor


def read_bytes(path: Path, limit: int = FILE_LIMIT) -> bytes:
    """Return a regular file's bytes.

    Args:
        path: The file; links are refused.
        limit: Largest accepted size in bytes.

    Raises:
        SourceError: The file is missing, a link, unreadable, or larger than `limit`.
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise SourceError(f"{path.name}: larger than the accepted {limit} bytes")
    return data


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a regular file as 64 hexadecimal digits, read in pieces."""
    digest = hashlib.sha256()
    with os.fdopen(open_regular(path), "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key[:60]!r} appears twice")
        result[key] = value
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def parse_json(data: bytes | str, where: str) -> Any:
    """Parse JSON strictly: UTF-8, no repeated keys, no NaN or infinity, bounded depth.

    Args:
        data: The JSON text.
        where: Name used in the error message.

    Raises:
        SourceError: `data` is no such JSON.
    """
    try:
        document = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(document, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except RecursionError as error:
        raise SourceError(f"{where}: nested too deeply") from error
    except ValueError as error:
        raise SourceError(f"{where}: not valid JSON ({clean(str(error), 160)})") from error


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


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases: a spec has none, and nested ones explode."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not accepted")
        return super().compose_node(parent, index)


def parse_yaml(data: bytes, where: str) -> dict[str, Any]:
    """Parse a resolved spec: a YAML mapping without aliases.

    Raises:
        SourceError: `data` is no such YAML.
    """
    try:
        document = yaml.load(data, Loader=_PlainLoader)
    except RecursionError as error:
        raise SourceError(f"{where}: nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        line = str(error).splitlines()[0] if str(error) else "unknown error"
        raise SourceError(f"{where}: not valid YAML ({clean(line, 160)})") from error
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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SourceError(f"{path}: cannot be written ({error.strerror})") from error
