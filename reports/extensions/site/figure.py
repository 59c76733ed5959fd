"""Draws ε against accuracy, a point a run, as an inline drawing that needs nothing else.

Written out by hand, not by matplotlib: a page of points takes a millisecond so, and each point can
be hidden with its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from reports import formatting
from reports.extensions.site import SiteRun
from reports.figures import LOOKS

Place = Callable[[float], float]

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 46
_RADIUS = 5.0
# From this ratio of largest to smallest ε on, a linear axis would crowd the small ones.
_LOGARITHMIC = 12


def block(runs: Sequence[SiteRun]) -> str:
    """Return the figure with its caption; nothing where no run has both numbers."""
    points = [
        (index, run)
        for index, run in enumerate(runs)
        if run.epsilon is not None and run.accuracy is not None
    ]
    if not points:
        return ""
    plain = [run for run in runs if run.unit == "none" and run.accuracy is not None]
    letters = sorted({run.data for _, run in points}, key=lambda letter: (len(letter), letter))
    colours = {letter: LOOKS[place % len(LOOKS)][0] for place, letter in enumerate(letters)}
    drawing = _drawing(points, plain, colours)
    return (
        '<section><h2 id="figure-title">Privacy against accuracy'
        f'</h2>\n<figure><div class="scroll paper" role="region" tabindex="0" '
        f'aria-labelledby="figure-title">{drawing}</div><figcaption>ε towards a third party, and '
        "test accuracy of the final model. Further left promises more. A disc protects one record, "
        "a square one client; hollow: the audit did not pass, or signatures are not known to hold. "
        "Points of another unit or adjacency are not to be compared. "
        f"{_key(letters, colours, points, bool(plain))}</figcaption></figure></section>"
    )


def _key(
    letters: Sequence[str],
    colours: dict[str, str],
    points: Sequence[tuple[int, SiteRun]],
    plain: bool,
) -> str:
    names = {run.data: run.dataset for _, run in points}
    shown = [
        f'<span class="key"><i style="background:{colours[letter]}"></i>{escape(letter)} '
        f"{escape(names[letter])}</span>"
        for letter in letters
    ]
    if plain:
        shown.append('<span class="key"><i class="dashes"></i>best without privacy</span>')
    return " ".join(shown)


def _drawing(
    points: Sequence[tuple[int, SiteRun]], plain: Sequence[SiteRun], colours: dict[str, str]
) -> str:
    losses = [run.epsilon for _, run in points if run.epsilon is not None]
    heights = [run.accuracy for _, run in points if run.accuracy is not None]
    best = {
        run.data: max(one.accuracy or 0.0 for one in plain if one.data == run.data)
        for run in plain
        if run.data in colours
    }
    ticks_x, across = _horizontal(losses)
    ticks_y, up = _vertical([*heights, *best.values()])
    parts = [_axes(ticks_x, across, ticks_y, up)]
    parts += [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(value):.1f}" y2="{up(value):.1f}" '
        f'stroke="{colours[letter]}" stroke-width="1.5" stroke-dasharray="6 4"/>'
        for letter, value in sorted(best.items())
    ]
    parts += [_point(index, run, across, up, colours[run.data]) for index, run in points]
    low, high = formatting.epsilon(min(losses)), formatting.epsilon(max(losses))
    about = (
        f"{len(points)} runs with ε from {low} to {high} and test accuracy from "
        f"{formatting.percent(min(heights))} to {formatting.percent(max(heights))}; the table "
        "below has every number."
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="points-title '
        'points-about"><title id="points-title">Privacy loss ε against test accuracy</title>'
        f'<desc id="points-about">{escape(about)}</desc>{"".join(parts)}</svg>'
    )


def _horizontal(losses: Sequence[float]) -> tuple[list[float], Place]:
    """Return the marks of the axis of ε, and where a value stands on it."""
    low, high = min(losses), max(losses)
    span = _WIDTH - _LEFT - _RIGHT
    if low > 0 and high / low >= _LOGARITHMIC:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
        start = max(tick for tick in ticks if tick <= low)
        end = min([tick for tick in ticks if tick >= high], default=high)
        scale = math.log(end / start)
        return (
            [tick for tick in ticks if start <= tick <= end],
            lambda value: _LEFT + span * math.log(value / start) / scale,
        )
    ticks = _round_steps(0.0, high * 1.05 or 1.0)
    return ticks, lambda value: _LEFT + span * value / ticks[-1]


def _vertical(heights: Sequence[float]) -> tuple[list[float], Place]:
    """Return the marks of the axis of accuracy, and where a value stands on it."""
    low, high = min(heights), max(heights)
    room = max(0.02, 0.1 * (high - low))
    ticks = _round_steps(max(0.0, low - room), min(1.0, high + room))
    span, extent = _HEIGHT - _TOP - _BOTTOM, ticks[-1] - ticks[0]
    return ticks, lambda value: _HEIGHT - _BOTTOM - span * (value - ticks[0]) / extent


def _round_steps(low: float, high: float) -> list[float]:
    """Return about five round numbers from one that is no larger than low to one beyond high."""
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * count, 12) for count in range(first, last + 1)]


def _axes(ticks_x: list[float], across: Place, ticks_y: list[float], up: Place) -> str:
    bottom = _HEIGHT - _BOTTOM
    lines = [
        f'<path d="M{_LEFT} {up(tick):.1f}H{_WIDTH - _RIGHT}" stroke="#e3e8ec"/>'
        f'<text x="{_LEFT - 8}" y="{up(tick) + 4:.1f}" text-anchor="end">{100 * tick:g}</text>'
        for tick in ticks_y
    ]
    lines += [
        f'<path d="M{across(tick):.1f} {bottom}v5" stroke="#6b7884"/>'
        f'<text x="{across(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
        for tick in ticks_x
    ]
    return (
        '<g font-size="13" fill="#1b2a38" stroke="none">'
        f'{"".join(lines)}<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none" '
        'stroke="#6b7884"/>'
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        "ε towards a third party</text>"
        f'<text transform="translate(14 {(_TOP + bottom) / 2}) rotate(-90)" '
        'text-anchor="middle">test accuracy, %</text></g>'
    )


def _point(index: int, run: SiteRun, across: Place, up: Place, colour: str) -> str:
    assert run.epsilon is not None
    assert run.accuracy is not None
    x, y = across(run.epsilon), up(run.accuracy)
    solid = run.audit == "PASS" and run.signatures == "hold"
    look = f'fill="{colour if solid else "#ffffff"}" stroke="{colour}" stroke-width="2"'
    if run.unit == "client":
        side = 2 * _RADIUS - 1
        shape = (
            f'<rect x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side}" height="{side}" '
            f"{look}>"
        )
        end = "</rect>"
    else:
        shape, end = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" {look}>', "</circle>"
    told = (
        f"{run.name}: ε {formatting.epsilon(run.epsilon)}, {formatting.percent(run.accuracy)}, "
        f"{run.audit}"
    )
    return f'<g data-point="{index}">{shape}<title>{escape(told)}</title>{end}</g>'
