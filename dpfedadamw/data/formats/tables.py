"""Tables of your own, CSV, TSV, Parquet or Arrow: texts or columns, a label and a client."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from dpfedadamw.data import columnar
from dpfedadamw.data.features import Preparation, is_empty, number_in
from dpfedadamw.data.files import where
from dpfedadamw.data.lines import not_once, rows
from dpfedadamw.data.registry import DatasetEntry, register
from dpfedadamw.data.source import CHUNK, Chunk, Numbers, Reading, Source, Texts
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.spec import column_section
from dpfedadamw.spec.column_section import ColumnNoise, MissingValues, PreparedColumns
from dpfedadamw.spec.data_section import (
    CacheFolder,
    DataSpec,
    HeldOut,
    MostRecordsPerPerson,
    PersonColumn,
    RequiredPath,
)
from dpfedadamw.spec.section import Contradictions, Values, key
from dpfedadamw.spec.task_section import (
    CLASSIFICATION,
    LANGUAGE,
    MULTI_LABEL,
    REGRESSION,
    TOKENS,
)


def _name(description: str, title: str, *examples: str) -> Any:
    return key(..., description, title=title, min_length=1, max_length=200, examples=examples)


_ColumnName = Annotated[str, _name("Name of a column.", "Column", "letter", "age")]
_ClassName = Annotated[str, _name("A label, as written in the table.", "Class", "benign")]


class TableSpec(DataSpec, title="Table"):
    """A CSV, TSV, Parquet or Arrow file of your own: texts or columns, and a label.

    The first line of a CSV or TSV file names the columns; cells are divided by what divides these.
    """

    key_order: ClassVar[tuple[str, ...]] = (
        "dataset",
        "path",
        "test_path",
        "label",
        "targets",
        "text",
        "numbers",
        "columns",
        "column_noise_multiplier",
        "missing_values",
        "decimal",
        "unlabelled",
        "classes",
        "person",
        "most_records_per_person",
    )

    dataset: Literal["table"] = "table"
    path: RequiredPath
    test_path: str | None = key(
        None,
        "A second table with the test records; null holds out test_fraction of the first.",
        title="Test table",
        min_length=1,
        max_length=4096,
        examples=(None, "data/test.csv"),
    )
    label: str | None = key(
        None,
        "Column of the class. Null where targets are given, and with task.kind causal_lm.",
        title="Label column",
        min_length=1,
        max_length=200,
        examples=("diagnosis", None),
    )
    targets: tuple[_ColumnName, ...] = key(
        (),
        "Instead of label: columns of numbers that task.kind regression predicts, or of 0 and 1, "
        "one per label of task.kind multi_label. Scale numbers first, by constants that do not "
        "depend on the records.",
        title="Target columns",
        max_length=10_000,
        examples=((), ("price",)),
    )
    text: tuple[_ColumnName, ...] = key(
        (),
        "One column of text, or two whose texts form a pair. Give exactly one of text, numbers and "
        "columns.",
        title="Text columns",
        max_length=2,
        examples=(("letter",),),
    )
    numbers: tuple[_ColumnName, ...] = key(
        (),
        "Columns of numbers, used unchanged: scale them first, by constants that do not depend on "
        "the records.",
        title="Number columns",
        max_length=10_000,
        examples=(("age", "pressure"),),
    )
    columns: PreparedColumns = ()
    column_noise_multiplier: ColumnNoise = None
    missing_values: MissingValues = ()
    decimal: Literal["point", "comma"] = key(
        "point",
        "How a CSV or TSV file writes numbers: 1.5, or 1,5 with comma. Thousands separators are "
        "not understood.",
        title="Decimal sign",
        examples=("point", "comma"),
    )
    unlabelled: Literal["refuse", "leave_out"] = key(
        "refuse",
        "What to do with a record without label or target: refuse stops and names its line; "
        "leave_out skips the record. An empty cell is never a class.",
        title="Records without label",
        examples=("refuse", "leave_out"),
    )
    classes: tuple[_ClassName, ...] = key(
        (),
        "Labels that may occur, in their order. If empty, those that occur are used and thereby "
        "become public: list them where that is private.",
        max_length=10_000,
        examples=(("benign", "malignant"),),
    )
    person: PersonColumn = None
    most_records_per_person: MostRecordsPerPerson = None
    cache: CacheFolder = None
    test_fraction: HeldOut = 0.2


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean.

    Attributes:
        label: Column of the class; None where there are targets.
        targets: Columns of numbers that are to be told.
        text: One or two columns of text; empty where records are numbers.
        preparation: What makes numbers of other columns; None where records are texts.
        client: Column that says whose a record is, or None.
        classes: The labels that may occur, in their order; empty for those that do.
        missing_values: Texts that count as an empty cell.
        leave_out: Whether records without label or target are left out.
        person: Column that says whom a record is about, or None.
    """

    label: str | None
    text: tuple[str, ...]
    preparation: Preparation | None
    client: str | None
    classes: tuple[str, ...]
    targets: tuple[str, ...] = ()
    missing_values: tuple[str, ...] = ()
    leave_out: bool = False
    person: str | None = None

    @property
    def told(self) -> tuple[str, ...]:
        """The columns that the model is to tell."""
        return self.targets if self.label is None else (self.label,)

    @property
    def content(self) -> tuple[str, ...]:
        """The columns that it is given."""
        return self.text or (self.preparation.names if self.preparation is not None else ())

    @property
    def owners(self) -> tuple[str, ...]:
        """The columns that say whose a record is and whom it is about, as far as there are any."""
        return tuple(one for one in (self.client, self.person) if one is not None)

    @property
    def wanted(self) -> tuple[str, ...]:
        """All columns that are read."""
        return (*self.told, *self.content, *self.owners)

    def lacks_label(self, cells: Sequence[str], place: str) -> bool:
        """Whether a record without label or target is left out.

        Args:
            cells: Those of `told`.
            place: What to call its line.

        Raises:
            DataError: If it is not, and may not be left out.
        """
        for name, cell in zip(self.told, cells, strict=True):
            if is_empty(cell, self.missing_values):
                if self.leave_out:
                    return True
                raise DataError(
                    f"{place}: the column {name} is empty there; give the label, or skip such "
                    "records with data.unlabelled: leave_out"
                )
        return False


