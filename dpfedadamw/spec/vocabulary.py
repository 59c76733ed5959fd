"""The JSON Schema of a spec, seen as a vocabulary: its parts, its unions and its defaults.

This module finds a part of the schema, chooses the branch of a union that a mapping means, and
writes out defaults and short forms.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dpfedadamw.spec.algorithm_section import ALGORITHM, algorithms
from dpfedadamw.spec.data_section import DATA, datasets
from dpfedadamw.spec.document import KeyPath, dotted
from dpfedadamw.spec.json_schema import make_schema
from dpfedadamw.spec.model_section import MODEL, models
from dpfedadamw.spec.section import OneOf, Section

Schema = Mapping[str, Any]


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a spec, as a fresh dictionary."""
    return copy.deepcopy(the_schema())


# What a spec names of what is registered: the choice of sections, the name, the class of its keys.
Named = tuple[tuple[OneOf, str, type[Section]], ...]
Edition = tuple[int, int, int] | Named
_NAMED: ContextVar[Named | None] = ContextVar("named", default=None)


def the_schema() -> dict[str, Any]:
    """Return the JSON Schema of a spec, made once; nobody may change it."""
    return _schema_of(edition())


def edition() -> Edition:
    """Return what changes when more has been registered, and the schema with it."""
    named = _NAMED.get()
    if named is not None:
        return named
    return datasets().edition, models().edition, algorithms().edition


@contextmanager
def of_names(named: Named) -> Iterator[None]:
    """Let the schema have, of what is registered, what a spec names, for as long as this lasts.

    A spec that is right by it is right by the whole, which takes every algorithm, model and data
    set to make. What is said of one that is wrong names what would be right, and needs the whole.
    """
    token = _NAMED.set(named)
    try:
        yield
    finally:
        _NAMED.reset(token)


def names_in(value: Mapping[str, Any]) -> Named | None:
    """What a spec names of what is registered; None where it names something else, or nothing."""
    found = []
    choices: tuple[tuple[str, OneOf, Mapping[str, Any]], ...] = (
        ("data", DATA, datasets()),
        ("model", MODEL, models()),
        ("algorithm", ALGORITHM, algorithms()),
    )
    for key, union, registered in choices:
        section = value.get(key)
        name = section.get(union.key) if isinstance(section, dict) else None
        entry = registered.get(name) if isinstance(name, str) else None
        if not isinstance(name, str) or entry is None:
            return None
        found.append((union, name, entry.keys))
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _schema_of(edition: Edition) -> dict[str, Any]:
    chosen = {one[0]: one[1] for one in edition if isinstance(one, tuple)}
    return make_schema(chosen)


def resolve_reference(part: Schema) -> Schema:
    """Return a part of the schema with its `$ref` replaced by what it points to."""
    if "$ref" not in part:
        return part
    target = the_schema()["$defs"][part["$ref"].removeprefix("#/$defs/")]
    return {**target, **{key: value for key, value in part.items() if key != "$ref"}}


def discriminators(schema: Schema) -> dict[str, Schema]:
    """Return a union's branches by the values that choose them."""
    key = schema["x-discriminator"]
    branches = [resolve_reference(branch) for branch in schema["oneOf"]]
    return {
        choice: branch
        for branch in branches
        if "properties" in branch
        for choice in branch["properties"][key]["enum"]
    }


def pick_branch(schema: Schema, value: Mapping[str, Any]) -> Schema | None:
    """Return the branch of a union that a mapping chooses, or None if it chooses none."""
    if "x-exactly-one" in schema:
        choices = schema["x-exactly-one"]
        given = [index for index, key in enumerate(choices) if key in value]
        return resolve_reference(schema["oneOf"][given[0]]) if len(given) == 1 else None
    choice = value.get(schema["x-discriminator"])
    return discriminators(schema).get(choice) if isinstance(choice, str) else None


def paths_of(name: str) -> set[str]:
    """Dotted paths of all keys of that name in the schema."""
    found: set[str] = set()

    def walk(part: Schema, path: KeyPath) -> None:
        part = resolve_reference(part)
        for branch in part.get("oneOf", []):
            walk(branch, path)
        for key, child in part.get("properties", {}).items():
            if key == name:
                found.add(dotted((*path, key)))
            walk(child, (*path, key))

    walk(the_schema(), ())
    return found


def types_of(schema: Schema) -> set[str]:
    """Return the names of the JSON types that a part of the schema allows."""
    kinds = schema.get("type", [])
    return {kinds} if isinstance(kinds, str) else set(kinds)


def fill_defaults(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Write out every default and short form, keys in the vocabulary's order.

    What does not fit the schema stays as it is. Integers where numbers are asked for become floats.
    """
    filled: dict[str, Any] = _fill(the_schema(), mapping)
    for section, part in the_schema()["properties"].items():
        for key, child in resolve_reference(part).get("properties", {}).items():
            by_unit = child.get("x-default-by-unit")
            if by_unit and isinstance(filled.get(section), dict):
                unit = _at(filled, "privacy", "unit")
                if isinstance(unit, str) and unit in by_unit and not _at(mapping, section, key):
                    filled[section][key] = by_unit[unit]
    return filled


def _at(value: Any, section: str, key: str) -> Any:
    inner = value.get(section)
    return inner.get(key) if isinstance(inner, Mapping) else None


def _fill(part: Schema, value: Any) -> Any:
    part = resolve_reference(part)
    if "oneOf" in part:
        if isinstance(value, str) and "x-short-form" in part:
            value = {part["x-short-form"]: value}
        branch = pick_branch(part, value) if isinstance(value, Mapping) else None
        return value if branch is None else _fill(branch, value)
    if isinstance(value, Mapping) and "properties" in part:
        filled: dict[str, Any] = {}
        for key, child in part["properties"].items():
            child = resolve_reference(child)
            if key in value:
                filled[key] = _fill(child, value[key])
            elif "default" in child:
                filled[key] = _fill(child, copy.deepcopy(child["default"]))
        return filled | {key: item for key, item in value.items() if key not in filled}
    if isinstance(value, list) and "items" in part:
        return [_fill(part["items"], item) for item in value]
    if "number" in types_of(part) and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 10**300 else value
    return value


def short_form(path: KeyPath, value: Any) -> Any:
    """Return the long form of a value where the schema has a short one, else the value itself."""
    if not isinstance(value, str):
        return value
    part: Schema = the_schema()
    for key in path:
        part = resolve_reference(part.get("properties", {}).get(key, {}))
    form = part.get("x-short-form")
    return {form: value} if form else value
