"""One byte form for everything that a report leaves as JSON, and the check against its schema."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

import jsonschema

from reports.errors import ReportError
from reports.files import clean


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
