"""JSON and YAML from untrusted bytes: bounded, strict, and without surprises.

`bundle` and `ledger` parse every text file of a run through these two functions. Both refuse
duplicate keys (two readers could disagree about which one counts), numbers that are not finite,
and nesting beyond a small depth; YAML also refuses anchors and aliases (exponential expansion).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable
from typing import Any

import yaml

MAXIMUM_DEPTH = 32


class DocumentError(ValueError):
    """A text that is not an acceptable JSON or YAML document; the message says why."""


def parse_json(raw: bytes) -> Any:
    """Parse strict UTF-8 JSON.

    Raises:
        DocumentError: not UTF-8, not JSON, too deep, a duplicate key or a number that is not
            finite.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError("is not UTF-8 text") from error
    _check_depth(text)
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise DocumentError("is not valid JSON") from error


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value over which ledger digests are computed."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8")


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAXIMUM_DEPTH:
        return
    depth = 0
    inside, escaped = False, False
    for character in text:
        if inside:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            if depth > MAXIMUM_DEPTH:
                raise DocumentError(f"is nested deeper than {MAXIMUM_DEPTH} levels")
        elif character in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise DocumentError("has a duplicate key")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise DocumentError("has a number that is not finite")
    return number


def _integer(text: str) -> int:
    if len(text) > 20:
        raise DocumentError("has an integer of more than 20 digits")
    return int(text)


def _refuse_constant(text: str) -> Any:
    raise DocumentError(f"has {text}, which is not a number")


_YAML_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without duplicate keys, and with 1e-5 read as the number it is."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if any(not isinstance(key, str) for key in keys):
            raise DocumentError("has a key that is not text")
        if len(set(keys)) != len(keys):
            raise DocumentError("has a duplicate key")
        return super().construct_mapping(node, deep=deep)


_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _YAML_FLOAT, list("-+.0123456789"))


def parse_yaml(raw: bytes) -> Any:
    """Parse one YAML document of plain mappings, lists, texts and numbers.

    Raises:
        DocumentError: not UTF-8, not YAML, an anchor or alias, a duplicate key, too deep or a
            number that is not finite.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError("is not UTF-8 text") from error
    try:
        _check_events(text)
        value = yaml.load(text, Loader=_StrictLoader)
    except DocumentError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise DocumentError("is not valid YAML") from error
    _check_finite(value)
    return value


def _check_events(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise DocumentError("has an anchor or alias, which is refused")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAXIMUM_DEPTH:
                raise DocumentError(f"is nested deeper than {MAXIMUM_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_finite(value: Any) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _check_finite(item)
    elif isinstance(value, list):
        for item in value:
            _check_finite(item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise DocumentError("has a number that is not finite")
