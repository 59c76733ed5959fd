"""The section on what lies outside the budget: tuning, preparation, pre-training, public data."""

from __future__ import annotations

from pydantic import RootModel

from reports.content import outcomes, tuning, wording
from reports.content.identity import pretrained
from reports.content.parts import Report, Titled, part
from reports.content.sections import ReportSection, register
from reports.content.units import unit_of
from reports.document import Block, titled
from reports.source import RunSource

_PRETRAINED = (
    "Training began from the published weights {source}{revision}. The records that those were "
    "trained on are not covered by this guarantee. A record that is among both was known to the "
    "published weights already, and this run does not hide it from whoever has them."
)
_FROM_NOTHING = (
    "None: training began from random weights, so no other records entered the model that way."
)
_UNSTATED = "The run does not state whether training began from weights that others had trained."


class OutsideBudget(RootModel[tuple[Titled, ...]]):
    """What no number in this report covers."""


@part("outside_budget", OutsideBudget)
def outside_budget(source: RunSource, _audience: str) -> OutsideBudget:
    """Return title and text of everything that no number of the report covers."""
    texts = wording.OUTSIDE_NOTHING
    if source.private:
        standing = unit_of(source).words.outside_budget
        texts = [
            tuning.outside(source),
            *standing,
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


def _blocks(report: Report) -> list[Block]:
    return [titled([(one.title, one.text) for one in report[OutsideBudget].root])]


# The anchor is part of addresses that were given out.
register(
    ReportSection(
        identifier="outside", title="What lies outside the budget", place=500, blocks=_blocks
    )
)
