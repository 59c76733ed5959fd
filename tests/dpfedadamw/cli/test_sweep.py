"""`sweep` as a user meets it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from dpfedadamw.cli import sweep as command
from dpfedadamw.privacy.accounting.selection import Trials
from dpfedadamw.sweep import selection
from dpfedadamw.sweep.runner import Runner
from reports.comparison import tidy
from tests.dpfedadamw.sweep.test_selection import PRIVATE, TUNE
from tests.runs import call
from tests.sweeps import BASE, UNTUNED

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

    monkeypatch.setattr(command, "_keep", lambda job: pytest.fail(f"{job} is run again"))
    assert call("sweep", "s.yaml", "--only", "data.clients=5") == 0
    said = capsys.readouterr()
    assert "1 of 1 cells were done before" in said.err
    assert call("sweep", "table", "sweeps/small", "--rows", "data.clients") == 0
    assert "| 5 | " in capsys.readouterr().out


@pytest.fixture
def spec(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    text = "matrix: {federation.rounds: [2, 3], federation.local_steps: [1, 2]}\nseeds: 2\n"
    (tmp_path / "s.yaml").write_text(BASE + text)
    return "s.yaml"


def listed(capsys, *arguments: str) -> list[tuple[str, str, int]]:
    assert call("sweep", *arguments, "--dry-run", "--json") == 0
    return [
        (*cell["values"].values(), cell["seed"]) for cell in json.loads(capsys.readouterr().out)
    ]


def test_dry_run_lists_and_makes_nothing(spec, tmp_path, capsys):
    assert len(listed(capsys, spec)) == 8
    assert call("sweep", spec, "--dry-run") == 0
    assert "8 cells, 8 to do" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_shards_share_all_cells_and_no_cell_twice(spec, capsys):
    shards = [listed(capsys, spec, "--shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(cell for shard in shards for cell in shard) == sorted(listed(capsys, spec))


def test_only_chooses_by_labels(spec, capsys):
    chosen = listed(capsys, spec, "--only", "federation.rounds=2|3", "--only", "seed=1")
    assert {cell[2] for cell in chosen} == {1}
    assert len(chosen) == 4


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


def test_merging_counts_a_cell_once(tmp_path, capsys):
    row = dict.fromkeys(tidy.COLUMNS) | {"audit": "PASS", "signatures": "holds"}
    for name, cells in (("one", "ab"), ("two", "bc")):
        (tmp_path / name).mkdir()
        rows = [{"cell": cell, "seed": 0, **row, "run": name} for cell in cells]
        (tmp_path / name / "results.csv").write_text(tidy.as_csv(rows))
    merged = tmp_path / "all.csv"
    arguments = (str(tmp_path / "one"), str(tmp_path / "two"), "--output", str(merged))
    assert call("sweep", "merge", *arguments) == 0
    assert [(row["cell"], row["run"]) for row in tidy.read_csv(merged)] == [
        ("a", "one"),
        ("b", "one"),
        ("c", "two"),
    ]
    assert "3 cells; 1 that were run more than once are counted once" in capsys.readouterr().err


def test_a_table_of_what_is_no_results_is_refused(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert call("sweep", "table", str(tmp_path / "x.csv"), "--rows", "a") == 2
    assert "is no table of a sweep's results; it lacks the column cell" in capsys.readouterr().err


def test_evidence_of_runs_that_passed_is_erased_once_their_result_is_kept_and_of_no_other(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)
    (tmp_path / "s.yaml").write_text(f"{TWO}matrix: {{algorithm.learning_rate: [0.1, 0.2]}}\n")
    assert call("sweep", "s.yaml", "--only", "algorithm.learning_rate=0.1") == 0
    cells = Path("sweeps/small/cells")
    (kept,) = cells.glob("*/runs/small-*")
    result = kept.parent.parent / "result.json"
    text = result.read_text()
    before = Path("sweeps/small/results.csv").read_text()

    # What is done is erased too; but nothing of a run that did not pass.
    result.write_text(text.replace('"PASS"', '"FAIL"'))
    assert call("sweep", "s.yaml", "--erase-evidence", "--json") == 1
    (erased,) = (path.parent for path in cells.glob("*/runs/small-*/erasure.json"))
    assert erased != kept
    assert not (erased / "evidence").exists()
    assert (kept / "evidence").is_dir()

    result.write_text(text)
    assert call("sweep", "s.yaml", "--erase-evidence") == 0
    assert not (kept / "evidence").exists()
    assert call("verify", str(kept)) == 0
    assert Path("sweeps/small/results.csv").read_text().startswith(before)
    capsys.readouterr()
    assert call("sweep", "table", "sweeps/small", "--rows", "algorithm.learning_rate") == 0
    assert "| 0.2 |" in capsys.readouterr().out
    assert call("compare", str(kept), str(erased)) == 0


def test_a_private_selection_erases_by_itself_and_keeps_the_winners_evidence(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(PRIVATE + TUNE)
    assert call("sweep", "s.yaml", "--erase-evidence") == 2
    assert "the winner's evidence alone is kept" in capsys.readouterr().err


SEARCHED = """
tune:
  selection: unaccounted
  score: test_accuracy
  grid: {algorithm.learning_rate: [0.1, 0.2]}
