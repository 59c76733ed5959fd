"""Text files line by line and cell by cell, bounded and in UTF-8."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedadamw.data.errors import DataError
from dpfedadamw.data.files import Unpacked, opened, where

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_LONGEST_LINE = 2**20


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


def close_to(name: str, header: Sequence[str]) -> str:
    """Say which column was probably meant, or nothing.

    Nothing else of the line is shown: where the header is missing, it is a record.
    """
    close = difflib.get_close_matches(name, header[:1000], 1, 0.75)
    return f"; did you mean {close[0]!r}?" if close else ""
