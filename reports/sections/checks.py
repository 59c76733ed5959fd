"""The annex: every check of the audit, with what it measured, accepts and cannot see."""

from __future__ import annotations

from collections.abc import Iterator

from reports.content.audit import Audit
from reports.content.findings import Check
from reports.content.parts import Report
from reports.content.sections import ReportSection, register
from reports.document import LEFT, Block, checks, paragraph, sentence, table


def _blocks(report: Report) -> Iterator[Block]:
    audit = report[Audit]
    if not audit.checks:
        return
    if report.internal:
        applied = [check for check in audit.checks if check.verdict != "NOT APPLICABLE"]
        yield checks([_check(check) for check in applied])
        if len(applied) < len(audit.checks):
            yield paragraph(
                "Checks that do not apply to this run are left out here; the embedded data has "
                "them.",
                "small",
            )
        return
    yield paragraph(
        "Measurements, tolerances and the power of each check stand in the internal report."
    )
    yield table(
        "What is at stake in each check",
        ("Check", "What is at stake", "Severity"),
        [[check.title, check.meaning or "–", check.severity] for check in audit.checks],
        (LEFT, LEFT, LEFT),
        (1.2, 1.5, 0),
    )


def _check(check: Check) -> dict[str, object]:
    parts = (
        ("Claim", check.claim),
        ("Measured", check.measurement),
        ("Accepted", check.tolerance),
        ("Power", check.power),
        ("Limits", check.limits),
    )
    return {
        "title": check.title,
        "severity": check.severity,
        "verdict": check.verdict,
        "parts": [[name, sentence(text)] for name, text in parts if text is not None],
    }


register(
    ReportSection(
        identifier="checks", title="Annex: the checks in detail", place=1200, blocks=_blocks
    )
)
