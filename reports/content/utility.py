"""The section on what came out, and its figures: accuracy by round, by ε and by class; errors.

What it says and shows in tables is in `outcomes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reports import formatting
from reports.content.accounting import VIEW_LINES, Accounting, ViewLine
from reports.content.outcomes import (
    MOST_NAMED,
    Utility,
    accuracy_span,
    blocks,
    measured_rounds,
)
from reports.content.parts import (
    Figure,
    FigureText,
    Report,
    ReportSection,
    register,
)
from reports.figures import (
    GREEN,
    INK,
    MANY,
    FigureData,
    known_pairs,
    over_rounds,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _errors(report: Report) -> tuple[list[float], list[float]]:
    """Rounds, and the RMSE after each, of a regression."""
    return known_pairs(
        (row.round, next((one.value for one in row.measures if one.name == "test_rmse"), None))
        for row in report[Utility].rounds
    )


def _describe_error(report: Report) -> FigureText | None:
    rounds, values = _errors(report)
    if len(rounds) < 2:
        return None
    first, last, least = (formatting.plain(one) for one in (values[0], values[-1], min(values)))
    return FigureText(
        identifier="error-over-rounds",
        title="Test error over the rounds",
        caption="Root mean square error of the global model on the test records, in the targets’ "
        "unit, released without noise.",
        alternative_text=f"Line chart: the root mean square error goes from {first} after round "
        f"{rounds[0]} to {last} after round {rounds[-1]}; its smallest value is {least}.",
    )


def _draw_error(axes: Axes, report: Report) -> None:
    rounds, values = _errors(report)
    axes.plot(rounds, values, color=GREEN)
    axes.plot(rounds[-1:], values[-1:], "o", color=GREEN, markersize=4, clip_on=False)
    axes.set_ylabel("test RMSE")
    axes.set_ylim(bottom=0)
    over_rounds(axes, rounds[-1])


def _error_data(report: Report) -> FigureData:
    return FigureData(("round", "test_rmse"), tuple(zip(*_errors(report), strict=True)))


def _accuracies(report: Report) -> tuple[list[float], list[float]]:
    return known_pairs((row.round, row.test_accuracy) for row in report[Utility].rounds)


def _accuracy_axis(axes: Axes) -> None:
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 100)


def _describe_accuracy(report: Report) -> FigureText | None:
    rounds, values = _accuracies(report)
    if len(rounds) < 2:
        return None
    return FigureText(
        identifier="accuracy-over-rounds",
        title="Test accuracy over the rounds",
        caption="Accuracy of the global model on the test records, released without noise.",
        alternative_text=f"Line chart: test accuracy goes from {formatting.percent(values[0])} "
        f"after round {rounds[0]} to {formatting.percent(values[-1])} after round {rounds[-1]}; "
        f"its largest value is {formatting.percent(max(values))}.",
    )


def _draw_accuracy(axes: Axes, report: Report) -> None:
    rounds, values = _accuracies(report)
    axes.plot(rounds, [100 * value for value in values], color=GREEN)
    axes.plot(rounds[-1:], [100 * values[-1]], "o", color=GREEN, markersize=4, clip_on=False)
    _accuracy_axis(axes)
    over_rounds(axes, rounds[-1])


def _accuracy_data(report: Report) -> FigureData:
    return FigureData(
        ("round", "test_accuracy", "test_loss"),
        tuple((row.round, row.test_accuracy, row.test_loss) for row in measured_rounds(report)),
    )


def _paid(report: Report, line: ViewLine) -> list[tuple[float, float, int]]:
    """Return ε spent, accuracy and round wherever both are known, in the rounds' order."""
    spent = {row.round: line.spent(row) for row in report[Accounting].over_rounds}
    found = []
    for row in measured_rounds(report):
        loss = spent.get(row.round)
        if loss is not None and row.test_accuracy is not None:
            found.append((loss, row.test_accuracy, row.round))
    return found


def _describe_against_loss(report: Report) -> FigureText | None:
    parts = []
    for line in VIEW_LINES:
        points = _paid(report, line)
        if len(points) > 1:
            first, last = (
                f"{formatting.percent(accuracy)} at ε = {formatting.epsilon(loss)}"
                for loss, accuracy, _ in (points[0], points[-1])
            )
            parts.append(f"{line.label} from {first} to {last}")
    if not parts:
        return None
    return FigureText(
        identifier="accuracy-against-epsilon",
        title="Accuracy against the privacy spent",
        caption="Test accuracy of the global model by the ε that had been spent when it was "
        "released.",
        alternative_text=f"Line chart: test accuracy goes {'; '.join(parts)}.",
    )


def _draw_against_loss(axes: Axes, report: Report) -> None:
    for line in VIEW_LINES:
        points = _paid(report, line)
        if len(points) > 1:
            line.draw(axes, [point[0] for point in points], [100 * point[1] for point in points])
    _accuracy_axis(axes)
    axes.set_xlabel("ε spent")
    axes.set_xlim(left=0)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


def _against_loss_data(report: Report) -> FigureData:
    spent = {
        line.key: {index: loss for loss, _, index in points}
        for line in VIEW_LINES
        if (points := _paid(report, line))
    }
    accuracy = {row.round: row.test_accuracy for row in measured_rounds(report)}
    rounds = sorted({index for losses in spent.values() for index in losses})
    return FigureData(
        ("round", *(f"epsilon_{key}" for key in spent), "test_accuracy"),
        tuple(
            (index, *(losses.get(index) for losses in spent.values()), accuracy[index])
            for index in rounds
        ),
    )


