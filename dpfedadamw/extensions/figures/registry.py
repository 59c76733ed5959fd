"""Figures by name: what each needs of a run, measures and shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dpfedadamw.extensions.figures.charts import Drawing
from dpfedadamw.extensions.figures.publication import Exposure
from dpfedadamw.extensions.figures.reading import FinishedRun
from dpfedadamw.reexecution.observation import RoundObserver
from dpfedadamw.registration import LAST, Registry

Numbers = TypeVar("Numbers")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user may choose.

    Attributes:
        seed: Of random directions and probe vectors.
        records: How many test records are used, the first of them; None for all.
    """

    seed: int = 0
    records: int | None = None


class Measuring(RoundObserver, Generic[Numbers]):
    """Measures while a run's rounds are run again."""

    def found(self) -> Numbers:
        """What was measured, once the last round is over.

        Raises:
            FigureError: If it was nothing.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Measured(Generic[Numbers]):
    """What a figure measured of one run.

    Attributes:
        label: The run's words in the legend.
        numbers: What it measured.
    """

    label: str
    numbers: Numbers


@dataclass(frozen=True, kw_only=True)
class MechanismFigure(Generic[Numbers]):
    """A figure.

    Attributes:
        name: What ``--figure`` calls it.
        summary: One line: what it shows.
        source: The paper that has such a figure.
        exposure: Who may see it.
        measure: Measures a run by its files, or returns what does so while its rounds are run
            again; raises FigureError where the run lacks what is needed.
        compose: What is drawn of one or several runs, in their order.
        place: Figures stand in the order of their places.
    """

    name: str
    summary: str
    source: str
    exposure: Exposure
    measure: Callable[[FinishedRun, Settings], Numbers | Measuring[Numbers]]
    compose: Callable[[Sequence[Measured[Numbers]]], Drawing]
    place: int = LAST


FIGURES: Registry[MechanismFigure[Any]] = Registry(
    "figure",
    "dpfedadamw.extensions.figures.mechanism",
    MechanismFigure,
    group="dpfedadamw.figures.mechanism",
)
register = FIGURES.register
