"""A spec as YAML: read into plain values with a line and a column for each, and written.

The first half of reading a spec: text in, a `Document` out. A deliberately small part of YAML is
accepted, because a spec is signed evidence and must mean the same to every reader: no aliases, no
tags, no duplicate keys, no infinities, and no words that only some YAML versions take for booleans.
"""

from __future__ import annotations

import functools
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec.document import (
    MAXIMUM_DEPTH,
    Document,
    KeyPath,
    Place,
    bad_character,
    escape,
    one_line,
)

MAXIMUM_BYTES = 2**20
# A spec has about a hundred values; the limit keeps a hostile file from costing minutes.
MAXIMUM_NODES = 20_000
_LONGEST_NUMBER = 400
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# What YAML's own messages leave unsaid.
_HINTS = {
    "mapping values are not allowed here": "check the indentation; text with ': ' needs quotes",
    "could not find expected ':'": "every key needs a colon and a space after it",
    "expected <block end>": "check the indentation of this line and the one above",
    "found character '%'": "text that starts with % needs quotes",
    "found character '@'": "text that starts with @ needs quotes",
    "found character '`'": "text that starts with ` needs quotes",
    "found unexpected end of stream": "a quote is not closed",
}


def read_file(path: Path) -> str:
    """Read a spec file's text.

    Raises:
        SpecError: If the path is not a readable, regular UTF-8 file of at most 1 MiB, or a link.
    """
    source = one_line(str(path), 200)
    try:
        # Non-blocking, so that a named pipe is refused instead of waited for.
        descriptor = os.open(path, _READ)
        with os.fdopen(descriptor, "rb") as stream:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
                raise _refusal(source, f"this is {what}; give a YAML file")
            content = stream.read(MAXIMUM_BYTES + 1)
    except IsADirectoryError:
        raise _refusal(source, "this is a directory; give a YAML file") from None
    except (OSError, ValueError) as error:
        if path.is_symlink():
            # It may have come with a folder of somebody else's, and messages quote what they read.
            raise _refusal(source, "this is a link; give the file itself") from None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _refusal(source, f"cannot be read ({reason}); give a YAML file") from None
    return decode(content, source)


