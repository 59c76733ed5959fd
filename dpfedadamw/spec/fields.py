"""Lists the fields of the schema, one row each, for the command line and the reference page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from dpfedadamw.spec.vocabulary import Schema, discriminators, resolve_reference, types_of
from dpfedadamw.spec.yamltext import write_value

# What messages and pages call the types of JSON.
TYPE_WORDS = {"array": "list", "boolean": "true or false", "string": "text", "object": "section"}
_Conditions = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Field:
    """One field of a spec, in words.

    Attributes:
        path: Dotted path.
        type: Such as "number or null".
        default: As written in YAML; "required" where there is none.
        range: Allowed values, such as "> 0, ≤ 1000" or "cosine | constant".
        unit: What it counts; "1" for a plain number, "" for what is no number.
        description: What it means.
        when: The choice under which it exists, such as "model.name is mlp"; "" for always.
    """

    path: str
    type: str
    default: str
    range: str
    unit: str
    description: str
    when: str = ""


def describe(schema: Mapping[str, Any]) -> list[Field]:
    """Return a row for every field of the schema, in the vocabulary's order.

    Args:
        schema: As `schema()` returns it.
    """
    choices: _Conditions = {}
    found: dict[Field, list[_Conditions]] = {}
    for field, conditions in _section(schema, "", {}, choices):
        found.setdefault(field, []).append(conditions)
    # A field that two choices have in different forms is listed once for each form.
    paths = list(dict.fromkeys(field.path for field in found))
    rows = []
    for field, alternatives in sorted(found.items(), key=lambda row: paths.index(row[0].path)):
        for conditions in _joined(alternatives):
            narrow = (
                f"{path} is {' or '.join(names)}"
                for path, names in conditions.items()
                if set(names) != set(choices[path])
            )
            rows.append(dataclasses.replace(field, when="; ".join(narrow)))
    return rows


def _joined(alternatives: list[_Conditions]) -> list[_Conditions]:
    """Join the conditions under which one field exists as far as they join."""
    for one, other in combinations(alternatives, 2):
        merged = _merge(one, other)
        if merged is not None:
            rest = [each for each in alternatives if each is not one and each is not other]
            return _joined([merged, *rest])
    return alternatives


def _merge(one: _Conditions, other: _Conditions) -> _Conditions | None:
    """Join conditions that differ in at most one choice."""
    different = [path for path in one if one[path] != other.get(path)]
    if set(one) != set(other) or len(different) > 1:
        return None
    return {path: (*one[path], *(n for n in other[path] if n not in one[path])) for path in one}


def _section(
    part: Schema, path: str, conditions: _Conditions, choices: _Conditions
) -> Iterator[tuple[Field, _Conditions]]:
    defaults = part.get("default") or {}
    for key, child in part["properties"].items():
        below = f"{path}.{key}" if path else key
        missing = "required" if key in part.get("required", []) else None
        default = missing or write_value(defaults.get(key, resolve_reference(child).get("default")))
        yield from _field(resolve_reference(child), below, default, conditions, choices)


def _field(
    part: Schema, path: str, default: str, conditions: _Conditions, choices: _Conditions
) -> Iterator[tuple[Field, _Conditions]]:
    if "x-exactly-one" in part:
        for key, branch in zip(part["x-exactly-one"], part["oneOf"], strict=True):
            value = part["default"].get(key)
            child = resolve_reference(branch)["properties"][key]
            shown = write_value(value) if value is not None else "none"
            yield from _field(child, f"{path}.{key}", shown, conditions, choices)
    elif "x-discriminator" in part:
        yield from _union(part, path, conditions, choices)
    elif "properties" in part:
        yield from _section(part, path, conditions, choices)
    else:
        unit = part["x-unit"] if part["x-unit"] != "none" else ""
        row = Field(path, _type(part), default, _range(part), unit, part["description"])
        yield row, conditions
        if "x-discriminator" in part.get("items", {}):
            yield from _union(part["items"], f"{path}[]", conditions, choices)


def _union(
    part: Schema, path: str, conditions: _Conditions, choices: _Conditions
) -> Iterator[tuple[Field, _Conditions]]:
    key, names = part["x-discriminator"], tuple(discriminators(part))
    below = f"{path}.{key}"
    choices[below] = tuple(dict.fromkeys((*choices.get(below, ()), *names)))
    allowed = " | ".join(names)
    default = part["default"][key] if "default" in part else "required"
    if "x-short-form" in part:
        yield Field(path, "text or section", default, allowed, "", part["description"]), conditions
    first = resolve_reference(part["oneOf"][0])
    meaning = first["properties"][key]["description"]
    yield Field(below, "text", default, allowed, "", meaning), conditions
    for branch in (resolve_reference(branch) for branch in part["oneOf"]):
        if "properties" in branch:
            narrowed = {**conditions, below: tuple(branch["properties"][key]["enum"])}
            rest = {name: child for name, child in branch["properties"].items() if name != key}
            yield from _section({**branch, "properties": rest}, path, narrowed, choices)


def _type(part: Schema) -> str:
    if part.get("type") == "array":
        if "x-discriminator" in part["items"]:
            return f"list of {part['minItems']} to {part['maxItems']} sections"
        return f"list of {part['minItems']} to {part['maxItems']} {_type(part['items'])}s"
    kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
    return " or ".join(TYPE_WORDS.get(kind, str(kind)) for kind in kinds)


def _range(part: Schema) -> str:
    if "const" in part:
        return write_value(part["const"])
    if "enum" in part:
        return " | ".join(map(str, part["enum"]))
    numbers = {"integer", "number"} & types_of(part)
    if "pattern" in part and not numbers:
        return str(part["pattern"])
    if "items" in part:
        return "" if "x-discriminator" in part["items"] else f"each {_range(part['items'])}"
    if "string" in types_of(part) and not numbers:
        return f"≤ {part['maxLength']} characters"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = ", ".join(f"{sign} {part[key]}" for key, sign in signs.items() if key in part)
    words = part["pattern"].strip("^()$").split("|") if numbers and "pattern" in part else []
    return " | ".join([limits, *words])
