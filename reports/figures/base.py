"""What drawings of a report share: columns of known numbers, whole axes, one line for each view."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from reports.content.accounting import SpentAfter
from reports.figures.style import BLUE, ORANGE

# More points than this are drawn small and without names of their own.
MANY = 60


@dataclass(frozen=True, kw_only=True)
class ViewLine:
    """How the loss in one view is drawn.

    Attributes:
        key: The view.
        label: Towards whom.
        colour: Its colour.
        dash: Its dash.
        marker: Its marker.
        spent: The loss of a round in this view.
    """

    key: str
    label: str
    colour: str
    dash: str
    marker: str
    spent: Callable[[SpentAfter], float | None]

    def draw(self, axes: Axes, x: list[float], y: list[float]) -> None:
        """Draw points of it, about ten of them marked."""
        axes.plot(
            x, y, self.dash, color=self.colour, label=self.label, marker=self.marker, markersize=3,
            markevery=max(1, len(x) // 10),
        )  # fmt: skip


VIEW_LINES = (
    ViewLine(
        key="server",
        label="towards the server",
        colour=BLUE,
        dash="-",
        marker="o",
        spent=lambda row: row.server,
    ),
    ViewLine(
        key="third_party",
        label="towards a third party",
        colour=ORANGE,
        dash="--",
        marker="s",
        spent=lambda row: row.third_party,
    ),
)


def known_pairs(
    pairs: Iterable[tuple[float | None, float | None]],
) -> tuple[list[float], list[float]]:
    """Return two columns of the pairs in which both numbers are known."""
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in known], [y for _, y in known]


def whole_numbers(axes: Axes) -> None:
    """Put whole numbers on the horizontal axis."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