def decode(content: bytes, source: str) -> str:
    """Turn a spec's bytes into text.

    Raises:
        SpecError: If there are more than 1 MiB, or they are not UTF-8.
    """
    if len(content) > MAXIMUM_BYTES:
        raise _refusal(source, "the file is larger than 1 MiB; a spec has a few kilobytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"the byte 0x{content[error.start]:02X} is not UTF-8; save the file as UTF-8"
        raise SpecError([Place(source, line, column).problem((), message)]) from None


def parse(text: str, source: str) -> Document:
    """Parse YAML text.

    Args:
        text: One YAML document.
        source: What to call it in messages.

    Returns:
        The document; its `problems` say what is refused but does not hinder reading on.

    Raises:
        SpecError: If the text cannot be read to its end.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAXIMUM_BYTES:
        raise _refusal(source, "the text is larger than 1 MiB; a spec has a few kilobytes")
    for index, character in enumerate(text):
        if character == "\t":
            reason: str | None = "a tab; YAML is indented with spaces: replace tabs with spaces"
        elif character == "\r" or character.isprintable():
            continue
        else:
            reason = bad_character(character)
        if reason:
            line = text.count("\n", 0, index) + 1
            column = index - (text.rfind("\n", 0, index) + 1) + 1
            raise SpecError([Place(source, line, column).problem((), reason)])
    builder = _Builder(text, source)
    try:
        return builder.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = one_line((error.problem or "syntax error").replace("\\t", "tab"), 120)
        hint = next((hint for start, hint in _HINTS.items() if problem.startswith(start)), "")
        message = f"this is not YAML: {problem}" + (f"; {hint}" if hint else "")
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source, 1, 1)
        raise SpecError([*builder.problems, place.problem((), message)]) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # PyYAML lets some bad escapes ("\UFFFFFFFF") through to chr().
        message = f"this is not YAML: {one_line(str(error), 120)}"
        raise SpecError([*builder.problems, Place(source, 1, 1).problem((), message)]) from None


class _StopError(Exception):
    """Reading on makes no sense."""


class _Builder:
    """Builds a document from YAML events, so that nothing is expanded before it is checked."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.problems: list[SpecProblem] = []
        self.places: dict[KeyPath, Place] = {}
        self.keys: dict[KeyPath, Place] = {}
        self.unreadable: set[KeyPath] = set()
        self.nodes = 0

    def document(self) -> Document:
        value: Any = None
        first = True
        try:
            for event in self.events:
                if not isinstance(event, yaml.DocumentStartEvent):
                    continue
                if not first:
                    self.refuse((), event, "a second document starts; a spec is one document")
                    break
                first = False
                value = self.node(next(self.events), ())
        except _StopError:
            self.unreadable.add(())
        self.places.setdefault((), Place(self.source, 1, 1))
        return Document(value, self.places, self.keys, self.problems, self.unreadable)

    def at(self, event: yaml.Event) -> Place:
        mark = event.start_mark
        assert mark is not None  # every event of a parser has one
        return Place(self.source, mark.line + 1, mark.column + 1)

    def refuse(self, path: KeyPath, event: yaml.Event, message: str) -> None:
        self.problems.append(self.at(event).problem(path, message))

    def node(self, event: yaml.Event, path: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > MAXIMUM_NODES:
            self.refuse((), event, f"more than {MAXIMUM_NODES} values; a spec has about a hundred")
            raise _StopError
        if len(path) > MAXIMUM_DEPTH:
            self.refuse((), event, f"nested deeper than {MAXIMUM_DEPTH} levels; a spec has five")
            raise _StopError
        self.places.setdefault(path, self.at(event))
        if isinstance(event, yaml.AliasEvent):
            name = one_line(event.anchor or "")
            self.refuse(path, event, f"aliases (*{name}) are not allowed; write the value out")
            self.unreadable.add(path)
            return None
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.anchor is not None:
            name = one_line(event.anchor)
            self.refuse(path, event, f"anchors (&{name}) are not allowed; write each value out")
        if event.tag is not None:
            tag = one_line(event.tag)
            self.refuse(path, event, f"tags ({tag}) are not allowed; leave the tag out")
            self.unreadable.add(path)
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(path)
        assert isinstance(event, yaml.ScalarEvent)
        return self.scalar(event, path)

    def sequence(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, len(items))))
        return items

    def mapping(self, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self.refuse(path, event, "a key must be a word, not a list, section or alias")
                self.skip(event)
                self.skip(next(self.events))
                continue
            key = event.value
            below = (*path, key)
            if key in values:
                line = self.keys[below].line
                self.refuse(below, event, f"the key is already on line {line}; keep one of them")
                self.node(next(self.events), below)
                continue
            self.keys[below] = self.at(event)
            if event.anchor is not None or event.tag is not None:
                self.refuse(below, event, "keys take no anchors and tags; write the key alone")
            if key == "<<":
                self.refuse(below, event, "merge keys (<<) are not allowed; write the values out")
                self.unreadable.add(below)
            values[key] = self.node(next(self.events), below)
        return values

    def skip(self, event: yaml.Event) -> None:
        """Pass over a node without building it."""
        depth = 0
        while True:
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return
            event = next(self.events)

    def scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> Any:
        if event.style is not None:
            value: Any = event.value
            reason = bad_character(event.value)
        else:
            value, reason = plain_value(event.value)
        if reason:
            self.refuse(path, event, reason)
            self.unreadable.add(path)
        return value


def plain_value(text: str) -> tuple[Any, str | None]:
    """Interpret an unquoted scalar, as YAML 1.2's core schema does, and with `1e-5` a number.

    Returns:
        The value, and why it is refused (None if it is not).
    """
    if _NULL.fullmatch(text):
        return None, None
    if _BOOLEAN.fullmatch(text):
        return text.lower() == "true", None
    if _NOT_FINITE.fullmatch(text):
        return text, f"{text} is not a finite number; give a finite one"
    integer = _INTEGER.fullmatch(text)
    if integer or _FLOAT.fullmatch(text):
        if len(text) > _LONGEST_NUMBER:
            return text, f"a number of {len(text)} characters; give at most {_LONGEST_NUMBER}"
        value = int(text) if integer else float(text)
        # A whole number beyond all floats is refused too; it would raise an error here.
        if not math.isfinite(float(text)):
            return text, f"{one_line(text)} is too large for a number; give a smaller one"
        return value, None
    return text, bad_character(text)


def _refusal(source: str, message: str) -> SpecError:
    return SpecError([SpecProblem(source, message)])


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


def counted(value: Any) -> int:
    """How many values a text of `write` has, as `parse` counts them."""
    if isinstance(value, Mapping):
        return 1 + sum(counted(one) for one in value.values())
    return 1 + sum(counted(one) for one in value) if isinstance(value, (list, tuple)) else 1


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
