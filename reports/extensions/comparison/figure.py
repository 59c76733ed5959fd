"""A comparison drawn: accuracy over rounds, and accuracy against the privacy spent.

A row of two panels for each family of runs that agree in all but ε; a family without privacy has
one panel. The privacy axis is the third party's, which the spec alone fixes: a figure ends up in a
paper, so it never shows who took part. Entries without a rank are left out, because nothing vouches
for their numbers. A report has a figure for each row, so that none is taller than its page.
"""

from __future__ import annotations

import io
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from reports import figures
from reports.errors import ReportError
from reports.extensions.comparison import Comparison, Group, RankedSpec
from reports.figures import FORMATS, INK, LOOKS, METADATA, STANDALONE

# Inches. Places are computed and not solved for, so that the same data gives the same bytes.
_WIDTH, _LEFT, _GAP, _RIGHT = 7.2, 0.55, 0.3, 0.12
_PANEL, _LABELS, _TITLE_LINE, _LEGEND_LINE, _MARGIN = 1.95, 0.45, 0.17, 0.18, 0.1
_MOST_ROWS = 10
# Each look filled and hollow; more curves could not be told apart in one row.
_MOST_CURVES = 2 * len(LOOKS)


@dataclass(frozen=True)
class Drawn:
    """What one row shows: a family, or as much of it as can be told apart.

    Attributes:
        family: Groups that agree in all but ε.
        curves: Each entry with its label.
    """

    family: tuple[Group, ...]
    curves: tuple[tuple[str, RankedSpec], ...]

    @property
    def terms(self) -> str:
        """What agrees in the family, on lines of the page's width."""
        return textwrap.fill(self.family[0].terms.heading, 130)

    @property
    def private(self) -> bool:
        """Whether there is an ε to draw against."""
        return self.family[0].terms.private


def draw(comparison: Comparison, kind: str) -> bytes:
    """Render the comparison; as SVG and PNG, same comparison, same bytes.

    Args:
        comparison: What `compare` found.
        kind: "pdf", "svg" or "png".

    Raises:
        ReportError: The format is unknown, nothing may be drawn, or there are too many families.
    """
    if kind not in FORMATS:
        raise ReportError(f"figure format {kind!r}: must be one of {', '.join(FORMATS)}")
    found = rows(comparison)
    if not found:
        raise ReportError("no run of this comparison has a rank, so there is nothing to draw")
    if len(found) > _MOST_ROWS:
        raise ReportError(
            f"{len(found)} rows are too many for one figure, the most is {_MOST_ROWS}; compare "
            "fewer runs"
        )
    with matplotlib.rc_context(rc=cast("Any", STANDALONE)):
        return _draw(found, kind)


def draw_row(row: Drawn) -> bytes:
    """Render one row for a page, as SVG in the page's typeface; same row, same bytes."""
    with matplotlib.rc_context(rc=cast("Any", figures.STYLE)):
        return figures.in_page_face(_draw([row], "svg"))


def _draw(found: Sequence[Drawn], kind: str) -> bytes:
    above = [_MARGIN * 2 + _TITLE_LINE * (1 + row.terms.count("\n")) for row in found]
    below = [_LABELS + _MARGIN + _LEGEND_LINE * len(row.curves) for row in found]
    height = sum(above) + sum(below) + _PANEL * len(found)
    canvas = Canvas(figsize=(_WIDTH, height))
    top = height
    for row, over, under in zip(found, above, below, strict=True):
        _draw_row(_Place(canvas, height, top, top - over - _PANEL), row)
        top -= over + _PANEL + under
    buffer = io.BytesIO()
    canvas.savefig(buffer, format=kind, metadata=METADATA[kind])
    return buffer.getvalue()


def rows(comparison: Comparison) -> list[Drawn]:
    """Return what each row of the figure shows.

    Groups that differ in ε alone share a row; groups without a ranked entry are left out. A family
    of more curves than can be told apart takes several rows.
    """
    families: dict[tuple[Any, ...], list[Group]] = {}
    for group in comparison.groups:
        if any(entry.rank is not None for entry in group.entries):
            families.setdefault(group.terms.key, []).append(group)
    found = []
    for family in families.values():
        curves = _curves(family)
        for start in range(0, len(curves), _MOST_CURVES):
            found.append(Drawn(tuple(family), tuple(curves[start : start + _MOST_CURVES])))
    return found


def _curves(family: Sequence[Group]) -> list[tuple[str, RankedSpec]]:
    """Return what is drawn with its label; ε is part of it where the family has several."""
    found = []
    for group in family:
        suffix = f", {group.privacy}" if len(family) > 1 else ""
        for entry in group.entries:
            if entry.rank is not None:
                count = len(entry.runs)
                runs = f"{count} runs" if count > 1 else "1 run"
                found.append((f"{entry.label}{suffix} ({runs})", entry))
    return found


