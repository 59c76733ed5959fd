"""All figures that were asked for, measured of all runs: each run is run again once at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.figures.charts import Drawing
from dpfedadamw.extensions.figures.errors import FigureError
from dpfedadamw.extensions.figures.reading import FinishedRun, labels, reason
from dpfedadamw.extensions.figures.registry import Measured, Measuring, MechanismFigure, Settings
from dpfedadamw.reexecution.observation import RoundObservers


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that a figure does not show.

    Attributes:
        figure: The figure's name.
        run: The run's identifier.
        reason: Why.
    """

    figure: str
    run: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A figure that can be drawn.

    Attributes:
        figure: Which.
        drawing: What is drawn.
        runs: Identifiers of the runs that it shows.
    """

    figure: MechanismFigure[Any]
    drawing: Drawing
    runs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """What came of it.

    Attributes:
        composed: What can be drawn.
        left_out: What cannot, and why.
    """

    composed: tuple[Composed, ...]
    left_out: tuple[LeftOut, ...]


def collect(
    figures: Sequence[MechanismFigure[Any]],
    runs: Sequence[FinishedRun],
    settings: Settings,
    working: Callable[[str, int, int], None] = lambda *_: None,
) -> Gallery:
    """Measure runs for figures, and compose what each figure shows.

    Args:
        figures: What is wanted.
        runs: Of which runs.
        settings: What a user may choose.
        working: Called with what is being done, and how much of how much is done.
    """
    measured: dict[str, list[tuple[str, Measured[Any]]]] = {one.name: [] for one in figures}
    left_out: list[LeftOut] = []
    for label, run in zip(labels(runs), runs, strict=True):
        identifier = run.directory.identifier
        found: dict[str, Any] = {}
        measuring: dict[str, Measuring[Any]] = {}

        def leave_out(name: str, error: DpfedadamwError, who: str = identifier) -> None:
            left_out.append(LeftOut(figure=name, run=who, reason=reason(error)))

        for place, figure in enumerate(figures):
            working(f"{label}: {figure.name}", place, len(figures))
            try:
                result = figure.measure(run, settings)
            except DpfedadamwError as error:
                leave_out(figure.name, error)
                continue
            if isinstance(result, Measuring):
                measuring[figure.name] = result
            else:
                found[figure.name] = result
        if measuring:
            try:
                _observe(run, measuring, lambda *done, of=label: working(f"{of}: rounds", *done))
            except DpfedadamwError as error:
                for name in measuring:
                    leave_out(name, error)
                measuring.clear()
        for name, observer in measuring.items():
            try:
                found[name] = observer.found()
            except FigureError as error:
                leave_out(name, error)
        for name, numbers in found.items():
            measured[name].append((identifier, Measured(label=label, numbers=numbers)))
    composed = [
        Composed(
            figure=figure,
            drawing=figure.compose([one for _, one in of]),
            runs=tuple(identifier for identifier, _ in of),
        )
        for figure in figures
        if (of := measured[figure.name])
    ]
    return Gallery(composed=tuple(composed), left_out=tuple(left_out))


def _observe(
    run: FinishedRun, measuring: dict[str, Measuring[Any]], on_round: Callable[[int, int], None]
) -> None:
    run.observe(RoundObservers(tuple(measuring.values())), on_round)
