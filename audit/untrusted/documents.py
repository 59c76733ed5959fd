"""JSON, YAML and printed text from hostile bytes: bounded, strict, and without surprises.

Every text file of a run is parsed through `parse_json` and `parse_yaml`. Both refuse duplicate keys
(two readers could disagree about which one counts), numbers that are not finite, and nesting beyond
a small depth; YAML also refuses anchors and aliases (exponential expansion). What is shown of a
text goes through `printable` or `steerless`, so that it cannot steer a terminal.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Hashable
from typing import Any

import yaml

from audit.untrusted import UntrustedError

# What steers a terminal or reorders what it shows: control and format characters but the joiners
# that Arabic and Indic words need, halves of pairs, and line ends other than
# the line feed.
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0001-\U000e007f]"
)


def steerless(text: str) -> str:
    """The text with "?" for every character that could steer a terminal; its lines stay."""
    return STEERING.sub("?", text)


def printable(text: str) -> str:
    """The text with "?" for every character that could steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


MAXIMUM_DEPTH = 32
# A resolved spec has a few thousand bytes; one of 1,900 columns has 270,000. PyYAML takes seconds
# for this many keys and values.
MAXIMUM_YAML_BYTES, MAXIMUM_YAML_NODES = 1 << 20, 40_000
# Python takes minutes for the longest number that a megabyte holds (1:1:1:… counts in sixties).
_LONGEST_YAML_NUMBER = 400
_YAML_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
# A text of JSON, which may lack its end, or a bracket outside of one.
_TOKENS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class DocumentError(UntrustedError):
    """A text that is not an acceptable JSON or YAML document; the message says why.

    Attributes:
        detail: what the parser said, or which key or number it was about.
        nested: whether it is only nested too deeply.
    """

    def __init__(self, what: str, detail: str = "", *, nested: bool = False) -> None:
        """Note the reason, and the parser's own words where they say more."""
        super().__init__(what)
        self.detail, self.nested = detail or what, nested


def parse_json(raw: bytes) -> Any:
    """Parse strict UTF-8 JSON.

    Raises:
        DocumentError: not UTF-8, not JSON, too deep, a duplicate key or a number that is not
            finite.
    """
    text = _decoded(raw)
    _check_depth(text)
    try:
        return _DECODER.decode(text)
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise DocumentError("is not valid JSON", str(error)) from error


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value over which ledger digests are computed."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8")


_SEPARATORS = ((None, (",", ":")), (None, (", ", ": ")), (2, (",", ": ")))


def is_plain_json(raw: bytes, value: Any) -> bool:
    """Whether bytes are what Python's writer makes of a value: compact, spaced or indented by two.

    Args:
        raw: the document, with or without the end of its last line.
        value: what was parsed from it.
    """
    return any(
        raw.removesuffix(b"\n")
        == json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only).encode(
            errors="surrogatepass"
        )
        for indent, separators in _SEPARATORS
        for ascii_only in (False, True)
    )


_TEXT_OF_JSON = re.compile(rb'"(?:[^"\\]|\\.)*"')
_LONGEST_NUMBER = 32


def is_tight_json(raw: bytes, value: Any) -> bool:
    """Whether bytes of any writer leave little room: short numbers, and no more than indentation.

    Args:
        raw: the document.
        value: what was parsed from it.
    """
    bare = _TEXT_OF_JSON.sub(b"", raw)
    words = re.split(rb"[\s,:\[\]{}]+", bare)
    spaces = len(re.findall(rb"\s", bare))
    # With four spaces a level, and a line's end of two bytes.
    indented = _TEXT_OF_JSON.sub(b"", json.dumps(value, indent=4).encode())
    most = len(re.findall(rb"\s", indented)) + indented.count(b"\n") + 2
    return spaces <= most and all(len(word) <= _LONGEST_NUMBER for word in words)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError("is not UTF-8 text", str(error)) from error


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAXIMUM_DEPTH:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in ("[", "{"):
            depth += 1
            if depth > MAXIMUM_DEPTH:
                raise _too_deep()
        elif token[0] in ("]", "}"):
            depth -= 1


