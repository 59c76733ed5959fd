"""The section on the clients: their sizes, and each one's loss where the audience may see it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reports import formatting
from reports.content.accounting import Accounting
from reports.content.guarantee import Guarantee
from reports.content.mechanism import Mechanism, Sampling
from reports.content.parts import (
    EMPTY,
    FOR_THE_PUBLIC,
    INTERNAL,
    WITHOUT_PRIVACY,
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
from reports.content.units import ClientLoss, unit_of
from reports.content.wording import accountant_named, in_order
from reports.document import LEFT, RIGHT, Block, paragraph, table
from reports.figures import BLUE, INK, MANY, ORANGE, FigureData, counts, known_pairs
from reports.source import RunSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = 40


class Clients(Part):
    """Client sizes, treated as public, and each client's loss, internal only.

    Attributes:
        count: Number of clients.
        records_total: Training records in all.
        records_smallest: Records of the smallest client.
        records_median: Median records of a client.
        records_largest: Records of the largest client.
        rows: Loss of each client; empty in the public report.
    """

    count: int | None
    records_total: int | None
    records_smallest: int | None
    records_median: float | None
    records_largest: int | None
    rows: tuple[ClientLoss, ...]


@part(
    "clients",
    Clients,
    Rule(WITHOUT_PRIVACY, {"rows": EMPTY}),
    Rule(FOR_THE_PUBLIC, {"rows": EMPTY}),
)
def clients(source: RunSource, audience: str) -> Clients:
    """Return the clients' sizes and, for the internal audience, the loss of each."""
    sizes, count = source.training_records, source.clients
    if source.recorded:
        # A loop has one data set and no clients; of recorded rounds the clients are counted.
        whole = source.protects_clients
        count, sizes = (round(sum(sizes)), []) if whole else (None, sizes)
    told = source.private and audience == INTERNAL
    rows = unit_of(source).client_losses(source) if told else []
    return Clients(
        count=count,
        records_total=round(sum(sizes)) if sizes else None,
        records_smallest=round(min(sizes)) if sizes else None,
        records_median=statistics.median(sizes) if sizes else None,
        records_largest=round(max(sizes)) if sizes else None,
        rows=tuple(sorted(rows, key=lambda row: row.client)),
    )


