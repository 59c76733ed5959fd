"""Histograms of m and √v at the end of the last round (DP-FedAdamW, Fig. 4).

The moments that the rule holds are drawn with those that the same clipped gradients, taken at the
same points, give without noise. Where the rule keeps moments between rounds, so do these:
their mean over clients, shared as the rule shares its own, is what the next round starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, SecondMoment
from dpfedadamw.algorithms.rules.adamw import AdamW
from dpfedadamw.extensions.figures.charts import (
    Chart,
    Drawing,
    Floats,
    Mark,
    Panel,
    Stairs,
    Table,
    bins,
    histogram,
)
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

# Numbers of each kind that are kept: 64 MiB of them.
MOST_NUMBERS = 2**24
_BINS = 81
# A few coordinates lie far away, and would leave one bin to all others.
_CENTRAL = (0.005, 0.995)


@dataclass(frozen=True)
class Moments:
    """All coordinates of some of the last round's clients; [n] each.

    Attributes:
        clients: How many of its clients these are: the first.
        of: How many took part in it.
        first: m.
        root: √v.
        clean_first: m without noise; None where no noise is added to gradients.
        clean_root: √v without noise; None likewise.
    """

    clients: int
    of: int
    first: Floats
    root: Floats
    clean_first: Floats | None
    clean_root: Floats | None


@dataclass
class _Round:
    """What is kept of a round's clients, as float32."""

    first: list[Tensor]
    second: list[Tensor]
    clean_first: list[Tensor]
    clean_second: list[Tensor]
    clients: int = 0


class MomentsObserver(Measuring[Moments]):
    """Follows the moments without noise next to the rule's own.

    Args:
        rule: The local rule.
        noised: Whether gradients are noised.
        most: How many numbers of each kind are kept.
    """

    def __init__(self, rule: AdamW, noised: bool, most: int = MOST_NUMBERS) -> None:
        self._rule, self._noised, self._most = rule, noised, most
        self._start: tuple[Tensor, Tensor] | None = None
        self._sums: tuple[Tensor, Tensor] | None = None
        self._first = self._second = torch.zeros(0)
        self._now = _Round([], [], [], [])
        self._last: _Round | None = None

    def begins(self, broadcast: Broadcast) -> None:
        """Start from 0, or from what the last round's clients have left."""
        if self._start is None:
            zeros = torch.zeros_like(broadcast.parameters, dtype=torch.float64)
            self._start = (zeros, zeros)
        self._first, self._second = (one.clone() for one in self._start)

    def answered(self, noised: Tensor, clean: Tensor) -> None:
        """Both recursions, on the gradient without noise."""
        del noised
        gradient = clean.double()
        self._first.lerp_(gradient, 1.0 - self._rule.beta1)
        self._second.mul_(self._rule.beta2).addcmul_(
            gradient, gradient, value=1.0 - self._rule.beta2
        )

    def moments(self, seen: SecondMoment) -> None:
        """Keep what fits, and add up what the next round starts from."""
        now = self._now
        now.clients += 1
        if self._sums is None:
            self._sums = (torch.zeros_like(self._first), torch.zeros_like(self._second))
        self._sums[0].add_(self._first)
        self._sums[1].add_(self._second)
        if (len(now.first) + 1) * len(self._first) <= self._most:
            now.first.append(seen.first.float().cpu().clone())
            now.second.append(seen.moment.float().cpu().clone())
            now.clean_first.append(self._first.float().cpu())
            now.clean_second.append(self._second.float().cpu())

    def closes(self, current: Round) -> None:
        """Carry what the server would have shared of the moments without noise."""
        del current
        if self._sums is not None:
            first, second = (one / self._now.clients for one in self._sums)
            blocks = self._rule.blocks
            if blocks is not None:
                second = blocks.spread(blocks.mean(second)).double()
            zeros = torch.zeros_like(first)
            self._start = (
                first if self._rule.aggregate_first else zeros,
                second if self._rule.aggregate_second else zeros,
            )
            self._last, self._sums = self._now, None
        self._now = _Round([], [], [], [])

    def found(self) -> Moments:
        """The last round that had clients."""
        last = self._last
        if last is None:
            raise FigureError("no client took part in any of its rounds")
        return Moments(
            len(last.first),
            last.clients,
            _joined(last.first),
            np.sqrt(_joined(last.second)),
            _joined(last.clean_first) if self._noised else None,
            np.sqrt(_joined(last.clean_second)) if self._noised else None,
        )


