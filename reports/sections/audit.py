"""The section on the audit: every check with its power and limits, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes

from reports import formatting
from reports.content.audit import Audit, SecondMoment
from reports.content.findings import Check, Verdict
from reports.content.parts import FigureText, Report
from reports.content.sections import Figure, FigureData, ReportSection, register, shown
from reports.document import sentence
from reports.document.blocks import LEFT, RIGHT, Block, badge, checks, paragraph, table
from reports.figures.base import MANY, whole_numbers
from reports.figures.style import BLUE, ORANGE

_SHOWN_BLOCKS = 24


def _blocks(report: Report) -> Iterator[Block]:
    audit, verdict = report[Audit], report[Verdict]
    if not audit.checks:
        yield paragraph("No findings of an auditor could be used.")
        return
    versions = [f"{entry.name} {entry.version}" for entry in audit.auditor]
    yield paragraph(
        f"{verdict.passed} of {verdict.applicable} applicable checks passed. Auditor’s software: "
        f"{', '.join(versions) or 'not stated'}."
    )
    if report.internal:
        yield checks([_check(check) for check in audit.checks])
    else:
        yield table(
            "Verdict of each check",
            ("Check", "What is at stake", "Severity", "Verdict"),
            [
                [check.title, check.meaning or "–", check.severity, [badge(check.verdict)]]
                for check in audit.checks
            ],
            (LEFT, LEFT, LEFT, LEFT),
            (1.2, 1.5, 0, 0),
        )
        yield paragraph(
            "Measurements, tolerances and the power of each check stand in the internal report."
        )
    yield from shown(report, "noise-quantiles")
    if audit.second_moment is not None:
        yield from shown(report, "bias-shift")
        yield from _shift(audit.second_moment)


def _check(check: Check) -> dict[str, object]:
    parts = (
        ("Claim", check.claim),
        ("Measured", check.measurement),
        ("Accepted", check.tolerance),
        ("Power", check.power),
        ("Limits", check.limits),
    )
    return {
        "title": check.title,
        "severity": check.severity,
        "verdict": check.verdict,
        "parts": [[name, sentence(text)] for name, text in parts if text is not None],
    }


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
        title="Bias shift: the noise's share in the second moment",
        caption="Released block means of the second moment against the shift (1 − β₂^τ)Φ that "
        "noise alone adds. The band is the shift's 99.9 % half-width; what lies above it is "
        "signal.",
        alternative_text=f"Point chart of {len(found.blocks)} blocks: the released mean over the "
        f"predicted shift runs{span}, where 1 is noise alone.",
    )


def _draw_shift(axes: Axes, report: Report) -> None:
    found = report[Audit].second_moment
    blocks = [b for b in found.blocks if b.predicted > 0] if found else []
    many = len(blocks) > MANY
    order = sorted(blocks, key=lambda b: -(b.size or 0)) if many else blocks
    positions = np.arange(1, len(order) + 1)
    released = np.array([b.released / b.predicted for b in order])
    band = np.array([b.half_width / b.predicted for b in order])
    if many:
        axes.fill_between(positions, 1 - band, 1 + band, color=BLUE, alpha=0.18, linewidth=0)
    else:
        axes.bar(positions, 2 * band, bottom=1 - band, width=0.62, color=BLUE, alpha=0.22)
    axes.axhline(1, color=BLUE, linewidth=1.2, label="predicted noise shift, with 99.9 % band")
    axes.plot(
        positions, released, "o", color=ORANGE, markersize=2.4 if many else 4.5, label="released",
        alpha=0.7 if many else 1,
    )  # fmt: skip
    names = [b.name for b in order]
    short = not many and len("".join(names)) <= 76 and all(name.isascii() for name in names)
    if short:
        axes.set_xticks(positions, names)
    else:
        whole_numbers(axes)
    axes.set_xlabel("block" if short else f"block{', by falling size' if many else ' number'}")
    axes.set_ylabel("mean of v over the shift")
    axes.grid(axis="x", visible=False)
    low, high = min([*released, *(1 - band)]), max([*released, *(1 + band)])
    margin = 0.08 * max(high - low, 0.02)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0.4, len(order) + 0.6)
    # Above the axes, where no point can hide behind it.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


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
