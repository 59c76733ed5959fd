"""Reports as the data that report.json has, and back again once a test has changed them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reports.content.build import build, check
from reports.content.parts import INTERNAL, FigureText, Report, registered
from reports.signatures.keyring import SigningKey


def data_of(run: Path, audience: str = INTERNAL) -> dict[str, Any]:
    """The report on a run, as data that a test may change."""
    return build(run, audience).data()


def report_of(data: dict[str, Any]) -> Report:
    """The report that has these data, whatever a schema would say of them."""
    return Report(
        data["audience"],
        {part.kind: part.kind.model_validate(data[part.key]) for part in registered()},
        tuple(FigureText.model_validate(text) for text in data["figures"]),
    )


def hold_against_schema(data: dict[str, Any]) -> None:
    """Raise a ReportError if the data do not fit the report's schema."""
    check(data, "report")


def write_comparison(
    runs: Sequence[Path], folder: Path, audience: str = INTERNAL, key: SigningKey | None = None
) -> dict[str, Path]:
    """A comparison's files by kind; skips the test where that extension was removed."""
    compare = pytest.importorskip("reports.extensions.comparison").compare
    from reports.extensions.comparison import report

    return report.write(compare(runs, audience), folder, key)