def _blocks(report: Report) -> Iterator[Block]:
    clients, rows = report[Clients], report[Clients].rows
    count = "An unknown number of" if clients.count is None else formatting.count(clients.count)
    if clients.count is None and clients.records_total is not None:
        yield paragraph(
            f"One data set of {formatting.count(clients.records_total)} training records, and no "
            "clients. Its size is treated as public."
        )
        return
    if clients.records_total is None:
        yield paragraph(
            f"{count} clients could take part. What each of them holds is not known here. Their "
            "number is treated as public."
        )
        return
    yield paragraph(
        f"{count} clients hold {formatting.count(clients.records_total)} training records: between "
        f"{formatting.count(clients.records_smallest)} and "
        f"{formatting.count(clients.records_largest)} each, median "
        f"{formatting.count(clients.records_median)}. These sizes are treated as public."
    )
    if rows:
        yield from shown(report, "epsilon-per-client")
        largest, lead = rows, report[Accounting].accountant or ""
        # The clients with the largest loss, if a page cannot hold them all.
        if len(rows) > _SHOWN:
            by_loss = sorted(rows, key=lambda row: -(row.epsilon.get(lead) or 0.0))
            largest = tuple(by_loss[: _SHOWN // 2])
            yield paragraph(
                f"The table shows the {len(largest)} clients with the largest loss of "
                f"{len(rows)}; the embedded data has all."
            )
        yield _table(largest, _OF_PEOPLE if report[Guarantee].unit == "person" else {})
    elif report[Mechanism].noise_added_by == "server":
        yield paragraph(
            "No loss of a single client is stated. Against a third party all have the same; "
            "against the server, which adds the noise, none has a bound."
        )
    elif report[Guarantee].private and not report.internal:
        yield paragraph(
            "The loss of single clients is not public, because it shows how often each took part."
        )


@dataclass(frozen=True)
class _Column:
    """A column of the table; one in which no client has anything is left out."""

    head: str
    value: Callable[[ClientLoss], float | None]
    show: Callable[[float | None], str]


_COLUMNS = (
    _Column("Client", lambda row: row.client, str),
    _Column("Records", lambda row: row.records, formatting.count),
    _Column("Rate q", lambda row: row.sampling_rate, formatting.plain),
    _Column("Rounds", lambda row: row.participations, formatting.count),
    _Column("Steps", lambda row: row.steps, formatting.count),
)
_LAST = _Column("δ·records", lambda row: row.delta_records, formatting.power)
# Where people are protected, the ledger counts each client's people, and not their records.
_OF_PEOPLE = {"Records": "People", "δ·records": "δ·people"}


def _loss_column(name: str) -> _Column:
    label = f"ε ({accountant_named(name).label})"
    return _Column(label, lambda row: row.epsilon.get(name), formatting.epsilon)


def _table(rows: tuple[ClientLoss, ...], heads: Mapping[str, str]) -> Block:
    names = in_order(name for row in rows for name in row.epsilon)
    columns = (*_COLUMNS, *map(_loss_column, names), _LAST)
    used = [one for one in columns if any(one.value(row) is not None for row in rows)]
    return table(
        "Privacy loss of each client against the server",
        [heads.get(one.head, one.head) for one in used],
        [[one.show(one.value(row)) for one in used] for row in rows],
        [LEFT, *[RIGHT] * (len(used) - 1)],
        [0, *[1] * (len(used) - 1)],
        small=True,
    )


@dataclass(frozen=True, kw_only=True)
class _Chart:
    """What each client's loss is drawn against.

    Attributes:
        title: Of the figure.
        caption: What to read off it.
        counted: What the horizontal axis counts, in one word.
        axis: Its label.
        size: How much a client has of it.
        bounded: Whether the headline bounds these losses; else it is another view's.
    """

    title: str
    caption: str
    counted: str
    axis: str
    size: Callable[[ClientLoss], float | None]
    bounded: bool


_BY_RECORDS = _Chart(
    title="Privacy loss and size of each client",
    caption="All clients have the same expected batch, so small clients sample each record more "
    "often and spend more.",
    counted="records",
    axis="training records of the client",
    size=lambda row: row.records,
    bounded=True,
)
_BY_ROUNDS = _Chart(
    title="Privacy loss of each client against the server",
    caption="The server sees every upload, so a client spends privacy in each round that it takes "
    "part in. It spends more when more clients take part, because each then adds a smaller share "
    "of the noise.",
    counted="rounds",
    axis="rounds that the client took part in",
    size=lambda row: row.participations,
    bounded=False,
)
_BY_PEOPLE = _Chart(
    title="Privacy loss and size of each client",
    caption="All clients have the same expected batch, so clients with few people sample each of "
    "them more often and spend more. The headline covers all clients that may hold one person.",
    counted="people",
    axis="people of the client",
    size=lambda row: row.records,
    bounded=True,
)
_AT_ONE_RATE = (
    "All clients have the same sampling rate, so a client spends more only where it takes part in "
    "more rounds."
)
_CHARTS = {"client": _BY_ROUNDS, "person": _BY_PEOPLE}


def _points(report: Report) -> tuple[_Chart, list[float], list[float]]:
    chart = _CHARTS.get(report[Guarantee].unit, _BY_RECORDS)
    rate = report[Sampling].rate_smallest
    if chart.bounded and rate is not None and rate == report[Sampling].rate_largest:
        chart = replace(chart, caption=_AT_ONE_RATE)
    lead = report[Accounting].accountant or ""
    rows = report[Clients].rows
    sizes, losses = known_pairs((chart.size(row), row.epsilon.get(lead)) for row in rows)
    return chart, sizes, losses


def _describe(report: Report) -> FigureText | None:
    chart, sizes, losses = _points(report)
    # What shows as a single point is what each row of the table says.
    if len(set(zip(sizes, losses, strict=True))) < 2:
        return None
    return FigureText(
        identifier="epsilon-per-client",
        title=chart.title,
        caption=chart.caption,
        alternative_text=f"Scatter chart of {len(sizes)} clients: between "
        f"{formatting.count(min(sizes))} and {formatting.count(max(sizes))} {chart.counted}; ε "
        f"from {formatting.epsilon(min(losses))} to {formatting.epsilon(max(losses))}, median "
        f"{formatting.epsilon(statistics.median(losses))}.",
    )


def _draw(axes: Axes, report: Report) -> None:
    chart, sizes, losses = _points(report)
    many = len(sizes) > MANY
    axes.scatter(
        sizes, losses, s=10 if many else 24, color=BLUE, alpha=0.45 if many else 0.85, linewidths=0
    )
    if max(sizes) > 20 * max(1, min(sizes)):
        axes.set_xscale("log")
        counts(axes.xaxis)
    top = report[Guarantee].epsilon if chart.bounded else None
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
    axes.set_xlabel(chart.axis)
    label = accountant_named(report[Accounting].accountant or "unstated").label
    axes.set_ylabel(f"ε of the client ({label})")
    axes.set_ylim(0, max([*losses, top or 0]) * 1.14 or 1)


def _data(report: Report) -> FigureData:
    rows = report[Clients].rows
    names = in_order(name for row in rows for name in row.epsilon)
    return FigureData(
        ("client", "records", "participations", *(f"epsilon_{name}" for name in names)),
        tuple(
            (row.client, row.records, row.participations, *(row.epsilon.get(n) for n in names))
            for row in rows
        ),
    )


register(
    ReportSection(
        identifier="clients",
        title="Clients",
        place=400,
        blocks=_blocks,
        figures=(
            Figure(identifier="epsilon-per-client", describe=_describe, draw=_draw, data=_data),
        ),
    )
)
