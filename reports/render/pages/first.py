"""The first two pages of a report: what a privacy officer needs to decide, and nothing else.

Here are the promise with its numbers, what was not verified, and which run this is. What else
stands on these pages are the sections that belong in front: what the numbers mean, who is protected
from whom, what rests on whose word, and what all of it does not mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports import formatting
from reports.content.assurance import MOST, Assurance
from reports.content.audit import Audit
from reports.content.findings import Reason, Verdict
from reports.content.guarantee import Guarantee
from reports.content.identity import Identity
from reports.content.outcomes import Utility
from reports.content.parts import Report
from reports.document import (
    Band,
    Block,
    Claim,
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
from reports.sections.clients import Clients
from reports.sections.meaning import Meaning
from reports.sections.mechanism import Mechanism, Sampling
from reports.sections.outside_budget import OutsideBudget
from reports.sections.randomness import Randomness
from reports.sections.readers import limits

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