"""


def in_this_process(monkeypatch) -> None:
    """Cells are run by the same command, without a process for each."""

    def run(self, jobs):
        for job in jobs:
            self._folder.begin_cell(job.cell)
            call(*self._arguments(job.folder))
            self._finished(job)
            job.state = "done"
            yield job

    monkeypatch.setattr(Runner, "run", run)


def drawn_once(monkeypatch) -> None:
    """As if a single trial had been drawn, so that the test is short."""
    law, numbers = Trials(4.0, 1.0), (one.to_bytes(32, "big") for one in range(10_000))
    secret = next(one for one in numbers if law.drawn(one) == 1)
    monkeypatch.setattr(selection, "_secret", lambda cells: secret)


def test_a_private_selection_is_foretold_run_and_published_under_its_own_epsilon(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)
    drawn_once(monkeypatch)
    (tmp_path / "s.yaml").write_text(PRIVATE.replace("rounds: 4", "rounds: 1") + TUNE)
    assert call("epsilon", "s.yaml", "--json") == 0
    foretold = json.loads(capsys.readouterr().out)
    assert call("sweep", "s.yaml", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out) == foretold
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]

    assert call("sweep", "s.yaml") == 0
    said = capsys.readouterr()
    assert "ε of the selection" in said.out
    assert call("sweep", "s.yaml", "--json") == 0
    found = json.loads(capsys.readouterr().out)["result"]
    assert found["audit"] == "PASS"
    assert found["epsilon_third_party"] == foretold["third_party"]["epsilon"]["rdp"]
    assert found["epsilon_server_worst_case"] is None
    folders = sorted(path.name for path in (tmp_path / "sweeps" / "small").iterdir())
    assert folders == ["selection.json", "winner"]


@pytest.mark.parametrize("option", [("--only", "a=b"), ("--shard", "1/2"), ("--smoke",)])
def test_a_private_selection_is_run_whole(option, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(PRIVATE + TUNE)
    assert call("sweep", "s.yaml", *option) == 2
    assert f"{option[0]}: a private selection is run whole" in capsys.readouterr().err


def accurate(monkeypatch, accuracy) -> list[tuple[float, int | None]]:
    """Cells end at once, as accurate as their learning rate and seed make them."""
    ran = []

    def row(self, jobs):
        for job in jobs:
            self._folder.begin_cell(job.cell)
            spec = job.cell.spec
            ran.append((spec.algorithm.learning_rate, job.cell.seed))
            columns = dict.fromkeys(tidy.COLUMNS)
            columns |= {"audit": "PASS", "signatures": "holds", "unit": "record", "run": "a"}
            columns |= {"test_accuracy": accuracy(*ran[-1]), "tune": spec.tune.selection}
            job.folder.write_result({**columns, "tune_score": spec.tune.score})
            job.state = "done"
            yield job

    monkeypatch.setattr(Runner, "run", row)
    return ran


OWN_SEEDS = (
    SEARCHED.replace("grid:", "seeds: [7, 8]\n  grid:")
    + """
