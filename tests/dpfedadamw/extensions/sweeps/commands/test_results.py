"""What the results say of a search."""

from __future__ import annotations

import math
import stat
import sys
from pathlib import Path

import pytest

from dpfedadamw.extensions.sweeps.commands.results import (
    bests_of,
    known_in,
    released,
    results_of,
    write_results,
)
from dpfedadamw.extensions.sweeps.folder import SweepFolder
from reports import run_rows
from tests.runs import call
from tests.sweeps import BASE, SEARCH, SEARCHED, UNTUNED, accurate, swept, with_own_seeds


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


def searched(tmp_path, score: str):
    text = SEARCH.format(selection="unaccounted").replace("grid", f"score: {score}\n  grid")
    return swept(tmp_path, text, base=UNTUNED), SweepFolder(tmp_path / "out")


@pytest.mark.parametrize(
    ("score", "scores", "best"),
    [
        ("test_accuracy", (0.5, 0.25), ("0.1", 0.5)),
        ("test_loss", (0.5, 0.25), ("0.5", -0.25)),
        ("test_loss", (0, 1), ("0.1", 0.0)),
        ("test_loss", (None, 5.0), ("0.5", -5.0)),
        ("test_loss", (5.0, None), ("0.1", -5.0)),
        ("test_loss", (None, None), ("0.1", -math.inf)),
        ("test_accuracy", (0.5, None), ("0.1", 0.5)),
        ("test_loss", (0.5, "much"), None),
        ("test_accuracy", (0.5, "much"), None),
    ],
)
def test_the_best_has_the_highest_score_or_the_lowest_loss_and_a_finished_run_without_one_the_worst(
    score, scores, best, tmp_path
):
    sweep, folder = searched(tmp_path, score)
    assert bests_of(sweep, folder) == {}
    for cell, value in zip(sweep.cells, scores, strict=True):
        folder.begin_cell(cell).write_result({"tune_score": score, score: value})
    found = bests_of(sweep, folder)
    if best is None:
        assert found == {}
    else:
        (only,) = found.values()
        assert (only.cells[0].candidate["algorithm.learning_rate"], only.score) == best


def test_what_releases_a_best_are_the_cells_that_were_asked_for_and_no_trials(tmp_path):
    sweep, folder = with_own_seeds(tmp_path), SweepFolder(tmp_path / "out")
    for cell in sweep.cells:
        score = cell.spec.algorithm.learning_rate
        row = {"tune_score": "test_accuracy", "test_accuracy": score}
        folder.begin_cell(cell).write_result(row)
    bests = bests_of(sweep, folder)
    every = released(bests)
    assert [(cell.seed, cell.spec.algorithm.learning_rate) for cell in every] == [
        (0, 0.5), (1, 0.5), (2, 0.5),
    ]  # fmt: skip
    assert released(bests, every[1:]) == every[1:]
    assert released(bests, []) == []


PRINTED = """
matrix:
  algorithm:
    label: [slow, fast]
    algorithm.learning_rate: [0.1, 0.2]
  federation.rounds: [2, 3]
expected:
  test_accuracy:
    source: A Paper
    rows: algorithm
    columns: federation.rounds
    values: {slow: [66.5 ± 0.5, null], fast: [null, 70]}
readings: {data.clients: a guess, algorithm.learning_rate: another}
"""


def test_a_row_has_its_labels_its_run_and_what_is_printed_and_no_name_is_taken_twice(tmp_path):
    sweep, folder = swept(tmp_path, PRINTED), SweepFolder(tmp_path / "out")
    for cell in sweep.cells[::3]:
        folder.begin_cell(cell).write_result({"algorithm": "dp-fedadamw", "test_accuracy": 0.25})
    ours = {
        "seed": None, "algorithm": "dp-fedadamw", "test_accuracy": 0.25,
        "expected_source": "A Paper", "readings": "data.clients, algorithm.learning_rate",
    }  # fmt: skip
    first, last = sweep.cells[0], sweep.cells[3]
    assert results_of(sweep, folder, {}) == [
        {
            "cell": first.digest[:16], "axis.algorithm": "slow", "federation.rounds": "2", **ours,
            "expected_test_accuracy": pytest.approx(0.665),
            "expected_test_accuracy_sd": pytest.approx(0.005),
        },
        {
            "cell": last.digest[:16], "axis.algorithm": "fast", "federation.rounds": "3", **ours,
            "expected_test_accuracy": pytest.approx(0.7), "expected_test_accuracy_sd": None,
        },
    ]  # fmt: skip


def test_without_pyarrow_the_results_are_csv_alone_and_that_is_said(tmp_path, monkeypatch):
    folder = SweepFolder(tmp_path)
    row = {"cell": "a", "seed": 0, **dict.fromkeys(run_rows.COLUMNS)}
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pyarrow is not installed" in (write_results(folder, [row]) or "")
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]
    assert stat.S_IMODE(folder.csv.stat().st_mode) == 0o644
    monkeypatch.undo()
    pytest.importorskip("pyarrow")
    assert write_results(folder, [row]) is None
    assert stat.S_IMODE(folder.parquet.stat().st_mode) == 0o644


def test_of_a_table_the_runs_own_columns_are_taken_and_the_first_table_counts(tmp_path):
    sweep = swept(tmp_path, "matrix: {federation.rounds: [2, 3]}\n", base=BASE)
    names = [cell.digest[:16] for cell in sweep.cells]
    row = {**dict.fromkeys(run_rows.COLUMNS), "audit": "PASS", "tune": "none", "readings": "a"}
    tables = []
    for number, cells in enumerate((names[:1], [*names, "another"])):
        tables.append(tmp_path / f"{number}.csv")
        rows = [{"cell": name, "seed": 4, "at": "x", **row, "run": f"{number}"} for name in cells]
        tables[-1].write_text(run_rows.as_csv(rows))
    own = {**dict.fromkeys((*run_rows.COLUMNS, *run_rows.MACHINE)), "audit": "PASS", "tune": "none"}
    assert known_in(tables, sweep) == {
        names[0]: {**own, "run": "0"}, names[1]: {**own, "run": "1"},
    }  # fmt: skip
    assert known_in((), sweep) == {}
