"""What is said of a cell that ended: how well it did, by its task."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dpfedadamw.extensions.sweeps.commands.progress import duration, line_of, progress
from reports import run_rows
from tests.dpfedadamw.cli.shown import cells


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"test_accuracy": 0.5, "audit": "PASS"}, "50.0%"),
        ({"test_accuracy": None, "test_rmse": 0.123456, "audit": "PASS"}, "RMSE 0.1235"),
        ({"test_accuracy": None, "audit": "PASS"}, "no accuracy"),
    ],
)
def test_a_cell_that_is_done_says_its_accuracy_or_its_error(row, said):
    folder, cell = SimpleNamespace(result=lambda: row), SimpleNamespace(label="rate 1")
    job = SimpleNamespace(state="done", folder=folder, cell=cell, seconds=3.0)
    assert line_of(job, [job]).plain == f"1/1  rate 1: {said}, audit PASS, 3 s"


@pytest.mark.parametrize(
    ("party", "server", "audit"),
    [
        (5.0, 20.0, "PASS"),
        (5.0, 20.5, "NO MEANINGFUL PROTECTION AGAINST THE SERVER · PASS"),
        (2.58e9, 2.58e9, "NO MEANINGFUL PROTECTION · PASS"),
        (None, None, "PASS"),
    ],
)
def test_an_epsilon_that_protects_nobody_is_said_before_the_verdict(party, server, audit):
    row = {"audit": "PASS", "epsilon_third_party": party, "epsilon_server_worst_case": server}
    assert run_rows.judged(row) == audit


def job(state, label="rate 1", completed=(0, None), seconds=0.0, said=""):
    spec = SimpleNamespace(federation=SimpleNamespace(rounds=10))
    folder = SimpleNamespace(completed_rounds=lambda: completed)
    cell = SimpleNamespace(label=label, spec=spec)
    return SimpleNamespace(state=state, cell=cell, folder=folder, seconds=seconds, said=said)


def test_a_cell_that_did_not_end_well_says_why_and_how_many_are_done():
    jobs = [job("done"), job("failed", said="no such file"), job("elsewhere"), job("waiting")]
    assert line_of(jobs[1], jobs).plain == "1/4  rate 1: failed: no such file"
    assert line_of(jobs[2], jobs).plain == "1/4  rate 1: another sweep is running it; waiting"


def test_what_runs_is_shown_with_its_round_and_when_all_may_be_done():
    jobs = [
        job("running", "first", (3, 0.5), 70.0),
        job("running", "second", (10, None), 300.0),
        job("waiting"),
        job("elsewhere"),
        job("done", seconds=100.0),
        job("done", seconds=300.0),
        # What a sweep finds done took it no time.
        job("done"),
        job("failed", seconds=9.0),
    ]
    assert cells(progress(jobs, 1, 2)) == [
        ["first", "round 3 of 10", "accuracy 50.0%", "70 s"],
        ["second", "audit and report", "5 min"],
        # Four are left, two at a time, of 200 s each.
        ["3 of 8 cells done; the rest in about 7 min"],
    ]
    assert cells(progress(jobs[:4], 0, 2))[-1] == ["0 of 4 cells done"]


def test_a_long_label_is_folded_and_the_numbers_beside_it_are_whole():
    label = " ".join(["algorithm.learning_rate=0.1"] * 6)
    shown = cells(progress([job("running", label, (3, 0.5), 70.0)], 0, 1), width=50)
    assert shown[0][1:] == ["round 3 of 10", "accuracy 50.0%", "70 s"]
    folded = "".join("".join(row[0] for row in shown).split())
    assert folded.startswith(label.replace(" ", ""))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 s"), (119.4, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h"),
        (12_960, "3.6 h"),
    ],
)  # fmt: skip
def test_a_span_of_time_is_said_in_the_unit_that_suits_it(seconds, said):
    assert duration(seconds) == said
