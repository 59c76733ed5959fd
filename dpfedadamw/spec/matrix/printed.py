"""What a paper prints for the cells of a sweep, and which of the sweep's values are ours.

    expected:
      test_accuracy:
        source: DP-FedAdamW, Table 8
        rows: dataset
        columns: gamma
        values:
          CIFAR-100: [66.37, 67.01, 67.45 ± 0.26, 67.10, null]
    readings:
      privacy.clipping_norm: chosen from a grid, one value for all; 0.1 is the one that is named

A row's list has one number for each label of the axis `columns`, in its order; without `columns` a
row has one number. Accuracies are in percent, as papers print them; `null` is a number that cannot
be read with certainty. A reading names a field that the sweep sets where the paper is silent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec import overrides
from dpfedadamw.spec.document import SWEEP_KEYS, Document, KeyPath

EXPECTED, READINGS = SWEEP_KEYS[2:4]
# What can be printed of a run, and measured.
MEASURES = ("test_accuracy", "test_loss", "train_accuracy", "train_loss")
_NUMBER = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)(?: ± ([0-9]{1,6}(?:\.[0-9]{1,9})?))?")
_LONGEST = 500
_PRINTED = {
    "anyOf": [
        {"type": ["number", "null"], "minimum": 0},
        {"type": "string", "pattern": f"^{_NUMBER.pattern}$"},
    ]
}
_TABLE: dict[str, Any] = {
    "source": {
        "title": "Source",
        "description": "The paper, and its table.",
        "type": "string",
        "minLength": 1,
        "maxLength": _LONGEST,
    },
    "rows": {
        "title": "Rows",
        "description": "The axis of the matrix whose labels name the rows.",
        "type": "string",
    },
    "columns": {
        "title": "Columns",
        "description": (
            "The axis whose labels name the columns; without it each row has one number."
        ),
        "type": ["string", "null"],
        "default": None,
    },
    "values": {
        "title": "Values",
        "description": (
            "For each row, one number per column in the order of its labels, as printed: "
            "accuracies in percent, 71.69 ± 0.37 with a deviation, null if unreadable."
        ),
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {
            "anyOf": [*_PRINTED["anyOf"], {"type": "array", "items": _PRINTED}]
        },
    },
}
_KEYS = set(_TABLE)
# `expected` and `readings` in JSON Schema.
EXPECTED_SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"enum": list(MEASURES)},
    "additionalProperties": {
        "title": "A printed table",
        "description": "What a paper prints for one measure, for the cells of the matrix.",
        "type": "object",
        "properties": _TABLE,
        "required": [name for name, part in _TABLE.items() if "default" not in part],
        "additionalProperties": False,
    },
}
READINGS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"type": "string", "minLength": 1, "maxLength": _LONGEST},
}


@dataclass(frozen=True)
class Printed:
    """A number as a paper prints it.

    Attributes:
        value: The mean; an accuracy in [0, 1].
        deviation: Its standard deviation, in the same unit, or None.
    """

    value: float
    deviation: float | None


@dataclass(frozen=True)
class PrintedTable:
    """Numbers of one measure.

    Attributes:
        measure: One of `MEASURES`.
        source: The paper, and its table.
        rows: The axis that the rows are labels of.
        columns: The axis that the columns are labels of, or None for one column.
        numbers: By the labels of row and column ("" where there is one column).
    """

    measure: str
    source: str
    rows: str
    columns: str | None
    numbers: Mapping[tuple[str, str], Printed]

    def of(self, labels: Mapping[str, str]) -> Printed | None:
        """What is printed for a cell.

        Args:
            labels: Its label on each axis.
        """
        column = labels[self.columns] if self.columns is not None else ""
        return self.numbers.get((labels[self.rows], column))


def expected(
    document: Document, axes: Mapping[str, Sequence[str]], problems: list[SpecProblem]
) -> tuple[PrintedTable, ...]:
    """Read the section `expected`.

    Args:
        document: The sweep.
        axes: The labels of each axis.
        problems: What is wrong is appended.
    """
    section = _section(document, EXPECTED, problems)
    found = []
    for measure, value in section.items():
        here: KeyPath = (EXPECTED, measure)
        try:
            if measure not in MEASURES:
                message = f"not a measure; must be one of {', '.join(MEASURES)}"
                raise SpecError([document.place(here, key=True).problem(here, message)])
            found.append(_table(measure, value, document, axes))
        except SpecError as error:
            problems += error.problems
    return tuple(found)


def readings(
    document: Document, changes: Sequence[overrides.Change], problems: list[SpecProblem]
) -> dict[str, str]:
    """Read the section `readings`: what the paper does not say, by the field that says it here.

    Args:
        document: The sweep.
        changes: What its axes set.
        problems: What is wrong is appended.
    """
    found = {}
    for name, text in _section(document, READINGS, problems).items():
        here: KeyPath = (READINGS, name)
        try:
            path = overrides.parse_path(name, document.place(here, key=True))
            if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST:
                message = f"what the paper does not say, in 1 to {_LONGEST} characters"
                raise SpecError([document.place(here).problem(here, message)])
            if not _is_set(path, (), document.value) and not any(
                _is_set(path, change.path, change.value) for change in changes
            ):
                message = (
                    "this file does not set that field; leave the reading out, or set the field"
                )
                raise SpecError([document.place(here, key=True).problem(here, message)])
            found[name] = " ".join(text.split())
        except SpecError as error:
            problems += error.problems
    return found


def _is_set(path: KeyPath, at: KeyPath, value: Any) -> bool:
    """Whether a field is in a value that stands at a place."""
    if path[: len(at)] != at:
        return at[: len(path)] == path
    for part in path[len(at) :]:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def _table(
    measure: str, value: Any, document: Document, axes: Mapping[str, Sequence[str]]
) -> PrintedTable:
    here: KeyPath = (EXPECTED, measure)

    def refuse(path: KeyPath, message: str) -> SpecError:
        return SpecError([document.place(path).problem(path, message)])

    if not isinstance(value, dict) or value.keys() - _KEYS or _KEYS - {"columns"} - value.keys():
        raise refuse(here, "the keys are source, rows, columns (where there are some) and values")
    source, rows, columns = value["source"], value["rows"], value.get("columns")
    if not isinstance(source, str) or not 1 <= len(source.strip()) <= _LONGEST:
        raise refuse((*here, "source"), "give the paper and its table, such as X, Table 2")
    for key, axis in (("rows", rows), ("columns", columns)):
        named = isinstance(axis, str) and axis in axes
        if not named and (axis is not None or key == "rows"):
            message = f"not an axis of the matrix; it has {', '.join(axes) or 'none'}"
            raise refuse((*here, key), message)
    if rows == columns or not isinstance(value["values"], dict) or not value["values"]:
        raise refuse((*here, "values"), "give for each row a list with a number for each column")
    names = list(axes[columns]) if columns is not None else [""]
    numbers: dict[tuple[str, str], Printed] = {}
    for row, listed in value["values"].items():
        path = (*here, "values", row)
        if row not in axes[rows]:
            raise refuse(path, f"{rows} has no such label; it has {', '.join(axes[rows])}")
        cells = listed if columns is not None else [listed]
        if not isinstance(cells, list) or len(cells) != len(names):
            raise refuse(path, f"give {len(names)} numbers, for {', '.join(names) or rows}")
        for index, (name, cell) in enumerate(zip(names, cells, strict=True)):
            printed = _printed(cell, share=measure.endswith("accuracy"))
            if printed is not None:
                numbers[row, name] = printed
            elif cell is not None:
                place = (*path, index) if columns is not None else path
                raise refuse(place, "give a number, or one with its deviation: 71.69 ± 0.37")
    return PrintedTable(measure, source.strip(), rows, columns, numbers)


def _printed(cell: Any, share: bool) -> Printed | None:
    """A number, with its deviation where it has one; None where it is none, or out of range."""
    text = cell if isinstance(cell, str) else repr(cell)
    match = _NUMBER.fullmatch(text)
    if isinstance(cell, bool) or match is None:
        return None
    scale = 100 if share else 1
    value, deviation = (None if part is None else Decimal(part) / scale for part in match.groups())
    assert value is not None
    if share and value > 1:
        return None
    return Printed(float(value), None if deviation is None else float(deviation))


def _section(document: Document, name: str, problems: list[SpecProblem]) -> dict[str, Any]:
    section = document.at((name,))
    if section is None:
        return {}
    if not isinstance(section, dict) or not section:
        what = "a measure, such as test_accuracy" if name == EXPECTED else "a field's dotted path"
        problems.append(document.place((name,)).problem((name,), f"must be a section by {what}"))
        return {}
    return section
