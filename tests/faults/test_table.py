"""The published table of faults says what the gallery declares and what its runs showed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.gallery import GALLERY
from tests.faults.table import BEGIN, END, description, published, run_all, tables

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"


def test_the_page_has_every_fault_with_its_description_and_its_checks():
    rows = published(PAGE.read_text(encoding="utf-8"))
    again = "python -m tests.faults.table docs/faults.md"
    assert list(rows) == [fault.name for fault in GALLERY], again
    for fault in GALLERY:
        text, bold, fails = rows[fault.name]
        assert text == description(fault), again
        assert set(bold) == set(fault.caught_by), again
        assert set(bold) <= set(fails)


@pytest.mark.slow
def test_the_pages_verdicts_are_those_of_fresh_runs(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    fresh = tables(run_all(tmp_path))
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == fresh


def test_the_readme_has_their_number() -> None:
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"has {len(GALLERY)} faults" in readme
