"""Builds the report as data: what a reader of either audience is told.

First step of the package: `build` reads a run through `source`, never its evidence, and lets every
part that is registered make itself. Pages and figures show nothing that is not in it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from reports.content import sections
from reports.content.parts import AUDIENCES, INTERNAL, Report, registered
from reports.content.serialise import as_json, check
from reports.errors import ReportError
from reports.files import clean
from reports.source import Auditing, RunSource, load


def build(
    run_dir: Path,
    audience: str = INTERNAL,
    auditing: Auditing | None = None,
    source: RunSource | None = None,
) -> Report:
    """Return the report on a run, valid against the report's schema.

    Args:
        run_dir: The run directory.
        audience: "internal" for the server's operator and the auditor; "public" leaves out whatever
            tells who took part, or how often.
        auditing: By whose key the findings will be signed; without it they count as the trainer's
            own.
        source: The run as it was read already, by whoever checked its signatures.

    Raises:
        ReportError: The audience is unknown, or spec.yaml or ledger.jsonl cannot be read.
    """
    if audience not in AUDIENCES:
        raise ReportError(f"audience {audience!r}: must be one of {', '.join(AUDIENCES)}")
    source = replace(source or load(run_dir), auditing=auditing)
    try:
        report = Report(audience, {one.kind: one.build(source, audience) for one in registered()})
    except ValidationError as error:
        raise ReportError(f"report: {clean(str(error).replace(chr(10), ' '), 200)}") from error
    report = replace(report, figures=sections.describe(report))
    check(report.data(), "report")
    return report


def serialise(report: Report) -> bytes:
    """Return the report as canonical, readable JSON: same report, same bytes."""
    return as_json(report.data())
