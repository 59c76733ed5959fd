"""What a shell completes is what a command then takes."""

from __future__ import annotations

import os
import subprocess
import sys

from dpfedadamw.cli import completion


def test_specs_are_shipped_ones_and_yaml_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.yaml").touch()
    (tmp_path / "quick.txt").touch()
    (tmp_path / "quicker").mkdir()
    assert completion.specs("quick") == ["quickstart", "quick.yaml", "quicker/"]
    assert completion.specs("nowhere/x") == []


def test_keys_end_in_an_equals_sign_and_choices_follow_it():
    assert "federation.rounds=" in completion.keys("federation.r")
    assert completion.keys("randomness.mode=re") == [
        "randomness.mode=release",
        "randomness.mode=reproducible",
    ]
    assert "algorithm.name=dp-fedadamw" in completion.keys("algorithm.name=dp-")
    assert completion.keys("federation.rounds=") == []


def test_runs_are_folders_with_a_ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert completion.runs("") == []
    (tmp_path / "runs" / "one-1").mkdir(parents=True)
    (tmp_path / "runs" / "one-1" / "ledger.jsonl").touch()
    (tmp_path / "runs" / "canaries").mkdir()
    (tmp_path / "runs" / "notes.txt").touch()
    assert completion.runs("") == ["runs/canaries/", "runs/one-1"]
    assert completion.runs("runs/o") == ["runs/one-1"]


def test_the_shell_is_answered(tmp_path):
    asked = {
        "_DPFEDADAMW_COMPLETE": "complete_bash",
        "COMP_WORDS": "dpfedadamw run quick",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "dpfedadamw"],
        cwd=tmp_path,
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
    )
    assert "quickstart" in done.stdout.split()
