"""A table becomes K fixed shards: a keyed hash of a row, or of its person, says which.

A row's shard depends on the row (or its person) and the key alone. So adding a row moves no other,
all rows of one person lie together, and nobody without the key can aim rows at a shard. A row whose
content changes may change its shard: that is one row removed and one added.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO
from unicodedata import normalize

from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.settings import Settings
from dpfedadamw.storage.disk import DISK, PRIVATE_MODE, make_folders, write_atomically

_KEY = "sharding.key"
_KEY_BYTES = 32
_DOMAIN = b"dpfedadamw gate shard 1\x00"
# Rows that are kept in memory before they are written.
_ROWS_AT_ONCE = 100_000
_LONGEST_LINE = 2**20


def shard_of(key: bytes, values: list[str], shards: int) -> int:
    """The shard, from 0, of a row or a person.

    Args:
        key: 32 secret bytes.
        values: The row's cells, or the one cell that names the person.
        shards: K.
    """
    named = b"".join(len(one).to_bytes(4, "big") + one for one in (v.encode() for v in values))
    return int.from_bytes(hmac.digest(key, _DOMAIN + named, hashlib.sha256)[:16], "big") % shards


def sharding_key(settings: Settings) -> bytes:
    """The site's key, made at the first call.

    Raises:
        GateError: If it is damaged.
    """
    path = settings.ledger / _KEY
    if not path.exists():
        make_folders(settings.ledger)
        write_atomically(path, secrets.token_bytes(_KEY_BYTES), PRIVATE_MODE)
    key = DISK.read(path)
    if len(key) != _KEY_BYTES:
        raise GateError(f"{path}: has {len(key)} bytes, not {_KEY_BYTES}; put the key back")
    return key


def write_shards(settings: Settings, table: Path, target: Path, person: str | None) -> list[int]:
    """Write a CSV table as target/shard-000/NAME, …, each with the header line.

    Args:
        settings: Unit, number of shards, and where the key is.
        table: The table, in UTF-8, with a header line.
        target: A new folder.
        person: The column that names the person; needed where the unit is a person.

    Returns:
        How many rows each shard has.

    Raises:
        GateError: If the table cannot be divided for this unit, or nothing can be written.
    """
    if settings.unit == "site":
        raise GateError(
            f"{settings.path}: unit: a site is one shard; give the job the table itself"
        )
    if settings.unit == "person" and person is None:
        raise GateError("--person: the unit is a person; name the column that tells people apart")
    if settings.unit == "record" and person is not None:
        raise GateError("--person: the unit is a record; set unit to person, or leave it out")
    if target.exists():
        raise GateError(f"{target}: exists; name a new folder")
    # Under another name until all rows are there: half a table must not pass for a whole one.
    hidden = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        counts = _divided(settings, table, hidden, person)
        DISK.rename(hidden, target)
        DISK.sync_folder(target.parent)
    except OSError as error:
        raise GateError(f"{error.filename}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise GateError(f"{table}: is no CSV table in UTF-8 ({error})") from error
    finally:
        DISK.remove_tree(hidden)
    return counts


def _divided(settings: Settings, table: Path, folder: Path, person: str | None) -> list[int]:
    counts = [0] * settings.shards
    key = sharding_key(settings)
    with table.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(_lines(file, table), strict=True)
        header = next(rows, [])
        place = _place_of(person, header, table)
        files = [folder / f"shard-{number:03d}" / table.name for number in range(len(counts))]
        for one in files:
            make_folders(one.parent)
            one.write_text(_line(header), encoding="utf-8")
        waiting: list[list[str]] = [[] for _ in files]
        for row in _rows(rows, header, place, table):
            shard = shard_of(key, row if place is None else [row[place]], settings.shards)
            counts[shard] += 1
            waiting[shard].append(_line(row))
            if sum(counts) % _ROWS_AT_ONCE == 0:
                _write(files, waiting)
        _write(files, waiting)
    return counts


def _lines(file: TextIO, table: Path) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise GateError(
                f"{table}: a line is longer than {_LONGEST_LINE:,} characters; this is not a table"
            )
        yield line


def _place_of(person: str | None, header: list[str], table: Path) -> int | None:
    if person is None:
        return None
    if header.count(person) != 1:
        raise GateError(
            f"{table}: has {header.count(person)} columns {person}; one is needed of: "
            + ", ".join(header[:20])
        )
    return header.index(person)


def _rows(
    rows: Iterator[list[str]], header: list[str], place: int | None, table: Path
) -> Iterator[list[str]]:
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise GateError(f"{table}, row {number}: has {len(row)} cells, not {len(header)}")
        if place is not None and not row[place].strip():
            raise GateError(f"{table}, row {number}: the column {header[place]} is empty")
        # Written in two ways, one person would lie in two shards.
        if place is not None and row[place] != normalize("NFC", row[place].strip()):
            raise GateError(
                f"{table}, row {number}: the column {header[place]} has blanks around it, or "
                "letters with separate accents; write each person in one way (Unicode NFC)"
            )
        yield row


def _line(row: list[str]) -> str:
    text = io.StringIO()
    # It quotes the characters that end its lines: both, since readers take either for an end.
    csv.writer(text, lineterminator="\r\n").writerow(row)
    return text.getvalue().removesuffix("\r\n") + "\n"


def _write(files: list[Path], waiting: list[list[str]]) -> None:
    for path, lines in zip(files, waiting, strict=True):
        if lines:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
            lines.clear()
