"""A look at a table before there is a spec: its columns, and a guess of what each holds.

What is seen here is private where the table is. A guess of kinds, of which columns have empty cells
and of the decimal sign is the table's form; `low`, `high` and `values` are its content, and are
meant for tables that are public.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfedadamw.data import columnar
from dpfedadamw.data.features import day_in, has_thousands, is_empty, number_in
from dpfedadamw.data.files import where
from dpfedadamw.data.lines import rows
from dpfedadamw.errors import DataError
from dpfedadamw.spec.column_section import BooleanColumn

# What tables call an empty cell, whatever they are about.
MISSING_WORDS = ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "?")
# Kinds of a column that no model is given.
LEFT_OUT = ("identifier", "text", "constant", "empty")
DATE_FORMS = ("YYYY-MM-DD", "YYYYMMDD", "DD.MM.YYYY", "DD/MM/YYYY", "MM/DD/YYYY")
_ROWS = 50_000
# A column of more texts than these is not the label in other words.
_MOST_WORDS = 50
_IDENTIFIERS = re.compile(
    r"(^|[_\W])(id|uuid|guid|mrn|ssn|e-?mail|phone|telephone|telefon|address|adresse|iban|passport|"
    r"(first|last|full|sur|given|family|patient|person)[_ ]?name|vorname|nachname)($|[_\W])|^name$",
    re.IGNORECASE,
)
_TRUE = {word.casefold() for word in BooleanColumn.model_fields["true_words"].default}
_FALSE = {word.casefold() for word in BooleanColumn.model_fields["false_words"].default}


@dataclass(frozen=True)
class Seen:
    """What was seen of one column.

    Attributes:
        name: The column's.
        kind: "number", "category", "boolean" or "date"; or one of `LEFT_OUT`.
        reason: Why a column is left out, in words; empty for others.
        format: Of a date, the first of `DATE_FORMS` that all cells have.
        other_format: The second of them; empty if there is none.
        has_empty: Whether some cell is empty.
        repeats: Whether some value of an identifier stands in several rows.
        low: Smallest number, or first day as text.
        high: Largest number, or last day.
        values: All texts of a category, sorted.
    """

    name: str
    kind: str
    reason: str = ""
    format: str = ""
    other_format: str = ""
    has_empty: bool = False
    repeats: bool = False
    low: float | str | None = None
    high: float | str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Survey:
    """What was seen of a table.

    Attributes:
        path: The table.
        columns: Its columns, in order.
        decimal: "comma" where only that makes numbers of some columns, else "point".
        with_comma: Columns of numbers such as 1,5.
        with_point: Columns of numbers such as 1.5.
        with_thousands: Columns of numbers that are whole if 1,234 is more than a thousand.
    """

    path: Path
    columns: tuple[Seen, ...]
    decimal: str
    with_comma: tuple[str, ...] = ()
    with_point: tuple[str, ...] = ()
    with_thousands: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Seen | None:
        """The column of that name, if there is one."""
        return next((column for column in self.columns if column.name == name), None)


def survey(path: Path) -> Survey:
    """Look at a table's header and its first 50,000 rows.

    Raises:
        DataError: If it is no table, has no rows, or two columns of one name.
    """
    cells = whole_rows(path)
    header = next(cells, (0, []))[1]
    if not header:
        raise DataError(f"{where(path)}: is empty; a table starts with the names of its columns")
    _check_header(path, header)
    counts: list[Counter[str]] = [Counter() for _ in header]
    seen = 0
    for _, row in cells:
        for counter, cell in zip(counts, row, strict=True):
            counter[cell.strip()] += 1
        seen += 1
        if seen == _ROWS:
            break
    if not seen:
        raise DataError(f"{where(path)}: has column names but no rows; give the records")
    signs: dict[str, list[str]] = {"comma": [], "point": [], "thousands": [], "": []}
    if path.suffix.lower() not in columnar.ENDINGS:
        for name, one in zip(header, counts, strict=True):
            signs[_sign(one)].append(name)
    decimal = "comma" if signs["comma"] else "point"
    columns = [_seen(name, one, decimal) for name, one in zip(header, counts, strict=True)]
    found = (tuple(signs[sign]) for sign in ("comma", "point", "thousands"))
    return Survey(path, tuple(columns), decimal, *found)


@dataclass(frozen=True)
class Told:
    """What was seen of the columns that say a record's label and client.

    Attributes:
        labels: How many records have each label; "" for those that have none.
        clients: How many records with a label each client has; empty where no column says so.
        telling: Columns whose cells alone say the label in every row.
        with_empty: Columns of which some row has an empty cell.
    """

    labels: Counter[str]
    clients: Counter[str]
    telling: tuple[str, ...]
    with_empty: frozenset[str] = frozenset()


def told(path: Path, label: str, client: str | None, classes: Sequence[str] = ()) -> Told:
    """Look at all rows' labels and clients, and for columns that are the label in other words.

    Args:
        path: The table.
        label: The label's column.
        client: The client's; None where there is none.
        classes: Labels that may occur; such a word does not stand for an empty cell.

    Raises:
        DataError: If it is no table.
    """
    cells = whole_rows(path)
    header = next(cells, (0, []))[1]
    labels: Counter[str] = Counter()
    clients: Counter[str] = Counter()
    said: dict[int, dict[str, str]] = {at: {} for at, name in enumerate(header) if name != label}
    no_labels = tuple(word for word in MISSING_WORDS if word not in classes)
    whole = set(range(len(header)))
    for _, row in cells:
        cell = row[header.index(label)].strip()
        one = "" if is_empty(cell, no_labels) else cell
        labels[one] += 1
        whole = {at for at in whole if not is_empty(row[at].strip(), MISSING_WORDS)}
        if client is not None and one:
            clients[row[header.index(client)].strip()] += 1
        for at in tuple(said) if one else ():
            if said[at].setdefault(row[at], one) != one or len(said[at]) > _MOST_WORDS:
                del said[at]
    # Where nearly every row has a cell of its own, each says its label.
    telling = tuple(
        header[at]
        for at, words in said.items()
        if len(set(words.values())) > 1 and 4 * len(words) <= labels.total() - labels[""]
    )
    with_empty = frozenset(name for at, name in enumerate(header) if at not in whole)
    return Told(labels, clients, telling, with_empty)


def whole_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The names of a table's columns, and then all cells of each row, with its line.

    Raises:
        DataError: If a row has other cells than there are names.
    """
    if path.suffix.lower() in columnar.ENDINGS:
        names = columnar.names(path)
        yield 0, names
        if names:
            yield from columnar.selected(path, names)
        return
    every = rows(path, True)
    header = next(every, None)
    if header is None:
        return
    yield header[0], [name.strip() for name in header[1]]
    for number, cells in every:
        if len(cells) != len(header[1]):
            raise DataError(
                f"{where(path)}: line {number}: {len(cells)} cells, the header has {len(header[1])}"
            )
        yield number, cells


