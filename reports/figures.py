"""The report's figures: deterministic vector drawings made of nothing but the report itself.

`describe` says which figures a report calls for, with caption and alternative text; `draw` renders
one as SVG. Text stays text, set in the report's own typeface when the page is composed. Colours are
the Okabe-Ito palette, and every series also differs by dash and marker, so grey prints read the
same.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from reports import formatting
from reports.look import BLUE, GREEN, INK, MEASURED_FACE, ORANGE, PAGE_FACE, STYLE

_WIDTH = 6.3
_MANY = 60


@dataclass(frozen=True)
class FigureText:
    """A figure's words.

    Attributes:
        identifier: File stem, one of the keys this module can draw.
        title: Short heading.
        caption: What to read off it.
        alternative_text: The figure for someone who does not see it, with its main numbers.
    """

    identifier: str
    title: str
    caption: str
    alternative_text: str

    def as_dict(self) -> dict[str, str]:
        """Return the words as the report stores them."""
        return asdict(self)


def describe(report: dict[str, Any]) -> list[FigureText]:
    """Return the figures that the report has data for, in reading order."""
    texts = (
        _describe_privacy(report),
        _describe_profile(report),
        _describe_clients(report),
        _describe_shift(report),
        _describe_accuracy(report),
    )
    return [text for text in texts if text is not None]


def draw(report: dict[str, Any], identifier: str) -> bytes:
    """Render one figure as SVG; same report, same bytes.

    Args:
        report: The report.
        identifier: A `FigureText.identifier` from `describe`.
    """
    drawing, height = _DRAWINGS[identifier]
    with matplotlib.rc_context(rc=cast("Any", STYLE)):
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        drawing(canvas.add_subplot(), report)
        buffer = io.BytesIO()
        # Without a date and a creator the bytes depend on the data alone.
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue().replace(MEASURED_FACE.encode(), PAGE_FACE.encode())


def _series(rows: Sequence[dict[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    pairs = [(row[x], row[y]) for row in rows if row[x] is not None and row[y] is not None]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _whole_numbers(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def _describe_privacy(report: dict[str, Any]) -> FigureText | None:
    rows = report["accounting"]["over_rounds"]
    parts = []
    for key, label in (("server", "towards the server"), ("third_party", "towards a third party")):
        rounds, values = _series(rows, "round", key)
        if len(rounds) > 1:
            parts.append(
                f"{label} ε grows from {formatting.epsilon(values[0])} after round {rounds[0]} to "
                f"{formatting.epsilon(values[-1])} after round {rounds[-1]}"
            )
    if not parts:
        return None
    return FigureText(
        "epsilon-over-rounds",
        "Privacy spent over the rounds",
        "ε spent after each round, as the auditor composed it anew from the ledger.",
        f"Line chart: {'; '.join(parts)}.",
    )


def _draw_privacy(axes: Axes, report: dict[str, Any]) -> None:
    rows = report["accounting"]["over_rounds"]
    looks = (
        ("server", "towards the server", BLUE, "-", "o"),
        ("third_party", "towards a third party", ORANGE, "--", "s"),
    )
    for key, label, colour, dash, marker in looks:
        rounds, values = _series(rows, "round", key)
        if rounds:
            axes.plot(
                rounds, values, dash, color=colour, label=label, marker=marker, markersize=3,
                markevery=max(1, len(rounds) // 10),
            )  # fmt: skip
    axes.set_xlabel("rounds completed")
    axes.set_ylabel("ε spent")
    axes.set_ylim(bottom=0)
    _whole_numbers(axes)
    axes.legend(loc="upper left")


def _describe_profile(report: dict[str, Any]) -> FigureText | None:
    points = report["accounting"]["profile"]
    if len(points) < 2:
        return None
    first, last = points[0], points[-1]
    of = "towards a third party" if _by_client(report) else "of the client with the largest loss"
    return FigureText(
        "privacy-profile",
        f"Privacy profile {of}",
        "The smallest δ for every ε: the guarantee is this whole curve, the headline one point of "
        "it.",
        f"Line chart: δ falls from {formatting.power(first[1])} at ε = "
        f"{formatting.plain(first[0])} to {formatting.power(last[1])} at ε = "
        f"{formatting.plain(last[0])}.",
    )


def _draw_profile(axes: Axes, report: dict[str, Any]) -> None:
    points = [pair for pair in report["accounting"]["profile"] if pair[1] > 0]
    axes.plot([pair[0] for pair in points], [pair[1] for pair in points], color=BLUE)
    axes.set_yscale("log")
    exponents = np.log10([pair[1] for pair in points]) if points else np.zeros(1)
    low, high = int(np.floor(exponents.min())), int(np.ceil(exponents.max()))
    step = max(1, (high - low) // 5)
    axes.yaxis.set_major_locator(FixedLocator([10.0**e for e in range(low, high + 1, step)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.decade(value)))
    guarantee = report["guarantee"]
    if guarantee["epsilon"] is not None and guarantee["delta"]:
        axes.plot([guarantee["epsilon"]], [guarantee["delta"]], "D", color=ORANGE, markersize=5)
        axes.annotate(
            f"headline: ε = {formatting.epsilon(guarantee['epsilon'])}, δ = "
            f"{formatting.power(guarantee['delta'])}",
            (guarantee["epsilon"], guarantee["delta"]),
            textcoords="offset points",
            xytext=(8, 7),
            color=INK,
        )
    axes.set_xlabel("ε")
    axes.set_ylabel("δ")


def _by_client(report: dict[str, Any]) -> bool:
    return bool(report["guarantee"]["unit"] == "client")


def _client_points(report: dict[str, Any]) -> tuple[list[float], list[float]]:
    key = "participations" if _by_client(report) else "records"
    return _series(report["clients"]["rows"], key, "epsilon_pld")


def _describe_clients(report: dict[str, Any]) -> FigureText | None:
    sizes, losses = _client_points(report)
    if not sizes:
        return None
    if _by_client(report):
        return FigureText(
            "epsilon-per-client",
            "Privacy loss of each client towards the server",
            "The server sees every upload, so a client spends with each round that it takes part "
            "in, and the more the more others do: each then adds a smaller share of the noise.",
            f"Scatter chart of {len(sizes)} clients: between {formatting.count(min(sizes))} and "
            f"{formatting.count(max(sizes))} rounds; ε from {formatting.epsilon(min(losses))} to "
            f"{formatting.epsilon(max(losses))}, median "
            f"{formatting.epsilon(statistics.median(losses))}.",
        )
    return FigureText(
        "epsilon-per-client",
        "Privacy loss and size of each client",
        "With the same expected batch everywhere, small clients sample each record more often and "
        "spend more.",
        f"Scatter chart of {len(sizes)} clients: between {formatting.count(min(sizes))} and "
        f"{formatting.count(max(sizes))} records; ε from {formatting.epsilon(min(losses))} to "
        f"{formatting.epsilon(max(losses))}, median "
        f"{formatting.epsilon(statistics.median(losses))}.",
    )


def _draw_clients(axes: Axes, report: dict[str, Any]) -> None:
    sizes, losses = _client_points(report)
    many = len(sizes) > _MANY
    axes.scatter(
        sizes, losses, s=10 if many else 24, color=BLUE, alpha=0.45 if many else 0.85, linewidths=0
    )
    if max(sizes) > 20 * max(1, min(sizes)):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.count(value)))
        axes.xaxis.set_minor_locator(NullLocator())
    # At client level the headline is another view's, and no bound of these.
    top = None if _by_client(report) else report["guarantee"]["epsilon"]
    if top is not None:
        axes.axhline(top, color=ORANGE, linestyle="--", linewidth=1.2)
        axes.annotate(
            f"headline ε = {formatting.epsilon(top)}",
            (1.0, top),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            xytext=(0, 4),
            ha="right",
            color=INK,
        )
    axes.set_xlabel(
        "rounds that the client took part in"
        if _by_client(report)
        else "training records of the client"
    )
    axes.set_ylabel("ε of the client (PLD)")
    axes.set_ylim(0, max([*losses, top or 0]) * 1.14 or 1)


def _describe_shift(report: dict[str, Any]) -> FigureText | None:
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


def _draw_shift(axes: Axes, report: dict[str, Any]) -> None:
    blocks = [b for b in report["audit"]["second_moment"]["blocks"] if b["predicted"] > 0]
    order = sorted(blocks, key=lambda b: -(b["size"] or 0)) if len(blocks) > _MANY else blocks
    positions = np.arange(1, len(order) + 1)
    released = np.array([b["released"] / b["predicted"] for b in order])
    band = np.array([b["half_width"] / b["predicted"] for b in order])
    many = len(order) > _MANY
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
        _whole_numbers(axes)
    axes.set_xlabel("block" if short else f"block{', by falling size' if many else ' number'}")
    axes.set_ylabel("mean of v over the shift")
    axes.grid(axis="x", visible=False)
    low, high = min([*released, *(1 - band)]), max([*released, *(1 + band)])
    margin = 0.08 * max(high - low, 0.02)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0.4, len(order) + 0.6)
    # Above the axes, where no point can hide behind it.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


def _describe_accuracy(report: dict[str, Any]) -> FigureText | None:
    rounds, values = _series(report["utility"]["rounds"], "round", "test_accuracy")
    if len(rounds) < 2:
        return None
    return FigureText(
        "accuracy-over-rounds",
        "Test accuracy over the rounds",
        "Accuracy of the global model on the test records, released without noise.",
        f"Line chart: test accuracy goes from {formatting.percent(values[0])} after round "
        f"{rounds[0]} to {formatting.percent(values[-1])} after round {rounds[-1]}; its largest "
        f"value is {formatting.percent(max(values))}.",
    )


def _draw_accuracy(axes: Axes, report: dict[str, Any]) -> None:
    rounds, values = _series(report["utility"]["rounds"], "round", "test_accuracy")
    axes.plot(rounds, [100 * value for value in values], color=GREEN)
    axes.plot(rounds[-1:], [100 * values[-1]], "o", color=GREEN, markersize=4)
    axes.set_xlabel("rounds completed")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 100)
    _whole_numbers(axes)


_DRAWINGS: dict[str, tuple[Callable[[Axes, dict[str, Any]], None], float]] = {
    "epsilon-over-rounds": (_draw_privacy, 2.35),
    "privacy-profile": (_draw_profile, 2.35),
    "epsilon-per-client": (_draw_clients, 2.35),
    "bias-shift": (_draw_shift, 2.35),
    "accuracy-over-rounds": (_draw_accuracy, 2.35),
}
