"""The section on how to verify: signatures, and digests of what the report was made of."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import RootModel

from reports.content import wording
from reports.content.identity import Identity
from reports.content.parts import ATTACHMENT, Report, part
from reports.content.sections import ReportSection, register
from reports.document import LEFT, Block, Text, bullets, code, table
from reports.source import RunSource


class Verification(RootModel[tuple[str, ...]]):
    """How to check the signatures."""


@part("verification", Verification)
def verification(_source: RunSource, _audience: str) -> Verification:
    """Return what anybody can do, with any run."""
    return Verification(tuple(wording.VERIFICATION))


def _blocks(report: Report) -> Iterator[Block]:
    identity = report[Identity]
    # Before the table: behind it, it would now and then stand on a page of its own.
    forms = (
        f"This report comes as a PDF (PDF/A-3a, PDF/UA-1) and as a web page that say the same. The "
        f"PDF holds {ATTACHMENT}, the report as data, and the numbers behind each figure as CSV."
    )
    yield bullets([*report[Verification].root, forms])
    rows: list[list[Text]] = [[entry.file, [code(entry.sha256)]] for entry in identity.hashes]
    if identity.data_sha256 is not None:
        rows.append(["the data", [code(identity.data_sha256)]])
    if rows:
        caption = "SHA-256 of the files that this report was made from"
        yield table(caption, ("File", "SHA-256"), rows, (LEFT, LEFT), (0, 1))


register(ReportSection(identifier="verify", title="How to verify", place=1100, blocks=_blocks))
