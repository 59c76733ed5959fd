"""Length of local updates, before and after clipping (DP-FedSAM, Fig. 3).

Where whole clients are protected and no update is sparsified, the evidence has the norms before and
after clipping. Else the rounds are run again: an update is taken as local training ends, and where
it is sparsified and clipped, once more after that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.extensions.figures.charts import (
    Chart,
    Drawing,
    Floats,
    Level,
    Line,
    Mark,
    Panel,
    Stairs,
    Table,
    bins,
    histogram,
)
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.publication import PRIVATE
from dpfedadamw.extensions.figures.reading import FinishedRun, undamaged
from dpfedadamw.extensions.figures.registry import (
    Measured,
    Measuring,
    MechanismFigure,
    Settings,
    register,
)
from dpfedadamw.federation.participation import Answer, Participation

_BINS = 40
_BAND = (10.0, 90.0)


@dataclass(frozen=True)
class UpdateNorms:
    """One entry a participation; [n] each.

    Attributes:
        rounds: From 1.
        before: L2 norm of the update as local training ends.
        after: The same after sparsification and clipping; None where updates are not clipped.
        clipping_norm: C of updates; None where they are not clipped.
        sparsified: Whether all but some coordinates of an update are dropped before it is clipped.
    """

    rounds: Floats
    before: Floats
    after: Floats | None
    clipping_norm: float | None
    sparsified: bool = False


class NormObserver(Measuring[UpdateNorms]):
    """Measures each update.

    Args:
        clipping_norm: C of updates; None where they are not clipped.
    """

    def __init__(self, clipping_norm: float | None) -> None:
        self._clipping_norm = clipping_norm
        self._norm = math.nan
        self._rows: list[tuple[int, float, float]] = []

    def trained(self, upload: Upload) -> None:
        """Take the whole update's norm."""
        self._norm = float(upload.update.double().norm())

    def took_part(self, part: Participation, answer: Answer) -> None:
        """Take what is left of it."""
        after = math.nan if answer.clipped is None else answer.clipped.clipped_norm
        self._rows.append((part.current.index + 1, self._norm, after))

    def found(self) -> UpdateNorms:
        """All participations."""
        found = _norms(self._rows, self._clipping_norm)
        return replace(found, sparsified=self._clipping_norm is not None)


def _norms(rows: Sequence[tuple[int, float, float]], clipping_norm: float | None) -> UpdateNorms:
    if not rows:
        raise FigureError("no client took part in any of its rounds")
    rounds, before, after = np.asarray(rows, dtype=np.float64).T
    return UpdateNorms(rounds, before, None if clipping_norm is None else after, clipping_norm)


def _measure(run: FinishedRun, _settings: Settings) -> UpdateNorms | NormObserver:
    if run.spec.privacy.unit != "client":
        _ = run.rerun
        return NormObserver(None)
    clipping_norm = float(run.past.header["clipping_norm"])
    if run.past.header.get("sparsification") is not None:
        _ = run.rerun
        return NormObserver(clipping_norm)
    with undamaged("its evidence"):
        rows = [
            (index + 1, float(before), float(after))
            for index, found in run.evidence("raw_norms", "clipped_norms")
            for before, after in zip(found["raw_norms"], found["clipped_norms"], strict=True)
        ]
    return _norms(rows, clipping_norm)


def _compose(runs: Sequence[Measured[UpdateNorms]]) -> Drawing:
    table = Table(head=("run", "round", "norm_before_l2", "norm_after_l2", "clipping_norm_l2"))
    every = [
        (series, variant, one, values)
        for series, one in enumerate(runs)
        for variant, values in enumerate((one.numbers.before, one.numbers.after))
        if values is not None
    ]
    edges = bins([values for *_, values in every], _BINS, start=0.0)
    outlines: list[Mark] = []
    means: list[Mark] = []
    for series, variant, one, values in every:
        words = "after sparsification and clipping" if one.numbers.sparsified else "after clipping"
        label = f"{one.label}: {words}" if variant else one.label
        shares = histogram(values, edges)
        outlines.append(
            Stairs(label=label, edges=edges, heights=shares, series=series, variant=variant)
        )
        means.append(_means(label, one.numbers.rounds, values, series, variant))
    for bound in sorted(
        {bound for one in runs if (bound := one.numbers.clipping_norm) is not None}
    ):
        words = f"clipping norm C = {bound:g}"
        outlines.append(Level(label=words, value=bound, upright=True))
        means.append(Level(label=words, value=bound))
    for one in runs:
        found = one.numbers
        after = found.after if found.after is not None else np.full_like(found.before, np.nan)
        for index, *norms in zip(found.rounds, found.before, after, strict=True):
            cells = [float(norm) if np.isfinite(norm) else None for norm in norms]
            table.rows.append((one.label, int(index), *cells, found.clipping_norm))
    panels = (
        Panel(
            title="All rounds together",
            x_label="norm of an update, L2",
            y_label="participations, % in a bin",
            marks=tuple(outlines),
        ),
        Panel(
            title=f"Mean over clients; {_BAND[0]:.0f}th to {_BAND[1]:.0f}th percentile shaded",
            x_label="round",
            y_label="norm of an update, L2",
            marks=tuple(means),
            whole_x=True,
        ),
    )
    clipped = any(one.numbers.after is not None for one in runs)
    title = f"Length of local updates{' before and after clipping' if clipped else ''}."
    return Drawing(chart=Chart(title=title, panels=panels), table=table)


def _means(label: str, rounds: Floats, norms: Floats, series: int, variant: int) -> Line:
    """Mean and band by round, of what is finite."""
    rows = []
    for index in np.unique(rounds):
        here = norms[(rounds == index) & np.isfinite(norms)]
        low, high = np.percentile(here, _BAND) if len(here) else (np.nan, np.nan)
        rows.append((index, here.mean() if len(here) else np.nan, low, high))
    x, y, lows, highs = np.asarray(rows, dtype=np.float64).T
    return Line(label=label, x=x, y=y, low=lows, high=highs, series=series, variant=variant)


register(
    MechanismFigure(
        name="update-norms",
        summary="norms of local updates, before and after clipping",
        source="DP-FedSAM, Fig. 3",
        exposure=PRIVATE,
        measure=_measure,
        compose=_compose,
        place=50,
    )
)
