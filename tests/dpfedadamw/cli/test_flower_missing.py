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


@pytest.fixture
def named(monkeypatch):
    """Name a cluster of Ray's, with the mode of its token."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: object())
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def name(address, mode):
        os.environ.update(RAY_ADDRESS=address, RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN="the cluster's")

    return name


def test_a_cluster_is_used_where_ray_address_names_it_with_its_own_token(named):
    named("head.example:6379", "token")
    required.require(simulation=True)
    assert required.cluster() == "head.example:6379"
    assert os.environ["RAY_AUTH_TOKEN"] == "the cluster's"
    for address in ("", "local"):
        os.environ["RAY_ADDRESS"] = address
        assert required.cluster() is None


@pytest.mark.parametrize(
    ("address", "mode", "told"),
    [
        ("10.0.0.1:6379", "disabled", "Set RAY_AUTH_MODE=token"),
        ("auto", "token", "'auto' is no HOST:PORT"),
        ("ray://10.0.0.1:10001", "token", "is no HOST:PORT"),
    ],
)
def test_a_cluster_without_a_token_or_address_is_refused_in_one_line_before_anything_is_written(
    address, mode, told, named, tmp_path, capsys
):
    named(address, mode)
    out = tmp_path / "runs"
    assert call("run", "quickstart", "--engine", "flower", "--out", str(out)) == 2
    assert f"RAY_ADDRESS: {'anyone' if mode != 'token' else ''}" in (
        said := " ".join(capsys.readouterr().err.split())
    )
    assert told in said
    assert not out.exists()
