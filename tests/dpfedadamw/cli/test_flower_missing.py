"""What is said where Flower is asked for and is not installed."""

from __future__ import annotations

import importlib.util
import os

import pytest

from dpfedadamw.federation.flower import required
from tests.runs import call


@pytest.fixture
def without_flower(monkeypatch):
    found = importlib.util.find_spec

    def find(name, *more):
        return None if name in ("flwr", "ray") else found(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find)


@pytest.mark.parametrize("asked", [("--engine", "flower"), ("--set", "federation.engine=flower")])
def test_flower_that_is_not_installed_is_one_line_with_the_command_and_leaves_nothing(
    asked, without_flower, tmp_path, capsys
):
    assert call("run", "quickstart", *asked, "--out", str(tmp_path / "runs")) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "flower needs flwr and ray, which are not installed here" in told
    assert "pip install 'dpfedadamw[flower]'" in told
    assert not (tmp_path / "runs").exists()


def test_a_resumed_run_keeps_where_its_clients_run(tmp_path, capsys):
    assert call("run", "--resume", str(tmp_path), "--engine", "flower") == 2
    assert "--engine flower: a resumed run's clients run where they did before" in " ".join(
        capsys.readouterr().err.split()
    )


def test_flower_and_ray_are_told_to_report_to_nobody(monkeypatch):
    for name in required._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: object())
    required.require(simulation=True)
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
