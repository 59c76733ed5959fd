"""Shows a document as one web page that needs no network and no script.

The same document as the PDF's, so the same words. Every text is escaped; figures stand inline as
SVG with title and description, and their numbers in a table below. A content security policy inside
the page forbids it everything but its own style.
"""

from __future__ import annotations

from html import escape
from importlib import resources

from reports.content.parts import Report
from reports.document import Document
from reports.formatting import WRITING
from reports.render.html_blocks import badge, blocks, code, mark, paragraphs, tone
from reports.render.pages.run import document

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def compose(report: Report) -> bytes:
    """Return a report's web page as bytes; same report, same bytes.

    Args:
        report: What `content.build` returned. Nothing else is read, so nothing else can be shown.

    Raises:
        ReportError: A figure cannot be drawn.
    """
    return typeset(document(report))


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
        f"<style>\n{style}</style>\n</head>\n<body>",
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
    level = f"<strong>{escape(band.level)}</strong> " if band.level else ""
    texts = [
        f'<div class="band {kind} {tone("NOT VERIFIED" if band.reserved else band.value)}">'
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
