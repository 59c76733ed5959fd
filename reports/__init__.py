"""Privacy reports and signatures for federated training runs.

The last step of a run: `content` turns a run directory into data, `figures` and `pdf` into pages,
`signing` puts the trainer's and the auditor's signatures beside the model, `verification` checks
them. The package reads files only; it shares no code with the engine or the auditor.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reports import content, pdf
from reports.errors import EnvelopeError, KeyFileError, ReportError, SourceError
from reports.guarantee import INTERNAL
from reports.runfiles import write_atomic

__all__ = [
    "EnvelopeError",
    "KeyFileError",
    "ReportError",
    "ReportFiles",
    "SourceError",
    "build_report",
]


@dataclass(frozen=True)
class ReportFiles:
    """Where a report was written.

    Attributes:
        json: The report as data.
        pdf: The report as pages, with the data embedded.
    """

    json: Path
    pdf: Path


def build_report(run_dir: Path, audience: str = INTERNAL) -> ReportFiles:
    """Write the report on a run into its directory.

    Args:
        run_dir: The run directory.
        audience: "internal" writes report.json and report.pdf, "public" report-public.json and
            report-public.pdf.

    Returns:
        The two files. Each is replaced as a whole, and both only after both could be made.

    Raises:
        ReportError: The run cannot be read, or the report cannot be made or written.
    """
    report = content.build(run_dir, audience)
    pages = pdf.compose(report)
    stem = "report" if audience == INTERNAL else f"report-{audience}"
    files = ReportFiles(json=run_dir / f"{stem}.json", pdf=run_dir / f"{stem}.pdf")
    write_atomic(files.json, content.serialise(report))
    write_atomic(files.pdf, pages)
    return files
