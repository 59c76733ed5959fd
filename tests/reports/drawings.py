"""Draws a figure once for equal numbers, so that tests of words and signatures do not wait for it.

A drawing takes most of a report's time, and most tests change nothing that it shows. What a figure
reads of a report is noted while it is drawn; a later report whose noted parts are equal gets the
same drawing. Tests of the drawing itself ask for the fixture `drawn_anew`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from reports.content import parts
from reports.content.parts import Figure, Report, figures

Draw = Callable[[Report, str], bytes]
DRAW = parts.draw
_EMPTY = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" width="9" height="9"></svg>'


class _Watched:
    """A report that notes what is read of it; a figure that reads anything but parts fails."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.audience = report.audience
        self.internal = report.internal
        self.read: dict[type[BaseModel], BaseModel] = {}

    def __getitem__(self, kind: type[BaseModel]) -> BaseModel:
        return self.read.setdefault(kind, self._report[kind])


@dataclass(frozen=True)
class _Drawn:
    figure: Figure
    audience: str
    read: dict[type[BaseModel], BaseModel]
    drawing: bytes

    def shows(self, figure: Figure, report: Report) -> bool:
        """Whether this figure of a report would be the same drawing."""
        return (
            figure is self.figure
            and report.audience == self.audience
            and all(report.parts.get(kind) == part for kind, part in self.read.items())
        )


def once(draw: Draw) -> Draw:
    """The same drawings, each made once."""
    made: dict[str, list[_Drawn]] = defaultdict(list)

    def drawn(report: Report, identifier: str) -> bytes:
        figure = figures()[identifier]
        for known in made[identifier]:
            if known.shows(figure, report):
                return known.drawing
        watched = _Watched(report)
        drawing = draw(watched, identifier)
        made[identifier].append(_Drawn(figure, report.audience, watched.read, drawing))
        return drawing

    return drawn


_DRAWN = once(DRAW)


def nothing(report: Report, identifier: str) -> bytes:
    """An empty drawing."""
    return _EMPTY


@pytest.fixture(autouse=True, scope="session")
def each_figure_once() -> Iterator[None]:
    """Equal numbers are drawn once in a test process; for a conftest.py to take over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "draw", _DRAWN)
        yield


@pytest.fixture(autouse=True, scope="module")
def undrawn() -> Iterator[None]:
    """No figure is drawn, for modules that look at other things; they take this fixture over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "draw", nothing)
        yield
