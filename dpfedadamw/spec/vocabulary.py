"""The JSON Schema of a spec: made from its sections, and seen as a vocabulary.

Besides the standard's words the schema has a few of its own, which the messages and the reference
page are made from: `x-unit`, `x-why`, `x-expected`, `x-default-by-unit`, and for unions
`x-discriminator`, `x-short-form` and `x-exactly-one`. `make_schema` makes it; what follows finds a
part of it, chooses the branch of a union that a mapping means, and writes out defaults and short
forms.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

from dpfedadamw.spec.algorithm_section import ALGORITHM, algorithms
from dpfedadamw.spec.data_section import DATA, datasets
from dpfedadamw.spec.document import KeyPath, dotted
from dpfedadamw.spec.model_section import MODEL, models
from dpfedadamw.spec.section import OneOf, Section, keys_of, marker
from dpfedadamw.spec.sections import Spec

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAME = "urn:dpfedadamw:schema:experiment:v1"
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}

_Part = dict[str, Any]


class _Definitions(dict[str, _Part]):
    """Parts that stand once, by name; and what was chosen of a choice of sections."""

    def __init__(self, chosen: Mapping[OneOf, str]) -> None:
        super().__init__()
        self.chosen = chosen

    def choices(self, union: OneOf) -> tuple[Mapping[str, type[Section]], str]:
        """The classes of a choice by value, and all values in words."""
        name = self.chosen.get(union)
        if name is None or union.find is None:
            return union.choices(), union.names()
        return {name: union.find(name)}, name


def make_schema(chosen: Mapping[OneOf, str] | None = None) -> _Part:
    """Return the JSON Schema (draft 2020-12) of a spec, with all that is registered.

    Args:
        chosen: Of a choice of sections, the one value that the schema is to have, where no other
            is asked for; it is then without the words that name all.
    """
    definitions = _Definitions(chosen or {})
    whole = _section(Spec, definitions)
    properties = whole.pop("properties")
    whole = {"$schema": _DIALECT, "$id": _NAME, **whole, "properties": properties}
    shared = _share(whole, definitions)
    return {**whole, "$defs": {**shared, **definitions}}


def _section(section: type[Section], definitions: _Definitions) -> _Part:
    fields = keys_of(section)
    return {
        "title": section.model_config["title"],
        "description": _text(section),
        "type": "object",
        "properties": {name: _field(name, info, definitions) for name, info in fields.items()},
        "required": [name for name, info in fields.items() if info.is_required()],
        "additionalProperties": False,
    }


def _text(section: type[Section]) -> str:
    return " ".join(inspect.cleandoc(section.__doc__ or "").split())


def _field(name: str, info: FieldInfo, definitions: _Definitions) -> _Part:
    union, annotation = marker(info, OneOf), info.annotation
    if union is not None:
        assert isinstance(annotation, type)
        assert issubclass(annotation, Section)
        part = _union(name, union, annotation, definitions)
        part["title"] = info.title or annotation.model_config["title"]
        part["description"] = info.description or _text(annotation)
        if info.examples:
            part["examples"] = info.examples
    elif isinstance(annotation, type) and issubclass(annotation, Section):
        whole = _section(annotation, definitions)
        part = _exactly_one(name, whole, definitions) if annotation.exactly_one else whole
    else:
        return _leaf(name, info, definitions)
    if not info.is_required():
        chosen = {union.key: getattr(info.default, union.key)} if union else {}
        part["default"] = chosen | _changed(info.default)
    return part


def _changed(section: Section) -> _Part:
    """What makes a section differ from its class's defaults."""
    return {
        name: getattr(section, name)
        for name, info in keys_of(type(section)).items()
        if getattr(section, name) != info.default
    }


def _union(name: str, union: OneOf, base: type[Section], definitions: _Definitions) -> _Part:
    """A choice of sections: one definition a class, told apart by the values of one key."""
    classes: dict[type[Section], list[str]] = {}
    choices, names = definitions.choices(union)
    for value, section in choices.items():
        classes.setdefault(section, []).append(value)
    branches = []
    for section, values in classes.items():
        definition = f"{name}_{values[0]}"
        if definition not in definitions:
            definitions[definition] = {}
            branch = _section(section, definitions)
            own, general = keys_of(section)[union.key], keys_of(base)[union.key]
            chooser = {
                "title": general.title or _titled(union.key),
                "description": (general.description or "").format(names=names),
                "type": "string",
                "enum": values,
                "examples": values,
                **_extra(general),
                **_extra(own),
            }
            branch["properties"] = {**branch["properties"], union.key: chooser}
            required = [key for key in branch["required"] if key != union.key]
            definitions[definition] = {**branch, "required": [union.key, *required]}
        branches.append({"$ref": f"#/$defs/{definition}"})
    part: _Part = {"x-discriminator": union.key, "oneOf": branches}
    if union.short_form:
        part["x-short-form"] = union.key
        part["oneOf"] = [
            *branches,
            {
                "title": "Short form",
                "description": f"The {union.key} alone.",
                "type": "string",
                "enum": list(choices),
            },
        ]
    return part


