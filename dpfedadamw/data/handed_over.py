"""Data that Python holds already: frames, arrays and data sets, as columns or records.

What is read here is private. No message shows a cell, a label or a record, nor what another library
says of one: that may quote it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.columnar import cell_text
from dpfedadamw.data.features import Preparation, is_empty
from dpfedadamw.data.lines import close_to
from dpfedadamw.data.source import Images, Numbers, Texts
from dpfedadamw.errors import DataError

_given: ContextVar[Any] = ContextVar("data passed from Python", default=None)
_people: ContextVar[Any] = ContextVar(
    "the person that each of these records is about", default=None
)
_LARGEST = float(np.finfo(np.float32).max)
_NO_PERSON = "names no person; name the person, or leave the record out"
_NO_CLIENT = "names no client; name the client of the record"


@contextlib.contextmanager
def handed_over(data: Any, person: Any = None) -> Iterator[None]:
    """Let specs of `data: {dataset: given}` mean these data, for as long as this lasts.

    Args:
        data: The records.
        person: Whom each is about, in their order; a dictionary by part where there are several;
            None where a column says it, or nothing.
    """
    tokens = _given.set(data), _people.set(person)
    try:
        yield
    finally:
        _given.reset(tokens[0])
        _people.reset(tokens[1])


def given_parts() -> dict[str, Any]:
    """What was handed over: "train", and "test" where it was given by itself.

    Raises:
        DataError: If nothing was.
    """
    data = _given.get()
    if data is None:
        raise DataError(
            "data.dataset: given means records passed from Python, which no file holds; pass them: "
            "api.run(spec, data=…), api.resume(folder, data=…)"
        )
    if isinstance(data, Mapping) and "train" in data:
        unknown = sorted(set(data) - {"train", "test"})
        if unknown:
            raise DataError(f"data: has the parts train and {unknown[0]}; use train and test")
        return dict(data)
    return {"train": data}


def people_given() -> bool:
    """Whether people were passed along with the records."""
    return _people.get() is not None


def given_people(part: str, records: int) -> list[str] | None:
    """The person of each record of a part, if people were passed along with the records.

    Raises:
        DataError: If they are not as many as the records.
    """
    named, place = _people.get(), f"person ({part})"
    if isinstance(named, Mapping):
        if part not in named:
            raise DataError(f"{place}: is missing; name the people of every part, or of none")
        named = named[part]
    elif named is not None and set(given_parts()) != {"train"}:
        raise DataError(
            "person: data has the parts train and test; give {'train': …, 'test': …} likewise"
        )
    if named is None:
        return None
    cells = named.tolist() if hasattr(named, "tolist") else list(named)
    if len(cells) != records:
        raise DataError(
            f"{place}: has {len(cells)} entries for {records} records; give one for each record"
        )
    return _named(cells, place, _NO_PERSON)


@dataclass(frozen=True)
class Named:
    """Which columns of a frame mean what.

    Attributes:
        label: Column of the class.
        text: One or two columns of text.
        numbers: Columns of numbers.
        records: Column of arrays or images.
        client: Column that says whose a record is.
        person: Column that says whom it is about.
        targets: Columns of other targets than a class, in place of label.
        preparation: What makes numbers of other columns, in place of text, numbers and records.
        missing_values: What cells hold that name no client and no person.
        unread: Columns that no record is made of, whatever they mean.
    """

    label: str
    text: tuple[str, ...]
    numbers: tuple[str, ...]
    records: str | None
    client: str | None
    targets: tuple[str, ...] = ()
    person: str | None = None
    preparation: Preparation | None = None
    missing_values: tuple[str, ...] = ()
    unread: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Held:
    """One part of what was handed over.

    Attributes:
        content: The records.
        labels: What stands there as their classes, n whole numbers or names.
        clients: Whose each is, or None.
        targets: Other targets than classes, [n] or [n, K]; None where labels are classes.
        columns: The columns of a frame that records are made of, numbers or text; empty of others.
        people: Whom each is about, or None.
    """

    content: Images | Numbers | Texts
    labels: Sequence[Any]
    clients: Sequence[str] | None
    targets: NDArray[Any] | None = None
    columns: tuple[str, ...] = ()
    people: Sequence[str] | None = None


def held(part: Any, names: Named, place: str) -> Held:
    """Read what was handed over.

    Args:
        part: A frame (pandas, polars, pyarrow, Hugging Face), a pair of arrays, or a sequence of
            (record, label), as torch's data sets are.
        names: What its columns mean.
        place: What to call it in messages.

    Raises:
        DataError: If it cannot be read so; the message shows nothing of it but names of columns.
    """
    columns = _columns_of(part)
    if columns is not None:
        return _of_frame(part, columns, names, place)
    if names.client is not None:
        raise DataError(
            f"{place}: has no columns, so data.partition.column cannot name the client of a "
            "record; give a frame, or data.partition.file"
        )
    if names.person is not None:
        raise DataError(
            f"{place}: has no columns, so data.person cannot name the person of a record; give a "
            "frame, or person= with an entry for each record instead of data.person"
        )
    if isinstance(part, tuple) and len(part) == 2:
        records, labels = (_array(one, place) for one in part)
        if labels.ndim not in (1, 2) or records.ndim < 2 or len(records) != len(labels):
            raise DataError(
                f"{place}: has shapes {records.shape} and {labels.shape}; needed are records "
                "[n, …] and as many labels [n] or targets [n, K]"
            )
        return _with_labels(_content(records, place), labels)
    return _of_items(part, place)


def _columns_of(part: Any) -> list[str] | None:
    """The names of a frame's columns; None where it is no frame."""
    keys = _keys_of(part)
    return None if keys is None else [str(key) for key in keys]


