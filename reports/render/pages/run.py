"""Makes the document on one run from its report, and from nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from reports import figures, formatting
from reports.content.serialise import as_json
from reports.errors import ReportError
from reports.reading.files import clean
from reports.render.pages import first, sections
from reports.render.pages.document import Document, Picture, ended, sentence

Report = dict[str, Any]
ATTACHMENT = "report.json"
# As many rows of a figure as somebody would read on a page.
_SHOWN_ROWS = 200
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_AUDIENCES = {
    "internal": "Internal: for the server’s operator and the auditor only",
    "public": "Public: tells nothing of who took part",
}


def document(report: Report) -> Document:
    """Return what the pages on a run show.

    Args:
        report: What `content.build` returned. Nothing else is read, so nothing else can be shown.

    Raises:
        ReportError: A figure cannot be drawn.
    """
    identity, verdict = report["identity"], report["verdict"]
    pictures = {entry["identifier"]: _picture(report, entry) for entry in report["figures"]}
    parts = sections.sections_of(report, pictures, ATTACHMENT)
    digests = [h["sha256"] for h in identity["hashes"] if h["file"] == "model.safetensors"]
    return Document(
        title=identity["name"],
        label="Privacy report",
        audience=_AUDIENCES[report["audience"]],
        description=report["guarantee"]["statement"],
        keywords=(
            f"run {identity['run']}",
            *(f"model sha256:{digest}" for digest in digests),
            report["audience"],
            verdict["value"],
        ),
        identifier=identity["run"],
        created=identity["created"],
        date=date_in_words(identity["created"]),
        band=first.band(report),
        qualifications=tuple(ended(sentence(text)) for text in report["qualifications"]),
        introduction=sections.short_description(report),
        claim=first.claim(report),
        summary=first.summary(report, parts),
        glance=tuple((check["verdict"], check["title"]) for check in report["audit"]["checks"]),
        sections=parts,
        pictures=pictures,
        footer=_footer(report),
        attachment=ATTACHMENT,
        data=as_json(report),
    )


def _footer(report: Report) -> str:
    parts = ["Internal report" if report["audience"] == "internal" else "Public report"]
    if not report["guarantee"]["private"]:
        parts.append("no differential privacy")
    elif report["verdict"]["value"] != "PASS":
        parts.append(report["verdict"]["value"])
    if report["randomness"]["caveat"] is not None:
        parts.append("reproducible from a seed")
    return " · ".join(parts)


def _picture(report: Report, entry: dict[str, str]) -> Picture:
    identifier = entry["identifier"]
    try:
        drawing = figures.draw(report, identifier)
    except (ArithmeticError, ValueError) as error:
        raise ReportError(f"{identifier}: cannot be drawn ({clean(str(error), 120)})") from error
    found = figures.data(report, identifier)
    return Picture(
        **entry,
        head=tuple(name.replace("_", " ") for name in found.head),
        rows=tuple(tuple(_cell(cell) for cell in row) for row in found.rows[:_SHOWN_ROWS]),
        omitted=max(0, len(found.rows) - _SHOWN_ROWS),
        drawing=drawing,
        data=figures.as_csv(found),
    )


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return formatting.plain(value, 6)


def moment_of(created: str) -> datetime | None:
    """Return a stated time, UTC and in whole seconds; None if it cannot be read or is too old."""
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment.replace(microsecond=0) if moment.year >= 1970 else None


def date_in_words(created: str) -> str:
    """Return a stated time as "21 November 2026, 09:21 UTC"."""
    moment = moment_of(created)
    if moment is None:
        return "date not stated"
    return f"{moment.day} {_MONTHS[moment.month - 1]} {moment.year}, {moment:%H:%M} UTC"
