"""How far clients move from the broadcast model, and whether together (DP-FedAdamW, Fig. 3 (b)).

Local training is taken as it ends on the client: before an update is clipped, sparsified, noised
or rounded for sending.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.extensions.figures.charts import Chart, Drawing, Floats, Line, Panel, Table
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.publication import PRIVATE
from dpfedadamw.extensions.figures.reading import FinishedRun
from dpfedadamw.extensions.figures.registry import (
    Measured,
    Measuring,
    MechanismFigure,
    Settings,
    register,
)
from dpfedadamw.federation.participation import Round


@dataclass(frozen=True)
class Drift:
    """Distances and directions by round; [n] each.

    Attributes:
        rounds: From 1; rounds without clients are left out.
        clients: How many took part.
        mean_distance: ‖θ_i − θ‖₂ after the last local step, mean over clients.
        least_distance: Its least over clients.
        greatest_distance: Its greatest.
        cosine: Mean over pairs of clients of the cosine between their updates; NaN where fewer than
            two clients moved.
    """

    rounds: Floats
    clients: Floats
    mean_distance: Floats
    least_distance: Floats
    greatest_distance: Floats
    cosine: Floats


class DriftObserver(Measuring[Drift]):
    """Adds up directions, so that no client's update is kept."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []
        self._distances: list[float] = []
        self._directions = torch.zeros(0)
        self._moved = 0

    def trained(self, upload: Upload) -> None:
        """Take note of one client's update."""
        update = upload.update.double()
        length = float(update.norm())
        self._distances.append(length)
        if not 0.0 < length < math.inf:
            return
        if not self._moved:
            self._directions = torch.zeros_like(update)
        self._moved += 1
        self._directions += update / length

    def closes(self, current: Round) -> None:
        """Take the round's means.

        ‖Σ u_i‖² of n unit vectors is n plus twice the sum of the cosines of all pairs.
        """
        many, moved = self._distances, self._moved
        if many:
            cosine = math.nan
            if moved > 1:
                whole = float(self._directions.square().sum())
                cosine = (whole - moved) / (moved * (moved - 1))
            mean = float(np.mean(many))
            self._rows.append((current.index + 1, len(many), mean, min(many), max(many), cosine))
        self._distances, self._moved = [], 0

    def found(self) -> Drift:
        """All rounds."""
        if not self._rows:
            raise FigureError("no client took part in any of its rounds")
        return Drift(*np.asarray(self._rows, dtype=np.float64).T)


def _measure(run: FinishedRun, _settings: Settings) -> DriftObserver:
    # Whether it can be run again shows before anything is.
    _ = run.rerun
    return DriftObserver()


def _compose(runs: Sequence[Measured[Drift]]) -> Drawing:
    head = (
        "run", "round", "clients", "mean_distance_l2", "least_distance_l2", "greatest_distance_l2",
        "mean_pairwise_cosine",
    )  # fmt: skip
    table = Table(head=head)
    distances, cosines = [], []
    for series, one in enumerate(runs):
        found = one.numbers
        distances.append(
            Line(
                label=one.label,
                x=found.rounds,
                y=found.mean_distance,
                low=found.least_distance,
                high=found.greatest_distance,
                series=series,
            )
        )
        cosines.append(Line(label=one.label, x=found.rounds, y=found.cosine, series=series))
        columns = [getattr(found, field.name) for field in fields(found)]
        for index, clients, *values in zip(*columns, strict=True):
            cells = [float(value) if np.isfinite(value) else None for value in values]
            table.rows.append((one.label, int(index), int(clients), *cells))
    panels = [
        Panel(
            title="Mean over clients; least and greatest shaded",
            x_label="round",
            y_label="distance from the broadcast model, L2",
            marks=tuple(distances),
            log_y=True,
            whole_x=True,
        )
    ]
    title = "Distance of clients from the broadcast model"
    # With one client a round there are no pairs.
    if any(np.isfinite(one.numbers.cosine).any() for one in runs):
        title += ", and agreement between clients"
        panels.append(
            Panel(
                title="Mean over pairs of clients",
                x_label="round",
                y_label="cosine between updates",
                marks=tuple(cosines),
                whole_x=True,
            )
        )
    return Drawing(chart=Chart(title=f"{title}, per round.", panels=tuple(panels)), table=table)


register(
    MechanismFigure(
        name="drift",
        summary="distance of local models from the broadcast one, and cosines between updates",
        source="DP-FedAdamW, Fig. 3 (b); FedAdamW, Fig. 2 (b)",
        exposure=PRIVATE,
        measure=_measure,
        compose=_compose,
        place=20,
    )
)
