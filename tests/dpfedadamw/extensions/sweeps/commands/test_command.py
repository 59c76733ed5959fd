"""What `sweep SPEC` does from start to end, and does not do again."""

from __future__ import annotations

import csv
import json

import pytest

from dpfedadamw.extensions.sweeps.commands import execution
from dpfedadamw.extensions.sweeps.runner import Runner
from reports import run_rows
from tests.runs import call
from tests.sweeps import BASE, accurate

TWO = BASE.replace("rounds: 4", "rounds: 1")


def test_a_sweep_trains_audits_and_tabulates_and_is_not_repeated(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        f"{TWO}matrix: {{data.clients: [5, 50000]}}\nseeds: {{numbers: 1, vary: [run]}}\n"
    )
    # 50,000 clients cannot share 1,438 records, which is known only where the data are.
    assert call("sweep", "s.yaml", "--jobs", "2", "--json") == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["cells"], found["done"], found["not_passed"]) == (2, 1, [])
    (failure,) = found["failed"].values()
    assert failure.startswith("error: data.clients: 50000 clients cannot each hold one of")
    with open("sweeps/small/results.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["data.clients"], row["seed"], row["audit"]) == ("5", "0", "PASS")
    assert row["signatures"] == "holds"
    assert row["threads"]
    assert row["torch"]

    monkeypatch.setattr(execution, "_keep", lambda job: pytest.fail(f"{job} is run again"))
    assert call("sweep", "s.yaml", "--only", "data.clients=5") == 0
    said = capsys.readouterr()
    assert "1 of 1 cells were done before" in said.err
    assert call("sweep", "table", "sweeps/small", "--rows", "data.clients") == 0
    assert "| 5 | " in capsys.readouterr().out


def test_what_is_done_of_such_a_search_is_left_alone_and_its_best_only_run_once_it_is_over(
    own_seeds, capsys, monkeypatch
):
    ran = accurate(monkeypatch, lambda rate, seed: rate)
    assert call("sweep", own_seeds, "--only", "seed=7") == 0
    assert ran == [(0.1, 7), (0.2, 7)] * 2
    assert "4 of 14 cells are done" in capsys.readouterr().out
    assert call("sweep", own_seeds, "--only", "seed=8|1") == 0
    assert ran[4:] == [(0.1, 8), (0.2, 8)] * 2 + [(0.2, 1)] * 2
    assert call("sweep", own_seeds, "--only", "seed=0", "--only", "federation.rounds=3") == 0
    assert ran[10:] == [(0.2, 0)]
    assert call("sweep", own_seeds) == 0
    assert len(ran) == 14


def test_of_the_searches_that_were_asked_for_alone_it_is_said_that_they_are_not_over(
    own_seeds, capsys, monkeypatch
):
    accurate(monkeypatch, lambda rate, seed: rate)
    assert call("sweep", own_seeds, "--only", "federation.rounds=3", "--only", "seed=7") == 0
    assert "of one search yet" in capsys.readouterr().out
    assert call("sweep", own_seeds, "--only", "federation.rounds=3") == 0
    said = capsys.readouterr().out
    assert "no best" not in said
    assert "best, 3" in said
    assert "best, 2" not in said


def test_cells_of_a_published_table_are_taken_and_chosen_among_like_those_that_are_run(
    own_seeds, tmp_path, capsys, monkeypatch
):
    # With seed 7 alone the smaller rate is best, with 8 as well the larger one.
    found = {(0.1, 7): 0.9, (0.1, 8): 0.4, (0.2, 7): 0.7, (0.2, 8): 0.8}
    ran = accurate(monkeypatch, lambda rate, seed: found.get((rate, seed), rate * seed))
    assert call("sweep", own_seeds, "--out", "all") == 0
    every = run_rows.read_csv(tmp_path / "all/results.csv")
    text = (tmp_path / "s.yaml").read_text()
    (tmp_path / "narrow.yaml").write_text(text.replace("rounds: [2, 3]", "rounds: [2]"))
    assert call("sweep", "narrow.yaml", "--out", "narrow") == 0
    published = tmp_path / "published.csv"
    published.write_bytes((tmp_path / "narrow/results.csv").read_bytes())
    ran.clear()
    capsys.readouterr()

    taking = (own_seeds, "--out", "more", "--from", str(published), "--from", "narrow")
    assert call("sweep", *taking, "--dry-run") == 0
    assert "14 cells, 7 to do: 8 trials, and 6 runs" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "more").exists()
    assert call("sweep", *taking) == 0
    assert ran == [(0.1, 7), (0.1, 8), (0.2, 7), (0.2, 8), *[(0.2, seed) for seed in (0, 1, 2)]]
    assert run_rows.read_csv(tmp_path / "more/results.csv") == every
    # What was taken once is done in this folder.
    assert call("sweep", own_seeds, "--out", "more") == 0
    assert len(ran) == 7