def _keys_of(part: Any) -> list[Any] | None:
    """What a frame calls its columns: of pandas it may be numbers."""
    for attribute in ("column_names", "columns"):
        found = getattr(part, attribute, None)
        if found is not None and not callable(found):
            return list(found)
    return None


def _of_frame(part: Any, columns: list[str], names: Named, place: str) -> Held:
    # A data set of Hugging Face may be set to hand out tensors.
    part = part.with_format(None) if hasattr(part, "with_format") else part
    asked = [*(names.targets or (names.label,)), *names.text, *names.numbers]
    asked += [one for one in (names.records, names.client, names.person) if one is not None]
    asked += names.preparation.names if names.preparation is not None else ()
    _check_columns(columns, asked, place)
    labels = _cells(part, names.label) if not names.targets else []
    targets = _targets(part, names.targets, place) if names.targets else None
    empty, clients, people = names.missing_values, None, None
    if names.client is not None:
        clients = _named(_cells(part, names.client), place, _NO_CLIENT, empty)
    if names.person is not None:
        people = _named(_cells(part, names.person), place, _NO_PERSON, empty)
    others = (*(names.targets or (names.label,)), names.client, names.person, *names.unread)
    rest = [name for name in columns if name not in others]
    if names.text:
        texts = [_texts(_cells(part, name), name, place) for name in names.text]
        content: Any = Texts(texts[0], texts[1] if len(texts) == 2 else None)
    elif names.preparation is not None:
        content = _prepared(part, names.preparation, place)
    elif names.records is not None:
        content = _stacked(_cells(part, names.records), place)
    elif names.numbers:
        content = _table([(name, _cells(part, name)) for name in names.numbers], place)
    else:
        content = _guessed([(name, _cells(part, name)) for name in rest], place)
    whole = names.records is not None or names.preparation is not None
    read = () if whole else names.text or names.numbers or tuple(rest)
    return Held(content, labels, clients, targets, read, people)


def unlabelled(
    part: Any, text: Sequence[str], preparation: Preparation | None, place: str
) -> Images | Numbers | Texts:
    """Records without labels that Python holds: a frame with such columns, or an array.

    Args:
        part: A frame, a list of rows that are dictionaries, or an array [n, …].
        text: The columns of text that records are made of; empty where they are others.
        preparation: What makes numbers of other columns; None where there is nothing of the kind.
        place: What to call it in messages.

    Raises:
        DataError: If they are not there, or hold something else.
    """
    if isinstance(part, list) and part and all(isinstance(row, Mapping) for row in part):
        part = _Rows(part)
    found = _columns_of(part)
    if found is None:
        if preparation is not None and preparation.columns:
            raise DataError(
                f"{place}: {type(part).__name__} has no columns, and the model's are prepared by "
                "their names; give a frame, or a list of dictionaries"
            )
        records = _array(part, place)
        if records.ndim < 2:
            raise DataError(f"{place}: has shape {records.shape}; needed are records [n, …]")
        return _content(records, place)
    if not text and preparation is None:
        raise DataError(f"{place}: the model's records have no columns; give them as an array")
    _check_columns(found, text or preparation.names if preparation is not None else text, place)
    part = part.with_format(None) if hasattr(part, "with_format") else part
    if preparation is not None and not text:
        if preparation.columns:
            return _prepared(part, preparation, place)
        return _table([(name, _cells(part, name)) for name in preparation.numbers], place)
    texts = [_texts(_cells(part, name), name, place) for name in text]
    return Texts(texts[0], texts[1] if len(texts) == 2 else None)


