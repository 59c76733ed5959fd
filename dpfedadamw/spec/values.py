"""What a check of several keys together reads: a spec's values, of which some may be bad.

Algorithms, models and data sets are registered with such a check of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dpfedadamw.spec.document import KeyPath, dotted

Contradictions = Iterator[tuple[KeyPath, str]]


class Values:
    """Resolved values of which some may be bad; a bad one reads as None.

    Attributes:
        bad: Paths of the values that are wrong by themselves, which was said already.

    Args:
        given: The spec as it was written.
        resolved: The spec with every default.
        bad: As above.
    """

    def __init__(self, given: Any, resolved: Any, bad: set[KeyPath]) -> None:
        self._given, self._resolved, self.bad = given, resolved, bad

    def __call__(self, *path: str | int) -> Any:
        """The value at a path; None where there is none, or it is bad."""
        if any(path[:length] in self.bad for length in range(len(path) + 1)):
            return None
        return _at(self._resolved, path)

    def shown(self, *path: str) -> str:
        """Path and value in words, for another key's message."""
        return f"{dotted(path)} is {self(*path)}{self._default(path)}"

    def found(self, *path: str) -> str:
        """The value in words, for the key's own message."""
        return f"found {self(*path)}{self._default(path)}"

    def is_bad(self, *path: str | int) -> bool:
        """Whether this very value is wrong by itself."""
        return path in self.bad

    def _default(self, path: KeyPath) -> str:
        return "" if _at(self._given, path) is not None else " (the default)"


Check = Callable[[Values], Contradictions]


def nothing_to_check(get: Values) -> Contradictions:
    """The check of what contradicts nothing."""
    del get
    yield from ()


def multiple_of(unit: int, value: int) -> str:
    """Say that a value must be a multiple, and which are near."""
    below = value - value % unit
    near = f"{below} or {below + unit}" if below else f"{unit}"
    return f"must be a multiple of {unit}, such as {near}"


def _at(value: Any, path: KeyPath) -> Any:
    for part in path:
        item = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if not item and not (isinstance(value, dict) and part in value):
            return None
        value = value[part]
    return value
