"""The section on what the guarantee does not mean."""

from __future__ import annotations

from pydantic import RootModel

from reports.content import wording
from reports.content.parts import Report, Titled, part
from reports.content.sections import ReportSection, register
from reports.content.units import unit_of
from reports.document import Block, titled
from reports.source import RunSource


class Hazards(RootModel[tuple[Titled, ...]]):
    """What the guarantee does not mean."""


@part("hazards", Hazards)
def hazards(source: RunSource, _audience: str) -> Hazards:
    """Return the hazards of the unit that is protected, or of none."""
    texts = unit_of(source).words.hazards if source.private else wording.HAZARDS_NO_PRIVACY
    return Hazards(tuple(Titled(title=title, text=text) for title, text in texts))


def _blocks(report: Report) -> list[Block]:
    return [titled([(one.title, one.text) for one in report[Hazards].root])]


register(
    ReportSection(
        identifier="hazards", title="What this does not mean", place=30, blocks=_blocks, front=True
    )
)
