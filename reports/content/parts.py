"""What a report is made of: typed parts, sections that show them, and figures.

One file of this folder is one section: a frozen class for each of its parts of report.json and the
function that makes it from a run's files (`part` registers both), the blocks that it becomes, and
its figures (`register`). A part is asked for by its class: `report[Guarantee]`, typed. A section
says its own place in the order, and its figures follow that order too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from reports.document import Block
from reports.document import figure as place_of_figure
from reports.figures import FigureData, render
from reports.source import RunSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FORMAT = 2
# The report as data; the PDF carries it under this name too.
ATTACHMENT = "report.json"
INTERNAL, PUBLIC = "internal", "public"
AUDIENCES = (INTERNAL, PUBLIC)

# Bounds stand in the schema alone: a ledger's absurd number must end in the schema's one clear
# line, and not stop a reader of the run that makes no report.
Loss = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]
Share = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
Count = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
NonEmpty = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
Digest = Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{64}$"})]
# A number that is printed as the integer it is, if it is one.
Number = Annotated[int | float, WithJsonSchema({"type": "number"})]
ViewKey = Literal["server", "server_worst_case", "third_party", "trusted_server"]


class Part(BaseModel):
    """A piece of a report; its docstring describes it and each of its fields in the schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # A field whose key is a word of the language has an underscore behind its name.
        alias_generator=lambda name: name.rstrip("_"),
        validate_by_name=True,
        validate_by_alias=True,
    )


class Setting(Part):
    """A setting and its printed value.

    Attributes:
        name: Name, dotted where nested.
        value: Value.
    """

    name: str
    value: str


class Titled(Part):
    """A short text under a title.

    Attributes:
        title: Title.
        text: Text.
    """

    title: str
    text: str


class FigureText(Part):
    """A figure's words.

    Attributes:
        identifier: File stem.
        title: Heading.
        caption: What to read off it.
        alternative_text: The figure in words, with its main numbers.
    """

    identifier: Annotated[str, WithJsonSchema({"type": "string", "pattern": "^[a-z-]+$"})]
    title: str
    caption: str
    alternative_text: NonEmpty


Schema = Mapping[str, Any]
NULL: Schema = {"type": "null"}
EMPTY: Schema = {"type": "array", "maxItems": 0}


@dataclass(frozen=True)
class Rule:
    """What must hold of a part in some reports, as the schema checks it in every one.

    Attributes:
        when: Dotted places in the report, and what is found there in the reports concerned.
        then: Dotted places in the part, and what must be found there; "[]" is every item.
    """

    when: Mapping[str, Schema]
    then: Mapping[str, Schema]


FOR_THE_PUBLIC: Mapping[str, Schema] = {"audience": {"const": PUBLIC}}
WITHOUT_PRIVACY: Mapping[str, Schema] = {"guarantee.private": {"const": False}}
Build = Callable[[RunSource, str], BaseModel]
P = TypeVar("P", bound=BaseModel)


@dataclass(frozen=True)
class Registration:
    """One part of every report.

    Attributes:
        key: Its key in report.json.
        kind: Its class.
        build: Makes it from a run's files, for an audience.
        rules: What holds of it in some reports.
    """

    key: str
    kind: type[BaseModel]
    build: Build
    rules: tuple[Rule, ...]


_PARTS: dict[type[BaseModel], Registration] = {}


def part(
    key: str, kind: type[P], *rules: Rule
) -> Callable[[Callable[[RunSource, str], P]], Callable[[RunSource, str], P]]:
    """Register a part of every report by the function that makes it.

    Args:
        key: Its key in report.json.
        kind: Its class, by which `Report` gives it back.
        rules: What holds of it in some reports.
    """

    def add(build: Callable[[RunSource, str], P]) -> Callable[[RunSource, str], P]:
        if kind in _PARTS or any(known.key == key for known in _PARTS.values()):
            raise ValueError(f"{key} or {kind.__name__} is a part of the report already")
        _PARTS[kind] = Registration(key, kind, build, rules)
        return build

    return add


# Every file with a part or a section. They are imported when a report is made or described, and not
# before: checking a signature needs few of them.
_FILES = (
    "accounting", "assurance", "audit", "clients", "coverage", "findings", "guarantee", "identity",
    "meaning", "mechanism", "outcomes", "utility",
)  # fmt: skip


@functools.cache
def load_sections() -> None:
    """Import the files of this folder that register parts and sections."""
    for name in _FILES:
        import_module(f"reports.content.{name}")


def registered() -> tuple[Registration, ...]:
    """Return all parts, by their keys."""
    load_sections()
    return tuple(sorted(_PARTS.values(), key=lambda known: known.key))


@dataclass(frozen=True)
class Report:
    """A report on one run, as pages and files show it.

    Attributes:
        audience: "internal" or "public".
        parts: Every part by its class.
        figures: Words of the figures that it has, in reading order.
    """

    audience: str
    parts: Mapping[type[BaseModel], BaseModel]
    figures: tuple[FigureText, ...] = ()

    def __getitem__(self, kind: type[P]) -> P:
        """Return the part of a class."""
        found = self.parts[kind]
        assert isinstance(found, kind)
        return found

    @property
    def internal(self) -> bool:
        """Whether its readers may learn who took part."""
        return self.audience == INTERNAL

    def data(self) -> dict[str, Any]:
        """Return the report as report.json has it."""
        return {
            "format": FORMAT,
            "audience": self.audience,
            "figures": [text.model_dump() for text in self.figures],
            **{_PARTS[kind].key: plain(found) for kind, found in self.parts.items()},
        }


def plain(found: BaseModel) -> Any:
    """Return a model as JSON types, under the keys of the schema."""
    return found.model_dump(mode="json", by_alias=True)


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
    height: float = 1.9


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


def figure_texts(report: Report) -> tuple[FigureText, ...]:
    """Return the words of the figures that the report has data for, in reading order."""
    texts = (one.describe(report) for one in figures().values())
    return tuple(text for text in texts if text is not None)


def draw(report: Report, identifier: str) -> bytes:
    """Draw a figure that the report has, as SVG; same report, same bytes."""
    figure = figures()[identifier]
    return render(lambda axes: figure.draw(axes, report), figure.height)


def shown(report: Report, *identifiers: str) -> list[Block]:
    """Return the places of those of the figures that the report has."""
    present = {text.identifier for text in report.figures}
    return [place_of_figure(name) for name in identifiers if name in present]
