"""Parquet and Arrow files as rows of cells, read batch by batch; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dpfedadamw.data.errors import DataError
from dpfedadamw.data.files import opened, where
from dpfedadamw.data.lines import close_to

ENDINGS = (".parquet", ".arrow", ".feather")
_ROWS = 4096


def names(path: Path) -> list[str]:
    """Names of a file's columns.

    Raises:
        DataError: If pyarrow is not installed, or the file is damaged.
    """
    arrow, parquet, ipc = _libraries(path)
    with opened(path) as stream:
        try:
            if path.suffix.lower() == ".parquet":
                return list(parquet.ParquetFile(stream).schema_arrow.names)
            return list(ipc.open_file(stream).schema.names)
        except arrow.ArrowException as error:
            raise _damaged(path, error) from None


def _libraries(path: Path) -> tuple[Any, Any, Any]:
    try:
        arrow, parquet, ipc = map(import_module, ("pyarrow", "pyarrow.parquet", "pyarrow.ipc"))
    except ImportError:
        raise DataError(
            f"{where(path)}: reading it needs pyarrow: pip install 'dpfedadamw[parquet]', or save "
            "the table as CSV"
        ) from None
    return arrow, parquet, ipc


def _damaged(path: Path, error: Exception) -> DataError:
    # What the library says of a damaged file may quote it.
    return DataError(
        f"{where(path)}: not a readable {path.suffix[1:]} file ({type(error).__name__})"
    )


def selected(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Number of a row, from 1 on, and the wanted columns' cells as text, empty where null.

    Raises:
        DataError: If pyarrow is not installed, the file is damaged, or lacks a column.
    """
    arrow, parquet, ipc = _libraries(path)
    with opened(path) as stream:
        try:
            if path.suffix.lower() == ".parquet":
                file = parquet.ParquetFile(stream)
                _check_columns(path, file.schema_arrow.names, wanted)
                batches = file.iter_batches(_ROWS, columns=list(dict.fromkeys(wanted)))
            else:
                reader = ipc.open_file(stream)
                _check_columns(path, reader.schema.names, wanted)
                batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            row = 0
            for batch in batches:
                columns = [batch.column(name).to_pylist() for name in wanted]
                for cells in zip(*columns, strict=True):
                    row += 1
                    yield row, [_text(cell) for cell in cells]
        except arrow.ArrowException as error:
            raise _damaged(path, error) from None


def _check_columns(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if list(names).count(name) != 1:
            raise DataError(
                f"{where(path)}: the column {name!r} is there {list(names).count(name)} times "
                f"among its {len(names)}{close_to(name, list(names))}"
            )


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return repr(cell) if isinstance(cell, float) else str(cell)
