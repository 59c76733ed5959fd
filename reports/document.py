"""A whole document as data: what both the PDF and the HTML page show, and nothing else is shown.

`render.pages` makes one from a report, an extension from a comparison; `pdf` and `html` render it.
That the two say the same is so because neither has words of its own beyond a few labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Span = str | dict[str, str]
Text = str | list[Span]
Block = dict[str, Any]

LEFT, RIGHT = "left", "right"


def strong(text: str) -> dict[str, str]:
    """Return a span in bold."""
    return {"strong": text}


def code(text: str) -> dict[str, str]:
    """Return a span of fixed width, such as a digest."""
    return {"code": text}


def badge(verdict: str) -> dict[str, str]:
    """Return a verdict on its colour; the word itself always stands there too."""
    return {"badge": verdict}


def paragraph(text: Text, style: str = "plain") -> Block:
    """Return a paragraph; style is "plain", "quote" or "small". Empty lines part paragraphs."""
    return {"kind": "paragraph", "text": text, "style": style}


def subheading(text: str) -> Block:
    """Return a heading below a section's."""
    return {"kind": "subheading", "text": text}


def note(text: Text, tone: str, *, loud: bool = False) -> Block:
    """Return a text with a rule in the colour of a verdict; loud: in that colour itself."""
    return {"kind": "note", "text": text, "tone": tone, "loud": loud}


def bullets(items: Sequence[Text], *, ordered: bool = False) -> Block:
    """Return a list."""
    return {"kind": "list", "items": list(items), "ordered": ordered}


def titled(entries: Sequence[tuple[str, str]]) -> Block:
    """Return short texts, each under a title of its own."""
    items = [{"title": title, "text": text} for title, text in entries]
    return {"kind": "titled", "items": items}


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Text]],
    align: Sequence[str],
    widths: Sequence[float] | None = None,
    *,
    small: bool = False,
) -> Block:
    """Return a table.

    Args:
        caption: What it holds, for those who cannot see it.
        head: Column names.
        rows: Cells, as many as `head` has.
        align: "left" or "right" for each column.
        widths: Share of the free width of each column, 0 for as wide as its content; all alike if
            left out.
        small: Whether it is set in smaller type.
    """
    return {
        "kind": "table",
        "caption": caption,
        "head": list(head),
        "rows": [list(row) for row in rows],
        "align": list(align),
        "widths": list(widths) if widths is not None else [1.0] * len(head),
        "small": small,
    }


def settings(caption: str, rows: Sequence[tuple[str, Text]]) -> Block:
    """Return names and values."""
    return {"kind": "settings", "caption": caption, "rows": [list(row) for row in rows]}


def figure(identifier: str) -> Block:
    """Return the place of a figure; its words and drawing are the document's."""
    return {"kind": "figure", "identifier": identifier}


def tree(caption: str, root: dict[str, Any]) -> Block:
    """Return a tree of texts, each with its children."""
    return {"kind": "tree", "caption": caption, "root": root}


def scale(
    bands: Sequence[tuple[str, float]],
    ticks: Sequence[tuple[str, float]],
    marks: Sequence[tuple[str, float, float]],
    here: tuple[str, float],
    text: str,
    alt: str,
) -> Block:
    """Return a scale on which a value stands, and what follows from it in words.

    Args:
        bands: Name of each band, and where it ends, as a share of the scale's width.
        ticks: Numbers below it, and where they stand.
        marks: Label of each known value, and from where to where it reaches.
        here: Label of the value, and where it stands.
        text: What follows.
        alt: All that is drawn, for those who cannot see it.
    """
    return {
        "kind": "scale",
        "alt": alt,
        "bands": [list(band) for band in bands],
        "ticks": [list(tick) for tick in ticks],
        "marks": [list(mark) for mark in marks],
        "here": list(here),
        "text": text,
    }


def check_list(items: Sequence[dict[str, Any]]) -> Block:
    """Return findings of the audit: title, severity, verdict, and parts of name and text."""
    return {"kind": "checks", "items": list(items)}


def fields(items: Sequence[tuple[str, str]]) -> Block:
    """Return what people stated: a label and a text each."""
    return {"kind": "fields", "items": [[label, text] for label, text in items]}


def blank(labels: Sequence[str]) -> Block:
    """Return boxes for people to fill in, each under its label."""
    return {"kind": "blank", "labels": list(labels)}


