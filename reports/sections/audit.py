"""The section on the audit: by which software, and what can be drawn of what it measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes

from reports import formatting
from reports.content.audit import Audit, SecondMoment
from reports.content.findings import Verdict
from reports.content.parts import FigureText, Report
from reports.content.sections import Figure, FigureData, ReportSection, register, shown
from reports.document import LEFT, RIGHT, Block, paragraph, table
from reports.figures.base import MANY, whole_numbers
from reports.figures.style import BLUE, GREEN, ORANGE

_SHOWN_BLOCKS = 24


def _blocks(report: Report) -> Iterator[Block]:
    audit, verdict = report[Audit], report[Verdict]
    if not audit.checks:
        yield paragraph("No findings of an auditor could be used.")
        return
    versions = [f"{entry.name} {entry.version}" for entry in audit.auditor]
    # Each verdict stands at a glance on the second page, each check in the annex.
    yield paragraph(
        f"{verdict.passed} of {verdict.applicable} applicable checks passed. Auditor’s software: "
        f"{', '.join(versions) or 'not stated'}."
    )
    yield from shown(report, "noise-quantiles")
    if audit.second_moment is not None:
        yield from shown(report, "bias-shift")
        yield from _shift(audit.second_moment)


def _shift(found: SecondMoment) -> Iterator[Block]:
    blocks = found.blocks
    if len(blocks) > _SHOWN_BLOCKS:
        blocks = tuple(sorted(blocks, key=lambda block: -(block.size or 0))[:_SHOWN_BLOCKS])
    yield table(
        "The noise's share in the second moment, by block",
        ("Block", "Coordinates", "Predicted shift", "± 99.9 %", "Released mean"),
        [
            [
                block.name,
                formatting.count(block.size),
                formatting.plain(block.predicted, 5),
                formatting.plain(block.half_width, 3),
                formatting.plain(block.released, 5),
            ]
            for block in blocks
        ],
        (LEFT, RIGHT, RIGHT, RIGHT, RIGHT),
        (1, 0, 0, 0, 0),
        small=True,
    )
    if len(blocks) < len(found.blocks):
        yield paragraph(
            f"The {len(blocks)} largest of {len(found.blocks)} blocks; the embedded data has all."
        )


def _describe_quantiles(report: Report) -> FigureText | None:
    rows = report[Audit].noise_quantiles
    if len(rows) < 2:
        return None
    outside = [row for row in rows if row.verdict != "inside"]
    found = (
        "all of them are inside"
        if not outside
        else f"{len(outside)} are outside, the first at probability {outside[0].level:g}"
    )
    return FigureText(
        identifier="noise-quantiles",
        title="Quantiles of the noise",
        caption="Where the Kolmogorov-Smirnov test accepts each quantile of the recorded noise, as "
        "a distance from the normal law’s in units of the charged standard deviation; the mark "
        "says whether the noise’s own quantile lay inside. Where it lay is private: noise that is "
        "known can be subtracted.",
        alternative_text=f"Interval chart of {len(rows)} quantiles from probability "
        f"{rows[0].level:g} to {rows[-1].level:g}; {found}.",
    )


def _draw_quantiles(axes: Axes, report: Report) -> None:
    rows = report[Audit].noise_quantiles
    expected = np.array([row.expected for row in rows])
    low = np.array([row.low for row in rows]) - expected
    high = np.array([row.high for row in rows]) - expected
    axes.axhline(0, color=BLUE, linewidth=1.0, label="normal law")
    axes.fill_between(expected, low, high, color=BLUE, alpha=0.16, linewidth=0, label="accepted")
    axes.vlines(expected, low, high, color=BLUE, linewidth=0.7)
    inside = [row.verdict == "inside" for row in rows]
    # A mark inside stands on the axis, not where the noise was: that is private.
    axes.plot(
        expected[inside], np.zeros(sum(inside)), "o", color=BLUE, markersize=3.4, label="inside"
    )
    reach = 1.25 * float(max(np.abs(low).max(), np.abs(high).max()))
    for side, marker, place in (("below", "v", -reach), ("above", "^", reach)):
        chosen = [row.verdict == side for row in rows]
        if any(chosen):
            axes.plot(
                expected[chosen], np.full(sum(chosen), 0.92 * place), marker, color=ORANGE,
                markersize=5, label=f"{side} what is accepted",
            )  # fmt: skip
    axes.set_ylim(-reach, reach)
    axes.set_xlabel("quantile of the normal law")
    axes.set_ylabel("accepted distance, σC")
    axes.legend(loc="upper center", ncols=5, bbox_to_anchor=(0.5, 1.16), borderaxespad=0.1)


def _quantiles_data(report: Report) -> FigureData:
    return FigureData(
        ("level", "expected", "low", "high", "verdict"),
        tuple(
            (row.level, row.expected, row.low, row.high, row.verdict)
            for row in report[Audit].noise_quantiles
        ),
    )


def _describe_shift(report: Report) -> FigureText | None:
    found = report[Audit].second_moment
    if found is None:
        return None
    ratios = [b.released / b.predicted for b in found.blocks if b.predicted > 0]
    span = f" from {min(ratios):.3g} to {max(ratios):.3g}" if ratios else ""
    return FigureText(
        identifier="bias-shift",
        title="What is left of the second moment once the noise’s share is subtracted",
        caption="Bars begin at the share (1 − β₂^τ)Φ that noise adds, and reach to the released "
        "mean of each block: what stands above the band is signal of the gradients, and right. The "
        "band is where noise alone would end, with 99.9 %; a bar that ends below it would show "
        "less noise than was charged.",
        alternative_text=f"Bar chart of {len(found.blocks)} blocks: the released mean over the "
        f"noise’s predicted share runs{span}, where 1 is noise alone and more is signal.",
    )


def _draw_shift(axes: Axes, report: Report) -> None:
    found = report[Audit].second_moment
    blocks = [b for b in found.blocks if b.predicted > 0] if found else []
    many = len(blocks) > MANY
    order = sorted(blocks, key=lambda b: -(b.size or 0)) if many else blocks
    positions = np.arange(1, len(order) + 1)
    left = np.array([100 * (b.released / b.predicted - 1) for b in order])
    band = np.array([100 * b.half_width / b.predicted for b in order])
    edges = np.column_stack([positions - 0.5, positions + 0.5]).ravel()
    axes.fill_between(
        edges, np.repeat(-band, 2), np.repeat(band, 2), color=BLUE, alpha=0.18, linewidth=0,
        label="where noise alone would end, 99.9 %",
    )  # fmt: skip
    axes.axhline(0, color=BLUE, linewidth=1.2)
    width = 0.8 if many else 0.4
    low = left < -band
    for chosen, colour, hatch, label in (
        (~low, GREEN, "", "what is left, as it should be"),
        (low, ORANGE, "///", "too little: less than noise alone"),
    ):
        if chosen.any():
            axes.bar(
                positions[chosen], left[chosen], width=width, color=colour, alpha=0.85, hatch=hatch,
                label=label,
            )  # fmt: skip
    names = [b.name for b in order]
    short = not many and len("".join(names)) <= 76 and all(name.isascii() for name in names)
    if short:
        axes.set_xticks(positions, names)
    else:
        whole_numbers(axes)
    axes.set_xlabel("block" if short else f"block{', by falling size' if many else ' number'}")
    axes.set_ylabel("above the noise’s share, %")
    axes.grid(axis="x", visible=False)
    bottom, top = min([*left, *(-band)], default=-1), max([*left, *band], default=1)
    margin = 0.08 * max(top - bottom, 0.2)
    axes.set_ylim(bottom - margin, top + margin)
    axes.set_xlim(0.4, len(order) + 0.6)
    # Above the axes, where no bar can hide behind it.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)


def _shift_data(report: Report) -> FigureData:
    found = report[Audit].second_moment
    return FigureData(
        ("block", "coordinates", "predicted_shift", "half_width", "released_mean"),
        tuple(
            (b.name, b.size, b.predicted, b.half_width, b.released)
            for b in (found.blocks if found else ())
        ),
    )


register(
    ReportSection(
        identifier="audit",
        title="The audit",
        place=600,
        blocks=_blocks,
        figures=(
            Figure(
                identifier="noise-quantiles",
                describe=_describe_quantiles,
                draw=_draw_quantiles,
                data=_quantiles_data,
            ),
            Figure(
                identifier="bias-shift",
                describe=_describe_shift,
                draw=_draw_shift,
                data=_shift_data,
            ),
        ),
    )
)