def test_what_a_table_says_of_its_own_search_is_not_taken(own_seeds, tmp_path, monkeypatch):
    accurate(monkeypatch, lambda rate, seed: rate)
    assert call("sweep", own_seeds, "--out", "all") == 0
    rows = run_rows.read_csv(tmp_path / "all/results.csv")
    said = {"candidates": 99, "on_the_grids_edge": "nothing", "readings": "a", "selected": "best"}
    changed = [{**row, **said} for row in rows]
    (tmp_path / "changed.csv").write_text(run_rows.as_csv(changed), encoding="utf-8")
    assert call("sweep", own_seeds, "--out", "more", "--from", "changed.csv") == 0
    assert run_rows.read_csv(tmp_path / "more/results.csv") == rows


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "other.csv"], "--from other.csv: none of its 1 cells is one of this sweep;"),
        (["--from", "none.csv"], "error: --from none.csv: "),
        (["--from", "other.csv", "--smoke"], "--from: --smoke runs other cells"),
    ],
)
def test_a_table_that_cannot_help_is_refused_before_anything_is_written(
    options, said, own_seeds, tmp_path, capsys
):
    row = {**dict.fromkeys(run_rows.COLUMNS), "cell": "0123456789abcdef", "seed": 1}
    (tmp_path / "other.csv").write_text(run_rows.as_csv([row]), encoding="utf-8")
    assert call("sweep", own_seeds, "--out", "more", *options) == 2
    assert " ".join(capsys.readouterr().err.split()).startswith(said)
    assert not (tmp_path / "more").exists()


def test_a_sweep_that_is_stopped_tabulates_what_is_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(f"{TWO}matrix: {{algorithm.learning_rate: [0.1, 0.2]}}\n")
    ran = accurate(monkeypatch, lambda rate, seed: rate)
    every = Runner.run

    def stopped(self, jobs):
        for job in every(self, jobs):
            yield job
            raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "run", stopped)
    assert call("sweep", "s.yaml") == 130
    assert len(ran) == 1
    with open("sweeps/small/results.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["test_accuracy"] == "0.1"


def test_a_trial_of_a_sweep_has_a_folder_of_its_own_and_one_cell_a_combination(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        f"{TWO}matrix: {{algorithm.learning_rate: [1, 2]}}\nseeds: 3\n"
    )
    ran = accurate(monkeypatch, lambda rate, seed: rate / 4)
    assert call("sweep", "s.yaml", "--smoke", "--json") == 0
    told = capsys.readouterr()
    assert ran == [(1.0, 0), (2.0, 0)]
    found = json.loads(told.out)
    assert (found["cells"], found["done"]) == (2, 2)
    assert [path.name for path in (tmp_path / "sweeps").iterdir()] == ["small-smoke"]
    assert "two rounds each" not in told.err
    assert call("sweep", "s.yaml", "--smoke") == 0
    assert "two rounds each" in capsys.readouterr().err
    assert len(ran) == 2


@pytest.mark.parametrize(
    ("cores", "processes", "threads"), [(8, 3, 2), (8, 8, 1), (2, 3, 1), (None, 1, 1)]
)
def test_runs_at_a_time_share_the_cores(cores, processes, threads, monkeypatch):
    from types import SimpleNamespace

    from dpfedadamw.extensions.sweeps.commands import processes as starting

    made = []
    monkeypatch.setattr(starting.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(
        starting, "Processes", lambda *given: made.append(given) or SimpleNamespace(start="start")
    )
    assert starting.starting(processes) == "start"
    assert [given[2] for given in made] == [threads]
