"""The report's figures: deterministic vector drawings made of nothing but the report itself.

`describe` says which figures a report calls for, with caption and alternative text; `draw` renders
one as SVG, and `data` returns the numbers that it shows. Text stays text, set in the report's own
typeface when the page is composed. Colours are the Okabe-Ito palette, and every series also differs
by dash and marker, so grey prints read the same.
"""

from __future__ import annotations

import csv
import io
from typing import Any, cast

import matplotlib
from matplotlib.figure import Figure as Canvas

from reports.figures import audit, budget, training
from reports.figures.base import FigureData, FigureText, Kind
from reports.figures.style import MEASURED_FACE, PAGE_FACE, STYLE

__all__ = ["FigureData", "FigureText", "as_csv", "data", "describe", "draw"]

_WIDTH = 6.3
# In reading order.
_KINDS: dict[str, Kind] = {
    kind.identifier: kind
    for kind in (
        training.SAMPLING,
        budget.OVER_ROUNDS,
        budget.PROFILE,
        budget.CLIENTS,
        audit.QUANTILES,
        audit.SHIFT,
        training.ACCURACY,
        training.AGAINST_LOSS,
        training.CLASSES,
    )
}


def describe(report: dict[str, Any]) -> list[FigureText]:
    """Return the figures that the report has data for, in reading order."""
    texts = (kind.describe(report) for kind in _KINDS.values())
    return [text for text in texts if text is not None]


def draw(report: dict[str, Any], identifier: str) -> bytes:
    """Render one figure as SVG; same report, same bytes.

    Args:
        report: The report.
        identifier: A `FigureText.identifier` from `describe`.
    """
    kind = _KINDS[identifier]
    with matplotlib.rc_context(rc=cast("Any", STYLE)):
        canvas = Canvas(figsize=(_WIDTH, kind.height), layout="constrained")
        kind.draw(canvas.add_subplot(), report)
        buffer = io.BytesIO()
        # Without a date and a creator the bytes depend on the data alone.
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue().replace(MEASURED_FACE.encode(), PAGE_FACE.encode())


def data(report: dict[str, Any], identifier: str) -> FigureData:
    """Return the numbers that a figure shows."""
    return _KINDS[identifier].data(report)


def as_csv(found: FigureData) -> bytes:
    """Return a figure's numbers as CSV, unrounded, empty where unknown."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(found.head)
    for row in found.rows:
        # A name that a spreadsheet would take for a formula is marked as text.
        writer.writerow(
            f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell
            for cell in row
        )
    return buffer.getvalue().encode("utf-8")
