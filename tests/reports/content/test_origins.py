"""Every number of a report comes from the place in the run's files that `origins.txt` names."""

from __future__ import annotations

from typing import Any

import pytest

from reports.source import RunSource
from tests.reports.content import origins

MakeRun = Any  # the builder that conftest gives
Made = tuple[RunSource, origins.Known]


@pytest.fixture(scope="module")
def made(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return origins.base(run_builder, tmp_path_factory.mktemp("origins")), {}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("kind", "audience"), origins.SECTIONS)
def test_each_number_of_a_report_comes_from_where_the_table_says(
    made: Made, kind: str, audience: str
) -> None:
    assert origins.section(kind, audience, *made) == origins.table()[f"{kind}, {audience}"]
