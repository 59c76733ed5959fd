"""The section on governance: what people state in the spec, and what is open."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import RootModel

from reports.content import wording
from reports.content.parts import Part, Report, part
from reports.content.sections import ReportSection, register
from reports.document import Block, fields, paragraph, strong
from reports.files import clean, mapping
from reports.source import RunSource


class GovernanceField(Part):
    """One field.

    Attributes:
        field: Key in the spec, below report.
        label: Label.
        text: Text from the spec.
    """

    field: str
    label: str
    text: str | None


class Governance(RootModel[tuple[GovernanceField, ...]]):
    """What people state of the processing; null is listed as open on the page."""


@part("governance", Governance)
def governance(source: RunSource, _audience: str) -> Governance:
    """Return each field with what the spec says in it."""
    said = mapping(source.spec.get("report"))
    inner = mapping(said.get("governance"))
    given = {**said, **{f"governance.{key}": text for key, text in inner.items()}}
    found = (
        GovernanceField(field=name, label=label, text=clean(given.get(name), 4_000) or None)
        for name, label in wording.GOVERNANCE
    )
    return Governance(
        tuple(one for one in found if one.text or one.field not in wording.FOR_A_REGISTRY)
    )


def _blocks(report: Report) -> Iterator[Block]:
    entries = report[Governance].root
    stated = [(entry.label, entry.text) for entry in entries if entry.text is not None]
    left = [entry for entry in entries if entry.text is None]
    if stated:
        yield fields(stated)
    if left:
        named = "; ".join(entry.label.split(":")[0].lower() for entry in left)
        yield paragraph([strong("Open: "), f"{named}."])
        yield paragraph(
            "Whoever answers for the processing states these in the spec (report, and "
            "report.governance) before the run, or on an annex of their own (dpfedadamw sign-off): "
            "this file is signed, and writing into it would end the signature.",
            "small",
        )


register(ReportSection(identifier="governance", title="Governance", place=900, blocks=_blocks))
