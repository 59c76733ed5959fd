"""Shows a document as one web page that needs no network and no script.

The same document as the PDF's, so the same words. Every text is escaped; figures stand inline as
SVG with title and description, and their numbers in a table below. A content security policy inside
the page forbids it everything but its own style.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any

from reports.document import Block, Document, Picture, Text, ended
from reports.formatting import WRITING

_MARKS = {
    "PASS": "✓",
    "FAIL": "✗",
    "NOT VERIFIED": "?",
    "NOT AUDITED": "?",
    "NO CLAIM": "–",
    "NOT APPLICABLE": "–",
}
_MORE = "more rows are in this page's data file."
# A table of more columns is set cell below cell on a small screen instead of being squeezed.
_NARROW = 3


def blocks(shown: Document, given: tuple[Block, ...]) -> str:
    """Return blocks one after the other.

    Args:
        shown: The document, which has the figures.
        given: The blocks.
    """
    return "\n".join(_spoken(shown, block) for block in given)


def _spoken(shown: Document, block: Block) -> str:
    """Return a block; one that is in another language than the page says so."""
    made = _block(shown, block)
    return f'<div lang="{block["language"]}">{made}</div>' if "language" in block else made


def _block(shown: Document, block: Block) -> str:
    kind = block["kind"]
    if kind == "paragraph":
        name = "" if block["style"] == "plain" else f' class="{escape(block["style"])}"'
        return f"<div{name}>{paragraphs(block['text'], shown.words)}</div>"
    if kind == "subheading":
        return f"<h3>{escape(block['text'])}</h3>"
    if kind == "note":
        loud = " loud" if block["loud"] else ""
        return (
            f'<p class="note{loud} {tone(block["tone"])}">{_rich(block["text"], shown.words)}</p>'
        )
    if kind == "list":
        tag = "ol" if block["ordered"] else "ul"
        items = "".join(f"<li>{_rich(item, shown.words)}</li>" for item in block["items"])
        return f"<{tag}>{items}</{tag}>"
    if kind == "titled":
        return "".join(
            f"<p><strong>{escape(entry['title'])}.</strong> {escape(entry['text'])}</p>"
            for entry in block["items"]
        )
    if kind == "table":
        return _table(
            block["caption"],
            block["head"],
            block["rows"],
            block["align"],
            small=block["small"],
            # One column of text beside three numbers needs no more room than three columns do.
            narrow=len(block["head"]) == _NARROW + 1 and sum(map(bool, block["widths"])) == 1,
            words=shown.words,
        )
    if kind == "settings":
        rows = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{_rich(value, shown.words)}</dd></div>"
            for name, value in block["rows"]
        )
        return f'<dl class="settings">{rows}</dl>'
    if kind == "figure":
        return _figure(shown, block["identifier"])
    if kind == "tree":
        root = _branch(block["root"])
        return f'<h4>{escape(block["caption"])}</h4><ul class="tree">{root}</ul>'
    if kind == "scale":
        return _scale(block)
    if kind == "checks":
        return "\n".join(_check(entry, shown.words) for entry in block["items"])
    if kind == "fields":
        return "".join(_field(label, text, shown.words) for label, text in block["items"])
    if kind == "blank":
        return "".join(
            f'<div class="field"><h3>{escape(label)}</h3><p class="blank"></p></div>'
            for label in block["labels"]
        )
    raise AssertionError(f"no such block: {kind}")


def _table(
    caption: str,
    head: list[str],
    rows: list[list[Text]],
    align: list[str],
    *,
    small: bool = False,
    narrow: bool = False,
    words: Mapping[str, str],
) -> str:
    def cell(value: Text, side: str, name: str) -> str:
        return f'<td class="{side}" data-name="{escape(name)}">{_rich(value, words)}</td>'

    body = "".join(f"<tr>{''.join(map(cell, row, align, head))}</tr>" for row in rows)
    top = "".join(
        f'<th class="{side}" scope="col">{escape(name)}</th>'
        for name, side in zip(head, align, strict=True)
    )
    kinds = ["wide"] * (len(head) > _NARROW and not narrow) + ["dense"] * small
    # On a small screen a wide table is set cell below cell, each with the name of its column.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="{" ".join(kinds)}">'
        f'<caption class="hidden">{escape(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _figure(shown: Document, identifier: str) -> str:
    picture = shown.pictures[identifier]
    number = 1 + list(shown.pictures).index(identifier)
    title = escape(ended(picture.title))
    more = f"<p>{picture.omitted} {escape(shown.words[_MORE])}</p>" if picture.omitted else ""
    figure, below = escape(shown.words["Figure"]), escape(shown.words["Numbers of figure"])
    numbers = _table(
        f"{shown.words['Numbers of figure']} {number}: {picture.title}",
        list(picture.head),
        [list(row) for row in picture.rows],
        ["left"] * len(picture.head),
        words=shown.words,
    )
    return (
        f'<figure id="figure-{identifier}"><div class="scroll paper" role="region" tabindex="0" '
        f'aria-label="{figure} {number}: {escape(picture.title)}">{_drawing(picture)}</div>'
        f"<figcaption>{figure} {number}. <strong>{title}</strong> {escape(picture.caption)}"
        f"</figcaption><details><summary>{below} {number}</summary>{numbers}{more}"
        "</details></figure>"
    )


def _drawing(picture: Picture) -> str:
    """Return the SVG for use inside a page: names of its own, and no style that leaves it."""
    source = picture.drawing.decode("utf-8")
    source = source[source.index("<svg") :]
    source = re.sub(r"<metadata>.*?</metadata>", "", source, flags=re.DOTALL)
    # matplotlib's style sheet addresses every element of the page.
    source = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", source, flags=re.DOTALL)
    prefix = f"{picture.identifier}-"
    source = re.sub(r'\bid="', f'id="{prefix}', source)
    source = re.sub(r'(?:xlink:)?href="#', f'href="#{prefix}', source)
    source = source.replace("url(#", f"url(#{prefix}")
    box = re.search(r'viewBox="[^"]*"', source)
    title, about = f"{prefix}title", f"{prefix}desc"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box[0] if box else ""} role="img" '
        f'aria-labelledby="{title} {about}" stroke-linejoin="round" stroke-linecap="butt">'
        f'<title id="{title}">{escape(picture.title)}</title>'
        f'<desc id="{about}">{escape(picture.alternative_text)}</desc>'
    )
    return opening + source[source.index(">") + 1 :].strip()


def _scale(block: Block) -> str:
    """Return a scale, which is one picture with a text in its place, and what follows from it."""

    def share(value: float) -> str:
        return f"{100 * value:.2f}%"

    starts = [0.0, *(end for _, end in block["bands"])]
    bands = "".join(
        f'<span class="part-{index}" style="width:{share(end - starts[index])}">{escape(name)}'
        "</span>"
        for index, (name, end) in enumerate(block["bands"])
    )
    ticks = "".join(
        f'<span style="left:{share(at)}">{escape(name)}</span>' for name, at in block["ticks"]
    )
    marks = "".join(
        f'<div class="known"><span style="margin-left:{share(low)};width:{share(high - low)}">'
        f"</span><small>{escape(name)}</small></div>"
        for name, low, high in block["marks"]
    )
    name, at = block["here"]
    side = "right" if at > 0.6 else "left"
    gap = share(1 - at if side == "right" else at)
    return (
        f'<div class="scale" role="img" aria-label="{escape(block["alt"])}">'
        f'<div class="here" style="padding-{side}:{gap};text-align:{side}"><b>{escape(name)}</b>'
        f'</div><div class="bands">{bands}<i style="left:{share(at)}"></i></div>'
        f'<div class="ticks">{ticks}</div>{marks}</div>'
        f"<p>{escape(block['text'])}</p>"
    )


def _branch(node: dict[str, Any]) -> str:
    inner = "".join(_branch(child) for child in node["of"])
    return f"<li>{escape(node['text'])}{f'<ul>{inner}</ul>' if inner else ''}</li>"


def _check(entry: dict[str, Any], words: Mapping[str, str]) -> str:
    parts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>"
        for name, text in entry["parts"]
    )
    return (
        f'<article class="check"><h3>{escape(entry["title"])} <span class="severity">'
        f"{escape(entry['severity'])}</span> {badge(entry['verdict'], words)}</h3>"
        f'<dl class="settings">{parts}</dl></article>'
    )


def _field(label: str, text: str, words: Mapping[str, str]) -> str:
    return f'<div class="field"><h3>{escape(label)}</h3>{paragraphs(text, words)}</div>'


def paragraphs(text: Text, words: Mapping[str, str]) -> str:
    """Return a text as paragraphs, parted where its lines are."""
    if isinstance(text, str):
        return "".join(f"<p>{escape(part)}</p>" for part in text.split("\n") if part)
    return f"<p>{_rich(text, words)}</p>"


def _rich(text: Text, words: Mapping[str, str]) -> str:
    if isinstance(text, str):
        return escape(text)
    return "".join(_span(span, words) for span in text)


def _span(span: str | dict[str, str], words: Mapping[str, str]) -> str:
    if isinstance(span, str):
        return escape(span)
    (kind, text), *_ = span.items()
    if kind == "strong":
        return f"<strong>{escape(text)}</strong>"
    return code(text) if kind == "code" else badge(text, words)


def code(text: str) -> str:
    """Return a text of fixed width, nothing for an empty one."""
    return f"<code>{escape(text)}</code>" if text else ""


def badge(verdict: str, words: Mapping[str, str]) -> str:
    """Return a verdict on its colour, in the words of the document."""
    shown = escape(words.get(verdict, verdict))
    return f'<span class="badge {tone(verdict)}">{mark(verdict)} {shown}</span>'


def mark(verdict: str) -> str:
    """Return a verdict's mark, which is not read out: the word is."""
    return f'<span aria-hidden="true">{_MARKS.get(verdict, "–")}</span>'


