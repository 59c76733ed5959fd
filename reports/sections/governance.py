"""The section on governance: what people state in the spec, or fill in by hand."""

from __future__ import annotations

from pydantic import RootModel

from reports.content import wording
from reports.content.parts import Part, Report, part
from reports.content.sections import ReportSection, register
from reports.document.blocks import Block, fields, paragraph
from reports.reading.files import clean, mapping
from reports.reading.source import RunSource


class GovernanceField(Part):
    """One field.

    Attributes:
        field: Key in the spec.
        label: Label.
        text: Text from the spec.
    """

    field: str
    label: str
    text: str | None


class Governance(RootModel[tuple[GovernanceField, ...]]):
    """For people to fill in; null is left blank on the page."""


@part("governance", Governance)
def governance(source: RunSource, _audience: str) -> Governance:
    """Return each field with what the spec says in it."""
    given = mapping(source.spec.get("report"))
    return Governance(
        tuple(
            GovernanceField(field=name, label=label, text=clean(given.get(name), 4_000) or None)
            for name, label in wording.GOVERNANCE
        )
    )


def _blocks(report: Report) -> list[Block]:
    return [
        paragraph("Fields that the spec left empty are blank, for a person to fill in."),
        fields([(entry.label, entry.text) for entry in report[Governance].root]),
    ]


register(ReportSection(identifier="governance", title="Governance", place=900, blocks=_blocks))
