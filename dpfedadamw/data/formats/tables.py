"""Tables of your own, CSV, TSV, Parquet or Arrow: texts or numbers, a label and a client."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from dpfedadamw.data import columnar
from dpfedadamw.data.errors import DataError
from dpfedadamw.data.files import where
from dpfedadamw.data.lines import close_to, rows
from dpfedadamw.data.registry import DatasetEntry, register
from dpfedadamw.data.source import CHUNK, Chunk, Numbers, Reading, Source, Texts
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.spec.data_section import (
    CacheFolder,
    DataSpec,
    PersonColumn,
    RequiredPath,
    TestFraction,
)
from dpfedadamw.spec.section import key
from dpfedadamw.spec.task_section import CLASSIFICATION, MULTI_LABEL, REGRESSION, TOKENS
from dpfedadamw.spec.values import Contradictions, Values


def _name(description: str, title: str, *examples: str) -> Any:
    return key(..., description, title=title, min_length=1, max_length=200, examples=examples)


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# Float32 holds no larger ones.
_LARGEST = 1e38
_ColumnName = Annotated[str, _name("Name of a column.", "Column", "letter", "age")]
_ClassName = Annotated[str, _name("A label as it stands in the table.", "Class", "benign")]


class TableSpec(DataSpec, title="Table"):
    """A CSV, TSV, Parquet or Arrow file of your own: texts or numbers, and a label.

    The first line of a CSV or TSV file names the columns.
    """

    key_order: ClassVar[tuple[str, ...]] = (
        "dataset",
        "path",
        "test_path",
        "label",
        "targets",
        "text",
        "numbers",
        "classes",
        "person",
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
        "Column of the class. Null where targets are given.",
        title="Label column",
        min_length=1,
        max_length=200,
        examples=("diagnosis", None),
    )
    targets: tuple[_ColumnName, ...] = key(
        (),
        "Columns of numbers that task.kind regression is to tell, or of 0 and 1, one a label of "
        "task.kind multi_label; in place of label. Scale them before by constants that do not "
        "depend on the records.",
        title="Target columns",
        max_length=10_000,
        examples=((), ("price",)),
    )
    text: tuple[_ColumnName, ...] = key(
        (),
        "One column of text, or two whose texts form a pair; empty where records are numbers.",
        title="Text columns",
        max_length=2,
        examples=(("letter",),),
    )
    numbers: tuple[_ColumnName, ...] = key(
        (),
        "Columns of numbers, used as they stand: scale them before by constants that do not "
        "depend on the records. Empty where records are texts.",
        title="Number columns",
        max_length=10_000,
        examples=(("age", "pressure"),),
    )
    classes: tuple[_ClassName, ...] = key(
        (),
        "Labels that may occur, in their order. Empty takes those that do occur, which then "
        "are public: give them where which occur is private.",
        max_length=10_000,
        examples=(("benign", "malignant"),),
    )
    person: PersonColumn = None
    cache: CacheFolder = None
    test_fraction: TestFraction = 0.2


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean.

    Attributes:
        label: Column of the class; None where there are targets.
        targets: Columns of numbers that are to be told.
        text: One or two columns of text; empty where records are numbers.
        numbers: Columns of numbers; empty where records are texts.
        client: Column that says whose a record is, or None.
        classes: The labels that may occur, in their order; empty for those that do.
        person: Column that says whom a record is about, or None.
    """

    label: str | None
    text: tuple[str, ...]
    numbers: tuple[str, ...]
    client: str | None
    classes: tuple[str, ...]
    targets: tuple[str, ...] = ()
    person: str | None = None


def table(path: Path, test_path: Path | None, columns: Columns) -> Source:
    """A table, and perhaps a second one with the test records."""
    files = {"train": path, **({"test": test_path} if test_path else {})}

    def read() -> Reading:
        names: tuple[str, ...] = ()
        if columns.label is not None:
            names = columns.classes or _names(files.values(), columns.label)
        numbers = {name: number for number, name in enumerate(names)}
        parts = {part: _chunks(file, columns, numbers) for part, file in files.items()}
        return Reading(parts, len(names) or None)

    root = path if test_path is None else path.parent
    return Source(root, tuple(files.values()), repr(columns), read)