@dataclass(frozen=True)
class _Place:
    """Where a family's row lies on the page, in inches from the bottom."""

    canvas: Canvas
    height: float
    top: float
    floor: float

    def panel(self, column: int, columns: int) -> Axes:
        width = (_WIDTH - _LEFT - _GAP * (columns - 1) - _RIGHT) / columns
        left = _LEFT + column * (width + _GAP)
        return self.canvas.add_axes(
            (left / _WIDTH, self.floor / self.height, width / _WIDTH, _PANEL / self.height)
        )


def _draw_row(place: _Place, row: Drawn) -> None:
    place.canvas.text(
        _MARGIN / _WIDTH, (place.top - _MARGIN) / place.height, row.terms, va="top", fontsize=8.5,
        color=INK,
    )  # fmt: skip
    columns = 2 if row.private else 1
    over_rounds = place.panel(0, columns)
    against_loss = place.panel(1, columns) if row.private else None
    if against_loss is not None:
        against_loss.sharey(over_rounds)
        against_loss.tick_params(labelleft=False)
    for index, (label, entry) in enumerate(row.curves):
        _draw_accuracy(over_rounds, entry, _look(index, row), label)
        if against_loss is not None:
            _draw_loss(against_loss, entry, _look(index, row))
    over_rounds.set_ylabel("test accuracy, %")
    figures.over_rounds(over_rounds, max((point[1] for point in points(row)), default=1))
    if against_loss is not None:
        against_loss.set_xlabel("ε spent against a third party")
        against_loss.set_xlim(left=0)
    place.canvas.legend(
        *over_rounds.get_legend_handles_labels(),
        loc="upper left",
        bbox_to_anchor=(0.0, (place.floor - _LABELS) / place.height),
        handlelength=4,
        borderaxespad=0.3,
        labelspacing=0.3,
    )


def _look(index: int, row: Drawn) -> dict[str, Any]:
    """Colour, dash and marker of a curve; curves that coincide can be told apart."""
    colour, dash, marker = LOOKS[index % len(LOOKS)]
    fewest = min(len(_measured(entry)) for _, entry in row.curves)
    return {
        "color": colour,
        "linestyle": dash,
        "marker": marker,
        "markerfacecolor": colour if index < len(LOOKS) else "white",
        "clip_on": False,
        **figures.tell_apart(index, len(row.curves), fewest),
    }


def _measured(entry: RankedSpec) -> list[tuple[int, float, float | None]]:
    """Return rounds, mean accuracy and its standard deviation where every repetition has one."""
    curves = [dict(run.accuracies) for run in entry.runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    rows = []
    for index in rounds:
        values = [100 * curve[index] for curve in curves]
        spread = statistics.stdev(values) if len(values) > 1 else None
        rows.append((index, statistics.fmean(values), spread))
    return rows


def points(row: Drawn) -> list[tuple[str, int, float, float | None]]:
    """Return what is drawn: label, round, mean accuracy in percent, mean ε spent or None."""
    found = []
    for label, entry in row.curves:
        curves = [{0: 0.0, **dict(run.spent)} for run in entry.runs]
        for index, mean, _ in _measured(entry):
            known = row.private and all(index in curve for curve in curves)
            loss = statistics.fmean(curve[index] for curve in curves) if known else None
            found.append((label, index, mean, loss))
    return found


def _draw_accuracy(axes: Axes, entry: RankedSpec, look: dict[str, Any], label: str) -> None:
    rows = _measured(entry)
    rounds, means = [row[0] for row in rows], [row[1] for row in rows]
    axes.plot(rounds, means, label=label, **look)
    if len(entry.runs) > 1:
        low = [mean - (spread or 0) for _, mean, spread in rows]
        high = [mean + (spread or 0) for _, mean, spread in rows]
        axes.fill_between(rounds, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _draw_loss(axes: Axes, entry: RankedSpec, look: dict[str, Any]) -> None:
    """Draw accuracy as privacy is spent, with the final model's spread at the end."""
    curves = [{0: 0.0, **dict(run.spent)} for run in entry.runs]
    rows = [
        (statistics.fmean(curve[index] for curve in curves), mean, spread)
        for index, mean, spread in _measured(entry)
        if all(index in curve for curve in curves)
    ]
    final = entry.epsilons("third_party")
    if final and entry.mean is not None:
        spread = None if entry.deviation is None else 100 * entry.deviation
        end = (statistics.fmean(final), 100 * entry.mean, spread)
        rows = [row for row in rows if row[0] < end[0]] + [end]
        axes.errorbar(*end[:2], yerr=spread, color=look["color"], capsize=3, linewidth=1.2)
    losses, means = [row[0] for row in rows], [row[1] for row in rows]
    axes.plot(losses, means, **look)
