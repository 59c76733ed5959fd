"""Makes the document on one run from its report, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module

from reports import figures, formatting
from reports.content.audit import Audit
from reports.content.findings import Qualifications, Verdict
from reports.content.guarantee import Guarantee
from reports.content.identity import Identity
from reports.content.outcomes import Utility
from reports.content.parts import ATTACHMENT, FigureText, Report, plain
from reports.content.sections import sections
from reports.content.serialise import as_json
from reports.document import (
    AUDIENCES_IN_WORDS,
    SHOWN_ROWS,
    Document,
    Picture,
    Section,
    ended,
    paragraph,
    sentence,
)
from reports.errors import ReportError
from reports.files import clean
from reports.formatting import WRITING, Language
from reports.render.pages import first
from reports.sections.mechanism import short_description
from reports.sections.randomness import Randomness

_REMOVED = (
    "These pages were to be in another language ({tag}). Its texts were removed from the "
    "installation that wrote them, so they are in English."
)


def document(report: Report) -> Document:
    """Return what the pages on a run show.

    Args:
        report: What `content.build` returned. Nothing else is read, so nothing else can be shown.

    Raises:
        ReportError: A figure cannot be drawn.
    """
    identity, verdict = report[Identity], report[Verdict]
    made = [
        (one.front, Section(one.identifier, one.title, tuple(one.blocks(report))))
        for one in sections()
    ]
    parts = tuple(section for front, section in made if section.blocks and not front)
    digest = identity.digest("model.safetensors")
    shown = Document(
        title=identity.name,
        label="Privacy report",
        audience=AUDIENCES_IN_WORDS[report.audience],
        description=report[Guarantee].statement,
        keywords=(
            f"run {identity.run}",
            *([f"model sha256:{digest}"] if digest is not None else []),
            report.audience,
            verdict.value,
        ),
        identifier=identity.run,
        created=identity.created,
        date=date_in_words(identity.created),
        paper=identity.paper,
        band=first.band(report),
        qualifications=tuple(ended(sentence(text)) for text in _reservations(report)),
        introduction=short_description(report),
        claim=first.claim(report),
        front=tuple(section for front, section in made if section.blocks and front),
        summary=first.summary(report, parts),
        glance=tuple((check.verdict, check.title) for check in report[Audit].checks),
        sections=parts,
        pictures={text.identifier: _picture(report, text) for text in report.figures},
        footer=_footer(report),
        attachment=ATTACHMENT,
        data=as_json(report.data()),
    )
    return shown if identity.language == "en" else _in_language(shown, identity.language)


def _reservations(report: Report) -> list[str]:
    """What limits the verdict, and that the model is of no use where it is none."""
    return [*report[Qualifications].root, *filter(None, [report[Utility].majority_statement])]


def _in_language(shown: Document, language: Language) -> Document:
    """Return a document in another language; in English, which it says, where that was removed."""
    try:
        pages = import_module("reports.extensions.languages.pages")
    except ModuleNotFoundError as error:
        if error.name not in ("reports.extensions", "reports.extensions.languages"):
            raise
        note = paragraph(_REMOVED.format(tag=WRITING[language].tag), "small")
        front, *others = shown.front
        return replace(shown, front=(replace(front, blocks=(note, *front.blocks)), *others))
    found: Document = pages.translated(shown, language)
    return found


def _footer(report: Report) -> str:
    parts = ["Internal report" if report.internal else "Public report"]
    if not report[Guarantee].private:
        parts.append("no differential privacy")
    elif report[Verdict].value != "PASS":
        parts.append(report[Verdict].value)
    if report[Randomness].caveat is not None:
        parts.append("reproducible from a seed")
    return " · ".join(parts)


def _picture(report: Report, text: FigureText) -> Picture:
    try:
        drawing = figures.draw(report, text.identifier)
    except (ArithmeticError, ValueError) as error:
        reason = clean(str(error), 120)
        raise ReportError(f"{text.identifier}: cannot be drawn ({reason})") from error
    found = figures.data(report, text.identifier)
    return Picture(
        **plain(text),
        head=tuple(name.replace("_", " ") for name in found.head),
        rows=tuple(tuple(_cell(cell) for cell in row) for row in found.rows[:SHOWN_ROWS]),
        omitted=max(0, len(found.rows) - SHOWN_ROWS),
        drawing=drawing,
        data=figures.as_csv(found),
    )


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return formatting.plain(value, 6)


def moment_of(created: str) -> datetime | None:
    """Return a stated time, UTC and in whole seconds; None if it cannot be read or is too old."""
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment.replace(microsecond=0) if moment.year >= 1970 else None


def date_in_words(created: str, language: Language = "en") -> str:
    """Return a stated time as "21 November 2026, 09:21 UTC", or as another language has it."""
    moment = moment_of(created)
    if moment is None:
        return "date not stated"
    writing = WRITING[language]
    return writing.date.format(
        day=moment.day,
        month=writing.months[moment.month - 1],
        year=moment.year,
        time=f"{moment:%H:%M}",
    )
