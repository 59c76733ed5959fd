"""Every number of a report comes from the place in the run's files that `origins.txt` names."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from tests.reports.content import origins

MakeRun = Any  # the builder that conftest gives


@pytest.fixture(scope="module")
def found(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> str:
    return origins.table(origins.base(run_builder, tmp_path_factory.mktemp("origins")))


def test_each_number_of_a_report_comes_from_where_the_table_says(found: str) -> None:
    due = origins.TABLE.read_text("utf-8")
    moved = difflib.unified_diff(due.splitlines(), found.splitlines(), lineterm="", n=1)
    assert found == due, "\n".join(moved)
