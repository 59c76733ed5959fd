"""Records that Python holds already and that `api.run(spec, data=…)` is given."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.features import Preparation, is_empty
from dpfedadamw.data.handed_over import Held, Named, given_parts, given_people, held, people_given
from dpfedadamw.data.preparation import content_bytes, prepare
from dpfedadamw.data.registry import DatasetEntry, Part, Prepared, register
from dpfedadamw.data.source import Texts
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.spec import column_section
from dpfedadamw.spec.column_section import ColumnNoise, MissingValues, PreparedColumns
from dpfedadamw.spec.data_section import (
    Augmentation,
    DataSpec,
    HeldOut,
    MostRecordsPerPerson,
    PersonColumn,
)
from dpfedadamw.spec.section import Contradictions, Values, key

_MOST_CLASSES = 1_000_000


def _name(default: Any, description: str, title: str, *examples: Any) -> Any:
    return key(default, description, title=title, min_length=1, max_length=200, examples=examples)


_Column = Annotated[str, _name(..., "Name of a column.", "Column", "letter", "age")]
_Class = Annotated[str, _name(..., "A label, as written in the data.", "Class", "benign")]


class GivenSpec(DataSpec, title="Given from Python"):
    """Records that `api.run(spec, data=…)` is given: a frame, arrays, or a data set of pairs.

    No file holds them: pass them again to resume the run.
    """

    key_order: ClassVar[tuple[str, ...]] = (
        "dataset",
        "label",
        "targets",
        "text",
        "numbers",
        "records",
        "columns",
        "column_noise_multiplier",
        "missing_values",
        "person",
        "most_records_per_person",
    )

    dataset: Literal["given"] = "given"
    label: str = _name("label", "Column of the class, in a frame.", "Label column", "diagnosis")
    targets: tuple[_Column, ...] = key(
        (),
        "Columns of a frame, in place of label. With task.kind regression: the numbers to predict. "
        "With multi_label: 0 and 1 for each label. With token_classification: one column of lists "
        "of whole numbers, a class for each token.",
        title="Target columns",
        max_length=10_000,
        examples=((), ("price",)),
    )
    text: tuple[_Column, ...] = key(
        (),
        "One column of text, or two whose texts form a pair. Without text, numbers and records, "
        "all columns other than the label's and the client's are read.",
        title="Text columns",
        max_length=2,
        examples=((), ("letter",)),
    )
    numbers: tuple[_Column, ...] = key(
        (),
        "Columns of numbers, used unchanged: scale them first, by constants that do not depend on "
        "the records.",
        title="Number columns",
        max_length=10_000,
        examples=((), ("age", "pressure")),
    )
    records: str | None = _name(
        None, "Column of images or arrays, all of one shape.", "Record column", None, "image"
    )
    columns: PreparedColumns = ()
    column_noise_multiplier: ColumnNoise = None
    missing_values: MissingValues = ()
    classes: tuple[_Class, ...] = key(
        (),
        "Labels that may occur, in their order. If empty, whole numbers are used as they are, 0 to "
        "the largest; of names, those that occur are used and thereby become public.",
        max_length=10_000,
        examples=((), ("benign", "malignant")),
    )
    person: PersonColumn = None
    most_records_per_person: MostRecordsPerPerson = None
    test_fraction: HeldOut = 0.2
    augmentation: Augmentation = ()


def _bring(keys: GivenSpec, preprocessing: Preprocessing) -> Prepared:
    column = keys.partition.column if keys.partition.kind == "column" else None
    parts = {}
    for name, part in given_parts().items():
        # Test records belong to nobody.
        names = Named(
            keys.label,
            keys.text,
            keys.numbers,
            keys.records,
            column if name == "train" else None,
            keys.targets,
            None if people_given() else keys.person,
            Preparation.of(keys) if keys.columns else None,
            keys.missing_values,
            (column, keys.person),
        )
        parts[name] = held(part, names, f"data ({name})")
    numbers = _numbers_of_people(parts)
    classes = _classes(keys, parts)
    whole = hashlib.sha256()
    ready = {}
    for name, one in parts.items():
        labels = one.targets
        if labels is None:
            labels = _numbered(one.labels, classes, f"data ({name})")
        clients = None
        if one.clients is not None:
            clients = np.unique(one.clients, return_inverse=True)[1].astype(np.int64)
            whole.update(repr(tuple(one.clients)).encode())
        if name in numbers:
            whole.update(numbers[name].tobytes())
        values = prepare(one.content, preprocessing)
        whole.update(f"{name} {values.shape} {classes}\n".encode())
        for content in (*content_bytes(one.content), labels.tobytes()):
            whole.update(content)
        ready[name] = Part(values, labels, clients, numbers.get(name))
    count = classes if isinstance(classes, int) else len(classes)
    told = keys.targets if isinstance(classes, int) else classes
    columns: dict[str, Any] = {}
    if keys.columns:
        columns = {
            "columns": tuple(one.to_mapping() for one in keys.columns),
            "missing_values": keys.missing_values,
        }
    elif parts["train"].columns:
        kind = "text" if isinstance(parts["train"].content, Texts) else "numbers"
        columns = {kind: parts["train"].columns}
    return Prepared(ready, count, whole.hexdigest(), told, columns)


def _numbers_of_people(parts: dict[str, Held]) -> dict[str, NDArray[np.int64]]:
    """Whom each record is about, in numbers that hold for all parts; empty where nothing says it.

    The people themselves are forgotten here.
    """
    named = {
        name: one.people if one.people is not None else given_people(name, _count(one))
        for name, one in parts.items()
    }
    known = {name: people for name, people in named.items() if people is not None}
    number_of = {one: number for number, one in enumerate(sorted({*chain(*known.values())}))}
    return {
        name: np.array([number_of[one] for one in people], np.int64)
        for name, people in known.items()
    }


def _count(one: Held) -> int:
    return len(one.labels) if one.targets is None else len(one.targets)


def _classes(keys: GivenSpec, parts: dict[str, Held]) -> int | tuple[str, ...]:
    """The names of the classes, or their number where labels are whole numbers."""
    if all(part.targets is not None for part in parts.values()):
        return 1
    if any(part.targets is not None for part in parts.values()):
        raise DataError("data: one part has classes and the other numbers; give both alike")
    if keys.classes:
        return keys.classes
    found = {label for part in parts.values() for label in part.labels}
    if any(isinstance(one, str) and is_empty(one, keys.missing_values) for one in found):
        raise DataError(
            "data.label: some records have an empty label; fill it in, leave these records out, or "
            "set data.classes"
        )
    if len(found) == 1:
        raise DataError("data: all records have one class; a classifier needs two or more")
    if found and all(isinstance(one, (int, np.integer)) for one in found):
        if min(found) < 0 or max(found) >= _MOST_CLASSES:
            raise DataError(
                "data: labels that are whole numbers must be 0, 1, 2, …; give those of a "
                "regression as floats"
            )
        return max(2, int(max(found)) + 1)
    if not all(isinstance(one, str) for one in found) or not 2 <= len(found) <= 10_000:
        raise DataError(
            "data.label: labels must be whole numbers 0, 1, 2, … or two or more names; give the "
            "column of the class, and its classes"
        )
    return tuple(sorted(found))


def _numbered(
    labels: Sequence[Any], classes: int | tuple[str, ...], place: str
) -> NDArray[np.int64]:
    if isinstance(classes, int):
        return np.array(labels, np.int64)
    numbers = {name: number for number, name in enumerate(classes)}
    for row, label in enumerate(labels):
        if str(label) not in numbers:
            raise DataError(f"{place}: row {row}: its label is not one of data.classes")
    return np.array([numbers[str(label)] for label in labels], np.int64)


def _check(get: Values) -> Contradictions:
    said = [name for name in ("text", "numbers", "records", "columns") if get("data", name)]
    if len(said) > 1:
        right = "give only one of text, numbers, records and columns"
        yield ("data", said[1]), f"given together with {said[0]}; {right}"
    yield from column_section.contradictions(get)
    instead = "records passed from Python exist in this process only; give a file"
    if get("federation", "workers") not in (None, 1):
        yield ("federation", "workers"), f"{instead}, or use 1"
    if get("federation", "engine") == "flower":
        yield ("federation", "engine"), f"{instead}, or use inline"


register(
    DatasetEntry(
        name="given",
        keys=GivenSpec,
        summary="records that api.run(spec, data=…) is given: a frame, arrays, or a data set",
        origin="yours",
        licence="yours",
        bring=_bring,
        check=_check,
        has_columns=True,
        has_targets=True,
        place=9,
    )
)