def _check_header(path: Path, header: Sequence[str]) -> None:
    for name, count in Counter(header).items():
        if name.strip() and count > 1:
            # Where there is no line of names, this one is a record.
            places = " and ".join(str(at + 1) for at, one in enumerate(header) if one == name)
            raise DataError(
                f"{where(path)}: the columns {places} have one name; give each a name of its own"
            )
    if all(number_in(name) is not None for name in header):
        # Nothing of the line is shown: it is a record.
        raise DataError(
            f"{where(path)}: its first line holds only numbers; a table starts with the names of "
            "its columns"
        )


def _sign(counter: Counter[str]) -> str:
    """What the numbers of a column have: "comma", "point" or "thousands"; "" if nothing shows."""
    values = [value for value in counter if not is_empty(value, MISSING_WORDS)]
    if all(number_in(value) is not None for value in values):
        return "point" if any("." in value for value in values) else ""
    with_comma = [value for value in values if "," in value]
    if with_comma and all(map(has_thousands, with_comma)):
        others = (value for value in values if "," not in value)
        return "thousands" if all(number_in(value) is not None for value in others) else ""
    return "comma" if all(number_in(value, "comma") is not None for value in values) else ""


def _seen(name: str, counter: Counter[str], decimal: str) -> Seen:
    counts = {v: n for v, n in counter.items() if not is_empty(v, MISSING_WORDS)}
    values, total = list(counts), sum(counts.values())
    empty = total < counter.total()
    if not values or not name.strip():
        why = "no cell holds anything" if name.strip() else "it has no name"
        return Seen(name, "empty", why, has_empty=empty)
    numbers = [number_in(value, decimal) for value in values]
    found = [number for number in numbers if number is not None]
    all_numbers = len(found) == len(values)
    repeats = len(values) < total
    whole = not all_numbers or all(number == int(number) for number in found)
    if _IDENTIFIERS.search(_spaced(name)) and len(values) > 10:
        return Seen(
            name, "identifier", "its name suggests that it identifies people",
            has_empty=empty, repeats=repeats,
        )  # fmt: skip
    forms = [f for f in DATE_FORMS if all(day_in(value, f) is not None for value in values)]
    if len(values) == 1:
        return Seen(name, "constant", "every cell holds the same", has_empty=empty)
    if {value.casefold() for value in values} <= _TRUE | _FALSE and not _is_count(values):
        return Seen(name, "boolean", has_empty=empty)
    if forms and not (all_numbers and forms == ["YYYYMMDD"] and not _near_today(values)):
        days = [day for value in values if (day := day_in(value, forms[0])) is not None]
        low, high = min(days).isoformat(), max(days).isoformat()
        other = "".join(forms[1:2])
        return Seen(name, "date", "", forms[0], other, empty, low=low, high=high)
    if sum(len(value.split()) * count for value, count in counts.items()) > 5 * total:
        return Seen(name, "text", "it holds sentences, which need --text", has_empty=empty)
    if not repeats and whole and total >= (1000 if all_numbers else 20):
        return Seen(name, "identifier", "no two rows have the same value", has_empty=empty)
    if all_numbers:
        return Seen(name, "number", has_empty=empty, low=min(found), high=max(found))
    if len(values) > 1000 and len(values) > total / 2:
        why = "nearly every row has a different text"
        return Seen(name, "identifier", why, has_empty=empty, repeats=repeats)
    return Seen(name, "category", has_empty=empty, values=tuple(sorted(values)))


def _spaced(name: str) -> str:
    """A name in camel case as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def _is_count(values: Sequence[str]) -> bool:
    """Whether 0 or 1 occur together with words, which are then categories."""
    digits = {value in ("0", "1") for value in values}
    return len(digits) > 1


def _near_today(values: Sequence[str]) -> bool:
    return all(value[:2] in ("19", "20") for value in values)
