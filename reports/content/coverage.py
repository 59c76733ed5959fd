"""What the guarantee covers: its views and readers, what no number covers, and what it is not."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import RootModel

from reports import formatting
from reports.content import meaning, outcomes, tuning, wording
from reports.content.accounting import Accounting
from reports.content.findings import Verdict
from reports.content.guarantee import Guarantee
from reports.content.identity import pretrained
from reports.content.parts import INTERNAL, Report, ReportSection, Titled, part, register
from reports.content.units import Reader, unit_of
from reports.document import (
    LEFT,
    RIGHT,
    Block,
    Text,
    bullets,
    note,
    paragraph,
    sentence,
    strong,
    subheading,
    table,
    titled,
)
from reports.files import number
from reports.source import RunSource


def _view_blocks(report: Report) -> Iterator[Block]:
    guarantee, views = report[Guarantee], report[Accounting].views
    yield note(guarantee.statement, report[Verdict].value)
    if views:
        yield table(
            "Privacy loss by view",
            ("View", "Against", "ε", "δ", "Composed by"),
            [
                [
                    view.label,
                    view.towards,
                    formatting.epsilon(view.epsilon),
                    "–" if view.key == "trusted_server" else formatting.power(view.delta),
                    view.method,
                ]
                for view in views
            ],
            (LEFT, LEFT, RIGHT, RIGHT, LEFT),
            (1.5, 2.1, 0, 0, 1.5),
        )
    if guarantee.assumptions:
        yield subheading("It holds only if")
        yield bullets([sentence(text) for text in guarantee.assumptions], ordered=True)
    if guarantee.private:
        yield paragraph(f"Neighbours are {guarantee.adjacency} data sets. {guarantee.explanation}")


register(
    ReportSection(identifier="guarantee", title="The guarantee", place=100, blocks=_view_blocks)
)


_WITHOUT_PRIVACY = (
    (
        "The server, and anyone who breaks into it or reads the uploads",
        "It sees every update without noise.",
    ),
    ("The other participants", "They see every model without noise."),
    (
        "Third parties: anyone who gets or queries the published model",
        "Models can reveal who was in their training data. Publish this one only if its records "
        "could be published.",
    ),
    (
        "Anyone who holds the run’s directory, a backup of it, or a client’s machine",
        "Clients hold the records, and nothing hides them.",
    ),
)
_NO_CLAIM = "The run ended without a claim, so it states no limit against anyone."


class Readers(RootModel[tuple[Reader, ...]]):
    """Who sees something of the run, and what limit holds against each; empty without a claim."""


@part("readers", Readers)
def readers(source: RunSource, audience: str) -> Readers:
    """Return each reader with the limit that holds against them."""
    if not source.private:
        return Readers(
            tuple(
                Reader(who=who, protected=False, epsilon=None, why=why, unless="")
                for who, why in _WITHOUT_PRIVACY
            )
        )
    if not source.claim:
        return Readers(())
    return Readers(tuple(unit_of(source).readers(source, audience == INTERNAL)))


def limits(report: Report) -> set[str]:
    """Return the limits that hold against somebody, as they are printed."""
    rows = [row for row in report[Readers].root if row.protected]
    return {_TOLD_ELSEWHERE if row.epsilon is None else formatting.epsilon(row.epsilon)
            for row in rows}  # fmt: skip


_TOLD_ELSEWHERE = "see internal report"
_UNTIL = (
    "These limits have no expiry date. Each holds until what its last column names happens, "
    "whatever else a reader learns."
)


def _answer(row: Reader, report: Report, alike: bool) -> Text:
    if not row.protected:
        return [strong("No limit")]
    if row.epsilon is None:
        return _TOLD_ELSEWHERE
    more = [] if report[Verdict].value == "PASS" else ["claimed"]
    # One ε for all stands above, and nowhere else.
    more += [] if alike else [f"ε = {formatting.epsilon(row.epsilon)}"]
    added = [f" ({', '.join(more)})"] if more else []
    return [strong(meaning.guess_in_words(0.5, row.epsilon)), *added]


def _reader_blocks(report: Report) -> Iterator[Block]:
    rows = report[Readers].root
    if not rows:
        yield paragraph(_NO_CLAIM)
        return
    alike = len(limits(report)) <= 1
    protected = any(row.protected for row in rows)
    head = ["Against", "50 % sure could become", "Why, or why not", "Ends if"]
    body: list[list[Text]] = [
        [row.who, _answer(row, report, alike), row.why, row.unless or "–"] for row in rows
    ]
    if not protected:
        head, body = head[:3], [cells[:3] for cells in body]
    widths = (1.15, 0.65, 1.5, 1.2)
    yield table(
        "Against whom a limit holds", head, body, [LEFT] * len(head), widths[: len(head)],
        small=True,
    )  # fmt: skip
    if protected:
        yield paragraph(_UNTIL, "small")
    if report[Guarantee].private and not report.internal:
        yield paragraph(
            "Only the internal report says how often each client took part, and what depends on "
            "it.",
            "small",
        )


register(
    ReportSection(
        identifier="readers",
        title="Protected from whom",
        place=10,
        blocks=_reader_blocks,
        front=True,
    )
)


_PRETRAINED = (
    "Training began from the published weights {source}{revision}. This guarantee does not cover "
    "the records that those were trained on. A record that is in both was already known to the "
    "published weights, and this run does not hide it from anyone who has them."
)
_FROM_NOTHING = (
    "None: training began from random weights, so no other records entered the model this way."
)
_UNSTATED = "The run does not state whether training began from weights that others had trained."


class OutsideBudget(RootModel[tuple[Titled, ...]]):
    """What no number in this report covers."""


@part("outside_budget", OutsideBudget)
def outside_budget(source: RunSource, _audience: str) -> OutsideBudget:
    """Return title and text of everything that no number of the report covers."""
    texts = wording.OUTSIDE_NOTHING
    if source.private:
        standing = dict(unit_of(source).words.outside_budget)
        if "Client sizes" in standing and number(source.header.get("sampling_rate")) is not None:
            standing["Client sizes"] = wording.SIZES_AT_A_STATED_RATE
        texts = [
            tuning.outside(source),
            *standing.items(),
            _pretraining(source),
            *outcomes.validation(source),
        ]
    return OutsideBudget(tuple(Titled(title=title, text=text) for title, text in texts))


def _pretraining(source: RunSource) -> tuple[str, str]:
    base = pretrained(source)
    if base is None:
        return wording.PRETRAINING_TITLE, _FROM_NOTHING if "base" in source.model else _UNSTATED
    revision = f" at revision {base.revision}" if base.revision else ""
    return wording.PRETRAINING_TITLE, _PRETRAINED.format(source=base.source, revision=revision)


def _outside_blocks(report: Report) -> list[Block]:
    return [titled([(one.title, one.text) for one in report[OutsideBudget].root])]


# The anchor is part of addresses that were given out.
register(
    ReportSection(
        identifier="outside",
        title="What lies outside the budget",
        place=500,
        blocks=_outside_blocks,
    )
)


class Hazards(RootModel[tuple[Titled, ...]]):
    """What the guarantee does not mean."""


@part("hazards", Hazards)
def hazards(source: RunSource, _audience: str) -> Hazards:
    """Return the hazards of the unit that is protected, or of none."""
    texts = unit_of(source).words.hazards if source.private else wording.HAZARDS_NO_PRIVACY
    return Hazards(tuple(Titled(title=title, text=text) for title, text in texts))


def _hazard_blocks(report: Report) -> list[Block]:
    return [titled([(one.title, one.text) for one in report[Hazards].root])]


register(
    ReportSection(
        identifier="hazards",
        title="What this does not mean",
        place=30,
        blocks=_hazard_blocks,
        front=True,
    )
)
