"""What the results say of a search."""

from __future__ import annotations

from pathlib import Path

from reports import run_rows
from tests.runs import call
from tests.sweeps import SEARCHED, UNTUNED, accurate


def test_a_search_under_seeds_of_its_own_is_told_from_the_runs_that_are_reported(
    own_seeds, capsys, monkeypatch
):
    ran = accurate(monkeypatch, lambda rate, seed: rate + seed / 1000)
    assert call("sweep", own_seeds) == 0
    assert "14 of 14 cells are done" in capsys.readouterr().out
    trials = [(rate, seed) for rate in (0.1, 0.2) for seed in (7, 8)]
    assert ran == trials * 2 + [(0.2, seed) for seed in (0, 1, 2)] * 2
    rows = run_rows.read_csv(Path("sweeps/small/results.csv"))
    assert [row["selected"] for row in rows] == ["trial"] * 8 + ["best"] * 6
    assert {row["candidates"] for row in rows} == {2}
    assert {row["on_the_grids_edge"] for row in rows[8:]} == {"algorithm.learning_rate"}
    assert call("sweep", "table", "sweeps/small", "--rows", "federation.rounds") == 0
    out = capsys.readouterr().out
    assert "| 2 | **20.1 ± 0.1** |" in out
    assert "over 3 seeds" in out
    assert "Left out: 8 (trials of a search, whose best is run again)" in out


def test_the_best_of_a_search_is_marked_and_named_for_what_it_was_picked_by(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(UNTUNED + SEARCHED)
    accurate(monkeypatch, lambda rate, seed: {0.1: 0.5, 0.2: 0.7}[rate])
    assert call("sweep", "s.yaml") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "best algorithm.learning_rate 0.2: test_accuracy 70.0%, of 2" in out
    assert "is at the edge of its grid" in out
    assert "no ε covers it" in out
    assert call("sweep", "table", "sweeps/small", "--rows", "algorithm.learning_rate") == 0
    out = capsys.readouterr().out
    assert "| 0.2 | 70.0 |" in out
    assert "| 0.1 |" not in out
    assert "Picked by test_accuracy" in out
    assert "Warning: the best of 0.2 is at the edge of its grid" in out
    assert "Left out: 1 (candidates that were not the best" in out
