"""The section on the guarantee: every view of the loss, and what must hold for it."""

from __future__ import annotations

from collections.abc import Iterator

from reports import formatting
from reports.content.accounting import Accounting
from reports.content.findings import Verdict
from reports.content.guarantee import Guarantee
from reports.content.parts import Report
from reports.content.sections import ReportSection, register
from reports.document import (
    LEFT,
    RIGHT,
    Block,
    bullets,
    note,
    paragraph,
    sentence,
    subheading,
    table,
)


def _blocks(report: Report) -> Iterator[Block]:
    guarantee, views = report[Guarantee], report[Accounting].views
    yield note(guarantee.statement, report[Verdict].value)
    if views:
        yield table(
            "Privacy loss by view",
            ("View", "Towards", "ε", "δ", "Composed by"),
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


register(ReportSection(identifier="guarantee", title="The guarantee", place=100, blocks=_blocks))