def _names(files: Iterable[Path], column: str) -> tuple[str, ...]:
    """The labels that occur: whole numbers in their order, other names in that of the alphabet."""
    found: set[str] = set()
    for file in files:
        for number, (label,) in _selected(file, [column]):
            if not label.strip():
                raise DataError(
                    f"{where(file)}: line {number}: the column {column} is empty there; give the "
                    "label, leave the record out, or name data.classes"
                )
            found.add(label)
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
    for number, cells in rows(path, quoting=True):
        if header is None:
            header = cells
            for name in wanted:
                if header.count(name) != 1:
                    raise DataError(
                        f"{where(path)}: the column {name!r} is there {header.count(name)} times "
                        f"among the {len(header)} of the first line{close_to(name, header)}; a "
                        "table begins with the names of its columns"
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
    targets = columns.targets if columns.label is None else (columns.label,)
    owners = [one for one in (columns.client, columns.person) if one is not None]
    wanted = [*targets, *content, *owners]
    labels: list[Any] = []
    records: list[list[str]] = []
    named: list[list[str]] = []
    for number, cells in _selected(path, wanted):
        place = f"{where(path)}: line {number}"
        told = cells[: len(targets)]
        if columns.label is None:
            _check_numbers(told, targets, place)
            labels.append([float(cell) for cell in told])
        elif told[0] not in numbers:
            raise DataError(
                f"{place}: its label is not one of data.classes ({', '.join(list(numbers)[:10])})"
            )
        else:
            labels.append(numbers[told[0]])
        records.append(cells[len(targets) : len(targets) + len(content)])
        if columns.numbers:
            _check_numbers(records[-1], columns.numbers, place)
        named.append(cells[len(wanted) - len(owners) :])
        if columns.person and not named[-1][-1].strip():
            raise DataError(
                f"{place}: the column {columns.person} is empty there; name the person, or leave "
                "the record out"
            )
        if len(labels) == CHUNK:
            yield _chunk(records, labels, named, columns)
            labels, records, named = [], [], []
    if labels:
        yield _chunk(records, labels, named, columns)


def _check_numbers(cells: Sequence[str], names: Sequence[str], place: str) -> None:
    for name, cell in zip(names, cells, strict=True):
        # Python reads 1_000 and digits of all scripts too, which another program would not.
        if _NUMBER.fullmatch(cell.strip()) and abs(float(cell)) < _LARGEST:
            continue
        raise DataError(f"{place}: the column {name} holds no finite number there; give one")


def _chunk(
    records: list[list[str]], labels: list[Any], named: list[list[str]], columns: Columns
) -> Chunk:
    known = np.array(labels, np.int64 if columns.label is not None else np.float64)
    owners = tuple(one[0] for one in named) if columns.client else None
    people = tuple(one[-1] for one in named) if columns.person else None
    if columns.numbers:
        values = np.array(records, np.float64).astype(np.float32)
        return Chunk(Numbers(values), known, owners, people)
    first = tuple(record[0] for record in records)
    second = tuple(record[1] for record in records) if len(columns.text) == 2 else None
    return Chunk(Texts(first, second), known, owners, people)


def _find(path: Path, keys: TableSpec, _: Preprocessing) -> Source:
    columns = Columns(
        label=keys.label,
        text=keys.text,
        numbers=keys.numbers,
        client=keys.partition.column if keys.partition.kind == "column" else None,
        classes=keys.classes,
        targets=keys.targets,
        person=keys.person,
    )
    return table(path, Path(keys.test_path) if keys.test_path else None, columns)


def _check_columns(get: Values) -> Contradictions:
    label, targets, kind = ("data", "label"), ("data", "targets"), get("task", "kind")
    if kind == CLASSIFICATION and not {label, targets} & get.bad:
        if get(*targets):
            yield (
                targets,
                "columns of numbers, but task.kind is classification; set task: regression",
            )
        elif get(*label) is None:
            yield label, "missing; give the column of the class"
    elif kind in (REGRESSION, MULTI_LABEL) and not {label, targets} & get.bad:
        if get(*label) is not None:
            message = f"the column of a class, but task.kind is {kind}; name columns of numbers in"
            yield label, f"{message} data.targets"
        elif not get(*targets):
            yield targets, f"missing; task.kind {kind} needs columns of numbers to tell"
        elif get("data", "classes"):
            yield ("data", "classes"), f"task.kind {kind} has targets and no classes; leave it out"
    elif kind == TOKENS:
        message = "a table has no column of a class for each token; use arrays or given"
        yield ("data", "dataset"), message
    columns = {("data", "text"), ("data", "numbers")}
    if not columns & get.bad and len([path for path in columns if get(*path)]) != 1:
        yield ("data", "text"), "give columns of text or columns of numbers, one of the two"


register(
    DatasetEntry(
        name="table",
        keys=TableSpec,
        summary="your own CSV, TSV, Parquet or Arrow file: one or two columns of text, or columns "
        "of numbers, and a label or targets",
        origin="yours",
        licence="yours",
        find=_find,
        check=_check_columns,
        has_columns=True,
        has_targets=True,
        place=7,
    )
)
