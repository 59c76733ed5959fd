"""The pieces that a page is made of, as plain JSON: what typst sets and what a browser shows.

A text is a string or a list of spans; a span is a string or a mapping with one key: `strong`,
`code` or `badge`. Nothing in a text is markup: both renderers place strings as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Return a text beside a line in the colour of a verdict; loud: in that colour itself."""
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
    marks: Sequence[tuple[str, float, float]],
    here: tuple[str, float],
    text: str,
) -> Block:
    """Return a scale on which a value stands, and the same in words.

    Args:
        bands: Name of each band, and where it ends, as a share of the scale's width.
        marks: Label of each known value, and from where to where it reaches.
        here: Label of the value, and where it stands.
        text: The same in words; the drawing is for the eye alone.
    """
    return {
        "kind": "scale",
        "bands": [list(band) for band in bands],
        "marks": [list(mark) for mark in marks],
        "here": list(here),
        "text": text,
    }


def checks(items: Sequence[dict[str, Any]]) -> Block:
    """Return findings of the audit: title, severity, verdict, and parts of name and text."""
    return {"kind": "checks", "items": list(items)}


def fields(items: Sequence[tuple[str, str]]) -> Block:
    """Return what people stated: a label and a text each."""
    return {"kind": "fields", "items": [[label, text] for label, text in items]}


def blank(labels: Sequence[str]) -> Block:
    """Return boxes for people to fill in, each under its label."""
    return {"kind": "blank", "labels": list(labels)}