def table(path: Path, test_path: Path | None, columns: Columns) -> Source:
    """A table, and perhaps a second one with the test records."""
    files = {"train": path, **({"test": test_path} if test_path else {})}
    if test_path is not None and filecmp.cmp(path, test_path, shallow=False):
        raise DataError(
            f"data.test_path: {where(test_path)} is the table that is trained on; its measures "
            "would be published without noise: give other records, or leave it out"
        )

    def read() -> Reading:
        names: tuple[str, ...] = ()
        if columns.label is not None:
            names = columns.classes or _names(files.values(), columns)
        numbers = {name: number for number, name in enumerate(names)}
        parts = {part: _chunks(file, columns, numbers) for part, file in files.items()}
        return Reading(parts, len(names) or None, names or columns.targets)

    root, options = path, repr(columns)
    if test_path is not None:
        # The files' digest does not say which of them is which.
        root, options = path.parent, repr((columns, path.name, str(test_path)))
    return Source(root, tuple(files.values()), options, read)


def unlabelled(path: Path, keys: TableSpec) -> Iterator[Chunk]:
    """The records of a table without labels, as those that were trained on were read.

    Columns are found by their names; whatever else the table has is not looked at.
    """
    columns = Columns(
        None, keys.text, Preparation.of(keys), None, (), missing_values=keys.missing_values
    )
    yield from _chunks(path, columns, {})