class _Rows:
    """A list of dictionaries as a frame: its columns are the keys of the first."""

    def __init__(self, rows: list[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.columns = list(rows[0])

    def __getitem__(self, name: str) -> list[Any]:
        return [row.get(name) for row in self._rows]


def _check_columns(found: Sequence[str], wanted: Sequence[str], place: str) -> None:
    for name in wanted:
        if name not in found:
            raise DataError(
                f"{place}: has no column {name!r} among its {len(found)}{close_to(name, found)}"
            )
        if found.count(name) > 1:
            raise DataError(
                f"{place}: has {found.count(name)} columns {name!r}; rename all but one"
            )


def _prepared(part: Any, preparation: Preparation, place: str) -> Numbers:
    """Columns of a frame as a table's would be prepared, by constants of the spec."""
    decimal = preparation.decimal
    columns = [
        [cell_text(cell, decimal) for cell in _cells(part, name)] for name in preparation.names
    ]
    rows = list(zip(*columns, strict=True))
    return Numbers(preparation.prepare(rows, lambda row: f"{place}: row {row}"))


def _named(
    cells: Sequence[Any], place: str, complaint: str, missing_values: Sequence[str] = ()
) -> list[str]:
    """Whom or whose each record is, as text, as a table's cells would be read."""
    plain = [one.item() if isinstance(one, np.generic) else one for one in cells]
    named = [cell_text(one).strip() for one in plain]
    for row, one in enumerate(named):
        # Somebody of that name would be everybody without one.
        if is_empty(one, missing_values):
            raise DataError(f"{place}: row {row}: {complaint}")
    return named


def _targets(part: Any, names: Sequence[str], place: str) -> NDArray[Any]:
    """Columns of numbers as targets [n, K], or one column of lists as [n, length]."""
    columns = [(name, _cells(part, name)) for name in names]
    if len(columns) > 1 or not columns[0][1] or _is_number(columns[0][1][0]):
        return _numbers(columns, place, np.float64)
    ((name, cells),) = columns
    found = [_array(cell, f"{place}: row {row}") for row, cell in enumerate(cells)]
    for row, one in enumerate(found):
        if one.ndim != 1 or one.dtype.kind not in "biuf" or one.shape != found[0].shape:
            raise DataError(
                f"{place}: row {row}: the column {name} holds no number, and no list of numbers as "
                "long as the first; fill lists up with task.ignore_index"
            )
    return np.stack(found)


def _with_labels(content: Images | Numbers | Texts, labels: NDArray[Any]) -> Held:
    """Records with their classes; or with targets, where these are a matrix or real numbers."""
    if labels.ndim > 1 or labels.dtype.kind == "f":
        return Held(content, [], None, labels)
    return Held(content, labels.tolist(), None)


def _guessed(cells: list[tuple[str, list[Any]]], place: str) -> Images | Numbers | Texts:
    """What all columns besides label and client are, where the spec does not say."""
    kinds = {
        "text" if isinstance(one, str) else "number" if _is_number(one) else "records"
        for _, column in cells
        for one in column[:1]
    }
    if kinds == {"number"}:
        return _table(cells, place)
    if kinds == {"text"} and len(cells) <= 2:
        first, *more = (_texts(column, name, place) for name, column in cells)
        return Texts(first, more[0] if more else None)
    if kinds == {"records"} and len(cells) == 1:
        return _stacked(cells[0][1], place)
    raise DataError(
        f"{place}: name the columns to read in data.numbers, data.text or data.records; there are "
        f"{', '.join(name for name, _ in cells[:20]) or 'none besides the label'}"
    )


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (bool, int, float, np.number, np.bool_))


def _cells(part: Any, name: str) -> list[Any]:
    """A column as Python values."""
    column = part[next(key for key in _keys_of(part) or [name] if str(key) == name)]
    for way in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, way):
            return list(getattr(column, way)())
    return list(column)


