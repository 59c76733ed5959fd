"""Which cells are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports import run_rows
from tests.runs import call
from tests.sweeps import accurate, listed


def test_shards_share_all_cells_and_no_cell_twice(spec, capsys):
    shards = [listed(capsys, spec, "--shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(cell for shard in shards for cell in shard) == sorted(listed(capsys, spec))


def test_only_chooses_by_labels(spec, capsys):
    chosen = listed(capsys, spec, "--only", "federation.rounds=2|3", "--only", "seed=1")
    assert {cell[2] for cell in chosen} == {1}
    assert len(chosen) == 4


def test_machines_share_whole_searches(own_seeds, capsys, monkeypatch):
    ran = accurate(monkeypatch, lambda rate, seed: rate)
    assert call("sweep", own_seeds, "--shard", "2/2") == 0
    assert len(ran) == 4 + 3
    assert {
        row["federation.rounds"] for row in run_rows.read_csv(Path("sweeps/small/results.csv"))
    } == {"3"}
    assert call("sweep", own_seeds, "--shard", "1/2") == 0
    assert len(ran) == 14
    assert call("sweep", own_seeds, "--shard", "3/3") == 2
    assert "there are fewer searches than machines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "rounds=2"), "--only rounds=2: write AXIS=LABEL; the axes are federation"),
        (("--only", "seed=7"), "--only seed=7: seed has no 7; it has 0, 1"),
        (("--shard", "4/3"), "--shard 4/3: write I/N, such as 1/4 for the first of four machines"),
        (("--shard", "9/9"), "--shard 9/9: there are fewer cells than machines"),
        (("--set", "federation.rounds=x", "--only", "federation.rounds=2"), ""),
    ],
)
def test_what_is_asked_wrongly_is_one_line(arguments, message, spec, tmp_path, capsys):
    if not message:
        # The matrix sets this field in every cell.
        assert call("sweep", spec, *arguments, "--dry-run") == 0
        return
    assert call("sweep", spec, *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "sweeps").exists()
