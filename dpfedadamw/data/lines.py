"""Text files line by line and cell by cell, bounded and in UTF-8."""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.files import Unpacked, fingerprint, opened, where
from dpfedadamw.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_LONGEST_LINE = 2**20
# Python's own limit is an eighth of it, and a document may be a cell.
csv.field_size_limit(_LONGEST_LINE)
# What may divide cells, besides what a file's ending says.
_DELIMITERS = (",", ";", "\t", "|")
_BINARY = {
    (".xlsx", ".xlsm", ".xls", ".ods"): "a workbook; save its sheet as CSV UTF-8",
    (".dta", ".sav", ".sas7bdat", ".rds", ".rdata"): "a statistics program's file; save it as CSV",
    (".json", ".jsonl", ".ndjson", ".xml"): "not a table; save it as CSV or Parquet",
}


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, gzip or plain, without their ends and without a BOM.

    Raises:
        DataError: If it is not UTF-8, a line is absurdly long, or it holds null characters.
    """
    with opened(path) as stream:
        unpacked = io.BufferedReader(_Raw(Unpacked(path, stream)), 2**16)
        number = 0
        while raw := unpacked.readline(_LONGEST_LINE + 1):
            number += 1
            place = f"{where(path)}: line {number}"
            if len(raw) > _LONGEST_LINE:
                raise DataError(f"{place}: longer than {_LONGEST_LINE} bytes; this is not a table")
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{place}: the byte 0x{raw[error.start]:02X} is not UTF-8; save the file as "
                    "UTF-8"
                ) from None
            if "\0" in line:
                raise DataError(f"{place}: holds a null character; this is not a text file")
            yield line.rstrip("\n").removesuffix("\r")


def owners_of(path: Path, count: int, digest: str) -> tuple[NDArray[np.int64], str]:
    """The client of each record by a file of names, and the digest of data and file together.

    Args:
        path: Holds one name a line, in the records' order.
        count: How many records there are.
        digest: That of the data alone.

    Raises:
        DataError: If it cannot be read, or names more clients or fewer than there are records.
    """
    place = f"data.partition.file: {path}"
    try:
        names, read = list(lines(path)), fingerprint([path], path).sha256
    except DataError as error:
        raise DataError(str(error).replace("data.path", "data.partition.file", 1)) from None
    if len(names) != count:
        raise DataError(
            f"{place}: has {len(names)} lines, but the training file holds {count} records; give "
            "one client's name per line, in the records' order"
        )
    together = f"{digest}  data\n{read}  clients\n"
    owners = np.unique(names, return_inverse=True)[1].astype(np.int64)
    return owners, hashlib.sha256(together.encode()).hexdigest()


class _Raw(io.RawIOBase):
    """Lets a buffered reader read from bounded, unpacked bytes."""

    def __init__(self, unpacked: Unpacked) -> None:
        self._unpacked = unpacked

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        into = memoryview(buffer)
        content = self._unpacked.read(len(into))
        into[: len(content)] = content
        return len(content)


def rows(path: Path, quoting: bool, wanted: Sequence[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line: tabs divide a .tsv or .txt, commas everything else.

    Args:
        path: The file, gzip or plain.
        quoting: Whether double quotes may enclose a cell. Then the first line names the columns,
            and another sign divides the cells where that line says so: ";", a tab or "|", which
            give more columns, or Excel's ``sep=;`` above it.
        wanted: Names that the first line has, if it is divided rightly.
    """
    stem = path.name.removesuffix(".gz")
    delimiter = "\t" if stem.endswith((".tsv", ".txt")) else ","
    if not quoting:
        for number, line in enumerate(lines(path), start=1):
            yield number, line.split(delimiter)
        return
    for endings, what in _BINARY.items():
        if stem.lower().endswith(endings):
            raise DataError(f"{where(path)}: {what}")
    every = lines(path)
    first, before = next(every, None), 0
    if first is None:
        return
    if first[:4].lower() == "sep=" and len(first) == 5:
        delimiter, first, before = first[4], next(every, ""), 1
    else:
        delimiter = _delimiter(first, delimiter, set(wanted))
    ended = (f"{line}\n" for line in itertools.chain([first], every))
    reader = csv.reader(ended, delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            place = f"{where(path)}: line {reader.line_num + before}"
            raise DataError(f"{place}: {error}; quotes enclose a whole cell") from None
        if cells is None:
            return
        if cells:
            yield reader.line_num + before, cells


def _delimiter(first: str, usual: str, wanted: set[str]) -> str:
    """What divides the cells of a first line; the usual sign where it gives all that is wanted."""
    found: dict[str, list[str]] = {}
    for sign in dict.fromkeys((usual, *_DELIMITERS)):
        try:
            found[sign] = next(csv.reader([first], delimiter=sign), [])
        except csv.Error:
            return usual
    names = {sign: {*cells, *(cell.strip() for cell in cells)} for sign, cells in found.items()}
    if wanted and wanted <= names[usual]:
        return usual
    return max(found, key=lambda sign: (wanted <= names[sign], len(found[sign])))


def close_to(name: str, header: Sequence[str]) -> str:
    """Say which column was probably meant, or nothing.

    Nothing else of the line is shown: where the header is missing, it is a record.
    """
    close = difflib.get_close_matches(name, header[:1000], 1, 0.75)
    return f"; did you mean {close[0]!r}?" if close else ""


def not_once(name: str, header: Sequence[str]) -> str:
    """Say that a header does not have a column once."""
    count = list(header).count(name)
    if count:
        return f"{count} of its columns are called {name!r}; give each a different name"
    columns = "1 column" if len(header) == 1 else f"{len(header)} columns"
    return f"none of the {columns} that its first line names is {name!r}{close_to(name, header)}"
