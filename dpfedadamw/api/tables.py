"""Rows of named values, as a notebook shows them and as pandas takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, overload

from dpfedadamw.errors import DpfedadamwError


class Table(Sequence[Mapping[str, Any]]):
    """Rows of named values, in order; a notebook shows them as a table.

    Args:
        rows: The rows. A column that a row lacks is empty there.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = tuple(dict(row) for row in rows)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order in which rows first have them."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def column(self, name: str) -> list[Any]:
        """One value a row; None where a row has none.

        Raises:
            KeyError: If no row has a column of this name.
        """
        if name not in self.columns:
            raise KeyError(f"{name}: no such column; there are {', '.join(self.columns)}")
        return [row.get(name) for row in self._rows]

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``.

        Raises:
            DpfedadamwError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise DpfedadamwError("pandas is not installed: pip install pandas") from None
        return pandas.DataFrame(list(self._rows), columns=self.columns)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Table: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Table:
        found = self._rows[index]
        return Table(found) if isinstance(found, tuple) else found

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<Table of {len(self)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        return html_of(self.columns, ([row.get(name) for name in self.columns] for row in self))


def html_of(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A plain table in HTML, for a notebook; every value is escaped.

    Args:
        columns: The heads; where there are none, the first value of a row is its head.
        rows: A value a column.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = []
    for row in rows:
        first = [] if columns else [f"<th>{escape(_shown(row[0]))}</th>"]
        rest = row if columns else row[1:]
        body.append("".join([*first, *(f"<td>{escape(_shown(value))}</td>" for value in rest)]))
    shown = "".join(f"<tr>{line}</tr>" for line in ([head] if head else []) + body)
    return f"<table>{shown}</table>"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
