"""Figures of the budget: ε over the rounds, the privacy profile, each client's loss."""

from __future__ import annotations

import statistics

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from reports import formatting
from reports.accountants import described, ordered
from reports.figures.base import (
    MANY,
    FigureData,
    FigureText,
    Kind,
    Report,
    by_client,
    series,
    whole_numbers,
)
from reports.figures.style import BLUE, INK, ORANGE


def _describe_privacy(report: Report) -> FigureText | None:
    rows = report["accounting"]["over_rounds"]
    parts = []
    for key, label in (("server", "towards the server"), ("third_party", "towards a third party")):
        rounds, values = series(rows, "round", key)
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


def _draw_privacy(axes: Axes, report: Report) -> None:
    rows = report["accounting"]["over_rounds"]
    looks = (
        ("server", "towards the server", BLUE, "-", "o"),
        ("third_party", "towards a third party", ORANGE, "--", "s"),
    )
    for key, label, colour, dash, marker in looks:
        rounds, values = series(rows, "round", key)
        if rounds:
            axes.plot(
                rounds, values, dash, color=colour, label=label, marker=marker, markersize=3,
                markevery=max(1, len(rounds) // 10),
            )  # fmt: skip
    axes.set_xlabel("rounds completed")
    axes.set_ylabel("ε spent")
    axes.set_ylim(bottom=0)
    whole_numbers(axes)
    axes.legend(loc="upper left")


def _privacy_data(report: Report) -> FigureData:
    rows = report["accounting"]["over_rounds"]
    keys = [key for key in ("server", "third_party") if any(row[key] is not None for row in rows)]
    return FigureData(
        ("round", *(f"epsilon_{key}" for key in keys)),
        tuple((row["round"], *(row[key] for key in keys)) for row in rows),
    )


def _describe_profile(report: Report) -> FigureText | None:
    points = report["accounting"]["profile"]
    if len(points) < 2:
        return None
    first, last = points[0], points[-1]
    of = "towards a third party" if by_client(report) else "of the client with the largest loss"
    return FigureText(
        "privacy-profile",
        f"Privacy profile {of}",
        "The smallest δ for every ε: the guarantee is this whole curve, the headline one point of "
        "it.",
        f"Line chart: δ falls from {formatting.power(first[1])} at ε = "
        f"{formatting.plain(first[0])} to {formatting.power(last[1])} at ε = "
        f"{formatting.plain(last[0])}.",
    )


def _draw_profile(axes: Axes, report: Report) -> None:
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


def _profile_data(report: Report) -> FigureData:
    points = report["accounting"]["profile"]
    return FigureData(("epsilon", "delta"), tuple((pair[0], pair[1]) for pair in points))


def _client_points(report: Report) -> tuple[list[float], list[float]]:
    key = "participations" if by_client(report) else "records"
    rows = [{**row, "epsilon": _loss(report, row)} for row in report["clients"]["rows"]]
    return series(rows, key, "epsilon")


def _loss(report: Report, row: Report) -> float | None:
    """The client's loss by the accountant that leads."""
    loss: float | None = row["epsilon"].get(report["accounting"]["accountant"])
    return loss


def _describe_clients(report: Report) -> FigureText | None:
    sizes, losses = _client_points(report)
    if not sizes:
        return None
    if by_client(report):
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


def _draw_clients(axes: Axes, report: Report) -> None:
    sizes, losses = _client_points(report)
    many = len(sizes) > MANY
    axes.scatter(
        sizes, losses, s=10 if many else 24, color=BLUE, alpha=0.45 if many else 0.85, linewidths=0
    )
    if max(sizes) > 20 * max(1, min(sizes)):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.count(value)))
        axes.xaxis.set_minor_locator(NullLocator())
    # At client level the headline is another view's, and no bound of these.
    top = None if by_client(report) else report["guarantee"]["epsilon"]
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
        if by_client(report)
        else "training records of the client"
    )
    label = described(report["accounting"]["accountant"] or "unstated").label
    axes.set_ylabel(f"ε of the client ({label})")
    axes.set_ylim(0, max([*losses, top or 0]) * 1.14 or 1)


def _clients_data(report: Report) -> FigureData:
    rows = report["clients"]["rows"]
    keys = ("client", "records", "participations")
    names = ordered(name for row in rows for name in row["epsilon"])
    return FigureData(
        (*keys, *(f"epsilon_{name}" for name in names)),
        tuple(
            (*(row[key] for key in keys), *(row["epsilon"].get(name) for name in names))
            for row in rows
        ),
    )


OVER_ROUNDS = Kind("epsilon-over-rounds", _describe_privacy, _draw_privacy, _privacy_data)
PROFILE = Kind("privacy-profile", _describe_profile, _draw_profile, _profile_data)
CLIENTS = Kind("epsilon-per-client", _describe_clients, _draw_clients, _clients_data)
