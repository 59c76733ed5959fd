"""Words for a value that does not fit: what was found, what would be right, what was meant."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Sequence
from typing import Any

from dpfedadamw.spec import aliases
from dpfedadamw.spec.document import one_line
from dpfedadamw.spec.vocabulary import Schema, discriminators, resolve_reference, types_of


def mismatch(value: Any, schema: Schema) -> str:
    """Say what was found, what must be there, and, if it can be guessed, what was meant."""
    message = f"found {show(value)}; must be {expected(schema)}"
    choices = [choice for choice in schema.get("enum", []) if isinstance(choice, str)]
    types = types_of(schema)
    if isinstance(value, str) and choices:
        known = aliases.choice_of(value, choices)
        near = [known] if known else difflib.get_close_matches(value.lower(), choices, 1)
        if near and len(choices) > 1:
            message += f"; did you mean {near[0]}?"
    elif isinstance(value, str) and {"integer", "number"} & types:
        number = _number_in(value)
        message += f"; write {number} without quotes" if number else ""
    elif "string" in types and not choices and isinstance(value, int | float):
        message += f'; put it in quotes: "{_number(value)}"'
    elif types == {"integer"} and isinstance(value, float) and value.is_integer():
        message += f"; write {value:.0f}" if abs(value) < 1e15 else ""
    return message + (f"; {schema['x-why']}" if "x-why" in schema else "")


def expected(schema: Schema) -> str:
    """Say in words what a part of the schema allows."""
    schema = resolve_reference(schema)
    if "x-expected" in schema:
        return str(schema["x-expected"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return one_of(schema["enum"])
    if "x-discriminator" in schema:
        key = schema["x-discriminator"]
        section = f"a section whose {key} is {one_of(list(discriminators(schema)))}"
        short = f", or {one_of(list(discriminators(schema)))}" if "x-short-form" in schema else ""
        return section + short
    if "x-exactly-one" in schema:
        return f"a section with exactly one of {' and '.join(schema['x-exactly-one'])}"
    words = []
    for name in schema["type"] if isinstance(schema["type"], list) else [schema["type"]]:
        if name in ("integer", "number"):
            words.append(_range_in_words("an integer" if name == "integer" else "a number", schema))
        elif name == "string":
            words.append(f"text of at most {schema['maxLength']} characters")
            if schema.get("minLength"):
                words[-1] = f"text of {schema['minLength']} to {schema['maxLength']} characters"
        elif name == "array":
            size = f"{schema['minItems']} to {schema['maxItems']}"
            words.append(f"a list of {size} items, each {expected(schema['items'])}")
        elif name == "object":
            words.append(f"a section with the keys {', '.join(schema['properties'])}")
        else:
            words.append({"boolean": "true or false", "null": "null"}[name])
    return " or ".join(words) if words != ["null"] else "left out (null)"


def _range_in_words(noun: str, schema: Schema) -> str:
    limits = {
        "minimum": "at least",
        "exclusiveMinimum": "greater than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    if "minimum" in schema and "maximum" in schema:
        return f"{noun} from {_number(schema['minimum'])} to {_number(schema['maximum'])}"
    parts = [f"{word} {_number(schema[key])}" for key, word in limits.items() if key in schema]
    return f"{noun} {' and '.join(parts)}" if parts else noun


def one_of(choices: Sequence[Any]) -> str:
    """Write choices as `one of a, b, c`, or the only one as it is."""
    words = ", ".join(
        choice if isinstance(choice, str) else json.dumps(choice) for choice in choices
    )
    return f"one of {words}" if len(choices) > 1 else words


def show(value: Any) -> str:
    """Show a found value in a few words, in one line."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the text "{one_line(value)}"'
    if isinstance(value, int | float):
        return one_line(_number(value))
    return "a list" if isinstance(value, list) else "a section"


def _number(value: int | float) -> str:
    if isinstance(value, int):
        # Beyond 4300 digits Python refuses to print.
        return str(value) if abs(value) < 10**300 else "an enormous number"
    return repr(value)


def _number_in(text: str) -> str | None:
    try:
        value = float(text.replace("_", "").replace(",", "."))
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value)
