"""Figures of the training: who took part how often, accuracy over rounds, against ε, by class."""

from __future__ import annotations

import statistics
from collections import Counter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from reports import formatting
from reports.figures.base import (
    MANY,
    FigureData,
    FigureText,
    Kind,
    Report,
    series,
    whole_numbers,
)
from reports.figures.style import BLUE, GREEN, INK, ORANGE


def _describe_sampling(report: Report) -> FigureText | None:
    counts = report["sampling"]["participations"]
    # Where everybody is in every round there is nothing to see.
    if len(set(counts)) < 2:
        return None
    expected = report["sampling"]["expected_participations"]
    mean = f", {formatting.plain(expected)} expected" if expected is not None else ""
    return FigureText(
        "client-sampling",
        "How often clients took part",
        "Number of clients by the completed rounds that they took part in.",
        f"Bar chart of {len(counts)} clients: from {min(counts)} to {max(counts)} rounds, median "
        f"{formatting.plain(statistics.median(counts))}{mean}.",
    )


def _draw_sampling(axes: Axes, report: Report) -> None:
    counted = Counter(report["sampling"]["participations"])
    places = sorted(counted)
    axes.bar(places, [counted[place] for place in places], width=0.8, color=BLUE)
    expected = report["sampling"]["expected_participations"]
    if expected is not None:
        axes.axvline(
            expected, color=ORANGE, linestyle="--", linewidth=1.2,
            label=f"expected: {formatting.plain(expected)}",
        )  # fmt: skip
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.set_xlabel("rounds taken part in")
    axes.set_ylabel("clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="x", visible=False)
    whole_numbers(axes)


def _sampling_data(report: Report) -> FigureData:
    return FigureData(
        ("client", "participations"), tuple(enumerate(report["sampling"]["participations"]))
    )


def _describe_accuracy(report: Report) -> FigureText | None:
    rounds, values = series(report["utility"]["rounds"], "round", "test_accuracy")
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


def _draw_accuracy(axes: Axes, report: Report) -> None:
    rounds, values = series(report["utility"]["rounds"], "round", "test_accuracy")
    axes.plot(rounds, [100 * value for value in values], color=GREEN)
    axes.plot(rounds[-1:], [100 * values[-1]], "o", color=GREEN, markersize=4)
    axes.set_xlabel("rounds completed")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 100)
    whole_numbers(axes)


def _accuracy_data(report: Report) -> FigureData:
    keys = ("round", "test_accuracy", "test_loss")
    return FigureData(keys, tuple(tuple(row[key] for key in keys) for row in _measured(report)))


def _measured(report: Report) -> list[Report]:
    return [row for row in report["utility"]["rounds"] if row["test_accuracy"] is not None]


_VIEWS = (
    ("server", "towards the server", BLUE, "-", "o"),
    ("third_party", "towards a third party", ORANGE, "--", "s"),
)


def _paid(report: Report, key: str) -> list[tuple[float, float, int]]:
    """Return ε spent, accuracy and round wherever both are known, in the rounds' order."""
    spent = {row["round"]: row[key] for row in report["accounting"]["over_rounds"]}
    return [
        (spent[row["round"]], row["test_accuracy"], row["round"])
        for row in _measured(report)
        if spent.get(row["round"]) is not None
    ]


def _describe_against_loss(report: Report) -> FigureText | None:
    curves = {key: _paid(report, key) for key, *_ in _VIEWS}
    parts = [
        f"{label} from {formatting.percent(curves[key][0][1])} at ε = "
        f"{formatting.epsilon(curves[key][0][0])} to {formatting.percent(curves[key][-1][1])} at "
        f"ε = {formatting.epsilon(curves[key][-1][0])}"
        for key, label, *_ in _VIEWS
        if len(curves[key]) > 1
    ]
    if not parts:
        return None
    return FigureText(
        "accuracy-against-epsilon",
        "Accuracy against the privacy spent",
        "Test accuracy of the global model by the ε that had been spent when it was released.",
        f"Line chart: test accuracy goes {'; '.join(parts)}.",
    )


def _draw_against_loss(axes: Axes, report: Report) -> None:
    for key, label, colour, dash, marker in _VIEWS:
        points = _paid(report, key)
        if len(points) > 1:
            axes.plot(
                [point[0] for point in points], [100 * point[1] for point in points], dash,
                color=colour, label=label, marker=marker, markersize=3,
                markevery=max(1, len(points) // 10),
            )  # fmt: skip
    axes.set_xlabel("ε spent")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")


def _against_loss_data(report: Report) -> FigureData:
    found = {key: {row[2]: row for row in _paid(report, key)} for key, *_ in _VIEWS}
    keys = [key for key in found if found[key]]
    rounds = sorted({index for key in keys for index in found[key]})
    accuracy = {row["round"]: row["test_accuracy"] for row in _measured(report)}
    return FigureData(
        ("round", *(f"epsilon_{key}" for key in keys), "test_accuracy"),
        tuple(
            (
                index,
                *(found[key][index][0] if index in found[key] else None for key in keys),
                accuracy[index],
            )
            for index in rounds
        ),
    )


def _describe_classes(report: Report) -> FigureText | None:
    known = [row for row in report["utility"]["classes"] if row["accuracy"] is not None]
    if len(known) < 2:
        return None
    worst, best = (pick(known, key=lambda row: row["accuracy"]) for pick in (min, max))
    return FigureText(
        "accuracy-by-class",
        "Test accuracy by class",
        "Accuracy of the final model on the test records of each class, with Wilson’s 95 % "
        "interval.",
        f"Interval chart of {len(known)} classes: the lowest is class {worst['class']} with "
        f"{formatting.percent(worst['accuracy'])}, the highest class {best['class']} with "
        f"{formatting.percent(best['accuracy'])}.",
    )


def _draw_classes(axes: Axes, report: Report) -> None:
    known = [row for row in report["utility"]["classes"] if row["accuracy"] is not None]
    many = len(known) > MANY
    if many:
        known = sorted(known, key=lambda row: row["accuracy"])
    places = np.arange(len(known)) if many else np.array([row["class"] for row in known])
    values = np.array([100 * row["accuracy"] for row in known])
    axes.vlines(
        places, [100 * row["low"] for row in known], [100 * row["high"] for row in known],
        color=GREEN, linewidth=0.8 if many else 2.2, alpha=0.5,
    )  # fmt: skip
    axes.plot(places, values, "o", color=GREEN, markersize=2.2 if many else 4.5)
    overall = report["utility"]["final_accuracy"]
    if overall is not None:
        axes.axhline(
            100 * overall, color=INK, linestyle=":", linewidth=1.0,
            label=f"all classes: {formatting.percent(overall)}",
        )  # fmt: skip
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.set_xlabel("classes by rising accuracy" if many else "class")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 103)
    axes.grid(axis="x", visible=False)
    whole_numbers(axes)
    if len(known) <= 20:
        axes.set_xticks(places)


def _classes_data(report: Report) -> FigureData:
    keys = ("class", "records", "accuracy", "low", "high")
    rows = report["utility"]["classes"]
    return FigureData(keys, tuple(tuple(row[key] for key in keys) for row in rows))


SAMPLING = Kind("client-sampling", _describe_sampling, _draw_sampling, _sampling_data, 1.9)
ACCURACY = Kind("accuracy-over-rounds", _describe_accuracy, _draw_accuracy, _accuracy_data)
AGAINST_LOSS = Kind(
    "accuracy-against-epsilon", _describe_against_loss, _draw_against_loss, _against_loss_data
)
CLASSES = Kind("accuracy-by-class", _describe_classes, _draw_classes, _classes_data, 2.0)