# What a renderer puts beside the texts that it is given.
WORDS = (
    "PASS", "FAIL", "NOT VERIFIED", "NOT AUDITED", "NO CLAIM", "NOT APPLICABLE", "Run",
    "Qualification", "Figure", "Setting", "Value", "The audit at a glance", "Contents",
    "Skip to the content", "Numbers of figure", "The guarantee in short", "Contradicted",
    "more rows are in this page's data file.",
)  # fmt: skip
# As many rows of a figure as somebody would read on a page.
SHOWN_ROWS = 200
AUDIENCES_IN_WORDS = {
    "internal": "Internal: for the operator, the auditor and the privacy officer only",
    "public": "Public: does not reveal who took part",
}


@dataclass(frozen=True)
class Section:
    """A part.

    Attributes:
        identifier: Anchor, unique in the document.
        title: Heading.
        blocks: Content.
    """

    identifier: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Band:
    """The verdict, as the first thing that is seen.

    Attributes:
        value: Such as PASS or FAIL.
        statement: What it means.
        alarming: Whether it stands above the title, on full colour.
        level: How much stands behind it, in words; empty where that has no level.
        reserved: Whether nothing is shown in green: a PASS of level 1, a run whose noise can be
            drawn again, or one without a claim.
        warning: What is to be read before the verdict, or empty.
    """

    value: str
    statement: str
    alarming: bool
    level: str = ""
    reserved: bool = False
    warning: str = ""


@dataclass(frozen=True)
class Claim:
    """The guarantee on the first page.

    Attributes:
        headline: A large text above it, or empty.
        statement: The promise in plain words.
        numbers: Label and value of each large number; none where there is no guarantee to number.
    """

    headline: str
    statement: str
    numbers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        identifier: File stem.
        title: Heading.
        caption: What to read off it.
        alternative_text: The figure in words.
        head: Column names of its numbers.
        rows: Its numbers as text, at most as many as a reader may want to see.
        omitted: How many rows are left out here; the embedded file has all.
        drawing: SVG.
        data: All its numbers as CSV, or empty.
    """

    identifier: str
    title: str
    caption: str
    alternative_text: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    omitted: int
    drawing: bytes = b""
    data: bytes = b""


@dataclass(frozen=True)
class Document:
    """Everything that is shown.

    Attributes:
        title: The experiment's name.
        label: Kind of document, such as "Privacy report".
        audience: For whom, in words.
        description: For the file's metadata, a sentence or two.
        keywords: For the file's metadata.
        identifier: The run's identifier, or empty.
        created: ISO 8601 UTC time, or empty.
        date: The time in words.
        paper: Of the PDF: "a4" or "letter".
        band: The verdict, or None.
        qualifications: What limits the verdict, or the use of the model.
        introduction: A short description, or empty.
        claim: The guarantee, or None.
        front: Parts of the first two pages, without numbers.
        summary: Two columns below them, each a heading and blocks.
        glance: Verdict and title of each check.
        sections: The numbered parts.
        pictures: Figures by identifier.
        footer: What stands on every page.
        attachment: Name of the embedded data.
        data: The embedded data.
        language: Of the texts: "en", "de" or "fr".
        subject: What was trained, for what, on whose data, and who answers: name and text.
        words: What the renderers say themselves, by the English for it.
    """

    title: str
    label: str
    audience: str
    description: str
    keywords: tuple[str, ...]
    identifier: str
    created: str
    date: str
    paper: str
    band: Band | None
    qualifications: tuple[str, ...]
    introduction: str
    claim: Claim | None
    front: tuple[Section, ...]
    summary: tuple[tuple[str, tuple[Block, ...]], ...]
    glance: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    pictures: Mapping[str, Picture]
    footer: str
    attachment: str
    data: bytes = field(repr=False)
    language: str = "en"
    subject: tuple[tuple[str, Text], ...] = ()
    words: Mapping[str, str] = field(default_factory=lambda: {word: word for word in WORDS})

    def as_dict(self) -> dict[str, Any]:
        """Return everything but drawings and files, as JSON types."""
        found = asdict(self)
        del found["data"]
        for picture in found["pictures"].values():
            del picture["drawing"], picture["data"]
            del picture["rows"]
        return found


def number_of(sections: Sequence[Section], identifier: str) -> int:
    """Return the number of a section, from 1."""
    return 1 + [section.identifier for section in sections].index(identifier)


def ended(text: str) -> str:
    """Return a text that ends as a sentence does."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter, unless it begins with a file's name."""
    first = text.split(" ", 1)[0].rstrip(".,:;")
    return text if "." in first or "_" in first else text[:1].upper() + text[1:]