def tone(verdict: str) -> str:
    """Return a verdict as the name of a style."""
    return "is-" + re.sub(r"[^a-z]+", "-", verdict.lower())


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def typeset(shown: Document) -> bytes:
    """Return a document's web page as bytes; same document, same bytes."""
    style = resources.files("reports.render").joinpath("templates/report.css").read_text("utf-8")
    parts = [
        f'<!DOCTYPE html>\n<html lang="{WRITING[shown.language].tag}">\n<head>\n'
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta name="description" content="{escape(shown.description)}">',
        f'<meta name="keywords" content="{escape(", ".join(shown.keywords))}">',
        f"<title>{escape(shown.label)}: {escape(shown.title)}</title>",
        f"<style>\n{style}</style>\n</head>",
        '<body class="reserved">' if shown.band is not None and shown.band.reserved else "<body>",
        f'<a class="skip" href="#content">{escape(shown.words["Skip to the content"])}</a>',
        _header(shown),
        _contents(shown),
        '<main id="content">',
        _first_page(shown),
        *(_section(shown, index) for index in range(len(shown.sections))),
        "</main>",
        f"<footer><p>{code(shown.identifier)} {escape(shown.footer)}</p></footer>",
        "</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part).encode("utf-8")


def _header(shown: Document) -> str:
    run = f"{escape(shown.words['Run'])} {code(shown.identifier)} · " if shown.identifier else ""
    masthead = (
        f'<p class="label"><span>{escape(shown.label)}</span> '
        f"<span>{escape(shown.audience)}</span></p>\n"
        f"<h1>{escape(shown.title)}</h1>\n"
        f'<p class="when">{run}{escape(shown.date)}</p>'
    )
    verdict = _band(shown)
    alarming = shown.band is not None and shown.band.alarming
    inner = [verdict, masthead] if alarming else [masthead, verdict]
    return "<header>\n" + "\n".join(part for part in inner if part) + "\n</header>"


def _band(shown: Document) -> str:
    if shown.band is None:
        return ""
    band = shown.band
    kind = "alarm" if band.alarming else "calm"
    warning = f"<strong>{escape(band.warning)}</strong> " if band.warning else ""
    style = "is-unprotected" if band.warning and band.value != "FAIL" else tone(band.value)
    level = f"<strong>{escape(band.level)}</strong> " if band.level else ""
    texts = [
        f'<div class="band {kind} {style}">{warning}'
        f"<strong>{mark(band.value)} {escape(shown.words[band.value])}</strong> {level}"
        f"<span>{escape(band.statement)}</span></div>"
    ]
    if shown.qualifications:
        inner = "".join(
            f"<p><strong>{escape(shown.words['Qualification'])}.</strong> {escape(text)}</p>"
            for text in shown.qualifications
        )
        texts.append(f'<div class="qualifications">{inner}</div>')
    return "\n".join(texts)


def _contents(shown: Document) -> str:
    items = "".join(
        f'<li><a href="#{escape(section.identifier)}">{escape(section.title)}</a></li>'
        for section in shown.sections
    )
    name = escape(shown.words["Contents"])
    return f'<nav aria-label="{name}"><ol>{items}</ol></nav>'


def _first_page(shown: Document) -> str:
    parts = []
    if shown.introduction:
        parts.append(f'<div class="quote">{paragraphs(shown.introduction, shown.words)}</div>')
    if shown.subject:
        rows = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{_rich(value, shown.words)}</dd></div>"
            for name, value in shown.subject
        )
        parts.append(f'<dl class="settings subject">{rows}</dl>')
    if shown.claim is not None:
        numbers = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
            for name, value in shown.claim.numbers
        )
        name = escape(shown.words["The guarantee in short"])
        parts.append(f'<section class="claim" aria-label="{name}">')
        if shown.claim.headline:
            parts.append(f'<p class="headline">{escape(shown.claim.headline)}</p>')
        parts.append(f"<p>{escape(shown.claim.statement)}</p>")
        parts.append(f"<dl>{numbers}</dl>" if numbers else "")
        parts.append("</section>")
    parts += [
        f'<section id="{escape(section.identifier)}"><h2>{escape(section.title)}</h2>'
        f"{blocks(shown, section.blocks)}</section>"
        for section in shown.front
    ]
    if shown.summary:
        columns = "".join(
            f"<section><h2>{escape(title)}</h2>{blocks(shown, given)}</section>"
            for title, given in shown.summary
        )
        parts.append(f'<div class="summary">{columns}</div>')
    if shown.glance:
        rows = "".join(
            f"<li><span>{escape(title)}</span> {badge(verdict, shown.words)}</li>"
            for verdict, title in shown.glance
        )
        name = escape(shown.words["The audit at a glance"])
        parts.append(f'<section><h2>{name}</h2><ul class="glance">{rows}</ul></section>')
    return "\n".join(part for part in parts if part)


def _section(shown: Document, index: int) -> str:
    section = shown.sections[index]
    name = escape(section.identifier)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">\n'
        f'<h2 id="{name}-title"><span class="number">{index + 1}</span> '
        f"{escape(section.title)}</h2>\n{blocks(shown, section.blocks)}\n</section>"
    )
