"""The schema is valid, complete and closed, and says the same as the examples it gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import specs
from dpfedadamw import spec

Schema = dict[str, Any]
DEFINITIONS = spec.schema()["$defs"]


def parts() -> Iterator[tuple[str, Schema]]:
    """Every part of the schema that describes a key, with a name to find it by."""

    def walk(part: Schema, name: str) -> Iterator[tuple[str, Schema]]:
        for key, child in part.get("properties", {}).items():
            yield f"{name}.{key}", child
            yield from walk(child, f"{name}.{key}")
        for index, branch in enumerate(part.get("oneOf", [])):
            yield from walk(branch, f"{name}({index})")

    schema = spec.schema()
    yield from walk(schema, "")
    for name, part in schema["$defs"].items():
        yield f"$defs.{name}", part
        yield from walk(part, f"$defs.{name}")


def leaves() -> list[Any]:
    return [
        pytest.param(part, id=name)
        for name, part in parts()
        if not {"$ref", "oneOf", "properties"} & set(part)
    ]


def sections() -> list[Any]:
    return [pytest.param(part, id=name) for name, part in parts() if "properties" in part]


def check(part: Schema, value: Any) -> None:
    # That the parts are valid schemas themselves, the metaschema says of all of them at once.
    jsonschema.Draft202012Validator({**part, "$defs": DEFINITIONS}).validate(value)


def test_the_schema_is_valid_against_its_metaschema():
    jsonschema.Draft202012Validator.check_schema(spec.schema())
    assert spec.schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("part", leaves())
def test_every_field_is_documented(part):
    assert part["title"]
    assert part["description"].endswith(".")
    assert part["x-unit"]
    assert part["examples"]


@pytest.mark.parametrize("part", leaves())
def test_every_default_and_example_is_valid(part):
    for value in [*part["examples"], *([part["default"]] if "default" in part else [])]:
        check(part, value)


@pytest.mark.parametrize("part", leaves())
def test_every_field_has_a_range(part):
    kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
    if "const" in part or "enum" in part:
        return
    for kind in kinds:
        if kind in ("integer", "number"):
            # A number without an upper limit could be too large for a float.
            assert {"minimum", "exclusiveMinimum"} & set(part)
            assert {"maximum", "exclusiveMaximum"} & set(part)
        if kind == "string":
            assert {"maxLength", "pattern"} & set(part)
        if kind == "array":
            assert {"minItems", "maxItems", "items"} <= set(part)
    # A section of which one key is given leaves the others out, and the default brings them back.
    # The share that is held out is in none of those: it is written out where it is null.
    if "null" in kinds and part["title"] != "Test fraction":
        assert part["default"] is None


@pytest.mark.parametrize("part", sections())
def test_every_section_is_closed_and_every_key_required_or_defaulted(part):
    assert part["additionalProperties"] is False
    assert part["title"]
    assert part["description"].endswith(".")
    for key, child in part["properties"].items():
        target = DEFINITIONS[child["$ref"].removeprefix("#/$defs/")] if "$ref" in child else child
        optional = "default" in {**target, **child}
        chosen_by_key = list(part["properties"]) in (["relative"], ["absolute"])
        assert chosen_by_key or optional != (key in part.get("required", []))


def test_every_definition_is_used():
    schema = spec.schema()
    text = specs.schema_text()
    for name in schema["$defs"]:
        assert f'"#/$defs/{name}"' in text


def test_branches_of_a_union_are_told_apart_by_its_discriminator():
    for name, part in [*parts()]:
        if "x-discriminator" in part:
            seen: list[str] = []
            for branch in part["oneOf"]:
                if "$ref" in branch:
                    target = DEFINITIONS[branch["$ref"].removeprefix("#/$defs/")]
                    assert part["x-discriminator"] in target["required"]
                    seen += target["properties"][part["x-discriminator"]]["enum"]
            assert len(seen) == len(set(seen)), name


def test_a_schema_that_a_caller_changes_stays_as_it_was():
    spec.schema()["properties"].clear()
    assert spec.load("quickstart").name == "quickstart"
