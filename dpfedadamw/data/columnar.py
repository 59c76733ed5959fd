"""Parquet and Arrow files as rows of cells, read batch by batch; needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from dpfedadamw.data.files import opened, where
from dpfedadamw.data.lines import not_once
from dpfedadamw.errors import DataError

ENDINGS = (".parquet", ".arrow", ".feather")
_ROWS = 4096


def names(path: Path) -> list[str]:
    """The names of a file's columns, in order.

    Raises:
        DataError: If pyarrow is not installed, or the file is damaged.
    """
    with _readable(path) as (found, _):
        return found


def selected(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Number of a row, from 1 on, and the wanted columns' cells as text, empty where null or NaN.

    Raises:
        DataError: If pyarrow is not installed, the file is damaged, or lacks a column.
    """
    with _readable(path) as (found, batches):
        _check_columns(path, found, wanted)
        row = 0
        for batch in batches(list(dict.fromkeys(wanted))):
            columns = [batch.column(name).to_pylist() for name in wanted]
            for cells in zip(*columns, strict=True):
                row += 1
                yield row, [cell_text(cell) for cell in cells]


@contextmanager
def _readable(path: Path) -> Iterator[tuple[list[str], Callable[[list[str]], Iterator[Any]]]]:
    """The names of a file's columns, and what reads some of them, batch by batch."""
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
        ipc: Any = import_module("pyarrow.ipc")
    except ImportError:
        raise DataError(
            f"{where(path)}: reading it needs pyarrow: pip install 'dpfedadamw[parquet]', or save "
            "the table as CSV"
        ) from None
    with opened(path) as stream:
        try:
            if path.suffix.lower() == ".parquet":
                file = parquet.ParquetFile(stream)
                found = file.schema_arrow.names
                yield list(found), lambda columns: file.iter_batches(_ROWS, columns=columns)
            else:
                reader = ipc.open_file(stream)
                numbers = range(reader.num_record_batches)
                yield list(reader.schema.names), lambda _: map(reader.get_batch, numbers)
        except arrow.ArrowException as error:
            # What the library says of a damaged file may quote it.
            raise DataError(
                f"{where(path)}: not a readable {path.suffix[1:]} file ({type(error).__name__})"
            ) from None


def _check_columns(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if list(names).count(name) != 1:
            raise DataError(f"{where(path)}: {not_once(name, names)}")


def cell_text(cell: Any, decimal: str = "point") -> str:
    """A value of Python as the text that a CSV's cell would have; empty where it is null or NaN.

    Args:
        cell: The value.
        decimal: "comma" where such a table has it in its numbers.
    """
    if _is_missing(cell):
        return ""
    if not isinstance(cell, float):
        return str(cell)
    # A column of codes becomes one of floats as soon as one of them is missing.
    text = str(int(cell)) if cell.is_integer() else repr(cell)
    return text.replace(".", ",") if decimal == "comma" else text


def _is_missing(cell: Any) -> bool:
    """What frames have where nothing is: None, NaN, and pandas' NA, which equals nothing."""
    try:
        return cell is None or bool(cell != cell)
    except TypeError:
        return True
    except ValueError:
        # An array: it equals itself number by number.
        return False
