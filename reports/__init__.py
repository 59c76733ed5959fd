"""Privacy reports and signatures for federated training runs.

The last step of a run: `content` turns a run directory into typed data and blocks of a document,
which `pdf` and `html` set, `signing` puts the trainer's and the auditor's signatures with the
model, `verification` checks them. The package reads files only; it shares no code with the engine,
and with the auditor only how hostile files are opened and parsed (`audit.untrusted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reports.content.parts import INTERNAL
from reports.errors import EnvelopeError, KeyFileError, ReportError, SourceError
from reports.files import write_atomic
from reports.source import Auditing

__all__ = [
    "Auditing",
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
        html: The same as one web page.
    """

    json: Path
    pdf: Path
    html: Path


def build_report(
    run_dir: Path, audience: str = INTERNAL, auditing: Auditing | None = None
) -> ReportFiles:
    """Write the report on a run into its directory.

    Args:
        run_dir: The run directory.
        audience: "internal" writes report.json, report.pdf and report.html, "public"
            report-public.json, report-public.pdf and report-public.html.
        auditing: By whose key it will be signed. Only where that key is known, and not the
            trainer's, does the report call its audit independent.

    Returns:
        The three files. Each is replaced as a whole, and all only after all could be made.

    Raises:
        ReportError: The run cannot be read, or the report cannot be made or written.
    """
    # Whoever compares runs or checks signatures is spared the fonts and the drawings.
    from reports.content.build import build, serialise
    from reports.render import html, pdf
    from reports.render.pages import document

    report = build(run_dir, audience, auditing)
    shown = document(report)
    pages, page = pdf.typeset(shown), html.typeset(shown)
    stem = "report" if audience == INTERNAL else f"report-{audience}"
    files = ReportFiles(*(run_dir / f"{stem}.{kind}" for kind in ("json", "pdf", "html")))
    write_atomic(files.json, serialise(report))
    write_atomic(files.pdf, pages)
    write_atomic(files.html, page)
    return files
