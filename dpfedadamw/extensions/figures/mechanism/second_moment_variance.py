"""How far clients' second moments differ at the end of a round (DP-FedAdamW, Fig. 3 (a)).

For each coordinate the unbiased variance of v over the clients of the round, after their last local
step; then the mean over coordinates. v is the moving average as the rule holds it, not corrected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfedadamw.algorithms.base import SecondMoment
from dpfedadamw.extensions.figures.charts import Chart, Drawing, Floats, Line, Panel, Table
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.moments import require_moments
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
class Variances:
    """The variance across clients, by round; [n] each.

    Attributes:
        rounds: From 1; rounds of fewer than two clients are left out.
        variances: Mean over coordinates of the unbiased variance of v.
        clients: How many took part.
    """

    rounds: Floats
    variances: Floats
    clients: Floats


class VarianceObserver(Measuring[Variances]):
    """Adds up each round's second moments client by client, in float64."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, float, int]] = []
        self._count = 0
        self._mean = self._squares = torch.zeros(0)

    def moments(self, seen: SecondMoment) -> None:
        """Welford's recursion: no difference of large sums, however alike the clients are."""
        moment: Tensor = seen.moment.double()
        if not self._count:
            self._mean, self._squares = torch.zeros_like(moment), torch.zeros_like(moment)
        self._count += 1
        off = moment - self._mean
        self._mean += off / self._count
        self._squares += off * (moment - self._mean)

    def closes(self, current: Round) -> None:
        """Take the round's variance."""
        if self._count > 1:
            variance = float((self._squares / (self._count - 1)).mean())
            self._rows.append((current.index + 1, variance, self._count))
        self._count = 0

    def found(self) -> Variances:
        """All rounds."""
        if not self._rows:
            raise FigureError(
                "no round has two clients, so there is no variance across clients; it needs "
                "federation.clients_per_round of 2 or more"
            )
        return Variances(*np.asarray(self._rows, dtype=np.float64).T)


def _measure(run: FinishedRun, _settings: Settings) -> VarianceObserver:
    require_moments(run)
    return VarianceObserver()


def _compose(runs: Sequence[Measured[Variances]]) -> Drawing:
    table = Table(
        head=("run", "round", "clients", "mean_variance_of_v_across_clients_gradient_to_the_4th")
    )
    lines = []
    for series, one in enumerate(runs):
        found = one.numbers
        lines.append(Line(label=one.label, x=found.rounds, y=found.variances, series=series))
        columns = (found.rounds, found.clients, found.variances)
        table.rows.extend(
            (one.label, int(index), int(clients), float(variance))
            for index, clients, variance in zip(*columns, strict=True)
        )
    panel = Panel(
        x_label="round",
        y_label="variance of v, gradient⁴",
        marks=tuple(lines),
        log_y=True,
        whole_x=True,
    )
    title = "Variance of the second moment v between clients, after each round."
    return Drawing(chart=Chart(title=title, panels=(panel,)), table=table)


register(
    MechanismFigure(
        name="second-moment-variance",
        summary="variance of the second moment across clients, round by round",
        source="DP-FedAdamW, Fig. 3 (a); FedAdamW, Fig. 2 (a)",
        exposure=PRIVATE,
        measure=_measure,
        compose=_compose,
        place=10,
    )
)
