"""Figures of the audit: quantiles of the noise, and the noise's share in the second moment."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from reports.figures.base import MANY, FigureData, FigureText, Kind, Report, whole_numbers
from reports.figures.style import BLUE, ORANGE


def _describe_quantiles(report: Report) -> FigureText | None:
    rows = report["audit"]["noise_quantiles"]
    if len(rows) < 2:
        return None
    outside = [row for row in rows if row["verdict"] != "inside"]
    found = (
        "all of them are inside"
        if not outside
        else f"{len(outside)} are outside, the first at probability {outside[0]['level']:g}"
    )
    return FigureText(
        "noise-quantiles",
        "Quantiles of the noise",
        "Where the Kolmogorov-Smirnov test accepts each quantile of the recorded noise, as a "
        "distance from the normal law’s in units of the charged standard deviation; the mark says "
        "whether the noise’s own quantile lay inside. Where it lay is private: noise that is known "
        "can be subtracted.",
        f"Interval chart of {len(rows)} quantiles from probability {rows[0]['level']:g} to "
        f"{rows[-1]['level']:g}; {found}.",
    )


def _draw_quantiles(axes: Axes, report: Report) -> None:
    rows = report["audit"]["noise_quantiles"]
    expected = np.array([row["expected"] for row in rows])
    low = np.array([row["low"] for row in rows]) - expected
    high = np.array([row["high"] for row in rows]) - expected
    axes.axhline(0, color=BLUE, linewidth=1.0, label="normal law")
    axes.fill_between(expected, low, high, color=BLUE, alpha=0.16, linewidth=0, label="accepted")
    axes.vlines(expected, low, high, color=BLUE, linewidth=0.7)
    inside = [row["verdict"] == "inside" for row in rows]
    # A mark inside stands on the axis, not where the noise was: that is private.
    axes.plot(
        expected[inside], np.zeros(sum(inside)), "o", color=BLUE, markersize=3.4, label="inside"
    )
    reach = 1.25 * float(max(np.abs(low).max(), np.abs(high).max()))
    for side, marker, place in (("below", "v", -reach), ("above", "^", reach)):
        chosen = [row["verdict"] == side for row in rows]
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
    keys = ("level", "expected", "low", "high", "verdict")
    rows = report["audit"]["noise_quantiles"]
    return FigureData(keys, tuple(tuple(row[key] for key in keys) for row in rows))


def _describe_shift(report: Report) -> FigureText | None:
    found = report["audit"]["second_moment"]
    if found is None:
        return None
    blocks = found["blocks"]
    ratios = [b["released"] / b["predicted"] for b in blocks if b["predicted"] > 0]
    span = f" from {min(ratios):.3g} to {max(ratios):.3g}" if ratios else ""
    return FigureText(
        "bias-shift",
        "Bias shift: the noise's share in the second moment",
        "Released block means of the second moment against the shift (1 − β₂^τ)Φ that noise "
        "alone adds. The band is the shift's 99.9 % half-width; what lies above it is signal.",
        f"Point chart of {len(blocks)} blocks: the released mean over the predicted shift "
        f"runs{span}, where 1 is noise alone.",
    )


def _draw_shift(axes: Axes, report: Report) -> None:
    blocks = [b for b in report["audit"]["second_moment"]["blocks"] if b["predicted"] > 0]
    order = sorted(blocks, key=lambda b: -(b["size"] or 0)) if len(blocks) > MANY else blocks
    positions = np.arange(1, len(order) + 1)
    released = np.array([b["released"] / b["predicted"] for b in order])
    band = np.array([b["half_width"] / b["predicted"] for b in order])
    many = len(order) > MANY
    if many:
        axes.fill_between(positions, 1 - band, 1 + band, color=BLUE, alpha=0.18, linewidth=0)
    else:
        axes.bar(positions, 2 * band, bottom=1 - band, width=0.62, color=BLUE, alpha=0.22)
    axes.axhline(1, color=BLUE, linewidth=1.2, label="predicted noise shift, with 99.9 % band")
    axes.plot(
        positions, released, "o", color=ORANGE, markersize=2.4 if many else 4.5, label="released",
        alpha=0.7 if many else 1,
    )  # fmt: skip
    names = [b["name"] for b in order]
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
    keys = ("name", "size", "predicted", "half_width", "released")
    rows = report["audit"]["second_moment"]["blocks"]
    return FigureData(
        ("block", "coordinates", "predicted_shift", "half_width", "released_mean"),
        tuple(tuple(row[key] for key in keys) for row in rows),
    )


QUANTILES = Kind("noise-quantiles", _describe_quantiles, _draw_quantiles, _quantiles_data)
SHIFT = Kind("bias-shift", _describe_shift, _draw_shift, _shift_data)
