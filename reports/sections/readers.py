"""Who is protected from whom: every reader of the run, the limit against them, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import RootModel

from reports import formatting
from reports.content import scale
from reports.content.findings import Verdict
from reports.content.guarantee import Guarantee
from reports.content.parts import INTERNAL, Report, part
from reports.content.sections import ReportSection, register
from reports.content.units import Reader, unit_of
from reports.document import LEFT, Block, Text, paragraph, strong, table
from reports.source import RunSource

_WITHOUT_PRIVACY = (
    (
        "The server, and whoever breaks into it or reads the uploads",
        "It sees every update as made.",
    ),
    ("The other participants", "They see models that nothing was done to."),
    (
        "Third parties: whoever gets or queries the published model",
        "Models are known to reveal who was in their training data. Publish it only if its records "
        "could be published.",
    ),
    (
        "Whoever holds the run’s directory, a backup of it, or a client’s machine",
        "Clients hold the records; nothing hides them.",
    ),
)
_NO_CLAIM = "The run ended without a claim, so no limit is stated against anybody."


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


def _answer(row: Reader, report: Report, alike: bool) -> Text:
    if not row.protected:
        return [strong("No")]
    word = scale.protects(row.epsilon) if report[Verdict].value == "PASS" else "Claimed"
    if alike:
        return [strong(word)]
    if row.epsilon is None:
        return [strong("A limit"), f", {_TOLD_ELSEWHERE}"]
    return [strong(word), f", ε = {formatting.epsilon(row.epsilon)}"]


def _blocks(report: Report) -> Iterator[Block]:
    rows = report[Readers].root
    if not rows:
        yield paragraph(_NO_CLAIM)
        return
    # One number for all stands above, and nowhere else.
    alike = len(limits(report)) <= 1
    protected = any(row.protected for row in rows)
    head = ["Against", "Protected?", "Why, or why not", "Ends if"]
    body: list[list[Text]] = [
        [row.who, _answer(row, report, alike), row.why, row.unless or "–"] for row in rows
    ]
    if not protected:
        head, body = head[:3], [cells[:3] for cells in body]
    widths = (1.1, 0, 1.55, 1.2)
    yield table(
        "Against whom a limit holds", head, body, [LEFT] * len(head), widths[: len(head)],
        small=True,
    )  # fmt: skip
    if report[Guarantee].private and not report.internal:
        yield paragraph(
            "How often each client took part is not told here; what depends on it stands in the "
            "internal report.",
            "small",
        )


register(
    ReportSection(
        identifier="readers", title="Protected from whom", place=10, blocks=_blocks, front=True
    )
)
