"""Makes the JSON Schema of a spec from its sections.

Besides the standard's words the schema has a few of its own, which the messages and the reference
page are made from: `x-unit`, `x-why`, `x-expected`, `x-default-by-unit`, and for unions
`x-discriminator`, `x-short-form` and `x-exactly-one`.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

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
        # A pattern binds texts alone: it leaves the numbers beside these words as they are.
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