def _exactly_one(name: str, whole: _Part, definitions: _Definitions) -> _Part:
    """A section of which one key is given: a branch for each."""
    branches = []
    for key, child in whole["properties"].items():
        only = {word: value for word, value in child.items() if word != "default"}
        only["type"] = next(each for each in child["type"] if each != "null")
        definitions[f"{name}_{key}"] = {
            "title": child["title"],
            "description": child["description"],
            "type": "object",
            "properties": {key: only},
            "required": [key],
            "additionalProperties": False,
        }
        branches.append({"$ref": f"#/$defs/{name}_{key}"})
    return {
        "title": whole["title"],
        "description": whole["description"],
        "type": "object",
        "x-exactly-one": list(whole["properties"]),
        "oneOf": branches,
    }


def _leaf(name: str, info: FieldInfo, definitions: _Definitions) -> _Part:
    part: _Part = {"title": info.title or _titled(name), "description": info.description}
    part |= _list(name, info, definitions) or _type(info.annotation)
    for constraint in [*info.metadata, *_constraints_inside(info.annotation)]:
        match constraint:
            case Ge(ge=limit):
                part["minimum"] = limit
            case Gt(gt=limit):
                part["exclusiveMinimum"] = limit
            case Le(le=limit):
                part["maximum"] = limit
            case Lt(lt=limit):
                part["exclusiveMaximum"] = limit
            case MinLen(min_length=limit):
                part["minItems" if "items" in part else "minLength"] = limit
            case MaxLen(max_length=limit):
                part["maxItems" if "items" in part else "maxLength"] = limit
            case _ if getattr(constraint, "pattern", None):
                part["pattern"] = constraint.pattern
    if "items" in part:
        part.setdefault("minItems", 0)
    if not info.is_required():
        part["default"] = _listed(info.default)
    examples = info.examples if info.examples is not None else [part.get("default")]
    return {**part, "examples": _listed(examples), **_extra(info)}


def _list(name: str, info: FieldInfo, definitions: _Definitions) -> _Part | None:
    """A list, whose items may be sections; None of what is no list."""
    if get_origin(info.annotation) is not tuple:
        return None
    item = FieldInfo.from_annotation(get_args(info.annotation)[0])
    section = marker(item, OneOf) is not None
    return {"type": "array", "items": _field(name if section else "item", item, definitions)}


def _type(annotation: Any) -> _Part:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        found: _Part = {"type": _TYPES[type(arguments[0])]}
        numbers_or_truth = len(arguments) == 1 and not isinstance(arguments[0], str)
        return {
            **found,
            **({"const": arguments[0]} if numbers_or_truth else {"enum": [*arguments]}),
        }
    if origin is dict:
        return {"type": "object"}
    if origin in (Union, UnionType):
        parts = [_type(each) for each in arguments]
        words = [word for part in parts for word in part.get("enum", ())]
        found = {"type": [part["type"] for part in parts]}
        # A pattern applies only to texts: it does not affect the numbers that these words may
        # replace.
        return {**found, **({"pattern": f"^({'|'.join(words)})$"} if words else {})}
    if origin is Annotated:
        return _type(arguments[0])
    return {"type": _TYPES[NoneType if annotation is None else annotation]}


def _constraints_inside(annotation: Any) -> Iterator[object]:
    """What is asked of one of several types that a key may have."""
    if get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from getattr(each, "__metadata__", ())


def _extra(info: FieldInfo) -> _Part:
    extra = info.json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {}


def _titled(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _listed(value: Any) -> Any:
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _share(whole: _Part, definitions: _Definitions) -> dict[str, _Part]:
    """Let what several sections have in the same form stand once, and be referred to."""
    sections = [whole, *definitions.values()]
    texts = Counter(_canonical(child) for _, _, child in _children(sections))
    names: dict[str, str] = {}
    shared: dict[str, _Part] = {}
    for properties, key, child in list(_children(sections)):
        text = _canonical(child)
        if texts[text] > 1:
            if text not in names:
                same = sum(name.partition("-")[0] == key for name in shared)
                names[text] = f"{key}-{same + 1}" if same else key
                shared[names[text]] = child
            properties[key] = {"$ref": f"#/$defs/{names[text]}"}
    return shared


def _children(sections: list[_Part]) -> Iterator[tuple[_Part, str, _Part]]:
    """Every key of these sections, with the mapping that holds it."""
    for section in sections:
        for key, child in section["properties"].items():
            if "$ref" not in child:
                yield section["properties"], key, child


def _canonical(part: Mapping[str, Any]) -> str:
    return json.dumps(part, sort_keys=True)


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
