"""The JSON Schemas that travel with the package, made from the models: every field is said once.

``python -m reports.schema`` writes the files of reports, comparisons and sites. An extension's
model is in its module `schema`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from reports.content.parts import AUDIENCES, FORMAT, FigureText, Registration, Rule, registered

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAME = "urn:dpfedadamw:schema"


class _Described(GenerateJsonSchema):
    """Schemas without generated titles, described by the docstrings of the classes."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        """Return False: a field's key is title enough."""
        return False

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        """Return a plain type that may be null as one list of types."""
        found = super().nullable_schema(schema)
        given = found.get("anyOf", [{}])[0]
        if isinstance(given.get("type"), str) and "enum" not in given:
            return {**given, "type": [given["type"], "null"]}
        return found

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Return a class's schema with its summary and what its docstring says of each field."""
        found = super().model_schema(schema)
        summary, fields = described(schema["cls"])
        found.pop("title", None)
        found["description"] = summary
        for name, inner in found.get("properties", {}).items():
            inner["description"] = fields[name]
        return found


def described(kind: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """Return the text of a class's docstring and of each of its attributes.

    Raises:
        KeyError: Where it is looked up: a field that no docstring of the class describes.
    """
    fields: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            summary, _, attributes = cleandoc(base.__doc__ or "").partition("Attributes:")
            name = ""
            for line in attributes.splitlines():
                text = line.strip()
                # Fields stand four columns in, what goes on of them eight.
                if line.startswith(" " * 4) and not line.startswith(" " * 5):
                    name, _, text = text.partition(": ")
                    fields[name] = text
                elif name and text:
                    fields[name] += f" {text}"
    return " ".join(summary.split()), fields


def definitions(kinds: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """Return the schemas of classes, and of what they are made of, by their names."""
    mode: JsonSchemaMode = "serialization"
    _, found = models_json_schema(
        [(kind, mode) for kind in kinds],
        schema_generator=_Described,
        ref_template="#/$defs/{model}",
    )
    named: dict[str, Any] = found["$defs"]
    return named


def nested(places: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema that asks something of dotted places; "[]" is every item of a list."""
    found: dict[str, Any] = {}
    for place, wanted in places.items():
        node = found
        for step in place.split("."):
            node = node.setdefault("properties", {}).setdefault(step.removesuffix("[]"), {})
            node = node.setdefault("items", {}) if step.endswith("[]") else node
        node.update(wanted)
    return found


def _conditional(part: Registration, rule: Rule) -> dict[str, Any]:
    then = {f"{part.key}.{place}": wanted for place, wanted in rule.then.items()}
    return {"if": nested(rule.when), "then": nested(then)}


def closed(
    name: str, version: int, title: str, about: str, properties: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Return a whole schema of an object with exactly these properties."""
    return {
        "$schema": _DIALECT,
        "$id": f"{_NAME}:{name}:v{version}",
        "title": title,
        "description": about,
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **more,
    }


def report_schema() -> dict[str, Any]:
    """Return the schema of report.json, from all parts that are registered."""
    parts = registered()
    kinds: list[type[BaseModel]] = [part.kind for part in parts]
    properties: dict[str, Any] = {
        "format": {
            "const": FORMAT,
            "description": "Version of this format. Version 1 had epsilon_pld and epsilon_rdp in "
            "each of clients.rows, in place of epsilon by accountant, and no "
            "accounting.accountant.",
        },
        "audience": {"enum": list(AUDIENCES), "description": "Who the report is for."},
        **{
            part.key: {
                "$ref": f"#/$defs/{part.kind.__name__}",
                "description": described(part.kind)[0],
            }
            for part in parts
        },
        "figures": {
            "type": "array",
            "description": "Figures of the PDF.",
            "items": {"$ref": "#/$defs/FigureText"},
        },
    }
    return closed(
        "report",
        FORMAT,
        "Privacy report of one federated training run",
        "What a run claims about privacy, what its audit found, and what neither covers. The "
        "internal report is restricted to the server's operator and the auditor; the public one "
        "carries nothing that tells who took part, or how often.",
        properties,
        **{
            "$defs": definitions([*kinds, FigureText]),
            "allOf": [_conditional(part, rule) for part in parts for rule in part.rules],
        },
    )


_EXTENSIONS = Path(__file__).parents[1] / "extensions"


def files() -> dict[str, str]:
    """Return the text of each file that is made from models, by its name."""
    made = {"report": report_schema()}
    for name in sorted(path.parent.name for path in _EXTENSIONS.glob("*/schema.py")):
        made[name] = import_module(f"reports.extensions.{name}.schema").schema()
    return {f"{name}.schema.json": _text(schema) for name, schema in made.items()}


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
