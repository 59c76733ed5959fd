"""Typed reading of fields from parsed, hostile mappings.

A wrong type or range becomes one clear sentence and never a traceback.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from audit.untrusted import UntrustedError


class FieldError(UntrustedError):
    """A field is missing, of the wrong type or out of range; the message names it."""


def mapping(source: Any, key: str) -> Mapping[str, Any]:
    """The mapping under `key`."""
    value = _get(source, key)
    if not isinstance(value, Mapping):
        raise FieldError(f"{key} is not a mapping")
    return value


def sequence(source: Any, key: str, *, most: int = 10_000_000) -> Sequence[Any]:
    """The list under `key`, of at most `most` items."""
    value = _get(source, key)
    if not isinstance(value, list) or len(value) > most:
        raise FieldError(f"{key} is not a list of at most {most} items")
    return value


def text(source: Any, key: str, *, pattern: str = r"(?s).{0,4096}") -> str:
    """The text under `key`, which must match the whole pattern."""
    value = _get(source, key)
    if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
        raise FieldError(f"{key} is not a text of the expected form")
    return value


def choice(source: Any, key: str, allowed: Sequence[str]) -> str:
    """The text under `key`, one of `allowed`."""
    value = _get(source, key)
    if not isinstance(value, str) or value not in allowed:
        raise FieldError(f"{key} is not one of {', '.join(allowed)}")
    return value


def integer(source: Any, key: str, *, least: int = 0, most: int = 2**53) -> int:
    """The whole number under `key`, within [least, most]."""
    return as_integer(_get(source, key), key, least=least, most=most)


def number(source: Any, key: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """The finite number under `key`, within [least, most]."""
    return as_number(_get(source, key), key, least=least, most=most)


def positive(source: Any, key: str, *, most: float = 1e300) -> float:
    """The finite number under `key`, above 0 and at most `most`."""
    value = number(source, key, least=0.0, most=most)
    if value <= 0.0:
        raise FieldError(f"{key} is not above 0")
    return value


def flag(source: Any, key: str) -> bool:
    """The truth value under `key`."""
    value = _get(source, key)
    if not isinstance(value, bool):
        raise FieldError(f"{key} is not true or false")
    return value


def integers(source: Any, key: str, *, least: int = 0, most: int = 2**53) -> tuple[int, ...]:
    """The list of whole numbers under `key`, each within [least, most]."""
    return tuple(
        as_integer(item, f"an entry of {key}", least=least, most=most)
        for item in sequence(source, key)
    )


def as_integer(value: Any, name: str, *, least: int = 0, most: int = 2**53) -> int:
    """Check one value as a whole number within [least, most]; `name` is for the message."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise FieldError(f"{name} is not a whole number from {least} to {most}")
    return value


def as_number(value: Any, name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Check one value as a finite number within [least, most]; `name` is for the message."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(f"{name} is not a number")
    result = float(value)
    if not math.isfinite(result) or not least <= result <= most:
        raise FieldError(f"{name} is not a number from {least:g} to {most:g}")
    return result


def _get(source: Any, key: str) -> Any:
    if not isinstance(source, Mapping) or key not in source:
        raise FieldError(f"{key} is missing")
    return source[key]
