"""Each extension's folder can be removed: what is left runs, audits, reports and verifies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXTENSIONS = sorted(
    path.name
    for path in (ROOT / "dpfedadamw" / "extensions").iterdir()
    if path.is_dir() and (path / "__init__.py").is_file()
)
COMMAND = {"figures": "figures", "deployment": "flower", "sweeps": "sweep"}
SMALL = ("--set", "federation.rounds=2", "--set", "federation.clients_per_round=3")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages, which may be pruned."""
    for package in ("dpfedadamw", "audit", "reports", "specs"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def typed(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "DPFEDADAMW_KEYS": str(copy / "keys"),
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, "-m", "dpfedadamw", *words],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_extension_has_its_command_here() -> None:
    assert set(COMMAND) == set(EXTENSIONS)


def test_without_any_extension_a_run_is_trained_audited_reported_and_verified(copy: Path) -> None:
    shutil.rmtree(copy / "dpfedadamw" / "extensions")
    told = typed(copy, "--help")
    listed = {line.split()[1] for line in told.stdout.splitlines() if len(line.split()) > 2}
    assert "run" in listed
    assert not listed & set(COMMAND.values())
    for words in (("run", "quickstart", *SMALL), ("verify", "runs/latest"), ("audit",)):
        told = typed(copy, *words)
        assert (told.returncode, "Traceback" in told.stderr) == (0, False), told.stderr
    for command in COMMAND.values():
        told = typed(copy, command)
        assert told.returncode == 2
        assert f"No such command '{command}'" in told.stderr
    told = typed(copy, "epsilon", "quickstart")
    assert told.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTENSIONS)
def test_without_one_extension_the_core_s_tests_pass(name: str, copy: Path) -> None:
    """The tests of engine, auditor and reports but those of extensions and of the command line."""
    shutil.rmtree(copy / "dpfedadamw" / "extensions" / name)
    for path in ("tests", "pyproject.toml", "docs", "README.md", "ERRATA.md"):
        source = ROOT / path
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / path)
    folders = [
        f"tests/dpfedadamw/{folder}"
        for folder in ("privacy", "clipping", "accounting", "units", "budget", "federation", "run")
    ]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", *folders],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout[-2000:]
