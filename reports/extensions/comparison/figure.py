"""A comparison drawn: accuracy over rounds, and accuracy against the privacy spent.

A row of two panels for each family of runs that agree in all but ε. The privacy axis is the third
party's, which the spec alone fixes: a figure ends up in a paper, so it never tells who took part.
Entries without a rank are left out, because nothing vouches for their numbers.
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
from matplotlib.ticker import MaxNLocator

from reports.errors import ReportError
from reports.extensions.comparison import Comparison, Group, RankedSpec
from reports.figures import FORMATS, INK, LOOKS, METADATA, MUTED, STANDALONE

# Inches. Places are computed and not solved for, so that the same data gives the same bytes.
_WIDTH, _LEFT, _GAP, _RIGHT = 7.2, 0.55, 0.3, 0.12
_PANEL, _LABELS, _TITLE_LINE, _LEGEND_LINE, _MARGIN = 1.95, 0.45, 0.17, 0.18, 0.1
_MOST_FAMILIES = 10


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
    families = _families(comparison)
    if not families:
        raise ReportError("no run of this comparison has a rank, so there is nothing to draw")
    if len(families) > _MOST_FAMILIES:
        raise ReportError(
            f"{len(families)} families of runs are too many for one figure, the most is "
            f"{_MOST_FAMILIES}; compare fewer runs"
        )
    titles = [textwrap.fill(family[0].terms.heading, 135) for family in families]
    above = [_MARGIN * 2 + _TITLE_LINE * (1 + title.count("\n")) for title in titles]
    below = [_LABELS + _MARGIN + _LEGEND_LINE * len(_drawn(family)) for family in families]
    height = sum(above) + sum(below) + _PANEL * len(families)
    with matplotlib.rc_context(rc=cast("Any", STANDALONE)):
        canvas = Canvas(figsize=(_WIDTH, height))
        top = height
        for title, family, over, under in zip(titles, families, above, below, strict=True):
            place = _Place(canvas, height, top, top - over - _PANEL)
            _draw_family(place, title, family)
            top -= over + _PANEL + under
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=kind, metadata=METADATA[kind])
    return buffer.getvalue()


def _families(comparison: Comparison) -> list[list[Group]]:
    """Put groups that differ in ε alone together; groups without a ranked entry are left out."""
    found: dict[tuple[Any, ...], list[Group]] = {}
    for group in comparison.groups:
        if any(entry.rank is not None for entry in group.entries):
            found.setdefault(group.terms.key, []).append(group)
    return list(found.values())


def _drawn(family: Sequence[Group]) -> list[tuple[str, RankedSpec]]:
    """Return what is drawn with its label; ε is part of it where the family has several."""
    rows = []
    for group in family:
        suffix = f", {group.privacy}" if len(family) > 1 else ""
        for entry in group.entries:
            if entry.rank is not None:
                count = len(entry.runs)
                runs = f"{count} runs" if count > 1 else "1 run"
                rows.append((f"{entry.label}{suffix} ({runs})", entry))
    return rows


@dataclass(frozen=True)
class _Place:
    """Where a family's row lies on the page, in inches from the bottom."""

    canvas: Canvas
    height: float
    top: float
    floor: float

    def panel(self, column: int) -> Axes:
        width = (_WIDTH - _LEFT - _GAP - _RIGHT) / 2
        left = _LEFT + column * (width + _GAP)
        return self.canvas.add_axes(
            (left / _WIDTH, self.floor / self.height, width / _WIDTH, _PANEL / self.height)
        )


def _draw_family(place: _Place, title: str, family: Sequence[Group]) -> None:
    place.canvas.text(
        _MARGIN / _WIDTH, (place.top - _MARGIN) / place.height, title, va="top", fontsize=8.5,
        color=INK,
    )  # fmt: skip
    over_rounds, against_loss = place.panel(0), place.panel(1)
    against_loss.sharey(over_rounds)
    against_loss.tick_params(labelleft=False)
    private = family[0].terms.private
    for index, (label, entry) in enumerate(_drawn(family)):
        colour, dash, marker = LOOKS[index % len(LOOKS)]
        look = {
            "color": colour,
            "linestyle": dash,
            "marker": marker,
            "markersize": 3.6,
            "markerfacecolor": colour if index < len(LOOKS) else "white",
            "linewidth": 1.3,
        }
        _draw_accuracy(over_rounds, entry, look, label)
        if private:
            _draw_loss(against_loss, entry, look)
    over_rounds.set_xlabel("rounds completed")
    over_rounds.set_ylabel("test accuracy, %")
    over_rounds.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if private:
        against_loss.set_xlabel("ε spent towards a third party")
        against_loss.set_xlim(left=0)
    else:
        against_loss.set_axis_off()
        against_loss.text(
            0.5, 0.5, family[0].privacy, transform=against_loss.transAxes,
            ha="center", va="center", color=MUTED,
        )  # fmt: skip
    place.canvas.legend(
        *over_rounds.get_legend_handles_labels(),
        loc="upper left",
        bbox_to_anchor=(0.0, (place.floor - _LABELS) / place.height),
        handlelength=4,
        borderaxespad=0.3,
        labelspacing=0.3,
    )


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


def points(comparison: Comparison) -> list[tuple[str, int, float, float | None]]:
    """Return what is drawn: label, round, mean accuracy in percent, mean ε spent or None."""
    found = []
    for family in _families(comparison):
        for label, entry in _drawn(family):
            curves = [{0: 0.0, **dict(run.spent)} for run in entry.runs]
            for index, mean, _ in _measured(entry):
                known = family[0].terms.private and all(index in curve for curve in curves)
                loss = statistics.fmean(curve[index] for curve in curves) if known else None
                found.append((label, index, mean, loss))
    return found


def _draw_accuracy(axes: Axes, entry: RankedSpec, look: dict[str, Any], label: str) -> None:
    rows = _measured(entry)
    rounds, means = [row[0] for row in rows], [row[1] for row in rows]
    axes.plot(rounds, means, label=label, markevery=max(1, len(rounds) // 8), **look)
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
    axes.plot(losses, means, markevery=max(1, len(rows) // 8), **look)
