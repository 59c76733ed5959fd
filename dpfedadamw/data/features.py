"""How a table's cells become numbers, by the constants that a spec declares and nothing else.

`Preparation` is what `data.numbers` and `data.columns` say. It is plain data: it can be written as
JSON with a model and applied again to raw rows, which then give the features that the model was
trained on. The only place where cells are read as numbers, days or categories.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.columnar import ENDINGS
from dpfedadamw.errors import DataError
from dpfedadamw.spec.column_section import (
    COLUMN,
    BooleanColumn,
    CategoryColumn,
    ColumnSpec,
    DateColumn,
    NumberColumn,
)

# Float32 holds no larger numbers.
_LARGEST = 1e38
_NO_NUMBER = "no finite number", "give one"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]+)?")
_DATES = {
    "YYYY-MM-DD": r"(?P<y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})",
    "YYYYMMDD": r"(?P<y>[0-9]{4})(?P<m>[0-9]{2})(?P<d>[0-9]{2})",
    "DD.MM.YYYY": r"(?P<d>[0-9]{1,2})\.(?P<m>[0-9]{1,2})\.(?P<y>[0-9]{4})",
    "DD/MM/YYYY": r"(?P<d>[0-9]{1,2})/(?P<m>[0-9]{1,2})/(?P<y>[0-9]{4})",
    "MM/DD/YYYY": r"(?P<m>[0-9]{1,2})/(?P<d>[0-9]{1,2})/(?P<y>[0-9]{4})",
}
_TIME = r"([T ][0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?( ?(Z|[+-][0-9]{2}:?[0-9]{2}))?)?"
_READERS = {form: re.compile(pattern + _TIME) for form, pattern in _DATES.items()}

# Of one cell that is not empty: its numbers; None where it is not what the column holds.
_Read = Callable[[str], Sequence[float] | None]


@dataclass(frozen=True)
class _Encoder:
    """How one column is read.

    Attributes:
        name: The column's.
        features: What its numbers are called.
        read: The numbers of a cell that is not empty.
        empty: The numbers of an empty cell; None where that is refused.
        wanted: What a cell is not that is refused, in words.
        right: What would be right.
    """

    name: str
    features: tuple[str, ...]
    read: _Read
    empty: tuple[float, ...] | None
    wanted: str
    right: str

    @property
    def is_number(self) -> bool:
        """Whether its cells hold numbers."""
        return self.wanted == _NO_NUMBER[0]


def number_in(cell: str, decimal: str = "point") -> float | None:
    """The number that a cell holds, or None.

    Python reads 1_000 and digits of all scripts too, which another program would not.

    Args:
        cell: The cell's text.
        decimal: "point", or "comma" where 1,5 is one and a half.
    """
    text = cell.strip()
    if decimal == "comma":
        if "." in text:
            return None
        text = text.replace(",", ".")
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if abs(value) < _LARGEST else None


def has_thousands(cell: str) -> bool:
    """Whether a cell may hold a number with commas between thousands, such as 1,234 or 12,345.6."""
    return _THOUSANDS.fullmatch(cell.strip()) is not None


def day_in(cell: str, form: str) -> date | None:
    """The day that a cell holds in one of the forms of `DateColumn`, or None."""
    match = _READERS[form].fullmatch(cell.strip())
    if match is None:
        return None
    try:
        return date(int(match["y"]), int(match["m"]), int(match["d"]))
    except ValueError:
        return None


def is_empty(cell: str, missing_values: Sequence[str]) -> bool:
    """Whether a cell holds nothing, or a text that says so."""
    text = cell.strip()
    return not text or text in missing_values


@dataclass(frozen=True)
class Preparation:
    """How the columns of a table become a record's numbers.

    Attributes:
        numbers: Columns that are used as they stand.
        columns: Columns that are prepared, in place of these.
        missing_values: Texts that count as an empty cell.
        decimal: "point" or "comma".
    """

    numbers: tuple[str, ...] = ()
    columns: tuple[ColumnSpec, ...] = ()
    missing_values: tuple[str, ...] = ()
    decimal: str = "point"

    @classmethod
    def of(cls, keys: Any) -> Preparation | None:
        """What the section `data` of a spec declares; None where records are no columns."""
        numbers = tuple(getattr(keys, "numbers", None) or ())
        columns = tuple(getattr(keys, "columns", None) or ())
        if not numbers and not columns:
            return None
        missing = tuple(getattr(keys, "missing_values", ()))
        return cls(numbers, columns, missing, getattr(keys, "decimal", "point"))

    @classmethod
    def from_mapping(cls, found: Mapping[str, Any]) -> Preparation:
        """Read what `to_mapping` gives, also after a way through JSON.

        Raises:
            ValueError: If it is something else.
        """
        columns: list[Any] = [COLUMN.build(_tuples(one)) for one in found["columns"]]
        return cls(
            tuple(map(str, found["numbers"])),
            tuple(columns),
            tuple(map(str, found["missing_values"])),
            str(found["decimal"]),
        )

    def of_file(self, path: Path) -> Preparation:
        """The same for the cells of a file: Parquet and Arrow hold numbers, and no decimal sign."""
        columnar = path.suffix.lower() in ENDINGS
        return replace(self, decimal="point") if columnar else self

    def to_mapping(self) -> dict[str, Any]:
        """Return it as a spec has it: texts, numbers, lists and mappings alone."""
        return {
            "numbers": list(self.numbers),
            "columns": [one.to_mapping() for one in self.columns],
            "missing_values": list(self.missing_values),
            "decimal": self.decimal,
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a raw table that are read, in order."""
        return self.numbers or tuple(column.name for column in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """What each number of a record is called, such as "age" or "ward = A"."""
        return tuple(name for encoder in self._encoders() for name in encoder.features)

    def prepare(
        self, rows: Sequence[Sequence[str]], place: Callable[[int], str] = "row {}".format
    ) -> NDArray[np.float32]:
        """The features of raw rows, float32 [rows, features].

        Args:
            rows: The cells of `names` of each row, as text; empty where there is none.
            place: What messages call a row, by its number in `rows`.

        Raises:
            DataError: If a cell is not what its column holds; the message shows no cell.
        """
        parts: list[NDArray[np.float64]] = []
        for number, encoder in enumerate(self._encoders()):
            # Many rows have the same cell, which is read once.
            known: dict[str, int] = {}
            read: list[Sequence[float]] = []
            for row, cells in enumerate(rows):
                cell = cells[number]
                if cell in known:
                    continue
                empty = is_empty(cell, self.missing_values)
                found = encoder.empty if empty else encoder.read(cell.strip())
                if found is None:
                    complaint = self._complaint(encoder, cell, empty)
                    raise DataError(f"{place(row)}: the column {encoder.name} {complaint}")
                known[cell] = len(read)
                read.append(found)
            table = np.array(read, np.float64).reshape(len(read), len(encoder.features))
            parts.append(table[np.array([known[cells[number]] for cells in rows], np.intp)])
        return np.concatenate(parts, axis=1).astype(np.float32)

    def _complaint(self, encoder: _Encoder, cell: str, empty: bool) -> str:
        """What is wrong with a cell, of which the message shows nothing, and what is right."""
        if empty and self.columns:
            right = "missing, or indicator: true, in data.columns"
            return f"is empty there; set what such a cell counts as: {right}"
        other = "comma" if self.decimal == "point" else "point"
        right = encoder.right
        if encoder.is_number and number_in(cell, other) is not None:
            right = f"where numbers have a decimal {other}, set data.decimal: {other}"
            if self.decimal == "point" and has_thousands(cell):
                right = f"write numbers without separators of thousands; {right}"
        elif encoder.is_number and self.columns:
            right = "give one, or list this text in data.missing_values"
        return f"holds {encoder.wanted} there; {right}"

    def _encoders(self) -> tuple[_Encoder, ...]:
        if self.numbers:
            return tuple(map(self._as_it_stands, self.numbers))
        return tuple(_with_indicator(self._encoder(one), one.indicator) for one in self.columns)

    def _as_it_stands(self, name: str) -> _Encoder:
        def read(cell: str) -> Sequence[float] | None:
            value = number_in(cell, self.decimal)
            return None if value is None else (value,)

        return _Encoder(name, (name,), read, None, *_NO_NUMBER)

    def _encoder(self, column: ColumnSpec) -> _Encoder:
        match column:
            case NumberColumn():
                return _number(column, self.decimal)
            case CategoryColumn():
                return _category(column)
            case BooleanColumn():
                return _boolean(column)
            case DateColumn():
                return _date(column)
        raise AssertionError(column.kind)


def _tuples(section: Mapping[str, Any]) -> dict[str, Any]:
    """Sections hold tuples, where JSON has lists."""
    return {key: tuple(one) if isinstance(one, list) else one for key, one in section.items()}


def _with_indicator(encoder: _Encoder, indicator: bool) -> _Encoder:
    if not indicator:
        return encoder
    width = len(encoder.features)
    empty = encoder.empty if encoder.empty is not None else (0.0,) * width

    def read(cell: str) -> Sequence[float] | None:
        found = encoder.read(cell)
        return None if found is None else (*found, 0.0)

    features = (*encoder.features, f"{encoder.name} is empty")
    return replace(encoder, features=features, read=read, empty=(*empty, 1.0))


def _scaled(value: float, low: float, high: float) -> tuple[float]:
    """A value held to its bounds; the lower becomes -1, the upper 1."""
    held = min(max(value, low), high)
    return (2.0 * (held - low) / (high - low) - 1.0,)


def _log(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)


def edges(low: float, high: float) -> list[float]:
    """What bins of numbers lie between: ±1, ±2 and ±5 times powers of ten, from 0.001 on."""
    sizes = [float(f"{digit}e{power}") for power in range(-3, 31) for digit in (1, 2, 5)]
    return [e for e in (*(-size for size in reversed(sizes)), *sizes) if low < e < high]


def _binned(column: NumberColumn, decimal: str) -> _Encoder:
    between = edges(column.low, column.high)
    ends = [column.low, *between, column.high]
    names = tuple(f"{column.name} from {a:g} to {b:g}" for a, b in itertools.pairwise(ends))

    def placed(value: float) -> list[float]:
        one = [0.0] * len(names)
        one[bisect.bisect_right(between, value)] = 1.0
        return one

    def read(cell: str) -> Sequence[float] | None:
        value = number_in(cell, decimal)
        return None if value is None else placed(value)

    empty = None if column.missing is None else tuple(placed(column.missing))
    return _Encoder(column.name, names, read, empty, *_NO_NUMBER)


def _number(column: NumberColumn, decimal: str) -> _Encoder:
    if column.scale == "bins":
        return _binned(column, decimal)
    bend = _log if column.scale == "log" else float
    low, high = bend(column.low), bend(column.high)

    def read(cell: str) -> Sequence[float] | None:
        value = number_in(cell, decimal)
        return None if value is None else _scaled(bend(value), low, high)

    empty = None if column.missing is None else _scaled(bend(column.missing), low, high)
    return _Encoder(column.name, (column.name,), read, empty, *_NO_NUMBER)


def _category(column: CategoryColumn) -> _Encoder:
    places = {name: place for place, name in enumerate(column.categories)}
    kinds = [f"{column.name} = {name}" for name in column.categories]
    if column.buckets is not None:
        kinds = [f"{column.name} in bucket {place}" for place in range(column.buckets)]
    elif column.unseen == "other":
        kinds.append(f"{column.name} = another")

    def read(cell: str) -> Sequence[float] | None:
        if column.buckets is not None:
            place: int | None = bucket(cell, column.buckets)
        else:
            # Whole numbers of Parquet files were once read as 1.0.
            other = len(places) if column.unseen == "other" else None
            place = places.get(cell, places.get(f"{cell}.0", other))
        return None if place is None else one_hot(place)

    def one_hot(place: int) -> Sequence[float]:
        return [float(number == place) for number in range(len(kinds))]

    empty = None if column.missing is None else tuple(read(column.missing) or ())
    right = "list it in categories, or set unseen: other"
    return _Encoder(column.name, tuple(kinds), read, empty, "no category from its list", right)


def bucket(text: str, buckets: int) -> int:
    """The bucket of a text: the first 8 bytes of its SHA-256, big-endian, modulo their number."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % buckets


def _boolean(column: BooleanColumn) -> _Encoder:
    words = {word.casefold(): 0.0 for word in column.false_words}
    words |= {word.casefold(): 1.0 for word in column.true_words}

    def read(cell: str) -> Sequence[float] | None:
        value = words.get(cell.casefold())
        return None if value is None else (value,)

    empty = None if column.missing is None else (float(column.missing),)
    right = "give one, or list this text in true_words or false_words"
    return _Encoder(column.name, (column.name,), read, empty, "no true or false word", right)


def _date(column: DateColumn) -> _Encoder:
    low, high = (date.fromisoformat(day).toordinal() for day in (column.low, column.high))

    def read(cell: str) -> Sequence[float] | None:
        day = day_in(cell, column.format)
        return None if day is None else _scaled(day.toordinal(), low, high)

    empty = None
    if column.missing is not None:
        empty = _scaled(date.fromisoformat(column.missing).toordinal(), low, high)
    wanted, right = f"no day as {column.format}", "give one, or the column's format"
    return _Encoder(column.name, (column.name,), read, empty, wanted, right)
