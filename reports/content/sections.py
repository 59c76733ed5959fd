"""Sections of a report and their figures, which register themselves.

`reports.sections` has one file a section. Nobody lists them: a section says its own place in the
order, and its figures follow that order too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reports.content.parts import FigureText, Report, load_sections
from reports.document import Block, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cell = str | int | float | None


@dataclass(frozen=True)
class FigureData:
    """The numbers that a figure shows.

    Attributes:
        head: Column names.
        rows: One row a point, in drawing order.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure that a report may have.

    Attributes:
        identifier: File stem.
        describe: Its words, or None where the report has no data for it.
        draw: Draws it; called only where `describe` gave words.
        data: Its numbers.
        height: Of the drawing, in inches.
    """

    identifier: str
    describe: Callable[[Report], FigureText | None]
    draw: Callable[[Axes, Report], None]
    data: Callable[[Report], FigureData]
    height: float = 2.15


@dataclass(frozen=True, kw_only=True)
class ReportSection:
    """A section of every report on a run.

    Attributes:
        identifier: Anchor, unique.
        title: Heading.
        place: Sections stand in the order of their places.
        blocks: What it shows; a section that shows nothing is left out.
        figures: The figures that it may show.
        front: Whether it belongs to the first two pages, which a privacy officer reads; all others
            are numbered, and follow.
    """

    identifier: str
    title: str
    place: int
    blocks: Callable[[Report], Iterable[Block]]
    figures: tuple[Figure, ...] = ()
    front: bool = False


_SECTIONS: dict[str, ReportSection] = {}


def register(section: ReportSection) -> None:
    """Add a section to every report."""
    taken = {known.place for known in _SECTIONS.values()}
    if section.identifier in _SECTIONS or section.place in taken:
        raise ValueError(f"{section.identifier}: its name or its place is taken by another section")
    _SECTIONS[section.identifier] = section


def sections() -> list[ReportSection]:
    """Return all sections in reading order."""
    load_sections()
    return sorted(_SECTIONS.values(), key=lambda section: section.place)


def figures() -> dict[str, Figure]:
    """Return all figures in reading order, by their identifiers."""
    return {one.identifier: one for section in sections() for one in section.figures}


def describe(report: Report) -> tuple[FigureText, ...]:
    """Return the words of the figures that the report has data for, in reading order."""
    texts = (one.describe(report) for one in figures().values())
    return tuple(text for text in texts if text is not None)


def shown(report: Report, *identifiers: str) -> list[Block]:
    """Return the places of those of the figures that the report has."""
    present = {text.identifier for text in report.figures}
    return [figure(name) for name in identifiers if name in present]
