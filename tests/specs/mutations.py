"""Shipped specs, spoilt: what a slip of the editor, a script or an enemy makes of them.

Unlike `strategies.broken_specs`, nothing is known of the result: it may even be a valid spec with
extreme values. Whatever it is, no command may answer with a traceback, hang or take much memory.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
import random
from collections.abc import Callable
from typing import Any

import yaml

import specs
from dpfedadamw import spec
from dpfedadamw.spec.vocabulary import types_of
from dpfedadamw.spec.yamltext import write
from tests.specs.strategies import fields

NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**18, 10**400,
    0.0, -0.0, 0.5, 1.0 - 2**-53, 1.0, 1.5, 1e-9, 1e-30, 1e-300, 5e-324, 1e3, 1e9, 1e30, 1e300,
    1.7976931348623157e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "x", "null", "true", "yes", "1e5", "1_000", "0x10", "12:30:00", "2026-01-01", "~", "*",
    "&a", "!!int 3", "…", "ε", "🙂" * 50, "\u202egnp.exe", "a\u0300" * 20, "\ud800", "\x00",
    "\x1b[2J", "a" * 5000, "/dev/zero", "../../etc/passwd", "~nosuch/x", "%s%n", "${HOME}", "{x}",
    "<<", "=",
)  # fmt: skip
# What YAML itself offers for mischief; put in place of a value.
FORMS = (
    "!!python/object/apply:os.system [echo]",
    "!!binary aGVsbG8=",
    "!!set {a, b}",
    "!!timestamp 2026-01-01",
    "!unknown 3",
    "&a [*a]",
    "*nowhere",
    "{<<: {a: 1}}",
    "? [a, b] : c",
    "|\n    text\n      more",
    ">-\n    text",
    '"\\ud800"',
    '"\\x00"',
    "'open",
    '"open',
    "[1, 2",
    "{a: 1",
    "- 3",
    "%TAG",
    "0o17",
    ".inf",
    ".NaN",
    "1e999",
    "9" * 5000,
    "-" * 3000,
    "[" * 3000,
    "{a: " * 3000,
    "[" * 30 + "]" * 30,
    "0." + "0" * 4000 + "1",
)


def mutated(rng: random.Random) -> tuple[str, bytes]:
    """One spoilt spec: what was done, for a failing test's message, and the file's bytes."""
    if rng.random() < 0.4:
        return extreme(rng)
    name = rng.choice(sorted(specs.spec_files()))
    text = specs.spec_files()[name].read_text(encoding="utf-8")
    done = [name]
    if rng.random() < 0.7:
        tree = yaml.safe_load(text)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
            how = rng.choice(_STRUCTURAL)
            done.append(f"{how.__name__} {how(tree, rng)}")
        text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=rng.random() < 0.5)
    raw = text.encode("utf-8", "surrogatepass")
    if len(done) == 1 or rng.random() < 0.2:
        way = rng.choice(_TEXTUAL)
        raw = way(raw, rng)
        done.append(way.__name__)
    return ", ".join(done), raw


def extreme(rng: random.Random) -> tuple[str, bytes]:
    """A shipped spec with values at the ends of what the schema allows, and anywhere between."""
    name = rng.choice(sorted(specs.spec_files()))
    mapping = spec.load(name).to_mapping()
    numeric = [
        (path, part)
        for path, part in fields(mapping)
        if types_of(part) & {"integer", "number"} and "const" not in part
    ]
    done = [name]
    for path, part in rng.sample(numeric, rng.choice((1, 1, 2, 3))):
        whole = "integer" in types_of(part)
        low = part.get("minimum", part.get("exclusiveMinimum"))
        high = part.get("maximum", part.get("exclusiveMaximum"))
        least = 1 if whole else rng.choice((1e-300, 1e-12, 1e-3))
        if rng.random() < 0.3:
            value = rng.choice((low, high, least))
        else:
            start, end = math.log(max(low, least)), math.log(max(high, least))
            value = min(max(math.exp(rng.uniform(start, end)), low), high)
        inner = functools.reduce(lambda part, key: part[key], path[:-1], mapping)
        inner[path[-1]] = int(value) if whole else float(value)
        done.append(f"{'.'.join(map(str, path))}={inner[path[-1]]!r}")
    return ", ".join(done), write(mapping).encode()


def _places(value: Any, found: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every (container, key) of a mapping."""
    found = [] if found is None else found
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        found.append((value, key))
        if isinstance(inner, dict | list):
            _places(inner, found)
    return found


def _anywhere(tree: dict[str, Any], rng: random.Random) -> tuple[Any, Any]:
    places = _places(tree)
    return rng.choice(places) if places else (tree, "version")


def number(tree: dict[str, Any], rng: random.Random) -> str:
    """An extreme number, most often where a number stood."""
    places = _places(tree)
    numeric = [
        (container, key)
        for container, key in places
        if isinstance(container[key], int | float) and not isinstance(container[key], bool)
    ]
    container, key = rng.choice(
        numeric if numeric and rng.random() < 0.8 else places or [(spec, "x")]
    )
    container[key] = rng.choice(NUMBERS)
    return f"{key}={container[key]!r:.40}"


