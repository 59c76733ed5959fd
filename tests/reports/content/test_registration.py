"""A section is one file: what it registers is in data, schema, pages and figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from matplotlib.axes import Axes

import reports
from reports.content import build, parts
from reports.content.coverage import Hazards
from reports.content.parts import (
    EMPTY,
    FOR_THE_PUBLIC,
    Figure,
    FigureText,
    Part,
    Report,
    ReportSection,
    Rule,
    part,
    register,
    shown,
)
from reports.document import Block, paragraph
from reports.figures import FigureData
from reports.render.pages import document
from reports.schema import report_schema
from reports.source import RunSource

MakeRun = Any  # the builder that conftest gives


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    parts.load_sections()
    monkeypatch.setattr(parts, "_PARTS", dict(parts._PARTS))
    monkeypatch.setattr(parts, "_SECTIONS", dict(parts._SECTIONS))


def test_whatever_asks_first_for_the_parts_of_a_report_gets_all_of_them() -> None:
    """Who only reads a report has imported no file that registers one."""
    schema = Path(reports.__file__).parent / "schema" / "report.schema.json"
    fields = json.loads(schema.read_text("utf-8"))["required"]
    asked = "from reports.content import parts; print(*[one.key for one in parts.registered()])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    told = done.stdout.split()
    assert told == sorted(told)
    assert set(told) == set(fields) - {"format", "audience", "figures"}


class Weather(Part):
    """The weather.

    Attributes:
        degrees: By day.
    """

    degrees: tuple[float, ...]


def add_weather() -> None:
    """What the file of a section does."""

    @part("weather", Weather, Rule(FOR_THE_PUBLIC, {"degrees": EMPTY}))
    def weather(source: RunSource, audience: str) -> Weather:
        return Weather(degrees=(1.5, float(source.rounds_completed)))

    def blocks(report: Report) -> list[Block]:
        return [paragraph(f"{report[Weather].degrees[0]} degrees"), *shown(report, "weather-days")]

    def describe(report: Report) -> FigureText:
        return FigureText(
            identifier="weather-days", title="Weather", caption="By day.", alternative_text="Days."
        )

    def draw(axes: Axes, report: Report) -> None:
        axes.plot(report[Weather].degrees)

    def data(report: Report) -> FigureData:
        return FigureData(("degrees",), tuple((value,) for value in report[Weather].degrees))

    figure = Figure(identifier="weather-days", describe=describe, draw=draw, data=data)
    register(
        ReportSection(
            identifier="weather", title="Weather", place=250, blocks=blocks, figures=(figure,)
        )
    )


def test_what_a_file_registers_is_everywhere(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_weather()
    monkeypatch.setattr(build, "check", lambda data, _: jsonschema.validate(data, report_schema()))
    run: Path = make_run(rounds=3)
    report = build.build(run)
    assert report.data()["weather"] == {"degrees": [1.5, 3.0]}
    assert [text.identifier for text in report.figures][:2] == ["client-sampling", "weather-days"]
    assert parts.draw(report, "weather-days").startswith(b"<?xml")
    pages = document(report)
    assert [one.identifier for one in pages.sections][1:4] == ["mechanism", "weather", "accounting"]
    assert pages.sections[2].blocks[1] == {"kind": "figure", "identifier": "weather-days"}
    assert pages.pictures["weather-days"].data == b"degrees\n1.5\n3.0\n"
    with pytest.raises(jsonschema.ValidationError):
        build.build(run, "public")


def test_keys_names_and_places_are_given_once() -> None:
    with pytest.raises(ValueError, match="part of the report already"):
        part("hazards", Weather)(lambda source, audience: Weather(degrees=()))
    with pytest.raises(ValueError, match="part of the report already"):
        part("more", Hazards)(lambda source, audience: Hazards(()))
    for identifier, place in (("hazards", 1), ("more", 30)):
        with pytest.raises(ValueError, match="taken by another section"):
            register(
                ReportSection(identifier=identifier, title="", place=place, blocks=lambda _: [])
            )
