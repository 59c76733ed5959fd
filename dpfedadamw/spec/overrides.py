"""Overrides: single values of a spec replaced from the command line.

`--set algorithm.learning_rate=0.1` changes a `document.Document` before it is checked, so that an
override is held to exactly what the file is held to, and is named in the message where it fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec import yamltext
from dpfedadamw.spec.algorithm_section import algorithms
from dpfedadamw.spec.document import MAXIMUM_DEPTH, Document, KeyPath, Place, dotted, one_line
from dpfedadamw.spec.vocabulary import short_form

_PART = re.compile(r"([^\s.\[\]=]+)((?:\[[0-9]{1,6}\])*)")
_INDEX = re.compile(r"[0-9]{1,6}")
# Of the two keys either may have been solved for the other: replacing one voids the other.
_SOLVED = {
    ("privacy", "target_epsilon"): ("privacy", "noise_multiplier"),
    ("privacy", "noise_multiplier"): ("privacy", "target_epsilon"),
}


@dataclass(frozen=True)
class Change:
    """A value that takes the place of another.

    Attributes:
        path: Of the key.
        value: What it holds from now on.
        place: Where that was said.
    """

    path: KeyPath
    value: Any
    place: Place


def apply(document: Document, overrides: Sequence[str]) -> None:
    """Replace values in a document.

    Overrides apply in their order. `privacy.target_epsilon` clears `privacy.noise_multiplier`, and
    the other way round, unless both are overridden or the algorithm needs both.

    Args:
        document: What was read; changed in place.
        overrides: `dotted.path=value` each; the value is YAML (`{absolute: 1e-8}` for a section),
            a list's item is `model.hidden[0]` or `model.hidden.0`.

    Raises:
        SpecError: If an override has no path or value, or its path leads through a single value.
    """
    problems: list[SpecProblem] = []
    changes: list[Change] = []
    for text in overrides:
        try:
            changes.append(_split(text, Place(f"--set {one_line(text, 200)}")))
        except SpecError as error:
            problems += error.problems
    apply_changes(document, changes, problems)


def apply_changes(
    document: Document, changes: Sequence[Change], problems: Sequence[SpecProblem] = ()
) -> None:
    """Replace values in a document, in their order; see `apply`.

    Args:
        document: What was read; changed in place.
        changes: What is replaced.
        problems: What is known to be wrong with them.

    Raises:
        SpecError: If a path leads through a single value, or there are problems.
    """
    problems = list(problems)
    replaced: set[KeyPath] = set()
    for change in changes:
        try:
            _replace(document, change.path, change.value, change.place)
            replaced.add(change.path)
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError([*document.problems, *problems])
    section = document.value.get("privacy") if isinstance(document.value, dict) else None
    if isinstance(section, dict) and not _needs_both(document.value):
        for path, other in _SOLVED.items():
            chosen = path in replaced and section.get(path[-1]) is not None
            if chosen and other not in replaced and other[-1] in section:
                section[other[-1]] = None


def _needs_both(spec: Mapping[str, Any]) -> bool:
    """Whether the algorithm is chosen to which neither of the two is solved for the other."""
    algorithm = spec.get("algorithm")
    name = algorithm.get("name") if isinstance(algorithm, dict) else None
    return isinstance(name, str) and name in algorithms() and algorithms()[name].budgeted


def parse_path(text: str, place: Place, message: str = "not a field's dotted path") -> KeyPath:
    """Read `algorithm.learning_rate` or `model.hidden[0]`.

    Raises:
        SpecError: With the message, if it is no path.
    """
    path: list[str | int] = []
    for part in text.strip().split("."):
        match = _PART.fullmatch(part)
        if not match:
            raise SpecError([place.problem((), message)])
        name = match[1]
        path.append(int(name) if _INDEX.fullmatch(name) and path else name)
        path += [int(index) for index in re.findall(r"[0-9]+", match[2])]
    if len(path) > MAXIMUM_DEPTH:
        raise SpecError([place.problem((), f"nested deeper than {MAXIMUM_DEPTH} levels")])
    return tuple(path)


def _split(text: str, place: Place) -> Change:
    left, equals, right = text.partition("=")
    message = "not an override; write --set path.to.key=value"
    path = parse_path(left if equals else "", place, message)
    try:
        document = yamltext.parse(right, place.source)
        problems: Sequence[SpecProblem] = document.problems
    except SpecError as error:
        problems = error.problems
    if problems:
        raise SpecError([place.problem(path, problem.message) for problem in problems])
    return Change(path, document.value, place)


def _replace(document: Document, path: KeyPath, value: Any, place: Place) -> None:
    if document.value is None:
        document.value = {}
    parent = document.value
    for depth, part in enumerate(path):
        here = path[:depth]
        last = depth == len(path) - 1
        if isinstance(parent, dict):
            key: Any = str(part)
            if not last:
                if parent.get(key) is None:
                    parent[key] = {}
                    document.keys.setdefault((*here, key), place)
                parent[key] = short_form((*here, key), parent[key])
        elif isinstance(parent, list):
            key = part
            if not isinstance(part, int) or part >= len(parent):
                message = f"the list has no item {part}; replace it whole: {dotted(here)}=[…]"
                raise SpecError([place.problem(here, message)])
        else:
            message = f"this is a single value without keys; set {dotted(here)} itself"
            raise SpecError([place.problem(here, message)])
        if last:
            parent[key] = value
            _forget((*here, key), document, place)
        else:
            parent = parent[key]


def _forget(path: KeyPath, document: Document, place: Place) -> None:
    """Let every place below a replaced value be the override's."""
    size = len(path)
    for places in (document.places, document.keys):
        for old in [old for old in places if old[:size] == path]:
            del places[old]
    document.unreadable -= {old for old in document.unreadable if old[:size] == path}
    document.places[path] = document.keys[path] = place
