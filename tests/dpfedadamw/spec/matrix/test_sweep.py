"""A file that means one run, many, or a selection."""

from __future__ import annotations

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import SpecError
from tests.runs import small_spec
from tests.sweeps import BASE, METHODS, SEARCH, searched_for, swept


def test_a_plain_spec_is_a_sweep_of_one_cell(tmp_path):
    sweep = swept(tmp_path, "")
    assert [cell.spec for cell in sweep.cells] == [small_spec()]
    assert sweep.cells[0].label == "only"


def test_a_command_for_one_run_refuses_a_sweep(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(BASE + METHODS)
    with pytest.raises(
        SpecError, match="this spec means several runs; start them with: dpfedadamw"
    ):
        specs.load(path)


def test_a_private_selection_is_of_one_spec(tmp_path):
    base = BASE.replace("fraction: 0.0\n    public: false", "fraction: 0.5\n    public: true")
    base = base.replace("tune:\n  selection: none\n", "")
    for key in ("seeds: 2\n", "matrix: {algorithm.schedule: [constant, cosine]}\n"):
        with pytest.raises(SpecError, match="a private selection is for one spec"):
            searched_for(tmp_path, SEARCH.format(selection="private") + key, base)
