"""What a sweep says once it is over, and its exit code."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from dpfedadamw import spec as specs
from dpfedadamw.cli import terminal
from dpfedadamw.extensions.sweeps.commands.ending import tell
from dpfedadamw.extensions.sweeps.folder import SweepFolder
from dpfedadamw.extensions.sweeps.runner import Job
from dpfedadamw.extensions.sweeps.search import Best
from tests.runs import small_spec
from tests.sweeps import BASE, OWN_SEEDS, SEARCH, UNTUNED, swept

ROW = {
    "cell": "a", "audit": "PASS", "unit": "record", "randomness": "release", "run": "one", "seed": 0
}  # fmt: skip
ROUNDS = "matrix: {federation.rounds: [2, 3]}\n"


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """What is said, as pairs of a name and a value, and the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal.out, "_width", 400)

    def say(sweep, *, rows=(), jobs=None, bests=None, missing=None, as_json=False):
        folder = SweepFolder(tmp_path / "out")
        jobs = [Job(cell, folder.cell(cell)) for cell in sweep.cells] if jobs is None else jobs
        code = 0
        try:
            tell(sweep, folder, jobs, bests or {}, list(rows), missing, as_json)
        except typer.Exit as ended:
            code = ended.exit_code
        printed = capsys.readouterr().out
        if as_json:
            return json.loads(printed), code
        pairs = [line.strip().partition("  ") for line in printed.splitlines() if line.strip()]
        return [
            # A further line of a name has none of its own.
            ("", line.strip()) if line.startswith("     ") else (name, value.strip())
            for line, (name, _, value) in zip(
                [one for one in printed.splitlines() if one.strip()], pairs, strict=True
            )
        ], code

    return say


def sweep_of(tmp_path, text=ROUNDS, base=BASE):
    return swept(tmp_path, text, base=base)


def test_a_sweep_that_is_done_says_where_its_results_are_and_ends_with_0(told, tmp_path):
    said, code = told(sweep_of(tmp_path), rows=[ROW, {**ROW, "unit": "none"}])
    assert code == 0
    assert said == [
        ("sweep", "2 of 2 cells are done"),
        ("results", "out/results.csv"),
        ("", "out/results.parquet"),
        ("table", "dpfedadamw sweep table out/results.csv --rows AXIS"),
    ]
    said, _ = told(sweep_of(tmp_path), rows=[ROW] * 2, missing="there is no pyarrow")
    assert ("privacy", "each run claims its own ε; all of them together spend more") in said
    assert ("", "there is no pyarrow") in said
    assert ("", "out/results.parquet") not in said


@pytest.mark.parametrize(
    ("verdict", "state", "names"),
    [
        ("PASS", "done", set()),
        ("NO CLAIM", "waiting", set()),
        ("FAIL", "done", {"not passed", "alarms"}),
        ("NOT VERIFIED", "failed", {"not passed", "alarms", "failed"}),
        ("PASS", "failed", {"failed"}),
    ],
)
def test_a_failure_or_an_audit_that_did_not_pass_is_said_and_ends_with_1(
    verdict, state, names, told, tmp_path
):
    shared = {"audit": verdict, "randomness": "reproducible"}
    rows = [{**ROW, **shared}, {**ROW, **shared, "run": "two"}]
    sweep = sweep_of(tmp_path)
    folder = SweepFolder(tmp_path / "out")
    jobs = [Job(cell, folder.cell(cell), state, said="no memory") for cell in sweep.cells]
    said, code = told(sweep, rows=rows, jobs=jobs)
    facts = dict(said)
    assert facts.keys() & {"not passed", "alarms", "failed"} == names
    assert code == bool(names)
    if "failed" in names:
        assert facts["failed"].startswith("2; ")
    if "not passed" in names:
        assert facts["not passed"].startswith("the audit of 2 says ")
    parsed, again = told(sweep, rows=rows, jobs=jobs, as_json=True)
    assert again == code
    assert parsed == {
        "folder": str(tmp_path / "out"),
        "cells": 2,
        "done": 2,
        "failed": {cell.digest: "no memory" for cell in sweep.cells} if state == "failed" else {},
        "not_passed": ["one", "two"] if "not passed" in names else [],
        "results": rows,
    }


def bests_of(sweep, **more: Any) -> dict[tuple[str, ...], Best]:
    """The last candidate of every search, under all its seeds."""
    found = {}
    for labels, cells in sweep.searches.items():
        own = tuple(one for one in cells if one.candidate == cells[-1].candidate)
        found[labels] = Best(**{"cells": own, "score": 0.75, "candidates": 2, "edges": (), **more})
    return found


