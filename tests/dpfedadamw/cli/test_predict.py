"""Where predictions go, by what was asked for."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw import api, tasks
from dpfedadamw.run.prediction import Predictions
from tests.runs import call

COLUMNS = ["row", "label", "p_no", "p_yes"]


@pytest.fixture(autouse=True)
def _answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that answers yes and no, evenly and surely, to any rows."""
    scores = np.array([[0.0, 1000.0], [1000.0, 0.0]], dtype=np.float32)
    found = Predictions(tasks.CLASSES, ("no", "yes"), scores)
    monkeypatch.setattr(api, "predict", lambda *given, **keys: found)
    monkeypatch.chdir(tmp_path)


def predict(*more: str) -> int:
    return call("predict", "a-run", "--input", "rows.csv", *more)


def lines() -> list[str]:
    return ["row,label,p_no,p_yes", "1,yes,0.0,1.0", "2,no,1.0,0.0"]


def test_without_a_file_they_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert predict() == 0
    assert capsys.readouterr().out.splitlines() == lines()


def test_as_json_without_a_file_every_row_is_in_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert predict("--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "records": 2,
        "labels": ["no", "yes"],
        "columns": COLUMNS,
        "rows": [[1, "yes", 0.0, 1.0], [2, "no", 1.0, 0.0]],
    }


@pytest.mark.parametrize("as_json", [False, True])
def test_in_a_file_they_are_private_and_the_answer_names_the_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    assert predict("--output", "out.csv", *(["--json"] if as_json else [])) == 0
    file = tmp_path / "out.csv"
    assert file.read_text().splitlines() == lines()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = capsys.readouterr().out
    if as_json:
        told = {"records": 2, "labels": ["no", "yes"], "columns": COLUMNS, "output": "out.csv"}
        assert json.loads(said) == told
    else:
        assert [line.split() for line in said.splitlines() if line.strip()] == [
            ["predictions", "out.csv"],
            ["records", "2"],
        ]


def test_nothing_is_written_into_a_run_or_over_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a-folder").mkdir()
    assert predict("--output", "a-folder") == 2
    assert "is a folder" in capsys.readouterr().err
    run = tmp_path / "run"
    run.mkdir()
    for name in ("spec.yaml", "ledger.jsonl"):
        (run / name).write_text("")
    (run / "deeper").mkdir()
    for place in ("run/out.csv", "run/deeper/out.csv"):
        assert predict("--output", place) == 2
        assert "inside a signed run's folder" in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / place).exists()
