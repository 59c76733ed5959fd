"""`calibrate --frontier` and the second moment's line of `epsilon`, as a user meets them."""

from __future__ import annotations

import json

import pytest

from dpfedadamw.cli import terminal
from tests.runs import call

CALIBRATE = ("calibrate", "quickstart", "--target-epsilon", "7")
BATCH = "privacy.sampling.expected_batch_size"
VARIED = ("--frontier", "--vary", "federation.local_steps=1,5", "--vary", f"{BATCH}=40,120")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_frontier_is_shown_in_eighty_columns_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(terminal.out, "width", 80)
    assert call(*CALIBRATE, *VARIED) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    rows = [line.split()[:4] for line in shown.splitlines() if line.strip().endswith("000")]
    assert [row[:3] for row in rows] == [["20", "1", "40"], [">", "20", "5"]]
    assert "not shown: local_steps 1, expected_batch_size 120; local_steps 5" in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("epsilon", "warned"), [(20, False), (21, True)])
def test_a_budget_that_protects_nobody_is_called_so_before_what_it_buys(capsys, epsilon, warned):
    assert call("calibrate", "quickstart", "--target-epsilon", str(epsilon), *VARIED) == 0
    shown = capsys.readouterr().out
    assert ("NO MEANINGFUL PROTECTION AGAINST THE SERVER" in shown.split("at ε")[0]) == warned


def test_a_frontier_as_json_has_every_row_and_what_was_refused(capsys):
    assert call(*CALIBRATE, *VARIED, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["local_steps"] for one in found["combinations"]] == [1, 5]
    assert [one["values"][BATCH] for one in found["refused"]] == [120, 120]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--frontier", "--vary", "federation.rounds"), "--vary federation.rounds: must be a key"),
        (("--frontier", "--vary", "federation.rounds=["), "--vary federation.rounds=[: must be"),
        (("--frontier", "--output", "new.yaml"), "--frontier: solves for noise and writes no spec"),
        (("--frontier", "--solve", "rounds"), "--frontier: solves for noise and writes no spec"),
        (("--vary", "federation.rounds=1,2"), "--vary: is for --frontier"),
        (("--compare-person", "--output", "new.yaml"), "--compare-person: solves for noise"),
        (("--compare-person", "--solve", "rounds"), "--compare-person: solves for noise"),
        (("--compare-person", "--view", "third-party"), "--compare-person: solves for noise"),
        (("--per-person", "--solve", "rate"), "--per-person: solves for noise"),
        (("--per-person", "--view", "third-party"), "--per-person: solves for noise"),
    ],
)
def test_what_a_calibration_cannot_take_together_is_one_line(tmp_path, capsys, more, said):
    assert call(*CALIBRATE, *more) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