def test_each_best_is_told_with_its_settings_score_and_run(told, tmp_path):
    text = SEARCH.format(selection="unaccounted").replace("\n  grid", "\n  score: S\n  grid")
    sweep = sweep_of(tmp_path, ROUNDS + text.replace("S", "test_accuracy"), UNTUNED)
    folder = SweepFolder(tmp_path / "out")
    bests = bests_of(sweep)
    (run,) = (folder.cell(bests["3",].reported[0]).runs / "small-20260101T000000Z-00000000",)
    run.mkdir(parents=True)
    (run / "spec.yaml").touch()
    bests["2",] = replace(bests["2",], edges=("algorithm.learning_rate",))
    said, code = told(sweep, rows=[ROW], bests=bests)
    assert code == 0
    assert said[:6] == [
        ("sweep", "1 of 4 cells are done"),
        ("best, 2", "algorithm.learning_rate 0.5: test_accuracy 75.0%, of 2"),
        (
            "warning",
            "the best algorithm.learning_rate is at the edge of its grid; widen the grid and "
            "continue",
        ),
        ("best, 3", "algorithm.learning_rate 0.5: test_accuracy 75.0%, of 2"),
        ("", str(run.relative_to(tmp_path))),
        ("privacy", "the choice used the private records, and no ε covers it; the reports say so"),
    ]
    # Of losses the negative is kept, so that more is better.
    sweep = sweep_of(tmp_path, text.replace("S", "test_loss"), UNTUNED)
    said, _ = told(sweep, bests=bests_of(sweep, score=-1.23456))
    assert ("best", "algorithm.learning_rate 0.5: test_loss 1.235, of 2") in said
    said, _ = told(sweep, bests=bests_of(sweep, score=-math.inf))
    none = "algorithm.learning_rate 0.5, the first of 2: none has a test_loss in all its runs"
    assert ("best", none) in said


def test_of_searches_that_were_asked_for_it_is_counted_which_have_no_best(told, tmp_path):
    text = SEARCH.format(selection="unaccounted").replace("grid", "score: test_loss\n  grid")
    text = ROUNDS + text
    sweep = sweep_of(tmp_path, text, UNTUNED)
    folder = SweepFolder(tmp_path / "out")
    bests = bests_of(sweep, score=-0.5)
    jobs = [Job(cell, folder.cell(cell)) for cell in sweep.cells]
    second = [job for job in jobs if job.cell.combination == ("3",)]

    def names(some, of):
        return [pair for pair in told(sweep, jobs=some, bests=of)[0] if "best" in pair[0]]

    assert [name for name, _ in names(jobs, bests)] == ["best, 2", "best, 3"]
    assert [name for name, _ in names(second, bests)] == ["best, 3"]
    one = ("no best", "of one search yet: not all cells are done")
    assert names(second, {}) == [one]
    assert names(jobs, {("2",): bests["2",]})[1:] == [one]
    assert names(jobs, {}) == [("no best", "of 2 searches yet: not all cells are done")]
    # A search on public records spends nothing, and no search at all has no best.
    public = replace(sweep, tune=SimpleNamespace(selection="public"))
    for search, said in ((sweep, True), (public, False)):
        assert ("privacy" in dict(told(search, jobs=jobs, bests=bests)[0])) is said
    assert [pair for pair in told(sweep_of(tmp_path))[0] if "best" in pair[0]] == []


def test_the_runs_of_a_best_count_among_all_cells_once_for_each_search(told, tmp_path):
    text = ROUNDS + OWN_SEEDS.format(seeds="[100, 101]", selection="unaccounted")
    sweep = sweep_of(tmp_path, text, UNTUNED)
    # Two searches, of two candidates under two seeds each, and three runs of each one's best.
    found, _ = told(sweep, as_json=True)
    assert (found["cells"], found["done"]) == (2 * 2 * 2 + 2 * 3, 0)


def test_a_choice_among_runs_without_privacy_has_no_privacy_to_lose(told, tmp_path):
    text = SEARCH.format(selection="unaccounted").replace("grid", "score: test_loss\n  grid")
    plain = specs.dump(small_spec("fedavg")).replace("tune:\n  selection: none\n", "")
    sweep = sweep_of(tmp_path, text, plain)
    assert sweep.cells[0].spec.privacy.unit == "none"
    assert "privacy" not in dict(told(sweep)[0])
