"""What a shell completes is what a command then takes."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("backwards", [False, True])
def test_paths_are_completed_in_the_order_of_their_names(backwards, tmp_path, monkeypatch):
    names = ["b.yaml", "a.yaml", "c.yaml", "folder", "d.yaml"]
    for name in names:
        (tmp_path / name).mkdir() if name == "folder" else (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    held = Path.iterdir
    monkeypatch.setattr(
        Path, "iterdir", lambda folder: iter(sorted(held(folder), reverse=backwards))
    )
    found = completion.specs("./")
    assert found == [f"./{name}" for name in ("a.yaml", "b.yaml", "c.yaml", "d.yaml", "folder/")]


@pytest.fixture
def command(tmp_path) -> dict[str, str]:
    """An environment in which `dpfedadamw` is this package's command."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "dpfedadamw"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dpfedadamw "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{script.parent}:{os.environ['PATH']}", "TERM": "dumb"}


def asked(environment: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**environment, **variables}
    return subprocess.run(["dpfedadamw"], env=environment, capture_output=True, text=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("variables", "answer"),
    [
        (
            {
                "_DPFEDADAMW_COMPLETE": "complete_bash",
                "COMP_WORDS": "dpfedadamw run quick",
                "COMP_CWORD": "2",
            },
            "quickstart",
        ),
        (
            {
                "_DPFEDADAMW_COMPLETE": "complete_zsh",
                "_TYPER_COMPLETE_ARGS": "dpfedadamw run quick",
            },
            "quickstart",
        ),
        (
            {
                "_DPFEDADAMW_COMPLETE": "complete_fish",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
                "_TYPER_COMPLETE_ARGS": "dpfedadamw run quick",
            },
            "quickstart",
        ),
        ({"_DPFEDADAMW_COMPLETE": "source_zsh"}, "#compdef dpfedadamw"),
    ],
    ids=["bash", "zsh", "fish", "script"],
)
def test_a_shell_is_answered_and_nothing_else_is_said(variables, answer, command):
    done = asked(command, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert answer in done.stdout


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        (["bash", "--norc", "-i"], 'eval "$(_DPFEDADAMW_COMPLETE=source_bash dpfedadamw)"\n'),
        (
            ["zsh", "-f", "-i"],
            "autoload -U compinit; compinit -u -D\n"
            'eval "$(_DPFEDADAMW_COMPLETE=source_zsh dpfedadamw)"\n',
        ),
        (["fish", "--private"], "_DPFEDADAMW_COMPLETE=source_fish dpfedadamw | source\n"),
    ],
    ids=["bash", "zsh", "fish"],
)
def test_tab_completes_in_a_terminal(shell, script, command, tmp_path):
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    ours, theirs = pty.openpty()
    # fish asks for a terminal that is its session's own.
    with subprocess.Popen(
        ["setsid", "--ctty", *shell], env=command, cwd=tmp_path,
        stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True,
    ) as process:  # fmt: skip
        try:
            os.write(ours, (script + "printf 'is %s ready\\n' 42\n").encode())
            read_until(ours, "is 42 ready")
            os.write(ours, b"echo dpfedadamw && dpfedadamw run quicks\t")
            told = read_until(ours, "quickstart")
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)
    assert "internal error" not in told


def read_until(terminal: int, wanted: str) -> str:
    """What a terminal shows until a text is there; fails after a minute without."""
    told, until = "", time.monotonic() + 60
    while wanted not in told:
        assert time.monotonic() < until, told
        if select.select([terminal], [], [], 1)[0]:
            told += os.read(terminal, 65536).decode(errors="replace")
    return told
