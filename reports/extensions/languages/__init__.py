"""The pages of a report in another language than English: texts from one table, numbers as written.

texts.json is the table: what a report says on its pages, in English, German and French, by the part
of the pages. The English text is the key: it is what the report's parts say, with {fields} for what
differs from run to run. A field holds a number, a name, or another text of the table.

The report's parts speak English, and so do its data. What `translate` is given are finished English
texts; it finds the text of the table that they are made of, puts that into the other language, and
its fields with it. A text that the table lacks comes back as None, and stays English.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import NamedTuple

from reports.formatting import WRITING, Language

_FIELD = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\d+")
# A number as a report prints it: with a power of ten, a percent sign, or a sign before it.
_PRINTED = re.compile(
    r"[±+\-−≈]?\s?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:·10[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)?(?:\s?%)?|10[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+"
)
_SENTENCES = re.compile(r"(?<=[.!?])\s(?=[A-ZÀ-Ý“])")
_DEPTH = 6
_LONGEST = 2000
_LOOK_UPS = 500


# Said where a language is not English, and in that language alone.
_REMAINS_ENGLISH = "what remains English"


class Text(NamedTuple):
    """One text in every language.

    Attributes:
        en: English, as the report's parts say it.
        de: German.
        fr: French.
    """

    en: str
    de: str
    fr: str


@functools.cache
def _parts() -> Mapping[str, tuple[Text, ...]]:
    """Return the texts by the part of the pages that says them."""
    table = json.loads(resources.files(__package__).joinpath("texts.json").read_text("utf-8"))
    return {part: tuple(Text(**row) for row in rows) for part, rows in table.items()}


def texts() -> tuple[Text, ...]:
    """Return all texts that the report's parts say."""
    said = (rows for part, rows in _parts().items() if part != _REMAINS_ENGLISH)
    return tuple(text for rows in said for text in rows)


@dataclass(frozen=True)
class _Pattern:
    """A text with fields, ready to be looked for.

    Attributes:
        text: The text.
        names: Its fields.
        parts: Its English before, between and after them.
    """

    text: Text
    names: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def weight(self) -> int:
        """How many letters it has outside of its fields: the most telling is tried first."""
        return sum(map(len, self.parts))

    def fields_of(self, text: str) -> dict[str, str] | None:
        """Return what a text has in the fields, the first as short as can be; None if it differs.

        Each part is looked for once, whatever the text: a regular expression tries all places.
        """
        first, *between, last = self.parts
        end = len(text) - len(last)
        if not (text.startswith(first) and text.endswith(last)):
            return None
        start, found = len(first), []
        for part in between:
            place = text.find(part, start + 1, end)
            if place < 0:
                return None
            found.append(text[start:place])
            start = place + len(part)
        if start >= end:
            return None
        return dict(zip(self.names, (*found, text[start:end]), strict=True))


@functools.cache
def _whole() -> Mapping[str, Text]:
    return {text.en: text for text in texts() if not _FIELD.search(text.en)}


@functools.cache
def _patterns() -> tuple[_Pattern, ...]:
    found = []
    for text in texts():
        if not _FIELD.search(text.en):
            continue
        parts = _FIELD.split(text.en)
        found.append(_Pattern(text, tuple(parts[1::2]), tuple(parts[::2])))
    return tuple(sorted(found, key=lambda one: -one.weight))


def remains_english(language: Language) -> str:
    """Return the line that says what is not translated; empty in English."""
    return "" if language == "en" else str(getattr(_parts()[_REMAINS_ENGLISH][0], language))


def translate(text: str, language: Language) -> str | None:
    """Return an English text of the pages in another language, or None where the table lacks it.

    A text that is longer than any of the table's, or needs more look-ups, is a stranger's: None.

    Args:
        text: One text, or several sentences that stand one after the other.
        language: Into which.
    """
    if language == "en" or not text.strip():
        return text
    if len(text) > _LONGEST:
        return None
    try:
        return _Search(language).translate(text, 0)
    except _TooMuchError:
        return None


def number(text: str, language: Language) -> str | None:
    """Return a printed number as a language writes it; None where it is no number alone."""
    if not _PRINTED.fullmatch(text):
        return None
    writing = WRITING[language]

    def written(found: re.Match[str]) -> str:
        swapped = found[0].replace(",", "\0").replace(".", writing.decimal)
        return swapped.replace("\0", writing.thousands)

    return _NUMBER.sub(written, text)


# Fields that are names or digests, and stay as they are; all others are texts or numbers.
_NAMES = frozenset({"auditor", "trainer", "file", "name"})


class _TooMuchError(Exception):
    """A text needs more look-ups than any of a report does."""


@dataclass
class _Search:
    """The way of one text through the table.

    Attributes:
        language: Into which.
        left: How many look-ups are left.
        known: What was found of a text at a depth.
    """

    language: Language
    left: int = _LOOK_UPS
    known: dict[tuple[str, int], str | None] = field(default_factory=dict)

    def translate(self, text: str, depth: int) -> str | None:
        """Return a text in the language; None where the table lacks it.

        Raises:
            _TooMuchError: No look-up is left.
        """
        if depth > _DEPTH:
            return None
        if (text, depth) not in self.known:
            if self.left == 0:
                raise _TooMuchError
            self.left -= 1
            self.known[text, depth] = self._looked_up(text, depth)
        return self.known[text, depth]

    def _looked_up(self, text: str, depth: int) -> str | None:
        language = self.language
        known = _whole().get(text)
        if known is not None:
            return str(getattr(known, language))
        # A text that stands behind a colon begins small, and the same text elsewhere does not.
        capital = _whole().get(text[:1].upper() + text[1:])
        if capital is not None:
            found = str(getattr(capital, language))
            return found[:1].lower() + found[1:]
        small = _whole().get(text[:1].lower() + text[1:])
        if small is not None:
            found = str(getattr(small, language))
            return found[:1].upper() + found[1:]
        as_number = number(text, language)
        if as_number is not None:
            return as_number
        for candidate in dict.fromkeys((text, text[:1].upper() + text[1:])):
            for one in _patterns():
                fields = one.fields_of(candidate)
                if fields is None:
                    continue
                made = self._filled(one.text, fields, depth)
                if made is not None:
                    return made[:1].lower() + made[1:] if candidate != text else made
        if depth < _DEPTH and not text.endswith("."):
            ended = _whole().get(f"{text}.")
            if ended is not None:
                return str(getattr(ended, language)).removesuffix(".")
        sentences = _SENTENCES.split(text)
        if len(sentences) < 2:
            return None
        each = [self.translate(sentence, depth + 1) for sentence in sentences]
        if any(one is None for one in each):
            return None
        return " ".join(one for one in each if one is not None)

    def _filled(self, text: Text, fields: Mapping[str, str], depth: int) -> str | None:
        """Return a text with its fields in another language; None where one of them has no text."""
        made = {}
        for name, value in fields.items():
            found = value if name in _NAMES else self.translate(value, depth + 1)
            if found is None:
                return None
            made[name] = found
        return _FIELD.sub(lambda field: made[field[1]], str(getattr(text, self.language)))
