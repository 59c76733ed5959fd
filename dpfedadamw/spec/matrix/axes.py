"""The axes of a matrix or of a search: which fields vary together, and over what values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec import overrides
from dpfedadamw.spec.document import Document, KeyPath, dotted
from dpfedadamw.spec.yamltext import write_value

_LABEL = "label"
_LONGEST_LABEL = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
_VALUES = {"type": "array", "minItems": 1}
# A section of axes in JSON Schema.
AXES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {
        "oneOf": [
            {
                "title": "Values",
                "description": "The values of the field after whose dotted path the axis is named.",
                **_VALUES,
            },
            {
                "title": "Fields together",
                "description": (
                    "Several fields by their dotted paths, each with a list of values of equal "
                    "length, which vary together."
                ),
                "type": "object",
                "minProperties": 1,
                "properties": {
                    _LABEL: {
                        "title": "Label",
                        "description": "Labels of the values in tables.",
                        **_VALUES,
                        "items": {"type": "string", "minLength": 1, "maxLength": _LONGEST_LABEL},
                    }
                },
                "additionalProperties": _VALUES,
            },
        ]
    },
}


@dataclass(frozen=True)
class Axis:
    """What varies together.

    Attributes:
        name: The field's dotted path, or a name of its own.
        labels: Each value in short, all different.
        changes: For each value, the fields that it sets, with the place of each.
    """

    name: str
    labels: tuple[str, ...]
    changes: tuple[tuple[overrides.Change, ...], ...]


def combinations(axes: Sequence[Axis]) -> int:
    """How many combinations of their values there are; one of no axes."""
    many = 1
    for axis in axes:
        many *= len(axis.labels)
    return many


def axes_of(document: Document, where: KeyPath, problems: list[SpecProblem]) -> tuple[Axis, ...]:
    """Read a section of axes; none where there is none.

    Args:
        document: A sweep.
        where: The section's path.
        problems: Gets what is wrong.
    """
    section = document.at(where)
    if section is None:
        return ()
    if not isinstance(section, dict) or not section:
        message = "must be a section of axes, such as algorithm.learning_rate: [0.02, 0.05]"
        problems.append(document.place(where).problem(where, message))
        return ()
    found = []
    for name, value in section.items():
        try:
            found.append(_axis(name, value, document, where))
        except SpecError as error:
            problems += error.problems
    set_by: dict[KeyPath, str] = {}
    for axis in found:
        for change in axis.changes[0]:
            for path, other in set_by.items():
                shorter = min(len(path), len(change.path))
                if other != axis.name and path[:shorter] == change.path[:shorter]:
                    message = (
                        f"{dotted(change.path)} is also set by {other}; only one axis may set a "
                        "field"
                    )
                    problems.append(change.place.problem((*where, axis.name), message))
            set_by[change.path] = axis.name
    return tuple(found)


def _axis(name: str, value: Any, document: Document, where: KeyPath) -> Axis:
    here: KeyPath = (*where, name)
    if isinstance(value, list):
        columns = {name: value}
        labels = None
    elif isinstance(value, dict) and value.keys() - {_LABEL}:
        columns = {key: column for key, column in value.items() if key != _LABEL}
        labels = value.get(_LABEL)
        if not _NAME.fullmatch(name):
            message = "an axis name has letters, digits, spaces, dots, dashes and underscores"
            raise SpecError([document.place(here, key=True).problem(here, message)])
    else:
        message = "must be a list of values, or a section of fields with a list each"
        raise SpecError([document.place(here).problem(here, message)])
    listed = {**columns, **({} if labels is None else {_LABEL: labels})}
    for key, column in listed.items():
        path = here if columns is not value and isinstance(value, list) else (*here, key)
        if not isinstance(column, list) or not column:
            message = "must be a list of at least one value"
            raise SpecError([document.place(path).problem(path, message)])
    lengths = {len(column) for column in listed.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{key} has {len(column)}" for key, column in listed.items())
        message = f"lists that vary together must have equal length; {told}"
        raise SpecError([document.place(here).problem(here, message)])
    changes = tuple(
        tuple(
            _change(key, column[index], document, here, index, plain=isinstance(value, list))
            for key, column in columns.items()
        )
        for index in range(lengths.pop())
    )
    names = _given_labels(labels, document, here) if labels is not None else _labels(changes)
    if len(set(names)) < len(names):
        twice = next(one for one in names if names.count(one) > 1)
        message = f"{twice} is listed twice; give every value and every label once"
        raise SpecError([document.place(here).problem(here, message)])
    return Axis(name, names, changes)


def _change(
    key: str, value: Any, document: Document, here: KeyPath, index: int, plain: bool
) -> overrides.Change:
    path = (*here, index) if plain else (*here, key, index)
    return overrides.Change(overrides.parse_path(key, document.place(here)), value,
                            document.place(path))  # fmt: skip


def _given_labels(labels: list[Any], document: Document, here: KeyPath) -> tuple[str, ...]:
    for index, label in enumerate(labels):
        if not isinstance(label, str) or not label.strip() or len(label) > _LONGEST_LABEL:
            path = (*here, _LABEL, index)
            message = f"a label must be text of 1 to {_LONGEST_LABEL} characters"
            raise SpecError([document.place(path).problem(path, message)])
    return tuple(labels)


def _labels(changes: Sequence[Sequence[overrides.Change]]) -> tuple[str, ...]:
    """Short words for values; sections go by their names where these tell them apart."""
    short = [", ".join(_word(change.value) for change in each) for each in changes]
    if len(set(short)) == len(short):
        return tuple(short)
    return tuple(", ".join(write_value(change.value) for change in each) for each in changes)


def _word(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return str(value["name"])
    return value if isinstance(value, str) else write_value(value)
