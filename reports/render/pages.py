"""Makes the document on one run from its report, and from nothing else.

Its first two pages have what a privacy officer needs to decide: the promise with its numbers, what
was not verified, which run this is, and the sections that belong in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module

from reports import formatting
from reports.content import parts
from reports.content.assurance import MOST, Assurance
from reports.content.audit import Audit
from reports.content.build import as_json
from reports.content.clients import Clients
from reports.content.coverage import OutsideBudget, limits
from reports.content.findings import Qualifications, Reason, Verdict
from reports.content.guarantee import Guarantee
from reports.content.identity import Identity
from reports.content.meaning import Meaning
from reports.content.mechanism import Mechanism, Randomness, Sampling, short_description
from reports.content.outcomes import Utility
from reports.content.parts import ATTACHMENT, FigureText, Report, figures, plain, sections
from reports.document import (
    AUDIENCES_IN_WORDS,
    SHOWN_ROWS,
    Band,
    Block,
    Claim,
    Document,
    Picture,
    Section,
    Text,
    bullets,
    code,
    ended,
    number_of,
    paragraph,
    sentence,
    settings,
    strong,
    subheading,
)
from reports.errors import ReportError
from reports.figures import as_csv
from reports.files import clean
from reports.formatting import WRITING, Language

ALARMING = ("FAIL", "NOT VERIFIED", "NOT AUDITED")
_SHOWN_REASONS = 6
# Longer reasons go on in the annex, so that these pages stay two.
_SHOWN_LETTERS = 130
_TOWARDS = {"server": "towards the server", "third_party": "towards a third party"}


def band(report: Report) -> Band:
    """Return the verdict, and how much stands behind it."""
    verdict = report[Verdict]
    level = report[Assurance].level
    return Band(
        verdict.value,
        verdict.statement,
        verdict.value in ALARMING,
        "" if level is None else f"level {level} of {MOST}",
        reserved=level == 1,
    )


def claim(report: Report) -> Claim:
    """Return the promise in plain words, and its large numbers."""
    guarantee, meaning = report[Guarantee], report[Meaning]
    if meaning.epsilon is None or guarantee.view == "none":
        headline = "" if guarantee.private else "No differential privacy"
        return Claim(headline, meaning.promise, ())
    claimed = "" if report[Verdict].value == "PASS" else "claimed, "
    alike = len(limits(report)) == 1
    towards = "towards everybody that it protects from" if alike else _TOWARDS[guarantee.view]
    numbers = (
        (f"ε {claimed}{towards}", formatting.epsilon(guarantee.epsilon)),
        ("δ", formatting.power(guarantee.delta)),
        ("unit of protection", guarantee.unit),
    )
    return Claim("", meaning.promise, numbers)


def summary(
    report: Report, sections: Sequence[Section]
) -> tuple[tuple[str, tuple[Block, ...]], ...]:
    """Return the two columns: what was not verified, and which run this is."""
    title = "What failed or was not verified" if report[Verdict].failed else "What was not verified"
    return (
        (title, tuple(_open_points(report, sections))),
        ("The run", (settings("Main facts of the run", _facts(report)),)),
    )


def _randomness(randomness: Randomness) -> str:
    announced = randomness.announced
    return randomness.mode if announced is None else f"{randomness.mode}, {announced}"


def _open_points(report: Report, sections: Sequence[Section]) -> Iterator[Block]:
    verdict = report[Verdict]
    # The annex has each check in full; without findings there is none.
    known = {section.identifier for section in sections}
    where = f"section {number_of(sections, 'checks' if 'checks' in known else 'audit')}"
    for title, reasons in (
        ("Contradicted", verdict.failed),
        ("Not verified", verdict.not_verified),
    ):
        if reasons:
            yield subheading(title)
            yield bullets([_reason(entry, where) for entry in reasons[:_SHOWN_REASONS]])
        if len(reasons) > _SHOWN_REASONS:
            yield paragraph(f"And {len(reasons) - _SHOWN_REASONS} more, in {where}.")
    if not verdict.failed and not verdict.not_verified:
        yield paragraph("No check that applies was left open.")
    if verdict.notes:
        yield bullets(verdict.notes)
    skipped = sum(check.verdict == "NOT APPLICABLE" for check in report[Audit].checks)
    if skipped:
        noun = "check does" if skipped == 1 else "checks do"
        yield paragraph(f"{skipped} {noun} not apply to this run.")
    outside = ", ".join(entry.title.lower() for entry in report[OutsideBudget].root)
    where = f"section {number_of(sections, 'outside')}"
    yield paragraph(f"Outside the guarantee, whatever the verdict: {outside} ({where}).")


def _reason(reason: Reason, where: str) -> Text:
    why = sentence(reason.why)
    if len(why) > _SHOWN_LETTERS:
        why = f"{why[:_SHOWN_LETTERS].rsplit(' ', 1)[0].rstrip(',;:')} … ({where})"
    return [strong(ended(reason.title)), f" {why}"]


def _facts(report: Report) -> list[tuple[str, Text]]:
    identity, mechanism, sampling = report[Identity], report[Mechanism], report[Sampling]
    model = next((row.value for row in identity.model if row.name == "name"), "unknown")
    digest = identity.digest("model.safetensors")
    average = " on average" if sampling.participation is not None else ""
    total = formatting.count(report[Clients].records_total)
    data = (
        f"{identity.dataset}, {total} training records at "
        f"{formatting.count(sampling.clients)} clients"
    )
    training = (
        f"{formatting.count(mechanism.rounds_completed)} of "
        f"{formatting.count(mechanism.rounds)} rounds, "
        f"{formatting.count(sampling.clients_per_round)} clients a round{average}, "
        f"{mechanism.local_steps_in_words} local steps"
    )
    if sampling.clients is None and report[Clients].count is None:
        # A recorded loop, which knows no rounds.
        data = f"{identity.dataset}, {total} training records"
        training = f"{formatting.count(mechanism.rounds_completed)} recorded steps"
    elif report[Clients].records_total is None:
        data = f"{identity.dataset}, {formatting.count(sampling.clients)} clients"
        training = (
            f"{formatting.count(mechanism.rounds_completed)} recorded rounds, "
            f"{formatting.count(sampling.clients_per_round)} clients a round"
        )
    return [
        ("Algorithm", mechanism.algorithm),
        ("Model", f"{model}, {formatting.count(identity.parameters)} trainable parameters"),
        ("Data", data),
        ("Training", training),
        *_score(report[Utility]),
        ("Randomness", _randomness(report[Randomness])),
        ("Model file", [code(digest)] if digest else "missing"),
    ]


def _score(utility: Utility) -> Iterator[tuple[str, str]]:
    """How well the model does: its accuracy with the majority rate, or the error of numbers."""
    error = utility.measure("test_rmse")
    if utility.final_accuracy is None and error is not None:
        yield "Test RMSE", formatting.plain(error)
        return
    yield "Test accuracy", formatting.percent(utility.final_accuracy)
    if utility.majority_rate is not None:
        yield "Majority rate", formatting.percent(utility.majority_rate)


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
    numbered = tuple(section for front, section in made if section.blocks and not front)
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
        band=band(report),
        qualifications=tuple(ended(sentence(text)) for text in _reservations(report)),
        introduction=short_description(report),
        claim=claim(report),
        front=tuple(section for front, section in made if section.blocks and front),
        summary=summary(report, numbered),
        glance=tuple((check.verdict, check.title) for check in report[Audit].checks),
        sections=numbered,
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
    words = ["Internal report" if report.internal else "Public report"]
    if not report[Guarantee].private:
        words.append("no differential privacy")
    elif report[Verdict].value != "PASS":
        words.append(report[Verdict].value)
    if report[Randomness].caveat is not None:
        words.append("reproducible from a seed")
    return " · ".join(words)


def _picture(report: Report, text: FigureText) -> Picture:
    try:
        drawing = parts.draw(report, text.identifier)
    except (ArithmeticError, ValueError) as error:
        reason = clean(str(error), 120)
        raise ReportError(f"{text.identifier}: cannot be drawn ({reason})") from error
    found = figures()[text.identifier].data(report)
    return Picture(
        **plain(text),
        head=tuple(name.replace("_", " ") for name in found.head),
        rows=tuple(tuple(_cell(cell) for cell in row) for row in found.rows[:SHOWN_ROWS]),
        omitted=max(0, len(found.rows) - SHOWN_ROWS),
        drawing=drawing,
        data=as_csv(found),
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