def _too_deep() -> DocumentError:
    return DocumentError(f"is nested deeper than {MAXIMUM_DEPTH} levels", nested=True)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _duplicate(key)
        result[key] = value
    return result


def _duplicate(key: str) -> DocumentError:
    return DocumentError("has a duplicate key", f"the key {key[:60]!r} appears twice")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise DocumentError("has a number that is not finite")
    return number


def _integer(text: str) -> int:
    if len(text) > 20:
        raise _too_long()
    return int(text)


def _too_long() -> DocumentError:
    return DocumentError("has an integer of more than 20 digits")


def _refuse_constant(text: str) -> Any:
    raise DocumentError(f"has {text}, which is not a number", f"{text} is not a JSON number")


# One for all texts: a ledger has a text a line, and `json.loads` would make a decoder for each.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_float=_finite,
    parse_int=_integer,
    parse_constant=_refuse_constant,
)

_YAML_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader without aliases, deep nesting or duplicate keys; 1e-5 is read as a number.

    Each event is checked as it is taken, before anything is made of it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0

    def get_event(self) -> yaml.Event:
        # types-PyYAML leaves this method without types.
        event: yaml.Event = super().get_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise DocumentError(
                "has an anchor or alias, which is refused", "aliases are not accepted"
            )
        if isinstance(event, yaml.NodeEvent):
            self._nodes += 1
            if self._nodes > MAXIMUM_YAML_NODES:
                raise DocumentError(f"has more than {MAXIMUM_YAML_NODES} keys and values")
        if isinstance(event, yaml.CollectionStartEvent):
            self._depth += 1
            if self._depth > MAXIMUM_DEPTH:
                raise _too_deep()
        elif isinstance(event, yaml.CollectionEndEvent):
            self._depth -= 1
        return event

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        if any(not isinstance(key, str) for key in keys):
            raise DocumentError("has a key that is not text")
        if len(set(keys)) != len(keys):
            raise _duplicate(Counter(keys).most_common(1)[0][0])
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: Any) -> Any:
        if node.tag in _YAML_NUMBERS and len(node.value) > _LONGEST_YAML_NUMBER:
            raise DocumentError(f"has a number of more than {_LONGEST_YAML_NUMBER} characters")
        return super().construct_scalar(node)


_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _YAML_FLOAT, list("-+.0123456789"))


def parse_yaml(raw: bytes) -> Any:
    """Parse one YAML document of plain mappings, lists, texts and numbers.

    Raises:
        DocumentError: too long, not UTF-8, not YAML, an anchor or alias, a duplicate key, too deep,
            or a number that is too long or not finite.
    """
    if len(raw) > MAXIMUM_YAML_BYTES:
        raise DocumentError(f"is larger than {MAXIMUM_YAML_BYTES} bytes")
    # A caller may change what it gets.
    return copy.deepcopy(_parsed_yaml(raw))


# Auditing, signing and reporting read one spec many times, and PyYAML takes some 10 ms for it.
@functools.lru_cache(maxsize=8)
def _parsed_yaml(raw: bytes) -> Any:
    text = _decoded(raw)
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except DocumentError:
        raise
    except (
        yaml.YAMLError,
        ArithmeticError,
        ValueError,
        RecursionError,
        AttributeError,
        TypeError,
    ) as error:
        raise DocumentError("is not valid YAML", str(error).partition("\n")[0]) from error
    _check_finite(value)
    return value


def _check_finite(value: Any) -> None:
    if isinstance(value, dict):
        for item in value.values():
            _check_finite(item)
    elif isinstance(value, list):
        for item in value:
            _check_finite(item)
    elif isinstance(value, float) and not math.isfinite(value):
        raise DocumentError("has a number that is not finite")
    elif isinstance(value, int) and abs(value) >= 10**20:
        # Written in hexadecimal it may have more digits than Python prints.
        raise _too_long()