def _names(files: Iterable[Path], columns: Columns) -> tuple[str, ...]:
    """The labels that occur: whole numbers in their order, other names in that of the alphabet."""
    (column,) = columns.told
    found: set[str] = set()
    for file in files:
        for number, (label,) in _selected(file, [column]):
            if columns.lacks_label([label], f"{where(file)}: line {number}"):
                continue
            found.add(label.strip())
            if len(found) > 10_000:
                raise DataError(
                    f"{where(file)}: the column {column} holds more than 10000 different "
                    "labels; give a column of classes"
                )
    if len(found) < 2:
        raise DataError(
            f"data.path: the column {column} holds {len(found)} different labels; needed "
            "are two or more"
        )
    if all(name.isascii() and name.isdigit() for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def columns_of(path: Path) -> list[str]:
    """Names of a table's columns.

    Raises:
        DataError: If it cannot be read.
    """
    if path.suffix.lower() in columnar.ENDINGS:
        return columnar.names(path)
    header = next(iter(rows(path, quoting=True)), None)
    return [] if header is None else header[1]


def cells_of(path: Path, column: str) -> Iterator[str]:
    """The cells of one column as text.

    Raises:
        DataError: If the table cannot be read.
    """
    for _, (cell,) in _selected(path, [column]):
        yield cell


def _selected(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of the wanted columns, found by the header."""
    if path.suffix.lower() in columnar.ENDINGS:
        yield from columnar.selected(path, wanted)
        return
    header: list[str] | None = None
    places: list[int] = []
    for number, cells in rows(path, True, wanted):
        if header is None:
            # Where cells are divided by ", ", the space is no part of a name.
            header = [cell if cell in wanted else cell.strip() for cell in cells]
            for name in wanted:
                if header.count(name) != 1:
                    raise DataError(f"{where(path)}: {not_once(name, header)}")
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
    inputs, outputs = len(columns.content), len(columns.told)
    if columns.preparation is not None:
        columns = replace(columns, preparation=columns.preparation.of_file(path))
    labels: list[Any] = []
    records: list[list[str]] = []
    named: list[list[str]] = []
    places: list[str] = []
    for number, cells in _selected(path, columns.wanted):
        place = f"{where(path)}: line {number}"
        told = cells[:outputs]
        if columns.lacks_label(told, place):
            continue
        labels.append(_label(told, columns, numbers, place))
        records.append(cells[outputs : outputs + inputs])
        places.append(place)
        named.append([cell.strip() for cell in cells[outputs + inputs :]])
        for name, cell in zip(columns.owners, named[-1], strict=True):
            if is_empty(cell, columns.missing_values):
                what = "name the client of the record"
                if name == columns.person:
                    what = "name the person, or leave the record out"
                raise DataError(f"{place}: the column {name} is empty there; {what}")
        if len(labels) == CHUNK:
            yield _chunk(records, labels, named, columns, places)
            labels, records, named, places = [], [], [], []
    if labels:
        yield _chunk(records, labels, named, columns, places)


def _label(told: list[str], columns: Columns, numbers: dict[str, int], place: str) -> Any:
    """The number of a class, or the targets in its place."""
    if columns.label is not None:
        number = numbers.get(told[0].strip(), numbers.get(told[0]))
        if number is not None:
            return number
        known = ", ".join(list(numbers)[:10])
        raise DataError(f"{place}: its label is not one of data.classes ({known})")
    decimal = columns.preparation.decimal if columns.preparation is not None else "point"
    found = [number_in(cell, decimal) for cell in told]
    if None in found:
        name = columns.targets[found.index(None)]
        raise DataError(f"{place}: the column {name} holds no finite number there; give one")
    return found


def _chunk(
    records: list[list[str]],
    labels: list[Any],
    named: list[list[str]],
    columns: Columns,
    places: list[str],
) -> Chunk:
    known = np.array(labels, np.int64 if columns.label is not None else np.float64)
    owners = tuple(one[0] for one in named) if columns.client else None
    people = tuple(one[-1] for one in named) if columns.person else None
    if columns.preparation is not None:
        values = columns.preparation.prepare(records, places.__getitem__)
        return Chunk(Numbers(values), known, owners, people)
    first = tuple(record[0] for record in records)
    second = tuple(record[1] for record in records) if len(columns.text) == 2 else None
    return Chunk(Texts(first, second), known, owners, people)


def _find(path: Path, keys: TableSpec, _: Preprocessing) -> Source:
    columns = Columns(
        label=keys.label,
        text=keys.text,
        preparation=Preparation.of(keys),
        client=keys.partition.column if keys.partition.kind == "column" else None,
        classes=keys.classes,
        targets=keys.targets,
        missing_values=keys.missing_values,
        leave_out=keys.unlabelled == "leave_out",
        person=keys.person,
    )
    return table(path, Path(keys.test_path) if keys.test_path else None, columns)


def _check_columns(get: Values) -> Contradictions:
    label, targets, kind = ("data", "label"), ("data", "targets"), get("task", "kind")
    if kind == CLASSIFICATION and not {label, targets} & get.bad:
        if get(*targets):
            yield (
                targets,
                "names columns of numbers, but task.kind is classification; set task: regression",
            )
        elif get(*label) is None:
            yield label, "missing; give the column of the class"
    elif kind in (REGRESSION, MULTI_LABEL) and not {label, targets} & get.bad:
        if get(*label) is not None:
            message = (
                f"names the column of a class, but task.kind is {kind}; name columns of numbers in"
            )
            yield label, f"{message} data.targets"
        elif not get(*targets):
            yield targets, f"missing; task.kind {kind} needs columns of numbers to predict"
        elif get("data", "classes"):
            yield ("data", "classes"), f"task.kind {kind} has targets and no classes; leave it out"
    elif kind == TOKENS:
        message = "a table has no column of a class for each token; use arrays or given"
        yield ("data", "dataset"), message
    elif kind == LANGUAGE:
        yield from _texts_alone(get)
    content = [("data", name) for name in ("text", "numbers", "columns")]
    given = [path for path in content if get(*path)]
    if not set(content) & get.bad and len(given) != 1:
        found = f"given together with {given[0][1]}" if given else "missing"
        yield (
            given[1] if given else content[0],
            f"{found}; give exactly one of text, numbers (used unchanged) and columns (prepared)",
        )
    yield from _classes(get)
    yield from column_section.contradictions(get)


def _texts_alone(get: Values) -> Contradictions:
    """A language model predicts the texts themselves."""
    for name in ("label", "targets", "classes"):
        if get("data", name):
            message = "given, but task.kind is causal_lm, which predicts the text itself; leave it"
            yield ("data", name), f"{message} out"
    for name in ("numbers", "columns"):
        if get("data", name):
            message = "given, but task.kind is causal_lm, which reads texts; name columns in"
            yield ("data", name), f"{message} data.text"


def _classes(get: Values) -> Contradictions:
    path = ("data", "classes")
    classes = get(*path) or ()
    if not any(bad[:2] == path for bad in get.bad):
        empty = {name for name in classes if is_empty(name, get("data", "missing_values") or ())}
        if empty:
            yield path, f'holds "{min(empty)}", an empty cell, which is never a class; remove it'
        elif len(classes) == 1:
            yield path, "lists one class; a classifier needs two or more"
        elif len(set(classes)) != len(classes):
            yield path, "lists a class twice; give it once"
    if get("data", "unlabelled") == "leave_out" and get("data", "partition", "file") is not None:
        message = "found leave_out, but data.partition.file has a line for each record of the file"
        yield ("data", "unlabelled"), f"{message}; use a column, or refuse"


register(
    DatasetEntry(
        name="table",
        keys=TableSpec,
        summary="your own CSV, TSV, Parquet or Arrow file: one or two columns of text, or columns "
        "of numbers, categories and dates, and a label or targets",
        origin="yours",
        licence="yours",
        find=_find,
        check=_check_columns,
        has_columns=True,
        has_targets=True,
        has_texts=True,
        unlabelled=unlabelled,
        read_by=("text", "numbers", "columns", "missing_values", "decimal"),
        place=7,
    )
)
