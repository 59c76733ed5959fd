"""How figures look: panels side by side, the legend below, and who may see it above all.

Colours, dashes and typefaces are those of the reports. The command line passes them, because the
engine does not import the reports. Drawings share no state.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dpfedadamw.extensions.figures.charts import Chart, Level, Line, Mark, Panel, Stairs, Surface
from dpfedadamw.extensions.figures.publication import Exposure

# Inches. Places are computed and not solved for, so that the same data gives the same bytes.
_WIDTH, _NARROW, _LEFT, _GAP, _RIGHT, _MARGIN = 7.2, 4.6, 0.75, 0.8, 0.12, 0.1
_HEIGHT, _AXIS, _TITLE_LINE, _LEGEND_LINE, _PANEL_TITLE = 2.1, 0.48, 0.18, 0.18, 0.2
_COLUMNS = 2
_BAR = 1.0
# Of a line an inch wide.
_TITLE_CHARACTERS, _LEGEND_CHARACTERS = 17.0, 14.0
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LEVELS = 12
# Where a logarithmic axis spans less than the first factor, it is divided as a linear one is; less
# than the second, 2 and 5 are named too.
_FEW_VALUES = 4.0
_FEW_DECADES = 30.0


@dataclass(frozen=True, kw_only=True)
class Style:
    """The house's style for charts.

    Attributes:
        settings: Of matplotlib.
        looks: Colour, dash and marker of one series after another.
        ink: Colour of text.
        muted: Colour of what stands behind.
        warning: Colour of what must not be overlooked.
        metadata: Of a file, by its kind.
        ticks: Whole numbers for an axis from a first to a last one.
        apart: How a curve is drawn so that one that coincides with it can be seen too, by its
            place, the number of curves and the number of its points.
    """

    settings: Mapping[str, Any]
    looks: Sequence[tuple[str, Any, str]]
    ink: str
    muted: str
    warning: str
    metadata: Mapping[str, Mapping[str, Any]]
    ticks: Callable[[float, float], Sequence[float]]
    apart: Callable[[int, int, int], Mapping[str, Any]]


def draw(chart: Chart, exposure: Exposure, style: Style, kind: str) -> bytes:
    """Render a figure; as SVG and PNG, same data, same bytes.

    Args:
        chart: What is drawn.
        exposure: Who may see it, which the figure says.
        style: How it looks.
        kind: "svg", "pdf" or "png".
    """
    width = _WIDTH if len(chart.panels) > 1 else _NARROW
    title = textwrap.fill(chart.title, round(width * _TITLE_CHARACTERS))
    sentence = textwrap.fill(exposure.sentence, round(width * _TITLE_CHARACTERS))
    rows = [chart.panels[at : at + _COLUMNS] for at in range(0, len(chart.panels), _COLUMNS)]
    legend = _legend(chart.panels, style)
    room = (width / _COLUMNS - 0.8) * _LEGEND_CHARACTERS
    columns = _COLUMNS if all(len(text) <= room for text in legend) else 1
    lines = -(-len(legend) // columns)
    above = _MARGIN * 2 + _TITLE_LINE * (2 + title.count("\n") + sentence.count("\n"))
    heights = [_HEIGHT + _AXIS + _PANEL_TITLE * any(one.title for one in row) for row in rows]
    height = above + sum(heights) + (_MARGIN + _LEGEND_LINE * lines if lines else 0.0) + _MARGIN
    with matplotlib.rc_context(rc=cast("Any", dict(style.settings))):
        canvas = Canvas(figsize=(width, height))
        _head(canvas, title, sentence, exposure, style)
        top = height - above
        for row, used in zip(rows, heights, strict=True):
            floor = top - used + _AXIS
            for column, panel in enumerate(row):
                _draw_panel(_axes(canvas, floor, column, panel), panel, style)
            top -= used
        if legend:
            canvas.legend(
                list(legend.values()), list(legend), loc="upper left",
                bbox_to_anchor=(_MARGIN / width, (top - _MARGIN * 0.5) / height),
                ncols=columns, handlelength=4, borderaxespad=0.0, labelspacing=0.3,
            )  # fmt: skip
        buffer = io.BytesIO()
        canvas.savefig(buffer, format=kind, metadata=dict(style.metadata[kind]))
    return buffer.getvalue()


def _head(canvas: Canvas, title: str, sentence: str, exposure: Exposure, style: Style) -> None:
    width, height = canvas.get_size_inches()
    left, top = _MARGIN / width, 1.0 - _MARGIN / height
    canvas.text(left, top, title, va="top", fontsize=9.5, linespacing=1.0, color=style.ink)
    below = top - _TITLE_LINE * (1 + title.count("\n")) / height
    canvas.text(
        left, below, sentence, va="top", fontsize=8.5, linespacing=1.0,
        color=style.warning if exposure.private else style.muted,
        fontweight="bold" if exposure.private else "normal",
    )  # fmt: skip


def _axes(canvas: Canvas, floor: float, column: int, panel: Panel) -> Axes:
    whole, height = canvas.get_size_inches()
    width = whole - _LEFT - _RIGHT
    if whole > _NARROW:
        width = (width - _GAP) / _COLUMNS
    left = _LEFT + column * (width + _GAP)
    if any(isinstance(mark, Surface) for mark in panel.marks):
        # The colours' scale takes the rest.
        width -= _BAR
    return canvas.add_axes((left / whole, floor / height, width / whole, _HEIGHT / height))


def _draw_panel(axes: Axes, panel: Panel, style: Style) -> None:
    lines = [mark for mark in panel.marks if isinstance(mark, Line)]
    for mark in panel.marks:
        if isinstance(mark, Line):
            _draw_line(axes, mark, lines.index(mark), len(lines), style)
        elif isinstance(mark, Stairs):
            axes.stairs(mark.heights, mark.edges, baseline=None, **_stroke(mark, style))
        elif isinstance(mark, Level):
            (axes.axvline if mark.upright else axes.axhline)(mark.value, **_across(style))
        else:
            _draw_surface(axes, mark, style)
    y_label = panel.y_label
    if panel.log_y:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < _FEW_VALUES * low:
            locator = MaxNLocator(5, steps=[1, 2, 5, 10])
            ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
            raised, names = _powers(ticks)
            y_label = ", ".join((*y_label.split(", ")[:-1], raised + y_label.split(", ")[-1]))
            axes.set_yticks(ticks, names)
        else:
            subs = (1.0, 2.0, 5.0) if high < _FEW_DECADES * low else (1.0,)
            axes.yaxis.set_major_locator(LogLocator(subs=subs))
            axes.yaxis.set_major_formatter(FuncFormatter(_power))
        axes.yaxis.set_minor_formatter(NullFormatter())
    places = [float(place) for mark in lines for place in mark.x]
    if panel.whole_x and places:
        first, last = min(places), max(places)
        axes.set_xlim(first, last if last > first else first + 1.0)
        axes.set_xticks(style.ticks(first, last))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(y_label)
    if panel.title:
        axes.set_title(panel.title, loc="left", fontsize=8.5, color=style.ink)


def _power(value: float, _place: int | None = None) -> str:
    """A number with a power of ten, without formulas: names in legends must not turn into any."""
    if not value > 0.0 or 1e-3 < value < 1e4:
        return f"{value:g}"
    power = math.floor(math.log10(value) + 1e-9)
    digits = f"{value / 10.0**power:.6g}"
    front = "" if digits == "1" else f"{digits}·"
    return f"{front}10{str(power).translate(_SUPERSCRIPTS)}"


def _powers(values: Sequence[float]) -> tuple[str, list[str]]:
    """The power of ten that close numbers share, for their unit, and what is left of each."""
    if min(values) > 1e-3 and max(values) < 1e4:
        return "", [f"{value:.6g}" for value in values]
    power = math.floor(math.log10(max(values)) + 1e-9)
    left = [f"{value / 10.0**power:.6g}" for value in values]
    return f"10{str(power).translate(_SUPERSCRIPTS)} ", left


def _draw_line(axes: Axes, mark: Line, place: int, lines: int, style: Style) -> None:
    # A first and a last round lie on the panel's edges, and their markers beyond them.
    look = _stroke(mark, style) | {"clip_on": False}
    apart = dict(style.apart(place, lines, len(mark.x)))
    if mark.form == "points":
        size = {"markersize": apart["markersize"]}
        axes.plot(mark.x, mark.y, **look | {"linestyle": "none"}, **_pen(mark, style) | size)
    elif mark.form == "plain":
        axes.plot(mark.x, mark.y, **look | {"linewidth": apart["linewidth"]})
    else:
        axes.plot(mark.x, mark.y, **look | _pen(mark, style) | apart)
    if mark.low is not None and mark.high is not None:
        axes.fill_between(mark.x, mark.low, mark.high, color=look["color"], alpha=0.15, linewidth=0)


def _draw_surface(axes: Axes, mark: Surface, style: Style) -> None:
    levels = np.geomspace(mark.low, mark.high, _LEVELS).tolist()
    values = np.ma.masked_invalid(mark.values)
    # Cividis looks the same to the colour-blind, and its greys ascend.
    filled = axes.contourf(
        mark.x, mark.y, values, levels=levels, norm=LogNorm(mark.low, mark.high), cmap="cividis"
    )
    lines = axes.contour(mark.x, mark.y, values, levels=levels, colors="white", linewidths=0.5)
    names = dict(zip(levels, _told_apart(levels), strict=True))
    axes.clabel(lines, levels[1:-1:3], fmt=lambda value: names[value], fontsize=6.5)
    axes.plot([0.0], [0.0], marker="+", color="white", markersize=7, markeredgewidth=1.2)
    axes.grid(visible=False)
    bar = axes.figure.colorbar(filled, ax=None, cax=axes.inset_axes((1.05, 0.0, 0.06, 1.0)))
    bar.set_ticks(levels[::3], labels=_told_apart(levels)[::3])
    bar.minorticks_off()
    bar.set_label(mark.label, color=style.ink)
    bar.outline.set_visible(False)


def _told_apart(levels: Sequence[float]) -> list[str]:
    """Numbers with as few digits as tell neighbours apart, three at the least."""
    for digits in range(3, 9):
        found = [f"{value:.{digits}g}" for value in levels]
        if len(set(found)) == len(found):
            break
    return found


def _stroke(mark: Line | Stairs, style: Style) -> dict[str, Any]:
    """Colour by run, dash by quantity; of a single curve a run, both by run."""
    colour, dash, _ = style.looks[mark.series % len(style.looks)]
    if mark.variant:
        dash = style.looks[(mark.series + 2 * mark.variant) % len(style.looks)][1]
    return {"color": colour, "linestyle": dash, "linewidth": 1.3}


def _pen(mark: Line, style: Style) -> dict[str, Any]:
    colour, _, marker = style.looks[(mark.series + 2 * mark.variant) % len(style.looks)]
    filled = style.looks[mark.series % len(style.looks)][0]
    hollow = mark.variant > 0 or mark.series >= len(style.looks)
    return {
        "marker": marker,
        "markersize": 3.6,
        "markerfacecolor": "white" if hollow else colour,
        "markeredgecolor": filled,
    }


def _across(style: Style) -> dict[str, Any]:
    return {"color": style.muted, "linestyle": (0, (1, 1.5)), "linewidth": 1.1}


def _legend(panels: Iterable[Panel], style: Style) -> dict[str, Any]:
    """A handle for each label, in the order of the marks."""
    from matplotlib.lines import Line2D

    found: dict[str, Any] = {}
    for mark in (mark for panel in panels for mark in panel.marks):
        # Of a histogram and a curve of the same label, the curve has the marker too.
        if isinstance(mark, Surface) or (mark.label in found and not isinstance(mark, Line)):
            continue
        found[mark.label] = Line2D([], [], **_look(mark, style))
    return found


def _look(mark: Mark, style: Style) -> dict[str, Any]:
    if isinstance(mark, Line):
        return _stroke(mark, style) | _pen(mark, style)
    if isinstance(mark, Stairs):
        return _stroke(mark, style)
    return _across(style)
