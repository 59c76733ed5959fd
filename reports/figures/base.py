"""What every figure of a report is made of: words, a drawing, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

Report = dict[str, Any]
Cell = str | int | float | None
# More points than this are drawn small and without names of their own.
MANY = 60


@dataclass(frozen=True)
class FigureText:
    """A figure's words.

    Attributes:
        identifier: File stem.
        title: Short heading.
        caption: What to read off it.
        alternative_text: The figure for someone who does not see it, with its main numbers.
    """

    identifier: str
    title: str
    caption: str
    alternative_text: str

    def as_dict(self) -> dict[str, str]:
        """Return the words as the report stores them."""
        return asdict(self)


@dataclass(frozen=True)
class FigureData:
    """The numbers that a figure shows.

    Attributes:
        head: Column names.
        rows: One row a point, in drawing order.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Kind:
    """One figure that a report may have.

    Attributes:
        identifier: File stem.
        describe: Its words, or None where the report has no data for it.
        draw: Draws it; called only where `describe` gave words.
        data: Its numbers.
        height: Of the drawing, in inches.
    """

    identifier: str
    describe: Callable[[Report], FigureText | None]
    draw: Callable[[Axes, Report], None]
    data: Callable[[Report], FigureData]
    height: float = 2.15


def series(rows: Sequence[Report], x: str, y: str) -> tuple[list[float], list[float]]:
    """Return two columns of the rows in which both are known."""
    pairs = [(row[x], row[y]) for row in rows if row[x] is not None and row[y] is not None]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def whole_numbers(axes: Axes) -> None:
    """Put whole numbers on the horizontal axis."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def by_client(report: Report) -> bool:
    """Return whether the report is on protection of whole clients."""
    return bool(report["guarantee"]["unit"] == "client")
