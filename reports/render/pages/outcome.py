"""The section on what came out: accuracy, by round, by ε and by class; traffic and computation."""

from __future__ import annotations

from typing import Any

from reports import formatting
from reports.render.pages.blocks import LEFT, RIGHT, Block, figure, paragraph, table

Report = dict[str, Any]
_SHOWN_ROUNDS = 12


def blocks(report: Report, has: set[str]) -> list[Block]:
    """Return the section's content."""
    found = [
        figure(name) for name in ("accuracy-over-rounds", "accuracy-against-epsilon") if name in has
    ]
    rows = _thinned(report["utility"]["rounds"])
    if rows:
        found.append(
            table(
                "Test accuracy and loss over the rounds",
                ("Round", "Test accuracy", "Test loss"),
                [
                    [
                        str(row["round"]),
                        formatting.percent(row["test_accuracy"]),
                        formatting.plain(row["test_loss"]) if row["test_loss"] is not None else "–",
                    ]
                    for row in rows
                ],
                (RIGHT, RIGHT, RIGHT),
                (0, 1, 1),
                small=True,
            )
        )
    else:
        found.append(paragraph("No test metrics were recorded."))
    if "accuracy-by-class" in has:
        found.append(figure("accuracy-by-class"))
    found.append(paragraph(report["utility"]["classes_statement"]))
    found += _costs(report["communication"])
    return found


def _costs(costs: Report) -> list[Block]:
    rows = [
        [name, text]
        for name, value, text in (
            ("Uploaded by all clients", costs["bytes_up"], formatting.size(costs["bytes_up"])),
            (
                "Downloaded by all clients",
                costs["bytes_down"],
                formatting.size(costs["bytes_down"]),
            ),
            ("Rounds measured", costs["rounds"], formatting.count(costs["rounds"])),
            ("Time of the rounds, measured", costs["seconds"], f"{costs['seconds'] or 0:,.1f} s"),
            (
                "Gradients of single records, expected",
                costs["expected_gradients"],
                formatting.count(costs["expected_gradients"]),
            ),
        )
        if value is not None
    ]
    found = [
        table(
            "Communication and computation",
            ("Communication and computation", "Amount"),
            rows,
            (LEFT, RIGHT),
            (1, 0),
            small=True,
        )
    ]
    if costs["bytes_up"] is None:
        found.append(
            paragraph("Traffic is not stated: it tells how many clients took part, or is unknown.")
        )
    return found


def _thinned(rows: list[Report]) -> list[Report]:
    """Return at most a page's worth of measured rounds, first and last included."""
    measured = [row for row in rows if row["test_accuracy"] is not None]
    if len(measured) <= _SHOWN_ROUNDS:
        return measured
    last = len(measured) - 1
    return [measured[round(i * last / (_SHOWN_ROUNDS - 1))] for i in range(_SHOWN_ROUNDS)]
