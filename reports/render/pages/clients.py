"""The section on the clients: their sizes, and each one's loss where the audience may see it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from reports import formatting
from reports.accountants import described, ordered
from reports.render.pages.blocks import LEFT, RIGHT, Block, figure, paragraph, table

Report = dict[str, Any]
SHOWN = 40


def blocks(report: Report, has: set[str]) -> list[Block]:
    """Return the section's content."""
    found = [paragraph(_sizes(report["clients"]))]
    rows = report["clients"]["rows"]
    if rows:
        if "epsilon-per-client" in has:
            found.append(figure("epsilon-per-client"))
        shown = _shown(rows, report["accounting"]["accountant"])
        if len(shown) < len(rows):
            found.append(
                paragraph(
                    f"The table shows the {len(shown)} clients with the largest loss of "
                    f"{len(rows)}; the embedded data has all."
                )
            )
        found.append(_table(report, shown))
    elif report["mechanism"]["noise_added_by"] == "server":
        found.append(
            paragraph(
                "No loss of a single client is stated: towards a third party all have the same, "
                "and towards the server, which adds the noise, none has a bound."
            )
        )
    elif report["guarantee"]["private"] and report["audience"] != "internal":
        found.append(
            paragraph(
                "The loss of single clients is not public, because it tells how often each took "
                "part."
            )
        )
    return found


def _sizes(clients: Report) -> str:
    count = (
        "An unknown number of" if clients["count"] is None else formatting.count(clients["count"])
    )
    total, smallest, median, largest = (
        formatting.count(clients[f"records_{key}"])
        for key in ("total", "smallest", "median", "largest")
    )
    return (
        f"{count} clients hold {total} training records: between {smallest} and {largest} each, "
        f"median {median}. These sizes are treated as public."
    )


def _shown(rows: list[Report], name: str) -> list[Report]:
    """Return all rows, or the clients with the largest loss if a page cannot hold them all."""
    if len(rows) <= SHOWN:
        return rows
    return sorted(rows, key=lambda row: -(row["epsilon"].get(name) or 0.0))[: SHOWN // 2]


def _loss(name: str, row: Report) -> str:
    return formatting.epsilon(row["epsilon"].get(name))


def _table(report: Report, rows: list[Report]) -> Block:
    columns: list[tuple[str, Callable[[Report], str]]] = [
        ("Client", lambda row: str(row["client"])),
        ("Records", lambda row: formatting.count(row["records"])),
        ("Rate q", lambda row: formatting.plain(row["sampling_rate"])),
        ("Rounds", lambda row: formatting.count(row["participations"])),
        ("Steps", lambda row: formatting.count(row["steps"])),
        *(
            (f"ε ({described(name).label})", partial(_loss, name))
            for name in ordered(name for row in rows for name in row["epsilon"])
        ),
        ("δ·records", lambda row: formatting.power(row["delta_records"])),
    ]
    if report["guarantee"]["unit"] == "client":
        columns = [one for one in columns if one[0] not in ("Rate q", "Steps", "δ·records")]
    return table(
        "Privacy loss of each client towards the server",
        [name for name, _ in columns],
        [[cell(row) for _, cell in columns] for row in rows],
        [LEFT, *[RIGHT] * (len(columns) - 1)],
        [0, *[1] * (len(columns) - 1)],
        small=True,
    )
