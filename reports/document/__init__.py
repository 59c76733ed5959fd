"""A whole document as data: what both the PDF and the HTML page show, and nothing else is shown.

`run` makes one from a report, `comparison` from a comparison; `pdf` and `html` render it. That the
two say the same is so because neither has words of its own beyond a few labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reports.document.blocks import Block

# What a renderer puts beside the texts that it is given.
WORDS = (
    "PASS", "FAIL", "NOT VERIFIED", "NOT AUDITED", "NO CLAIM", "NOT APPLICABLE", "Run",
    "Qualification", "Figure", "Setting", "Value", "The audit at a glance", "Contents",
    "Skip to the content", "Numbers of figure", "The guarantee in short", "Contradicted",
    "more rows are in the data beside this page.",
)  # fmt: skip
# As many rows of a figure as somebody would read on a page.
SHOWN_ROWS = 200
AUDIENCES_IN_WORDS = {
    "internal": "Internal: for the server’s operator and the auditor only",
    "public": "Public: tells nothing of who took part",
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
        reserved: Whether it has the colour of what is open: a PASS behind which little stands.
    """

    value: str
    statement: str
    alarming: bool
    level: str = ""
    reserved: bool = False


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
