"""The section on the accounting: conversions, event trees, loss over rounds, closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from reports import formatting
from reports.content.accounting import Accounting
from reports.content.events import Event
from reports.content.guarantee import Guarantee
from reports.content.parts import FigureText, Report
from reports.content.sections import Figure, FigureData, ReportSection, register, shown
from reports.document import LEFT, RIGHT, Block, paragraph, subheading, table, tree
from reports.figures.base import VIEW_LINES, known_pairs, whole_numbers
from reports.figures.style import BLUE, INK, ORANGE

_EVENTS = "What the accountant composed, from the outside in."
_EVENTS_OF_RECORDS = f"{_EVENTS} Sampling and noise are those of the client that spends most."
_NO_EVENTS = (
    "No fixed tree of events describes this run: the ledger does not state all of them, or steps "
    "or noise adapt."
)
# By the unit of protection; records are the usual case.
_INTRODUCTIONS = {"client": _EVENTS}
_PROFILES_OF = {"client": "towards a third party"}


def _blocks(report: Report) -> Iterator[Block]:
    accounting = report[Accounting]
    if not report[Guarantee].private:
        yield paragraph("There is no differential privacy to account for.")
        return
    composed = "The ledger does not name its accounting library."
    if accounting.library is not None:
        named = f"Composed with {accounting.library} {accounting.version or ''}".rstrip()
        composed = f"{named}, and converted as follows."
    second = accounting.second_library
    yield paragraph(f"{composed} {second.statement}" if second is not None else composed)
    yield table(
        "Conversions to ε and δ",
        ("Conversion", "ε", "Used for", "Source"),
        [
            [
                row.name,
                formatting.epsilon(row.epsilon) if row.epsilon is not None else "–",
                row.use,
                row.source,
            ]
            for row in accounting.conversions
        ],
        (LEFT, RIGHT, LEFT, LEFT),
        (0, 0, 1.4, 1),
    )
    labels = {view.key: view.label for view in accounting.views}
    introduction = _INTRODUCTIONS.get(report[Guarantee].unit, _EVENTS_OF_RECORDS)
    yield subheading("Events")
    yield paragraph(introduction if accounting.events else _NO_EVENTS)
    for entry in accounting.events:
        yield tree(labels.get(entry.view, entry.view), _branch(entry.root))
    yield from shown(report, "epsilon-over-rounds", "privacy-profile")
    if accounting.closed_forms:
        yield from _closed_forms(report)


def _branch(event: Event) -> dict[str, Any]:
    return {"text": event.text, "of": [_branch(inner) for inner in event.of]}


def _closed_forms(report: Report) -> Iterator[Block]:
    forms = report[Accounting].closed_forms
    head = ["Closed form", "Formula", "Said to be for", "ε", "Reading"]
    rows = [
        [form.name, form.formula, form.towards, formatting.epsilon(form.epsilon), form.reading]
        for form in forms
    ]
    align, widths = [LEFT, LEFT, LEFT, RIGHT, LEFT], [1.5, 1.75, 1.0, 0.0, 1.05]
    if report.internal:
        head, align, widths = [*head, "Against"], [*align, RIGHT], [*widths, 0.0]
        rows = [
            [*cells, form.compared_with or "–"] for cells, form in zip(rows, forms, strict=True)
        ]
    yield subheading("Closed forms from the literature")
    yield paragraph(
        "Their constants are taken as one, and no guarantee here rests on them. The reading says "
        "how each compares with what was composed directly."
    )
    yield table("Closed forms from the literature", head, rows, align, widths, small=True)


def _describe_spent(report: Report) -> FigureText | None:
    parts = []
    for line in VIEW_LINES:
        rounds, values = known_pairs(
            (row.round, line.spent(row)) for row in report[Accounting].over_rounds
        )
        if len(rounds) > 1:
            parts.append(
                f"{line.label} ε grows from {formatting.epsilon(values[0])} after round "
                f"{rounds[0]} to {formatting.epsilon(values[-1])} after round {rounds[-1]}"
            )
    if not parts:
        return None
    return FigureText(
        identifier="epsilon-over-rounds",
        title="Privacy spent over the rounds",
        caption="ε spent after each round, as the auditor composed it anew from the ledger.",
        alternative_text=f"Line chart: {'; '.join(parts)}.",
    )


def _draw_spent(axes: Axes, report: Report) -> None:
    for line in VIEW_LINES:
        rounds, values = known_pairs(
            (row.round, line.spent(row)) for row in report[Accounting].over_rounds
        )
        if rounds:
            line.draw(axes, rounds, values)
    axes.set_xlabel("rounds completed")
    axes.set_ylabel("ε spent")
    axes.set_ylim(bottom=0)
    whole_numbers(axes)
    axes.legend(loc="upper left")


def _spent_data(report: Report) -> FigureData:
    rows = report[Accounting].over_rounds
    lines = [line for line in VIEW_LINES if any(line.spent(row) is not None for row in rows)]
    return FigureData(
        ("round", *(f"epsilon_{line.key}" for line in lines)),
        tuple((row.round, *(line.spent(row) for line in lines)) for row in rows),
    )


def _describe_profile(report: Report) -> FigureText | None:
    points = report[Accounting].profile
    if len(points) < 2:
        return None
    of = _PROFILES_OF.get(report[Guarantee].unit, "of the client with the largest loss")
    (first, most), (last, least) = points[0], points[-1]
    return FigureText(
        identifier="privacy-profile",
        title=f"Privacy profile {of}",
        caption="The smallest δ for every ε: the guarantee is this whole curve, the headline one "
        "point of it.",
        alternative_text=f"Line chart: δ falls from {formatting.power(most)} at ε = "
        f"{formatting.plain(first)} to {formatting.power(least)} at ε = {formatting.plain(last)}.",
    )


def _draw_profile(axes: Axes, report: Report) -> None:
    points = [pair for pair in report[Accounting].profile if pair[1] > 0]
    axes.plot([pair[0] for pair in points], [pair[1] for pair in points], color=BLUE)
    axes.set_yscale("log")
    exponents = np.log10([pair[1] for pair in points]) if points else np.zeros(1)
    low, high = int(np.floor(exponents.min())), int(np.ceil(exponents.max()))
    step = max(1, (high - low) // 5)
    axes.yaxis.set_major_locator(FixedLocator([10.0**e for e in range(low, high + 1, step)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.decade(value)))
    epsilon, delta = report[Guarantee].epsilon, report[Guarantee].delta
    if epsilon is not None and delta:
        axes.plot([epsilon], [delta], "D", color=ORANGE, markersize=5)
        axes.annotate(
            f"headline: ε = {formatting.epsilon(epsilon)}, δ = {formatting.power(delta)}",
            (epsilon, delta),
            textcoords="offset points",
            xytext=(8, 7),
            color=INK,
        )
    axes.set_xlabel("ε")
    axes.set_ylabel("δ")


def _profile_data(report: Report) -> FigureData:
    return FigureData(("epsilon", "delta"), report[Accounting].profile)


register(
    ReportSection(
        identifier="accounting",
        title="Accounting",
        place=300,
        blocks=_blocks,
        figures=(
            Figure(
                identifier="epsilon-over-rounds",
                describe=_describe_spent,
                draw=_draw_spent,
                data=_spent_data,
            ),
            Figure(
                identifier="privacy-profile",
                describe=_describe_profile,
                draw=_draw_profile,
                data=_profile_data,
            ),
        ),
    )
)
