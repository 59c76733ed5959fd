"""The section on what came out: accuracy, by round, by ε and by class; traffic and computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes

from reports import formatting
from reports.content.accounting import Accounting
from reports.content.outcomes import (
    MEASURES,
    MOST_NAMED,
    OF_ROUNDS,
    OF_THE_END,
    Communication,
    RoundMetrics,
    Utility,
    accuracy_span,
)
from reports.content.parts import FigureText, Report
from reports.content.sections import Figure, FigureData, ReportSection, register, shown
from reports.document import LEFT, RIGHT, Block, Text, paragraph, strong, table
from reports.figures.base import MANY, VIEW_LINES, ViewLine, known_pairs, whole_numbers
from reports.figures.style import GREEN, INK

_SHOWN_ROUNDS = 12


def _blocks(report: Report) -> Iterator[Block]:
    yield from shown(
        report, "accuracy-over-rounds", "error-over-rounds", "accuracy-against-epsilon"
    )
    rows = _thinned(_measured(report))
    others = _names(report)
    if rows and others:
        yield table(
            "Test measures over the rounds",
            ("Round", *(MEASURES.get(name, "Accuracy") for name in others), "Test loss"),
            [[str(row.round), *_told(row, others)] for row in rows],
            (RIGHT,) * (2 + len(others)),
            (0, *((1,) * (1 + len(others)))),
            small=True,
        )
    elif rows:
        yield table(
            "Test accuracy and loss over the rounds",
            ("Round", "Test accuracy", "Test loss"),
            [
                [
                    str(row.round),
                    formatting.percent(row.test_accuracy),
                    formatting.plain(row.test_loss) if row.test_loss is not None else "–",
                ]
                for row in rows
            ],
            (RIGHT, RIGHT, RIGHT),
            (0, 1, 1),
            small=True,
        )
    else:
        yield paragraph("No test metrics were recorded.")
    yield from _of_the_end(report[Utility])
    yield from shown(report, "accuracy-by-class", "confusion")
    for text in (report[Utility].scored, report[Utility].classes_statement):
        if text:
            yield paragraph(text)
    yield from _costs(report[Communication])


def _of_the_end(utility: Utility) -> Iterator[Block]:
    """Measures of the finished model, and what they mean."""
    rate, own = utility.majority_rate, utility.own
    rows: list[list[Text]] = []
    if rate is not None:
        meaning = "accuracy of always giving the most frequent answer"
        rows.append(["majority rate", formatting.percent(rate), meaning])
    rows += [
        [OF_THE_END[one.name][0], formatting.plain(one.value), OF_THE_END[one.name][1]]
        for one in utility.measures
        if one.name in OF_THE_END
    ]
    rows += [[one.name, formatting.plain(one.value), "a metric of the user’s own"] for one in own]
    if not rows:
        return
    head = ("Measure", "Finished model", "Meaning")
    yield table(
        "Measures of the finished model", head, rows, (LEFT, RIGHT, LEFT), (0, 0, 1), small=True
    )
    if utility.majority_statement:
        yield paragraph([strong(utility.majority_statement)])
    if any(one.name in OF_THE_END for one in utility.measures):
        yield paragraph(utility.positive, "small")


def _costs(costs: Communication) -> Iterator[Block]:
    title, gradients = "Communication and computation", costs.expected_gradients
    rows = (
        ("Uploaded by all clients", costs.bytes_up, formatting.size(costs.bytes_up)),
        ("Downloaded by all clients", costs.bytes_down, formatting.size(costs.bytes_down)),
        ("Rounds measured", costs.rounds, formatting.count(costs.rounds)),
        ("Time of the rounds, measured", costs.seconds, f"{costs.seconds or 0:,.0f} s"),
        ("Gradients of single records, expected", gradients, formatting.count(gradients)),
    )
    told = [[name, text] for name, value, text in rows if value is not None]
    yield table(title, (title, "Amount"), told, (LEFT, RIGHT), (1, 0), small=True)
    if costs.bytes_up is None:
        yield paragraph(
            "Traffic is not stated: it tells how many clients took part, or is unknown."
        )


def _thinned(measured: Sequence[RoundMetrics]) -> Sequence[RoundMetrics]:
    """Return at most a page's worth of rounds, first and last included."""
    if len(measured) <= _SHOWN_ROUNDS:
        return measured
    last = len(measured) - 1
    return [measured[round(i * last / (_SHOWN_ROUNDS - 1))] for i in range(_SHOWN_ROUNDS)]


def _measured(report: Report) -> list[RoundMetrics]:
    return [row for row in report[Utility].rounds if row.is_measured]


def _names(report: Report) -> list[str]:
    """What the table shows beside the loss where the task is no classification."""
    measures = [one.name for one in report[Utility].measures if one.name in OF_ROUNDS]
    if measures and report[Utility].final_accuracy is not None:
        return ["test_accuracy", *measures]
    return measures


def _told(row: RoundMetrics, names: Sequence[str]) -> Iterator[str]:
    """A round's measures and its loss, as they are printed."""
    values = {one.name: one.value for one in row.measures}
    for name in names:
        if name == "test_accuracy":
            yield formatting.percent(row.test_accuracy)
        else:
            yield formatting.plain(values[name]) if name in values else "–"
    yield formatting.plain(row.test_loss) if row.test_loss is not None else "–"


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
    axes.plot(rounds[-1:], values[-1:], "o", color=GREEN, markersize=4)
    axes.set_xlabel("rounds completed")
    axes.set_ylabel("test RMSE")
    axes.set_ylim(bottom=0)
    whole_numbers(axes)


def _error_data(report: Report) -> FigureData:
    return FigureData(("round", "test_rmse"), tuple(zip(*_errors(report), strict=True)))


def _accuracies(report: Report) -> tuple[list[float], list[float]]:
    return known_pairs((row.round, row.test_accuracy) for row in report[Utility].rounds)


def _accuracy_axis(axes: Axes, along: str) -> None:
    axes.set_xlabel(along)
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
    axes.plot(rounds[-1:], [100 * values[-1]], "o", color=GREEN, markersize=4)
    _accuracy_axis(axes, "rounds completed")
    whole_numbers(axes)


def _accuracy_data(report: Report) -> FigureData:
    return FigureData(
        ("round", "test_accuracy", "test_loss"),
        tuple((row.round, row.test_accuracy, row.test_loss) for row in _measured(report)),
    )


def _paid(report: Report, line: ViewLine) -> list[tuple[float, float, int]]:
    """Return ε spent, accuracy and round wherever both are known, in the rounds' order."""
    spent = {row.round: line.spent(row) for row in report[Accounting].over_rounds}
    found = []
    for row in _measured(report):
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
    _accuracy_axis(axes, "ε spent")
    axes.set_xlim(left=0)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


def _against_loss_data(report: Report) -> FigureData:
    spent = {
        line.key: {index: loss for loss, _, index in points}
        for line in VIEW_LINES
        if (points := _paid(report, line))
    }
    accuracy = {row.round: row.test_accuracy for row in _measured(report)}
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
    _accuracy_axis(axes, "classes by rising accuracy" if many else "class")
    axes.set_ylim(0, 103)
    axes.grid(axis="x", visible=False)
    whole_numbers(axes)
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
        f"answered rightly; the most frequent error is class {labels[row]} answered as "
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
        whole_numbers(axes)
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
        blocks=_blocks,
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
                height=2.0,
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
