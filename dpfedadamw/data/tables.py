"""Tables of your own: CSV or TSV whose columns hold texts or numbers, a label and a client."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpfedadamw.data.errors import DataError
from dpfedadamw.data.files import Unpacked, opened, where
from dpfedadamw.data.source import CHUNK, Chunk, Numbers, Reading, Source, Texts

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_LONGEST_LINE = 2**20


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean.

    Attributes:
        label: Column of the class.
        text: One or two columns of text; empty where records are numbers.
        numbers: Columns of numbers; empty where records are texts.
        client: Column that says whose a record is, or None.
        classes: The labels that may occur, in their order; empty for those that do.
    """

    label: str
    text: tuple[str, ...]
    numbers: tuple[str, ...]
    client: str | None
    classes: tuple[str, ...]


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
                raise DataError(f"{place}: longer than {_LONGEST_LINE} bytes; this is no table")
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{place}: the byte 0x{raw[error.start]:02X} is not UTF-8; save the file as "
                    "UTF-8"
                ) from None
            if "\0" in line:
                raise DataError(f"{place}: holds a null character; this is no text file")
            yield line.rstrip("\n").removesuffix("\r")


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


def rows(path: Path, quoting: bool) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line: tabs divide a .tsv or .txt, commas everything else.

    Args:
        path: The file, gzip or plain.
        quoting: Whether double quotes may enclose a cell.
    """
    stem = path.name.removesuffix(".gz")
    delimiter = "\t" if stem.endswith((".tsv", ".txt")) else ","
    if not quoting:
        for number, line in enumerate(lines(path), start=1):
            yield number, line.split(delimiter)
        return
    reader = csv.reader((f"{line}\n" for line in lines(path)), delimiter=delimiter, strict=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{where(path)}: line {reader.line_num}: {error}") from None
        if cells is None:
            return
        if cells:
            yield reader.line_num, cells


def table(path: Path, test_path: Path | None, columns: Columns) -> Source:
    """A table, and perhaps a second one with the test records."""
    files = {"train": path, **({"test": test_path} if test_path else {})}

    def read() -> Reading:
        names = columns.classes or _names(files.values(), columns)
        numbers = {name: number for number, name in enumerate(names)}
        parts = {part: _chunks(file, columns, numbers) for part, file in files.items()}
        return Reading(parts, len(names))

    root = path if test_path is None else path.parent
    return Source(root, tuple(files.values()), repr(columns), read)


def _names(files: Iterable[Path], columns: Columns) -> tuple[str, ...]:
    """The labels that occur: whole numbers in their order, other names in that of the alphabet."""
    found: set[str] = set()
    for file in files:
        for _, (label,) in _selected(file, [columns.label]):
            found.add(label)
            if len(found) > 10_000:
                raise DataError(
                    f"{where(file)}: the column {columns.label} holds more than 10000 different "
                    "labels; give a column of classes"
                )
    if len(found) < 2:
        raise DataError(
            f"data.path: the column {columns.label} holds {len(found)} different labels; needed "
            "are two or more"
        )
    if all(name.isascii() and name.isdigit() for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def _selected(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of the wanted columns, found by the header."""
    header: list[str] | None = None
    places: list[int] = []
    for number, cells in rows(path, quoting=True):
        if header is None:
            header = cells
            for name in wanted:
                if header.count(name) != 1:
                    known = ", ".join(one[:40] for one in header[:20])
                    raise DataError(
                        f"{where(path)}: the column {name!r} is there {header.count(name)} times; "
                        f"the header has {known}"
                    )
            places = [header.index(name) for name in wanted]
        elif len(cells) != len(header):
            raise DataError(
                f"{where(path)}: line {number}: {len(cells)} cells, the header has {len(header)}"
            )
        else:
            yield number, [cells[place] for place in places]
    if header is None:
        raise DataError(f"{where(path)}: is empty; a table begins with the names of its columns")


def _chunks(path: Path, columns: Columns, numbers: dict[str, int]) -> Iterator[Chunk]:
    content = columns.text or columns.numbers
    wanted = [columns.label, *content, *([columns.client] if columns.client else [])]
    labels: list[int] = []
    records: list[list[str]] = []
    clients: list[str] = []
    for number, cells in _selected(path, wanted):
        place = f"{where(path)}: line {number}"
        if cells[0] not in numbers:
            raise DataError(
                f"{place}: the label {cells[0][:40]!r} is not one of data.classes "
                f"({', '.join(list(numbers)[:10])})"
            )
        labels.append(numbers[cells[0]])
        records.append(cells[1 : 1 + len(content)])
        if columns.numbers:
            _check_numbers(records[-1], columns.numbers, place)
        if columns.client:
            clients.append(cells[-1])
        if len(labels) == CHUNK:
            yield _chunk(records, labels, clients, columns)
            labels, records, clients = [], [], []
    if labels:
        yield _chunk(records, labels, clients, columns)


def _check_numbers(cells: Sequence[str], names: Sequence[str], place: str) -> None:
    for name, cell in zip(names, cells, strict=True):
        try:
            if math.isfinite(float(cell)) and abs(float(cell)) < 1e38:
                continue
        except ValueError:
            pass
        raise DataError(f"{place}: the column {name} holds {cell[:40]!r}; give finite numbers")


def _chunk(
    records: list[list[str]], labels: list[int], clients: list[str], columns: Columns
) -> Chunk:
    known = np.array(labels, np.int64)
    owners = tuple(clients) if columns.client else None
    if columns.numbers:
        values = np.array(records, np.float64).astype(np.float32)
        return Chunk(Numbers(values), known, owners)
    first = tuple(record[0] for record in records)
    second = tuple(record[1] for record in records) if len(columns.text) == 2 else None
    return Chunk(Texts(first, second), known, owners)