def _joined(vectors: list[Tensor]) -> Floats:
    return torch.cat(vectors).double().numpy()


def _measure(run: FinishedRun, _settings: Settings) -> MomentsObserver:
    require_moments(run)
    experiment = run.rerun.experiment
    rule = experiment.algorithm.local
    assert isinstance(rule, AdamW)
    size = sum(one.numel() for one in experiment.model.parameters() if one.requires_grad)
    if size > MOST_NUMBERS:
        raise FigureError(
            f"the model has {size:,} trained parameters; the figure keeps the moments of "
            f"{MOST_NUMBERS:,} at most"
        )
    return MomentsObserver(rule, noised=run.spec.privacy.unit in ("record", "person"))


def _compose(runs: Sequence[Measured[Moments]]) -> Drawing:
    head = (
        "run", "quantity", "noise", "clients", "bin_from_gradient", "bin_to_gradient",
        "coordinates_percent",
    )  # fmt: skip
    table = Table(head=head)
    panels = []
    for name, clean, title, start in (
        ("first", "clean_first", "First moment m, central 99 %", None),
        ("root", "clean_root", "Root of the second moment √v, central 99 %", 0.0),
    ):
        every = [
            (series, variant, one, values)
            for series, one in enumerate(runs)
            for variant, values in enumerate(
                (getattr(one.numbers, name), getattr(one.numbers, clean))
            )
            if values is not None
        ]
        edges = bins([np.quantile(values, _CENTRAL) for *_, values in every], _BINS, start)
        marks: list[Mark] = []
        for series, variant, one, values in every:
            shares = histogram(values, edges)
            noised = one.numbers.clean_first is not None
            words = ("with noise", "the same gradients without noise")[variant] if noised else ""
            shown = np.where(shares > 0.0, shares, np.nan)
            marks.append(
                Stairs(
                    label=f"{one.label}: {words}" if words else one.label,
                    edges=edges,
                    heights=shown,
                    series=series,
                    variant=variant,
                )
            )
            noise = ("yes", "taken out")[variant] if noised else "none"
            quantity = "m" if name == "first" else "sqrt_v"
            below = 100.0 * float((values < edges[0]).mean())
            beyond = 100.0 * float((values > edges[-1]).mean())
            limits = [None, *edges.tolist(), None]
            for low, high, share in zip(
                limits[:-1], limits[1:], [below, *shares.tolist(), beyond], strict=True
            ):
                cells = (one.numbers.clients, low, high, share)
                table.rows.append((one.label, quantity, noise, *cells))
        panels.append(
            Panel(
                title=title,
                x_label=f"{'m' if name == 'first' else '√v'}, gradient",
                y_label="coordinates, % in a bin",
                marks=tuple(marks),
                log_y=True,
            )
        )
    some = {(one.numbers.clients, one.numbers.of) for one in runs}
    clients = ", ".join(sorted({f"{kept} of {of}" for kept, of in some}))
    title = (
        "Distribution of the moments at the end of the last round, over all coordinates of its "
        f"clients ({clients} shown)."
    )
    return Drawing(chart=Chart(title=title, panels=tuple(panels)), table=table)


register(
    MechanismFigure(
        name="moments",
        summary="histograms of m and √v in the last round, with noise and without",
        source="DP-FedAdamW, Fig. 4",
        exposure=PRIVATE,
        measure=_measure,
        compose=_compose,
        place=30,
    )
)
