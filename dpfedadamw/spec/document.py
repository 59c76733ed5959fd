"""What was read from a spec: plain values, and the line and column of each."""

from __future__ import annotations

import copy
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from dpfedadamw.errors import SpecProblem

MAXIMUM_DEPTH = 20
# By these a spec means several runs, and says what is known of them.
SWEEP_KEYS = ("matrix", "seeds", "expected", "readings")
# By these keys of the section `tune` it does so too.
TUNE = "tune"
TUNE_KEYS = ("grid", "data", "seeds")

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Where a key or value stands.

    Attributes:
        source: The file, or the override.
        line: Counted from 1; None for an override.
        column: Counted from 1; None for an override.
    """

    source: str
    line: int | None = None
    column: int | None = None

    def problem(self, path: KeyPath, message: str) -> SpecProblem:
        """Return a problem at this place."""
        return SpecProblem(self.source, message, dotted(path), self.line, self.column)


@dataclass
class Document:
    """What was read, with places.

    Attributes:
        value: Dictionaries, lists, text, integers, finite floats, booleans and None.
        places: Of each value, by path; the place of a missing value is its nearest parent's.
        keys: Of each mapping key, by path.
        problems: What could not be read.
        unreadable: Paths of the values that stand for something unreadable.
    """

    value: Any
    places: dict[KeyPath, Place]
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[SpecProblem] = field(default_factory=list)
    unreadable: set[KeyPath] = field(default_factory=set)

    def copy(self) -> Document:
        """Return a document that can be changed by itself; places never change, and are shared."""
        return Document(
            copy.deepcopy(self.value),
            dict(self.places),
            dict(self.keys),
            list(self.problems),
            set(self.unreadable),
        )

    def at(self, path: KeyPath) -> Any:
        """Return the value at a path of keys; None where there is none."""
        found = self.value
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def place(self, path: KeyPath, key: bool = False) -> Place:
        """Return the place of a value (of its key with `key`), or that of its nearest parent."""
        if not key and path in self.places:
            return self.places[path]
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys[path] if path else self.places[()]


def dotted(path: KeyPath) -> str:
    """Write a path as `algorithm.second_moment.floor` or `model.hidden[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + one_line(part)
    return text


def one_line(text: str, limit: int = 60) -> str:
    """Cut text to `limit` characters and escape what does not print, so that it fits a message."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else escape(c) for c in cut)


def bad_character(text: str) -> str | None:
    """Return why text cannot stand in a spec (a control character or half a pair), or None."""
    for character in text:
        if character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cs"):
            return f"the character U+{ord(character):04X} is not text; leave it out"
    return None


def escape(character: str) -> str:
    """Write a character as an escape of YAML's double quotes."""
    code = ord(character)
    if character in "\n\t\r":
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[character]
    return (
        f"\\x{code:02X}" if code < 256 else f"\\u{code:04X}" if code < 65536 else f"\\U{code:08X}"
    )
