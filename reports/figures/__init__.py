"""The report's figures: deterministic vector drawings made of nothing but the report itself.

Each section brings its own figures; here one is drawn as SVG, and its numbers become CSV. Text
stays text, set in the report's own typeface when the page is composed. Colours are the Okabe-Ito
palette, and every series also differs by dash and marker, so grey prints read the same.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, cast

from reports import formatting
from reports.content.parts import Report
from reports.content.sections import FigureData, figures
from reports.figures.style import MEASURED_FACE, PAGE_FACE, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_WIDTH = 6.3


def draw(report: Report, identifier: str) -> bytes:
    """Render one figure as SVG; same report, same bytes.

    Args:
        report: The report.
        identifier: A figure that the report has.
    """
    # Tables take their numbers' spelling from here, and draw nothing.
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    figure = figures()[identifier]
    with matplotlib.rc_context(rc=cast("Any", STYLE)):
        canvas = Canvas(figsize=(_WIDTH, figure.height), layout="constrained")
        figure.draw(canvas.add_subplot(), report)
        _lay_out(canvas)
        buffer = io.BytesIO()
        # Without a date and a creator the bytes depend on the data alone.
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue().replace(MEASURED_FACE.encode(), PAGE_FACE.encode())


def _lay_out(canvas: Canvas) -> None:
    """Give the axes their places as the SVG writer would, and leave it nothing to lay out.

    `savefig` draws a figure whose layout is open twice, the first time without an effect. The SVG
    writer's own texts are measured here, so the drawing has the same bytes, a quarter sooner.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(canvas)
    engine = canvas.get_layout_engine()
    assert engine is not None
    engine.execute(canvas)
    canvas.set_layout_engine(None)


def data(report: Report, identifier: str) -> FigureData:
    """Return the numbers that a figure shows."""
    return figures()[identifier].data(report)


def as_csv(found: FigureData) -> bytes:
    """Return a figure's numbers as CSV, unrounded, empty where unknown."""
    return formatting.as_csv((found.head, *found.rows)).encode()
