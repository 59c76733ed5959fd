"""What a figure shows, as plain data: panels with their marks, and the numbers behind them.

Figures make these; `drawing` alone knows how they look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve, its points marked.

    Attributes:
        label: Its words in the legend.
        x: [n].
        y: [n]; what is not finite leaves a gap.
        low: Lower edge of a band around it, [n]; None for no band.
        high: Upper edge, [n].
        series: Which run it is of, from 0: its colour.
        variant: Which of the run's curves it is, from 0: its dash and marker.
        form: "marked" (a curve with some of its points marked), "plain" (a curve) or "points".
    """

    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    series: int = 0
    variant: int = 0
    form: Literal["marked", "plain", "points"] = "marked"


@dataclass(frozen=True, kw_only=True)
class Stairs:
    """A histogram's outline.

    Attributes:
        label: Its words in the legend.
        edges: Of the bins, ascending, [n + 1].
        heights: [n].
        series: As of a line.
        variant: As of a line.
    """

    label: str
    edges: Floats
    heights: Floats
    series: int = 0
    variant: int = 0


@dataclass(frozen=True, kw_only=True)
class Level:
    """A straight line across a panel at a number that is known beforehand.

    Attributes:
        label: Its words in the legend.
        value: Where it lies.
        upright: Whether on the horizontal axis; else on the vertical one.
    """

    label: str
    value: float
    upright: bool = False


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A positive quantity over a plane, as contours on a logarithmic scale.

    Attributes:
        x: [n].
        y: [m].
        values: [m, n]; what is not finite is left white.
        low: Where the colours begin, above 0.
        high: Where they end.
        label: What the colours stand for, with its unit.
    """

    x: Floats
    y: Floats
    values: Floats
    low: float
    high: float
    label: str


Mark = Line | Stairs | Level | Surface


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
        x_label: What the horizontal axis shows, with its unit.
        y_label: The same of the vertical axis.
        marks: What is drawn.
        title: Above the panel; empty for none.
        log_y: Whether the vertical axis is logarithmic.
        whole_x: Whether the horizontal axis counts, as rounds do.
    """

    x_label: str
    y_label: str
    marks: tuple[Mark, ...]
    title: str = ""
    log_y: bool = False
    whole_x: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A whole figure.

    Attributes:
        title: A sentence.
        panels: In reading order, two to a row.
    """

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The numbers that a figure draws, tidy: a row an observation.

    Attributes:
        head: Column names, with units.
        rows: As long as the head, each.
    """

    head: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What there is to draw, and its numbers."""

    chart: Chart
    table: Table


def histogram(values: Floats, edges: Floats) -> Floats:
    """How many percent of all values [n] lie in each bin, [bins]."""
    counts = np.histogram(values, edges)[0]
    shares: Floats = 100.0 * counts / max(1, len(values))
    return shares


def bins(every: Sequence[Floats], count: int, start: float | None = None) -> Floats:
    """Edges of bins of equal width that hold all finite values.

    Args:
        every: Values, [n] each.
        count: How many bins.
        start: Where the first begins; None for the least value.
    """
    finite = np.concatenate([np.zeros(0), *(one[np.isfinite(one)] for one in every)])
    low = float(finite.min(initial=np.inf)) if start is None else start
    high = float(finite.max(initial=-np.inf))
    if not low < high:
        low, high = (low - 0.5, low + 0.5) if np.isfinite(low) else (0.0, 1.0)
    return np.linspace(low, high, count + 1)