def _describe_classes(report: Report) -> FigureText | None:
    classes = report[Utility].classes
    known, span = sum(row.accuracy is not None for row in classes), accuracy_span(classes)
    if known < 2 or span is None:
        return None
    (worst, lowest), (best, highest) = span
    return FigureText(
        identifier="accuracy-by-class",
        title="Test accuracy by class",
        caption="Accuracy of the final model on the test records of each class, with Wilson’s 95 % "
        "interval.",
        alternative_text=f"Interval chart of {known} classes: the lowest is class {lowest} with "
        f"{formatting.percent(worst)}, the highest class {highest} with "
        f"{formatting.percent(best)}.",
    )


def _draw_classes(axes: Axes, report: Report) -> None:
    known = [
        (row.accuracy, row.class_, 100 * (row.low or 0.0), 100 * (row.high or 0.0))
        for row in report[Utility].classes
        if row.accuracy is not None
    ]
    many = len(known) > MANY
    if many:
        known.sort(key=lambda row: row[0])
    places = np.arange(len(known)) if many else np.array([row[1] for row in known])
    axes.vlines(
        places, [row[2] for row in known], [row[3] for row in known],
        color=GREEN, linewidth=0.8 if many else 2.2, alpha=0.5,
    )  # fmt: skip
    values = np.array([100 * row[0] for row in known])
    axes.plot(places, values, "o", color=GREEN, markersize=2.2 if many else 4.5)
    overall = report[Utility].final_accuracy
    if overall is not None:
        axes.axhline(
            100 * overall, color=INK, linestyle=":", linewidth=1.0,
            label=f"all classes: {formatting.percent(overall)}",
        )  # fmt: skip
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
    _accuracy_axis(axes)
    axes.set_xlabel("classes by rising accuracy" if many else "class")
    axes.set_ylim(0, 103)
    axes.grid(axis="x", visible=False)
    whole_numbers(axes.xaxis)
    if len(known) <= 20:
        axes.set_xticks(places)


def _classes_data(report: Report) -> FigureData:
    return FigureData(
        ("class", "records", "accuracy", "low", "high"),
        tuple(
            (row.class_, row.records, row.accuracy, row.low, row.high)
            for row in report[Utility].classes
        ),
    )


def _describe_confusion(report: Report) -> FigureText | None:
    matrix, labels = report[Utility].confusion, _labels(report)
    wrong = [
        (count, row, column)
        for row, counts in enumerate(matrix)
        for column, count in enumerate(counts)
        if row != column
    ]
    if not wrong:
        return None
    total = sum(map(sum, matrix))
    right = sum(matrix[place][place] for place in range(len(matrix)))
    most, row, column = max(wrong)
    return FigureText(
        identifier="confusion",
        title="Confusion matrix",
        caption="Public test records by their class (rows) and by the final model’s answer "
        "(columns). Shade is the share of a row.",
        alternative_text=f"Matrix of {len(matrix)} classes: {right} of {total} test records are "
        f"answered correctly; the most frequent error is class {labels[row]} answered as "
        f"{labels[column]}, {most} times.",
    )


def _labels(report: Report) -> list[str]:
    names, count = report[Utility].labels, len(report[Utility].confusion)
    return list(names) if len(names) == count else [str(number) for number in range(count)]


def _draw_confusion(axes: Axes, report: Report) -> None:
    counts = np.array(report[Utility].confusion)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Greens", vmin=0.0, vmax=2.0, aspect="auto")
    axes.grid(visible=False)
    axes.set_xlabel("answer")
    axes.set_ylabel("class")
    if len(counts) > MOST_NAMED:
        whole_numbers(axes.xaxis)
        return
    places = range(len(counts))
    axes.set_xticks(places, [name[:12] for name in _labels(report)])
    axes.set_yticks(places, [name[:12] for name in _labels(report)])
    for row in places:
        for column in places:
            axes.text(
                column, row, str(counts[row, column]), ha="center", va="center", color=INK,
                fontsize=8.0,
            )  # fmt: skip


def _confusion_data(report: Report) -> FigureData:
    labels, matrix = _labels(report), report[Utility].confusion
    return FigureData(
        ("class", *(f"answered {name}" for name in labels)),
        tuple((name, *row) for name, row in zip(labels, matrix, strict=True)),
    )


register(
    ReportSection(
        identifier="utility",
        title="Utility, communication and computation",
        place=800,
        blocks=blocks,
        figures=(
            Figure(
                identifier="accuracy-over-rounds",
                describe=_describe_accuracy,
                draw=_draw_accuracy,
                data=_accuracy_data,
            ),
            Figure(
                identifier="error-over-rounds",
                describe=_describe_error,
                draw=_draw_error,
                data=_error_data,
            ),
            Figure(
                identifier="accuracy-against-epsilon",
                describe=_describe_against_loss,
                draw=_draw_against_loss,
                data=_against_loss_data,
            ),
            Figure(
                identifier="accuracy-by-class",
                describe=_describe_classes,
                draw=_draw_classes,
                data=_classes_data,
            ),
            Figure(
                identifier="confusion",
                describe=_describe_confusion,
                draw=_draw_confusion,
                data=_confusion_data,
                height=2.0,
            ),
        ),
    )
)
