"""τ over rounds, of algorithms that choose their local steps (ALI-DPFL, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.figures.charts import Chart, Drawing, Line, Panel, Table
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.publication import RELEASED
from dpfedadamw.extensions.figures.reading import FinishedRun
from dpfedadamw.extensions.figures.registry import Measured, MechanismFigure, Settings, register


@dataclass(frozen=True)
class Iterations:
    """Local steps of each round.

    Attributes:
        rounds: From 1, [n].
        steps: τ, [n].
    """

    rounds: NDArray[np.int64]
    steps: NDArray[np.int64]


def _measure(run: FinishedRun, _settings: Settings) -> Iterations:
    adaptation = run.past.header.get("adaptation")
    if not isinstance(adaptation, Mapping) or adaptation.get("step_limit") is None:
        algorithm, federation = run.spec.algorithm, run.spec.federation
        raise FigureError(
            f"{algorithm.name} takes as many local steps in every round, "
            f"{federation.local_steps}; only ali-dpfl chooses τ"
        )
    found = [
        (index + 1, charges[-1].steps)
        for index in sorted(run.past.rounds)
        if (charges := run.charges(index))
    ]
    rounds, steps = np.asarray(found, dtype=np.int64).reshape(-1, 2).T
    return Iterations(rounds, steps)


def _compose(runs: Sequence[Measured[Iterations]]) -> Drawing:
    table = Table(head=("run", "round", "local_steps_per_round"))
    lines = []
    for series, one in enumerate(runs):
        found = one.numbers
        lines.append(
            Line(
                label=one.label,
                x=found.rounds.astype(np.float64),
                y=found.steps.astype(np.float64),
                series=series,
            )
        )
        table.rows.extend(
            (one.label, int(index), int(steps))
            for index, steps in zip(found.rounds, found.steps, strict=True)
        )
    panel = Panel(
        x_label="round", y_label="local steps τ of the round", marks=tuple(lines), whole_x=True
    )
    title = "Local steps τ of each round."
    return Drawing(chart=Chart(title=title, panels=(panel,)), table=table)


register(
    MechanismFigure(
        name="iterations",
        summary="τ, the local steps of each round, of algorithms that choose it",
        source="ALI-DPFL, Fig. 4",
        exposure=RELEASED,
        measure=_measure,
        compose=_compose,
        place=80,
    )
)