def scaled(tree: dict[str, Any], rng: random.Random) -> str:
    """A number a few orders of magnitude away, which is often still valid."""
    places = [
        (container, key)
        for container, key in _places(tree)
        if isinstance(container[key], int | float) and not isinstance(container[key], bool)
    ]
    if not places:
        return "nothing"
    container, key = rng.choice(places)
    with contextlib.suppress(OverflowError, ValueError):
        value = container[key] * 10.0 ** rng.uniform(-8, 8)
        container[key] = int(value) if isinstance(container[key], int) else value
    return f"{key}={container[key]!r}"


def word(tree: dict[str, Any], rng: random.Random) -> str:
    """Any text, or one that stands elsewhere in the spec."""
    container, key = _anywhere(tree, rng)
    others = [one[name] for one, name in _places(tree) if isinstance(one[name], str)]
    container[key] = rng.choice([*TEXTS, *others])
    return f"{key}={container[key]!r:.40}"


def kind(tree: dict[str, Any], rng: random.Random) -> str:
    """A value of another type."""
    container, key = _anywhere(tree, rng)
    container[key] = rng.choice(
        [None, True, [], {}, [container[key]], {"name": container[key]}, str(container[key])]
    )
    return f"{key}={container[key]!r:.40}"


def dropped(tree: dict[str, Any], rng: random.Random) -> str:
    """A key or item less."""
    container, key = _anywhere(tree, rng)
    if isinstance(container, dict):
        container.pop(key, None)
    else:
        del container[key]
    return str(key)


def added(tree: dict[str, Any], rng: random.Random) -> str:
    """A key more: an unknown one, one of another section, or a misspelt one."""
    mappings = [tree, *(c[k] for c, k in _places(tree) if isinstance(c[k], dict))]
    target = rng.choice(mappings)
    known = [key for one in mappings for key in one]
    key = rng.choice([*TEXTS, *known, *(f"{one}s" for one in known), 3, None, True, 2.5])
    target[key] = rng.choice([*NUMBERS, *TEXTS, None, [], {}])
    return repr(key)[:40]


def swapped(tree: dict[str, Any], rng: random.Random) -> str:
    """Two values change places."""
    (one, first), (other, second) = _anywhere(tree, rng), _anywhere(tree, rng)
    values = copy.deepcopy(one[first]), copy.deepcopy(other[second])
    other[second], one[first] = values
    return f"{first} {second}"


def deep(tree: dict[str, Any], rng: random.Random) -> str:
    """A value wrapped many times."""
    container, key = _anywhere(tree, rng)
    depth = rng.choice((3, 19, 21, 60))
    for _ in range(depth):
        container[key] = rng.choice([lambda inner: [inner], lambda inner: {"a": inner}])(
            container[key]
        )
    return f"{key} {depth}"


def long(tree: dict[str, Any], rng: random.Random) -> str:
    """A list or text of many items."""
    container, key = _anywhere(tree, rng)
    container[key] = rng.choice([[1] * 2000, "a" * 30_000, {str(i): i for i in range(500)}])
    return str(key)


_STRUCTURAL: tuple[Callable[[dict[str, Any], random.Random], str], ...] = (
    number, number, number, scaled, scaled, word, kind, dropped, added, swapped, deep, long,
)  # fmt: skip


def flip(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 1, 4, 40))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def spliced(raw: bytes, rng: random.Random) -> bytes:
    """A piece of the file once more, elsewhere."""
    start = rng.randrange(len(raw))
    piece, at = raw[start : start + rng.randrange(1, 200)], rng.randrange(len(raw))
    return raw[:at] + piece + raw[at:]


def junk(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw))
    return raw[:at] + rng.randbytes(rng.randrange(1, 50)) + raw[at:]


def twice(raw: bytes, rng: random.Random) -> bytes:
    """A line, or all of it, a second time."""
    lines = raw.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    return rng.choice((b"".join([*lines[:at], lines[at], *lines[at:]]), raw + raw))


def form(raw: bytes, rng: random.Random) -> bytes:
    """A form of YAML in place of a value."""
    lines = raw.decode(errors="replace").splitlines()
    at = rng.choice([i for i, line in enumerate(lines) if ":" in line] or [0])
    lines[at] = f"{lines[at].partition(':')[0]}: {rng.choice(FORMS)}"
    return "\n".join(lines).encode()


def encoded(raw: bytes, rng: random.Random) -> bytes:
    text = raw.decode(errors="replace")
    how = rng.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1", "cp037", "json", "crlf"))
    if how == "json":
        try:
            return json.dumps(yaml.safe_load(text), default=str).encode()
        except (yaml.YAMLError, ValueError, TypeError):
            return raw
    if how == "crlf":
        return raw.replace(b"\n", b"\r\n")
    return text.encode(how, "replace")


_TEXTUAL: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip, cut, spliced, junk, twice, form, form, form, encoded,
)  # fmt: skip
