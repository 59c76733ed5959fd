"""Draws ε against accuracy, a point a run, as an inline drawing that needs nothing else.

Written out by hand, not by matplotlib: a page of points takes a millisecond so, and each point can
be hidden with its row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape

from reports import formatting
from reports.extensions.site import SiteRun
from reports.figures import LOOKS, MANY

Place = Callable[[float], float]
Box = tuple[float, float, float, float]

# Two drawings of the same points, of which the page shows the one that its window has room for.
_WIDE, _NARROW = 720, 340
_HEIGHT = 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 46
_RADIUS = 5.0
# Of a name next to a point: the width of a character, and the most that are shown.
_CHARACTER, _LONGEST = 6.6, 32
# Pixels down from a point's own height at which its name may stand, the nearest first.
_OFFSETS = (0, -13, 13, -26, 26, -39, 39)
# From this ratio of largest to smallest ε on, a linear axis would crowd the small ones.
_LOGARITHMIC = 12
# A claim may state any ε, and from here on no axis has a next mark. The table has the run.
_ENDLESS = 1e300


def block(runs: Sequence[SiteRun]) -> str:
    """Return the figure with its caption; nothing where no run has both numbers."""
    points = [
        (index, run)
        for index, run in enumerate(runs)
        if run.epsilon is not None and run.epsilon < _ENDLESS and run.accuracy is not None
    ]
    if not points:
        return ""
    plain = [run for run in runs if run.unit == "none" and run.accuracy is not None]
    letters = sorted({run.data for _, run in points}, key=lambda letter: (len(letter), letter))
    colours = {letter: LOOKS[place % len(LOOKS)][0] for place, letter in enumerate(letters)}
    drawing = "".join(_drawing(points, plain, colours, width) for width in (_WIDE, _NARROW))
    return (
        '<section><h2 id="figure-title">Privacy against accuracy'
        f'</h2>\n<figure><div class="scroll paper" role="region" tabindex="0" '
        f'aria-labelledby="figure-title">{drawing}</div><figcaption>ε against a third party, and '
        "test accuracy of the final model. Points further left promise more. A disc protects one "
        "record, a diamond one person, a square one client. A hollow point did not pass the audit, "
        "or its signatures are not known to hold. Do not compare points of different units or "
        "adjacencies. A point without a name has no room for it; the table has every run. "
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
    points: Sequence[tuple[int, SiteRun]],
    plain: Sequence[SiteRun],
    colours: dict[str, str],
    width: int,
) -> str:
    losses = [run.epsilon for _, run in points if run.epsilon is not None]
    heights = [run.accuracy for _, run in points if run.accuracy is not None]
    best = {
        run.data: max(one.accuracy or 0.0 for one in plain if one.data == run.data)
        for run in plain
        if run.data in colours
    }
    ticks_x, across = _horizontal(losses, width)
    ticks_y, up = _vertical([*heights, *best.values()])
    parts = [_axes(ticks_x, across, ticks_y, up, width)]
    parts += [
        f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{up(value):.1f}" y2="{up(value):.1f}" '
        f'stroke="{colours[letter]}" stroke-width="1.5" stroke-dasharray="6 4"/>'
        for letter, value in sorted(best.items())
    ]
    names = _names(points, across, up, width)
    parts += [
        _point(index, run, across, up, colours[run.data], names.get(index, ""))
        for index, run in points
    ]
    low, high = formatting.epsilon(min(losses)), formatting.epsilon(max(losses))
    about = (
        f"{len(points)} runs with ε from {low} to {high} and test accuracy from "
        f"{formatting.percent(min(heights))} to {formatting.percent(max(heights))}; the table "
        "below has every number."
    )
    kind = "wide" if width == _WIDE else "narrow"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {_HEIGHT}" role="img" '
        f'aria-labelledby="{kind}-title {kind}-about">'
        f'<title id="{kind}-title">Privacy loss ε against test accuracy</title>'
        f'<desc id="{kind}-about">{escape(about)}</desc>{"".join(parts)}</svg>'
    )


def _horizontal(losses: Sequence[float], width: int) -> tuple[list[float], Place]:
    """Return the marks of the axis of ε, and where a value stands on it."""
    low, high = min(losses), max(losses)
    span = width - _LEFT - _RIGHT
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


def _axes(ticks_x: list[float], across: Place, ticks_y: list[float], up: Place, width: int) -> str:
    bottom = _HEIGHT - _BOTTOM
    lines = [
        f'<path d="M{_LEFT} {up(tick):.1f}H{width - _RIGHT}" stroke="#e3e8ec"/>'
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
        f'{"".join(lines)}<path d="M{_LEFT} {_TOP}V{bottom}H{width - _RIGHT}" fill="none" '
        'stroke="#6b7884"/>'
        f'<text x="{(_LEFT + width - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        "ε against a third party</text>"
        f'<text transform="translate(14 {(_TOP + bottom) / 2}) rotate(-90)" '
        'text-anchor="middle">test accuracy, %</text></g>'
    )


def _names(
    points: Sequence[tuple[int, SiteRun]], across: Place, up: Place, width: int
) -> dict[int, str]:
    """Place each run's name next to its point, where it covers no other name and no point."""
    often = Counter(run.name for _, run in points)
    at = {index: (across(run.epsilon or 0.0), up(run.accuracy or 0.0)) for index, run in points}
    taken = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in at.values()]
    found = {}
    # Of many runs the newest are named; more names would have no room.
    for index, run in points[:MANY]:
        # Runs of one name are told apart by the end of their identifiers.
        name = run.name if often[run.name] == 1 else f"{run.name} {run.run.rsplit('-', 1)[-1][:4]}"
        name = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        room, (x, y) = _CHARACTER * len(name), at[index]
        for side, anchor, left in ((1, "start", x + 9), (-1, "end", x - 9 - room)):
            for down in _OFFSETS:
                box = (left, y + down - 6, left + room, y + down + 6)
                inside = box[0] >= _LEFT and box[2] <= width and box[1] >= 0
                if index in found or not inside or box[3] > _HEIGHT - _BOTTOM:
                    continue
                if any(_overlap(box, other) for other in taken):
                    continue
                taken.append(box)
                line = ""
                if down:
                    line = (
                        f'<path d="M{x + 4 * side:.1f} {y:.1f}L{x + 8 * side:.1f} {y + down:.1f}" '
                        'stroke="#6b7884" fill="none"/>'
                    )
                found[index] = (
                    f'{line}<text x="{x + 9 * side:.1f}" y="{y + down + 4:.1f}" fill="#1b2a38" '
                    f'text-anchor="{anchor}">{escape(name)}</text>'
                )
    return found


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _point(index: int, run: SiteRun, across: Place, up: Place, colour: str, name: str) -> str:
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
    elif run.unit == "person":
        corners = f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"
        shape, end = f'<path d="{corners}" {look}>', "</path>"
    else:
        shape, end = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" {look}>', "</circle>"
    told = (
        f"{run.name}: ε {formatting.epsilon(run.epsilon)}, {formatting.percent(run.accuracy)}, "
        f"{run.audit}"
    )
    return f'<g data-point="{index}">{shape}<title>{escape(told)}</title>{end}{name}</g>'
