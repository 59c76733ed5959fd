"""How figures are drawn: their looks, and deterministic vector drawings with their numbers as CSV.

Text stays text, set in the report's own typeface when the page is composed. Colours are the
Okabe-Ito palette, which readers with colour-blindness can tell apart; each series also has a dash
and a marker of its own, so grey prints read the same.

Sections describe their figures where nothing is drawn, such as in `verify`. So what needs
matplotlib imports it when it is called, here alone; a section's drawing is given its axes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from reports import formatting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

BLUE, ORANGE, GREEN, INK, MUTED = "#0072B2", "#D55E00", "#009E73", "#1B2A38", "#6B7884"
# matplotlib measures with STIX, which it ships; the page's typeface has nearly the same widths.
MEASURED_FACE, PAGE_FACE = "STIXGeneral", "Libertinus Serif"
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpfedadamw",
    "font.family": [MEASURED_FACE, "DejaVu Sans"],
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E3E8EC",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "axes.unicode_minus": True,
    # A name with dollar signs is a name, not a formula.
    "text.parse_math": False,
}

# How a drawing that stands by itself looks: what a comparison draws, and figures of mechanism.
FORMATS = ("pdf", "svg", "png")
# A colour, a dash and a marker for each series.
LOOKS: tuple[tuple[str, Any, str], ...] = (
    (BLUE, "-", "o"),
    (ORANGE, "--", "s"),
    (GREEN, "-.", "^"),
    ("#CC79A7", ":", "D"),
    ("#E69F00", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#56B4E9", (0, (1, 1)), "P"),
    (INK, (0, (7, 2)), "X"),
)
# Type 42 embeds the face whole, as journals ask; outlines make an SVG look the same everywhere.
STANDALONE = {**STYLE, "svg.fonttype": "path", "pdf.fonttype": 42, "savefig.dpi": 200}
# Without a date and a creator the bytes depend on the data alone.
METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}

# More points than this are drawn small and without names of their own.
MANY = 60
_WIDTH = 6.3
Cell = str | int | float | None


@dataclass(frozen=True)
class FigureData:
    """The numbers that a figure shows.

    Attributes:
        head: Column names.
        rows: One row a point, in drawing order.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def as_csv(found: FigureData) -> bytes:
    """Return a figure's numbers as CSV, unrounded, empty where unknown."""
    return formatting.as_csv((found.head, *found.rows)).encode()


def known_pairs(
    pairs: Iterable[tuple[float | None, float | None]],
) -> tuple[list[float], list[float]]:
    """Return two columns of the pairs in which both numbers are known."""
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]


def render(draw: Callable[[Axes], None], height: float) -> bytes:
    """Return a drawing as SVG; same numbers, same bytes.

    Args:
        draw: Draws on the axes that it is given.
        height: Of the drawing, in inches.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(rc=cast("Any", STYLE)):
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        draw(canvas.add_subplot())
        _lay_out(canvas)
        buffer = io.BytesIO()
        # Without a date and a creator the bytes depend on the data alone.
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return in_page_face(buffer.getvalue())


def in_page_face(drawing: bytes) -> bytes:
    """Return a drawing of `STYLE` with its texts in the page's typeface."""
    return drawing.replace(MEASURED_FACE.encode(), PAGE_FACE.encode())


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


def whole_numbers(axis: Axis, most: int = 8) -> None:
    """Put at most so many whole numbers on an axis, and no others."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=most))


def tell_apart(place: int, count: int, points: int, marks: int = 8) -> dict[str, Any]:
    """How a line is drawn so that those drawn after it do not hide it where they coincide.

    Earlier lines are wider and have larger markers; each line marks points of its own.

    Args:
        place: Which line it is, from 0.
        count: How many lines there are.
        points: How many points it has.
        marks: About how many of them are marked.
    """
    later = (count - 1 - place) / max(1, count - 1)
    every = max(1, points // marks)
    return {
        "linewidth": 1.2 + 1.2 * later,
        "markersize": 3.4 + 1.6 * later,
        "markevery": (place * every // count % every, every),
    }


def whole_ticks(first: float, last: float, most: int = 8) -> list[float]:
    """Round whole numbers from `first` to `last`, and `last` itself, at most about `most`."""
    step = next(
        factor * 10**power
        for power in range(300)
        for factor in (1, 2, 5)
        if last - first <= most * factor * 10**power
    )
    ticks = [float(tick) for tick in range(int(-(-first // step) * step), int(last) + 1, step)]
    # Two names closer than this would run into each other.
    room = 0.08 * (last - first)
    inner = [tick for tick in ticks if tick - first >= room and last - tick >= room]
    starts = not ticks or ticks[0] == first or ticks[0] in inner
    return list(dict.fromkeys([*([first] if starts else ticks[:1]), *inner, last]))


def over_rounds(axes: Axes, last: float) -> None:
    """Let the horizontal axis run from the untrained model to the last round, and end there."""
    axes.set_xlim(0, last)
    axes.set_xticks(whole_ticks(0, last))
    axes.set_xlabel("rounds completed")


def powers_of_ten(axis: Axis, exponents: Iterable[int]) -> None:
    """Put these powers of ten on a logarithmic axis, and no others."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator([10.0**exponent for exponent in exponents]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: formatting.decade(value))


def counts(axis: Axis) -> None:
    """Write what stands on a logarithmic axis as counts, and nothing between."""
    from matplotlib.ticker import NullLocator

    axis.set_major_formatter(lambda value, _: formatting.count(value))
    axis.set_minor_locator(NullLocator())
