"""Makes the document on one run from its report, and from nothing else.

Its first two pages have what a privacy officer needs to decide: what was trained for whom, the
promise with its numbers, the sections that belong in front, what was spent, and what there is to
do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module

from audit.protection import WORDS
from reports import formatting
from reports.content import parts
from reports.content.assurance import MOST, Assurance, Trust
from reports.content.audit import Audit
from reports.content.build import as_json
from reports.content.clients import Clients
from reports.content.coverage import OutsideBudget, limits
from reports.content.findings import Qualifications, Reason, Verdict
from reports.content.guarantee import Budget, Guarantee
from reports.content.identity import Governance, Identity
from reports.content.meaning import Meaning, guess_in_words
from reports.content.mechanism import Mechanism, Randomness, Sampling, short_description
from reports.content.outcomes import Utility
from reports.content.parts import ATTACHMENT, FigureText, Report, figures, plain, sections
from reports.content.wording import NO_GREEN
from reports.document import (
    AUDIENCES_IN_WORDS,
    SHOWN_ROWS,
    Band,
    Block,
    Claim,
    Document,
    Picture,
    Section,
    Span,
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
    titled,
)
from reports.errors import ReportError
from reports.figures import as_csv
from reports.files import clean
from reports.formatting import WRITING, Language

ALARMING = ("FAIL", "NOT VERIFIED", "NOT AUDITED")
# Longer reasons go on in the annex of the internal report, so that these pages stay two. The public
# report has nowhere else for them, and shows each in full.
_SHOWN_REASONS = 6
_SHOWN_LETTERS = 130
# What people state may be long; the section on governance has it in full.
_SHOWN_OF_STATED = 150
_AGAINST = {"server": "against the server", "third_party": "against a third party"}
NOT_STATED = "Not stated"


def band(report: Report) -> Band:
    """Return the verdict, and how much stands behind it."""
    verdict = report[Verdict]
    level = report[Assurance].level
    against = verdict.unprotected_against
    reasons = []
    if verdict.value == "PASS" and report[Randomness].caveat is not None:
        reasons.append(NO_GREEN["seed"])
    if level == 1:
        reasons.append(NO_GREEN["level"])
    return Band(
        verdict.value,
        " ".join([verdict.explanation, *reasons]),
        verdict.value in ALARMING or against is not None,
        "" if level is None else f"level {level} of {MOST}",
        reserved=bool(reasons or against)
        or report[Randomness].mode == "reproducible"
        or verdict.value == "NO CLAIM",
        warning="" if against is None else WORDS[against],
    )


def claim(report: Report) -> Claim:
    """Return the promise in plain words, and its large numbers."""
    guarantee, meaning = report[Guarantee], report[Meaning]
    if meaning.epsilon is None or guarantee.view == "none":
        headline = "" if guarantee.private else "No differential privacy"
        return Claim(headline, meaning.promise, ())
    claimed = "" if report[Verdict].value == "PASS" else "claimed, "
    alike = len(limits(report)) == 1
    against = "against every protected reader" if alike else _AGAINST[guarantee.view]
    numbers = (
        (f"ε (privacy loss), {claimed}{against}", formatting.epsilon(guarantee.epsilon)),
        ("50 % sure becomes at most", guess_in_words(0.5, meaning.epsilon)),
        ("δ (probability that it fails)", formatting.power(guarantee.delta)),
        ("protects one", guarantee.unit),
    )
    return Claim("", meaning.promise, numbers)


def summary(
    report: Report, sections: Sequence[Section]
) -> tuple[tuple[str, tuple[Block, ...]], ...]:
    """Return the two columns: what was spent, and what there is to do."""
    return (
        ("Spent, and still to spend", (settings("Budget", list(_spending(report, sections))),)),
        ("For you to do", (bullets(list(_to_do(report, sections)), ordered=True),)),
    )


def _stated(report: Report, field: str, sections: Sequence[Section]) -> str:
    """Return what the spec states of the processing, and where there is more of it."""
    text = next(one.text for one in report[Governance].root if one.field == field)
    if text is None:
        return NOT_STATED
    flat = " ".join(text.split())
    return (
        flat
        if len(flat) <= _SHOWN_OF_STATED
        else _cut(flat, _SHOWN_OF_STATED, _where(sections, "governance"))
    )


def _cut(text: str, letters: int, where: str) -> str:
    return f"{text[:letters].rsplit(' ', 1)[0].rstrip(',;:')} … ({where})"


def _where(sections: Sequence[Section], identifier: str) -> str:
    return f"section {number_of(sections, identifier)}"


def _subject(report: Report, sections: Sequence[Section]) -> Iterator[tuple[str, Text]]:
    facts = dict(_facts(report))
    yield "Trained", facts["Model"]
    yield "Purpose", _stated(report, "purpose", sections)
    yield "Training", facts["Training"]
    yield "People concerned", _stated(report, "governance.data_categories", sections)
    yield "Data", facts["Data"]
    yield "Controller", _stated(report, "governance.controller", sections)
    yield from _score(report[Utility])
    yield "Contact", _stated(report, "responsible", sections)


def _at(epsilon: str, delta: float | None) -> str:
    return f"ε = {epsilon} at δ = {formatting.power(delta)}"


def _released(report: Report) -> str:
    """Return what releases a model, in the plural; a recorded loop knows no rounds."""
    if report[Sampling].clients is None and report[Clients].count is None:
        return "recorded steps"
    return "recorded rounds" if report[Clients].records_total is None else "rounds"


def _spending(report: Report, sections: Sequence[Section]) -> Iterator[tuple[str, Text]]:
    guarantee, budget, mechanism = report[Guarantee], report[Budget], report[Mechanism]
    spent = "No limit: the run has no differential privacy"
    if guarantee.private:
        spent = "No ε: the run ended without a finite one"
    if guarantee.epsilon is not None:
        spent = _at(formatting.epsilon(guarantee.epsilon), guarantee.delta)
    yield "This run", spent
    rounds, noun = formatting.count(mechanism.rounds_completed), _released(report)
    yield "Releases", f"the model after each of {rounds} {noun}"
    if budget.epsilon is None:
        yield "Budget", "No budget set"
    else:
        yield (
            "Budget",
            (f"{_at(formatting.plain(budget.epsilon), budget.delta)} for all runs on these data"),
        )
        left = "see internal report" if not report.internal else "not known"
        if budget.charged is not None:
            rest = max(0.0, budget.epsilon - formatting.printed_epsilon(budget.charged))
            left = (
                f"ε = {formatting.plain(rest)}, after {formatting.epsilon(budget.charged)} spent "
                "or reserved"
            )
        yield "Budget left", left
    yield "Planned runs, other releases", _stated(report, "governance.other_releases", sections)
    yield "Kept until", _stated(report, "governance.retention", sections)
    if guarantee.private and noun == "rounds":
        yield "Noise", _randomness(report[Randomness])
    digest = report[Identity].digest("model.safetensors")
    yield "Model file", [code(digest)] if digest else "missing"


_TO_DECIDE = {
    "PASS": "whether this ε suits the purpose, whether what was not verified is acceptable, and "
    "who may receive the model.",
    "FAIL": "Do not rely on the claim: the audit contradicts it.",
    "NOT VERIFIED": "Do not rely on the claim until what is missing was verified.",
    "NOT AUDITED": "Do not rely on the claim until someone has audited the run.",
    "NO CLAIM": "whether the training records themselves could be published. If not, do not "
    "release the model.",
}


def _to_do(report: Report, sections: Sequence[Section]) -> Iterator[Text]:
    signer = report[Trust].signer
    key: list[Span] = [code(signer)] if signer else [NOT_STATED]
    yield [
        strong("Check: "), "run ", code("dpfedadamw verify RUN_DIR"),
        ". It must not say NOT VALID, and must name this key of the auditor: ", *key,
        ". Ask the auditor for the key’s fingerprint in another way: a forger could print one "
        "here.",
    ]  # fmt: skip
    yield [strong("Decide: "), _TO_DECIDE[report[Verdict].value]]
    left = [one for one in report[Governance].root if one.text is None]
    if left:
        where = _where(sections, "governance")
        yield [
            strong("Complete: "),
            f"{len(left)} statements on the processing are open ({where}).",
        ]
    yield [
        strong("Sign: "), code(f"dpfedadamw sign-off RUN_DIR --audience {report.audience}"),
        " writes a PDF with boxes for your decision and signature. This report itself is "
        "certified: do not write into it.",
    ]  # fmt: skip


def _vouched(front: Section, report: Report, sections: Sequence[Section]) -> Section:
    """Return a section of the first pages; the one on trust with what was not verified."""
    if front.identifier != "trust":
        return front
    return replace(front, blocks=(*front.blocks, *_open_points(report, sections)))


_MODES = {
    "release": "secret: nobody can draw it again without its key",
    "reproducible": "not secret: the seed in spec.yaml gives it again",
}


def _randomness(randomness: Randomness) -> str:
    told = _MODES.get(randomness.mode, randomness.mode)
    return told if randomness.announced is None else f"{told}; {randomness.announced}"


def _open_points(report: Report, sections: Sequence[Section]) -> Iterator[Block]:
    verdict = report[Verdict]
    # The annex has each check in full; without findings there is none.
    known = {section.identifier for section in sections}
    where = _where(sections, "checks" if "checks" in known else "audit")
    for title, reasons in (
        ("Contradicted", verdict.failed),
        ("Not verified", verdict.not_verified),
    ):
        most = _SHOWN_REASONS if report.internal else len(reasons)
        if reasons:
            yield subheading(title)
            yield bullets([_reason(entry, where, report) for entry in reasons[:most]])
        if len(reasons) > most:
            yield paragraph(f"And {len(reasons) - most} more, in {where}.")
    if verdict.notes:
        yield bullets(verdict.notes)
    skipped = sum(check.verdict == "NOT APPLICABLE" for check in report[Audit].checks)
    noun = "check does" if skipped == 1 else "checks do"
    apart = f"{skipped} {noun} not apply to this run." if skipped else ""
    told = [("Not applicable", apart)] if apart else []
    if not verdict.failed and not verdict.not_verified:
        told = [("What was not verified", f"Every check that applies was made. {apart}".rstrip())]
    outside = ", ".join(entry.title.lower() for entry in report[OutsideBudget].root)
    where = _where(sections, "outside")
    told.append(("Outside the guarantee, whatever the verdict", f"{sentence(outside)} ({where})."))
    yield titled(told)


def _reason(reason: Reason, where: str, report: Report) -> Text:
    if report[Identity].language != "en":
        # The auditor's words are English, as the numbered sections are.
        return [strong(ended(reason.title)), f" ({where})"]
    why = sentence(reason.why)
    if report.internal and len(why) > _SHOWN_LETTERS:
        why = _cut(why, _SHOWN_LETTERS, where)
    return [strong(ended(reason.title)), f" {why}"]


_UNNAMED = "of the loop"


def _facts(report: Report) -> list[tuple[str, str]]:
    identity, mechanism, sampling = report[Identity], report[Mechanism], report[Sampling]
    model = next((row.value for row in identity.model if row.name == "name"), "a model")
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
    noun = _released(report)
    if noun == "recorded steps":
        # A recording states no name of its data, unless its owner gives one.
        named = "" if identity.dataset == _UNNAMED else f"{identity.dataset}, "
        data = f"{named}{total} training records"
        training = f"{formatting.count(mechanism.rounds_completed)} recorded steps"
    elif noun == "recorded rounds":
        data = f"{identity.dataset}, {formatting.count(sampling.clients)} clients"
        training = (
            f"{formatting.count(mechanism.rounds_completed)} recorded rounds, "
            f"{formatting.count(sampling.clients_per_round)} clients a round"
        )
    return [
        ("Model", f"{model}, {formatting.count(identity.parameters)} trainable parameters"),
        ("Data", data),
        ("Training", f"{mechanism.algorithm}: {training}"),
    ]


def _score(utility: Utility) -> Iterator[tuple[str, str]]:
    """How well the model does: its accuracy with the majority rate, or the error of numbers."""
    error = utility.measure("test_rmse")
    if utility.final_accuracy is None and error is not None:
        yield "Test RMSE", formatting.plain(error)
        return
    perplexity = utility.measure("test_perplexity")
    if perplexity is not None:
        yield "Test perplexity", formatting.plain(perplexity)
    accuracy = formatting.percent(utility.final_accuracy)
    if utility.majority_rate is not None:
        accuracy += f" (always the commonest answer: {formatting.percent(utility.majority_rate)})"
    yield "Test accuracy", accuracy


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
        subject=tuple(_subject(report, numbered)),
        claim=claim(report),
        front=tuple(
            _vouched(section, report, numbered)
            for front, section in made
            if section.blocks and front
        ),
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
