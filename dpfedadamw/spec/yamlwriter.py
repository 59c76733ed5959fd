"""Writes a resolved spec as YAML."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dpfedadamw.spec.document import escape
from dpfedadamw.spec.yamlreader import plain_value

_PLAIN_TEXT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._/()+-]*[A-Za-z0-9._/()+-])?")


def write(mapping: Mapping[str, Any]) -> str:
    """Write a mapping as YAML: sections indented, keys in their order.

    A list stands in one line; one of sections has a line for each.

    The text reads back as the same values: floats are written with as many digits as they need,
    and text that could be taken for anything else is quoted.

    Args:
        mapping: Text keys; values as in `document.Document.value`.
    """
    return "".join(f"{line}\n" for line in _lines(mapping, ""))


def _lines(mapping: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_text(key)}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, (list, tuple)) and any(isinstance(one, Mapping) for one in value):
            yield f"{indent}{_text(key)}:"
            yield from (f"{indent}  - {write_value(one)}" for one in value)
        else:
            yield f"{indent}{_text(key)}: {write_value(value)}"


def write_value(value: Any) -> str:
    """Write one value in one line of YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        # YAML 1.1 readers take 1e-05 for text; with a point it is a number to everyone.
        point = "" if "." in mantissa else ".0"
        return f"{mantissa}{point}e{int(power):+d}" if exponent else mantissa
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(k)}: {write_value(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(write_value(item) for item in value) + "]"


@functools.lru_cache(maxsize=4096)
def _text(text: str) -> str:
    if _PLAIN_TEXT.fullmatch(text) and plain_value(text) == (text, None):
        # Readers of YAML 1.1 take more words for booleans, numbers and dates than this one.
        resolver: Any = yaml.SafeLoader("")
        older = str(resolver.resolve(yaml.ScalarNode, text, (True, False)))
        return text if older.endswith(":str") else f'"{text}"'
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(c if c.isprintable() else escape(c) for c in escaped) + '"'
