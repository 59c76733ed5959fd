"""Builds the report as data: what a reader of either audience is told.

First step of the package: `build` reads a run through `source`, never its evidence, and lets every
part that is registered make itself. Pages and figures show nothing that is not in it.

Everything that reports leave as JSON has one byte form, and is checked against its schema, here.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import ValidationError

from reports.content.parts import AUDIENCES, INTERNAL, FigureText, Report, figure_texts, registered
from reports.errors import ReportError
from reports.files import clean, mapping, parse_json
from reports.source import Auditing, RunSource, load


def as_json(value: dict[str, Any]) -> bytes:
    """Return canonical, readable JSON: same value, same bytes."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


@functools.cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    text = resources.files("reports").joinpath(f"schema/{name}.schema.json").read_text("utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def check(value: dict[str, Any], name: str) -> None:
    """Check a value against reports/schema/NAME.schema.json.

    Raises:
        ReportError: It does not fit; the message names the place.
    """
    error = jsonschema.exceptions.best_match(_validator(name).iter_errors(value))
    if error is not None:
        place = "/".join(str(part) for part in error.absolute_path) or "the top"
        raise ReportError(f"{name}, at {place}: {clean(error.message, 200)}")


def build(
    run_dir: Path,
    audience: str = INTERNAL,
    auditing: Auditing | None = None,
    source: RunSource | None = None,
) -> Report:
    """Return the report on a run, valid against the report's schema.

    Args:
        run_dir: The run directory.
        audience: "internal" for the server's operator and the auditor; "public" leaves out whatever
            tells who took part, or how often.
        auditing: By whose key the findings will be signed; without it they count as the trainer's
            own.
        source: The run as it was read already, by the check of its signatures.

    Raises:
        ReportError: The audience is unknown, or spec.yaml or ledger.jsonl cannot be read.
    """
    if audience not in AUDIENCES:
        raise ReportError(f"audience {audience!r}: must be one of {', '.join(AUDIENCES)}")
    source = replace(source or load(run_dir), auditing=auditing)
    try:
        report = Report(audience, {one.kind: one.build(source, audience) for one in registered()})
    except ValidationError as error:
        raise ReportError(f"report: {clean(str(error).replace(chr(10), ' '), 200)}") from error
    report = replace(report, figures=figure_texts(report))
    check(report.data(), "report")
    return report


def read(data: bytes, name: str) -> Report:
    """Return the report that `serialise` gave.

    Args:
        data: The report as JSON.
        name: Its file, for messages.

    Raises:
        ReportError: It is no report, or one of another version.
        SourceError: It is no JSON.
    """
    found = mapping(parse_json(data, name))
    try:
        check(found, "report")
        parts = {one.kind: one.kind.model_validate(found[one.key]) for one in registered()}
        figures = tuple(FigureText.model_validate(text) for text in found["figures"])
    except (ReportError, ValidationError) as error:
        raise ReportError(
            f"{name}: was not written by this version of dpfedadamw; write it again: dpfedadamw "
            "report RUN_DIR"
        ) from error
    return Report(found["audience"], parts, figures)


def serialise(report: Report) -> bytes:
    """Return the report as canonical, readable JSON: same report, same bytes."""
    return as_json(report.data())