seeds: 3
matrix: {federation.rounds: [2, 3]}
"""
)


@pytest.fixture
def own_seeds(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(UNTUNED + OWN_SEEDS)
    return "s.yaml"


def test_a_search_under_seeds_of_its_own_is_told_from_the_runs_that_are_reported(
    own_seeds, capsys, monkeypatch
):
    ran = accurate(monkeypatch, lambda rate, seed: rate + seed / 1000)
    assert call("sweep", own_seeds) == 0
    assert "14 of 14 cells are done" in capsys.readouterr().out
    trials = [(rate, seed) for rate in (0.1, 0.2) for seed in (7, 8)]
    assert ran == trials * 2 + [(0.2, seed) for seed in (0, 1, 2)] * 2
    rows = tidy.read_csv(Path("sweeps/small/results.csv"))
    assert [row["selected"] for row in rows] == ["trial"] * 8 + ["best"] * 6
    assert {row["candidates"] for row in rows} == {2}
    assert {row["on_the_grids_edge"] for row in rows[8:]} == {"algorithm.learning_rate"}
    assert call("sweep", "table", "sweeps/small", "--rows", "federation.rounds") == 0
    out = capsys.readouterr().out
    assert "| 2 | 20.1 ± 0.1 ≈ |" in out
    assert "over 3 seeds" in out
    assert "Left out: 8 (trials of a search, whose best is run anew)" in out


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


def test_dry_run_counts_trials_and_what_the_best_is_run_as(own_seeds, capsys, monkeypatch):
    def listing() -> list[tuple[str, str, str | None]]:
        assert call("sweep", own_seeds, "--dry-run", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        return [
            (cell["stage"], cell["state"], cell["values"].get("algorithm.learning_rate"))
            for cell in found
        ]

    assert call("sweep", own_seeds, "--dry-run") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "14 cells, 14 to do: 8 trials, and 6 runs of what they show to be best" in said
    assert listing()[8:] == [("best", "after its search", None)] * 6
    accurate(monkeypatch, lambda rate, seed: rate)
    assert call("sweep", own_seeds, "--only", "federation.rounds=2", "--only", "seed=7|8|0") == 0
    capsys.readouterr()
    assert sorted(listing()[8:]) == sorted(
        [("best", "done", "0.2")] + [("best", "to do", "0.2")] * 2
        + [("best", "after its search", None)] * 3
    )  # fmt: skip


def test_machines_share_whole_searches(own_seeds, capsys, monkeypatch):
    ran = accurate(monkeypatch, lambda rate, seed: rate)
    assert call("sweep", own_seeds, "--shard", "2/2") == 0
    assert len(ran) == 4 + 3
    assert {
        row["federation.rounds"] for row in tidy.read_csv(Path("sweeps/small/results.csv"))
    } == {"3"}
    assert call("sweep", own_seeds, "--shard", "1/2") == 0
    assert len(ran) == 14
    assert call("sweep", own_seeds, "--shard", "3/3") == 2
    assert "there are fewer searches than machines" in capsys.readouterr().err


def test_the_best_of_a_search_is_marked_and_named_for_what_it_was_picked_by(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(UNTUNED + SEARCHED)
    accurate(monkeypatch, lambda rate, seed: {0.1: 0.5, 0.2: 0.7}[rate])
    assert call("sweep", "s.yaml") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "best algorithm.learning_rate 0.2: test_accuracy 70.0%, of 2" in out
    assert "lies on the edge of its grid" in out
    assert "no ε covers it" in out
    assert call("sweep", "table", "sweeps/small", "--rows", "algorithm.learning_rate") == 0
    out = capsys.readouterr().out
    assert "| 0.2 | 70.0 |" in out
    assert "| 0.1 |" not in out
    assert "Picked by test_accuracy" in out
    assert "Warning: the best of 0.2 lies on the edge of its grid" in out
    assert "Left out: 1 (candidates that were not the best" in out