def _texts(cells: list[Any], name: str, place: str) -> tuple[str, ...]:
    for row, cell in enumerate(cells):
        if not isinstance(cell, str):
            raise DataError(f"{place}: row {row}: the column {name} holds no text there")
    return tuple(cells)


def _table(columns: list[tuple[str, list[Any]]], place: str) -> Numbers:
    """Columns of numbers as records float32 [n, columns]."""
    return Numbers(_numbers(columns, place, np.float32))


def _numbers(columns: list[tuple[str, list[Any]]], place: str, kind: type) -> NDArray[Any]:
    whole: NDArray[Any] = np.empty((len(columns[0][1]), len(columns)), kind)
    for number, (name, cells) in enumerate(columns):
        for row, cell in enumerate(cells):
            if not _is_number(cell) or not abs(float(cell)) <= _LARGEST:
                raise DataError(
                    f"{place}: row {row}: the column {name} holds no finite number there; give one"
                )
            whole[row, number] = cell
    return whole


def _array(value: Any, place: str) -> NDArray[Any]:
    """A tensor, an array, or nested lists as an array of numbers."""
    try:
        plain = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    except Exception:
        # A foreign object may raise anything.
        raise DataError(f"{place}: holds something that is not an array of numbers") from None
    return np.asarray(plain)


def _content(records: NDArray[Any], place: str) -> Images | Numbers:
    if records.dtype.kind not in "biuf":
        raise DataError(f"{place}: records of type {records.dtype}; needed are real numbers")
    if records.dtype.kind == "f" and not np.isfinite(records).all():
        raise DataError(f"{place}: records hold values that are not finite; clean them first")
    if records.dtype == np.uint8 and records.ndim == 4:
        return Images(records)
    return Numbers(records)


def _stacked(cells: Sequence[Any], place: str) -> Images | Numbers:
    """Single records as one array; pictures, height x width x channels, as channels first."""
    found: list[NDArray[Any]] = []
    for row, cell in enumerate(cells):
        picture = hasattr(cell, "getbands")
        if picture and cell.mode in ("P", "PA"):
            # Numbers of a palette say nothing of its colours.
            cell = cell.convert("RGB")
        one = _array(cell, f"{place}: row {row}")
        if picture:
            one = one[None] if one.ndim == 2 else one.transpose(2, 0, 1)
        if found and one.shape != found[0].shape:
            raise DataError(
                f"{place}: row {row}: has shape {one.shape}, others have {found[0].shape}; all "
                "must have one"
            )
        found.append(one)
    if not found:
        raise DataError(f"{place}: holds no record")
    return _content(np.stack(found), place)


def _of_items(part: Any, place: str) -> Held:
    """A sequence of (record, label)."""
    if not hasattr(part, "__getitem__") or not hasattr(part, "__len__"):
        if hasattr(part, "dataset") and hasattr(part, "batch_size"):
            raise DataError(
                f"{place}: {type(part).__name__} is a loader, but batches are drawn by dpfedadamw; "
                "give its records, data=loader.dataset"
            )
        if hasattr(part, "__iter__"):
            raise DataError(
                f"{place}: {type(part).__name__} is neither a frame nor a pair of arrays, and "
                "cannot be indexed; give data=list(…), its pairs of (record, label)"
            )
        raise DataError(
            f"{place}: {type(part).__name__} is neither a frame, a pair of arrays (records, "
            "labels), nor a data set of (record, label)"
        )
    records, labels = [], []
    targets: list[NDArray[Any]] = []
    for row in range(len(part)):
        item = part[row]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise DataError(f"{place}: row {row}: is not a pair of a record and its label")
        records.append(item[0])
        label = item[1]
        plain = _array(label, f"{place}: row {row}") if not isinstance(label, str) else None
        if plain is None or (plain.ndim == 0 and plain.dtype.kind in "biu"):
            labels.append(label.item() if hasattr(label, "item") else label)
            continue
        if plain.dtype.kind not in "biuf" or (targets and plain.shape != targets[0].shape):
            raise DataError(f"{place}: row {row}: its number of targets differs from others'")
        targets.append(plain)
    content = _stacked(records, place)
    if targets and labels:
        raise DataError(
            f"{place}: some records have a class and others numbers; give all the same kind"
        )
    if targets:
        return _with_labels(content, np.stack(targets))
    return Held(content, labels, None)
