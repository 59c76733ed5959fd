"""What the auditor found, as the report has it: checks, noise quantiles, the second moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import numpy as np
from pydantic import WithJsonSchema

from reports import formatting
from reports.content import findings
from reports.content.findings import Check, Library, Verdict
from reports.content.parts import (
    EMPTY,
    FOR_THE_PUBLIC,
    INTERNAL,
    NULL,
    Figure,
    FigureText,
    Part,
    Report,
    ReportSection,
    Rule,
    part,
    register,
    shown,
)
from reports.document import LEFT, RIGHT, check_list, paragraph, sentence, table
from reports.document import Block as PageBlock
from reports.figures import BLUE, INK, MANY, ORANGE, FigureData, whole_numbers
from reports.files import clean, integer, mapping, number, sequence
from reports.source import RunSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Side = Literal["inside", "below", "above"]
Level = Annotated[
    float, WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})
]


class Block(Part):
    """One block.

    Attributes:
        name: Name.
        size: Coordinates.
        predicted: Shift (1 − β₂^τ)Φ that noise adds.
        released: Released mean, averaged over the last round's clients.
        half_width: 99.9 % half-width of the shift.
    """

    name: str
    size: int | None
    predicted: float
    released: float
    half_width: float


class SecondMoment(Part):
    """The bias shift.

    Attributes:
        tau: Moving-average steps behind the second moment.
        blocks: Blocks in order.
    """

    tau: int | None
    blocks: tuple[Block, ...]


class NoiseQuantile(Part):
    """One quantile.

    Attributes:
        level: Probability p.
        expected: The normal law's p-quantile.
        low: Lower end of the accepted interval, in units of the charged standard deviation.
        high: Its upper end.
        verdict: Where the noise's own quantile was found.
    """

    level: Level
    expected: float
    low: float
    high: float
    verdict: Side


class Audit(Part):
    """What the auditor found.

    Attributes:
        auditor: The auditor's software.
        checks: Every check. In the public report the auditor's wording is left out and these five
            texts are null.
        second_moment: Released block means of the second moment, with the noise shift; null if
            not measured.
        noise_quantiles: Quantiles of the recorded noise, as verdicts: the noise itself is private.
            Internal only, because the intervals tell how many queries were made.
    """

    auditor: tuple[Library, ...]
    checks: tuple[Check, ...]
    second_moment: SecondMoment | None
    noise_quantiles: tuple[NoiseQuantile, ...]


_WORDED = ("claim", "measurement", "tolerance", "power", "limits")


@part(
    "audit",
    Audit,
    Rule(
        FOR_THE_PUBLIC,
        {**{f"checks[].{name}": NULL for name in _WORDED}, "noise_quantiles": EMPTY},
    ),
)
def audit(source: RunSource, audience: str) -> Audit:
    """Return what the auditor found, as far as an audience may know it."""
    return Audit(
        auditor=tuple(findings.auditor(source)),
        checks=tuple(findings.checks(source, audience)),
        second_moment=_second_moment(source) if source.private else None,
        noise_quantiles=_noise_quantiles(source) if source.private and audience == INTERNAL else (),
    )


def _second_moment(source: RunSource) -> SecondMoment | None:
    """Return released block means with the predicted noise shift; the clean ones stay private."""
    found = findings.details(source, "second-moment")
    blocks = []
    for raw in sequence(found.get("blocks"))[:100_000]:
        block = mapping(raw)
        predicted, released, half_width = (
            number(block.get(key)) for key in ("predicted", "released", "half_width")
        )
        if predicted is not None and released is not None and half_width is not None:
            blocks.append(
                Block(
                    name=clean(block.get("name"), 200),
                    size=integer(block.get("size")),
                    predicted=predicted,
                    released=released,
                    half_width=half_width,
                )
            )
    tau = integer(found.get("tau"))
    return SecondMoment(tau=tau, blocks=tuple(blocks)) if blocks else None


def _noise_quantiles(source: RunSource) -> tuple[NoiseQuantile, ...]:
    """Return where quantiles of the noise are accepted, and whether they were found there."""
    found = mapping(findings.details(source, "noise-scale").get("quantiles"))
    names = ("levels", "expected", "low", "high", "verdicts")
    rows = []
    for values in zip(*(sequence(found.get(name))[:200] for name in names), strict=False):
        level, expected, low, high = (number(value) for value in values[:4])
        if level is None or expected is None or low is None or high is None:
            return ()
        if values[4] not in get_args(Side):
            return ()
        rows.append(
            NoiseQuantile(level=level, expected=expected, low=low, high=high, verdict=values[4])
        )
    return tuple(rows)


_SHOWN_BLOCKS = 24


def _blocks(report: Report) -> Iterator[PageBlock]:
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


def _shift(found: SecondMoment) -> Iterator[PageBlock]:
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
    if len(blocks) == 1 and blocks[0].predicted > 0:
        yield paragraph(_one_shift(blocks[0]))
    if len(blocks) < len(found.blocks):
        yield paragraph(
            f"The {len(blocks)} largest of {len(found.blocks)} blocks; the embedded data has all."
        )


def _one_shift(block: Block) -> str:
    """Say of a single block what the figure shows of several."""
    left = 100 * (block.released / block.predicted - 1)
    band = 100 * block.half_width / block.predicted
    where = f"{formatting.plain(abs(left), 3)} % {'below' if left < 0 else 'above'}"
    found = "That is within what noise alone explains."
    if left > band:
        found = "What is above that is signal of the gradients, as it should be."
    elif left < -band:
        found = "That is less noise than was charged."
    return (
        f"The released mean is {where} the noise’s share. Noise alone would end within "
        f"{formatting.plain(band, 3)} % of it, with 99.9 %. {found}"
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
        "a distance from the normal law’s in units of the charged standard deviation. The mark "
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
    # One bar is a sentence, which stands with the table.
    if found is None or len(found.blocks) < 2:
        return None
    ratios = [b.released / b.predicted for b in found.blocks if b.predicted > 0]
    span = f" from {min(ratios):.3g} to {max(ratios):.3g}" if ratios else ""
    return FigureText(
        identifier="bias-shift",
        title="What is left of the second moment once the noise’s share is subtracted",
        caption="Bars begin at the share (1 − β₂^τ)Φ that noise adds, and reach to the released "
        "mean of each block. What stands above the band is signal of the gradients, and right. The "
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
        (~low, INK, "", "what is left, as it should be"),
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
        whole_numbers(axes.xaxis)
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


def _check_blocks(report: Report) -> Iterator[PageBlock]:
    audit = report[Audit]
    if not audit.checks:
        return
    if report.internal:
        applied = [check for check in audit.checks if check.verdict != "NOT APPLICABLE"]
        yield check_list([_check(check) for check in applied])
        if len(applied) < len(audit.checks):
            yield paragraph(
                "Checks that do not apply to this run are left out here; the embedded data has "
                "them.",
                "small",
            )
        return
    yield paragraph("The internal report has the measurements, tolerances and power of each check.")
    yield table(
        "What is at stake in each check",
        ("Check", "What is at stake", "Severity"),
        [[check.title, check.meaning or "–", check.severity] for check in audit.checks],
        (LEFT, LEFT, LEFT),
        (1.2, 1.5, 0),
    )


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


register(
    ReportSection(
        identifier="checks", title="Annex: the checks in detail", place=1200, blocks=_check_blocks
    )
)
