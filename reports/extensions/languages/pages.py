"""Puts a document into the language that its report is to be in.

Every text of the document is looked up in the one table (`table`): what stands on the
first two pages, headings, heads of tables, verdicts, the checks' short names, and the labels of
governance. What has no text there stays English, is marked as English for screen readers, and is
said so in a line before the numbered sections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reports.document import Band, Block, Claim, Document, Picture, Section, Text, paragraph
from reports.extensions.languages import remains_english, translate
from reports.formatting import Language
from reports.render.pages import date_in_words, moment_of

_ENGLISH = "en"


def translated(shown: Document, language: Language) -> Document:
    """Return a document in another language than English, which it is made in."""
    words = _Words(language)
    sections = tuple(map(words.section, shown.sections))
    if sections:
        note = paragraph(remains_english(language), "small")
        sections = (replace(sections[0], blocks=(note, *sections[0].blocks)), *sections[1:])
    return replace(
        shown,
        language=language,
        date=words.date(shown),
        words={name: words.text(text) for name, text in shown.words.items()},
        label=words.text(shown.label),
        audience=words.text(shown.audience),
        band=words.band(shown.band),
        qualifications=tuple(map(words.text, shown.qualifications)),
        subject=tuple((words.text(name), words.rich(value)) for name, value in shown.subject),
        claim=words.claim(shown.claim),
        front=tuple(map(words.section, shown.front)),
        summary=tuple(
            (words.text(title), tuple(map(words.block, given))) for title, given in shown.summary
        ),
        glance=tuple((verdict, words.text(title)) for verdict, title in shown.glance),
        sections=sections,
        pictures={name: words.picture(one) for name, one in shown.pictures.items()},
        footer=words.text(shown.footer),
    )


class _Words:
    """Finds texts in the table, and leaves what is not there as it is."""

    def __init__(self, language: Language) -> None:
        """Take the language."""
        self.language = language

    def text(self, text: str) -> str:
        """Return a text, in English where the table lacks it."""
        found = translate(text, self.language)
        return text if found is None else found

    def date(self, shown: Document) -> str:
        """Return when the run began."""
        stated = moment_of(shown.created) is not None
        return date_in_words(shown.created, self.language) if stated else self.text(shown.date)

    def rich(self, text: Text) -> Text:
        """Return a text of several spans."""
        if isinstance(text, str):
            return self.text(text)
        return [self._span(span) for span in text]

    def _span(self, span: str | dict[str, str]) -> str | dict[str, str]:
        if isinstance(span, str):
            return self.text(span)
        # Codes are names, and badges are looked up by their verdict where they are drawn.
        return {kind: self.text(text) if kind == "strong" else text for kind, text in span.items()}

    def _is_known(self, text: Text) -> bool:
        """Return whether all of a text is in the table."""
        spans = [text] if isinstance(text, str) else text
        return all(
            translate(span if isinstance(span, str) else span.get("strong", ""), self.language)
            is not None
            for span in spans
        )

    def band(self, band: Band | None) -> Band | None:
        """Return the verdict; its value names a colour and stays."""
        if band is None:
            return None
        return replace(
            band,
            statement=self.text(band.statement),
            level=self.text(band.level),
            warning=self.text(band.warning),
        )

    def claim(self, claim: Claim | None) -> Claim | None:
        """Return the promise with its large numbers."""
        if claim is None:
            return None
        numbers = tuple((self.text(name), self.text(value)) for name, value in claim.numbers)
        return Claim(self.text(claim.headline), self.text(claim.statement), numbers)

    def section(self, section: Section) -> Section:
        """Return a section."""
        blocks = tuple(map(self.block, section.blocks))
        return Section(section.identifier, self.text(section.title), blocks)

    def picture(self, picture: Picture) -> Picture:
        """Return a figure's heading; its other words are of the numbered sections."""
        return replace(picture, title=self.text(picture.title))

    def block(self, given: Block) -> Block:
        """Return a block; one with a text that stays English says so."""
        made, texts = self._block(given)
        if all(map(self._is_known, texts)):
            return made
        return {**made, "language": _ENGLISH}

    def _block(self, given: Block) -> tuple[Block, list[Text]]:
        """Return a block in the language, and which of its texts are to be read aloud as prose."""
        kind = given["kind"]
        if kind in ("paragraph", "subheading", "note"):
            return {**given, "text": self.rich(given["text"])}, [given["text"]]
        if kind == "list":
            return {**given, "items": [self.rich(item) for item in given["items"]]}, given["items"]
        if kind == "titled":
            items = [
                {"title": self.text(one["title"]), "text": self.text(one["text"])}
                for one in given["items"]
            ]
            return {**given, "items": items}, [one["text"] for one in given["items"]]
        if kind == "table":
            rows = [[self.rich(cell) for cell in row] for row in given["rows"]]
            head = [self.text(name) for name in given["head"]]
            return {**given, "caption": self.text(given["caption"]), "head": head, "rows": rows}, []
        if kind == "settings":
            rows = [[self.text(name), self.rich(value)] for name, value in given["rows"]]
            return {**given, "rows": rows}, []
        if kind == "fields":
            return {
                **given, "items": [[self.text(label), text] for label, text in given["items"]]
            }, []  # fmt: skip
        if kind == "tree":
            return {**given, "caption": self.text(given["caption"])}, []
        if kind == "scale":
            return self._scale(given), [given["text"]]
        if kind == "checks":
            said = [text for one in given["items"] for _, text in one["parts"]]
            return {**given, "items": [self._check(one) for one in given["items"]]}, said
        return given, []

    def _scale(self, given: Block) -> Block:
        here, at = given["here"]
        return {
            **given,
            "bands": [(self.text(name), end) for name, end in given["bands"]],
            "marks": [(self.text(name), low, high) for name, low, high in given["marks"]],
            "here": (self.text(here), at),
            "ticks": [(self.text(name), at) for name, at in given["ticks"]],
            "text": self.text(given["text"]),
            "alt": self.text(given["alt"]),
        }

    def _check(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {
            **entry,
            "title": self.text(entry["title"]),
            "severity": self.text(entry["severity"]),
            "parts": [(self.text(name), text) for name, text in entry["parts"]],
        }
