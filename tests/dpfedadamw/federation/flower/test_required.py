"""Flower is asked for before it is imported, and told what it may not do by itself."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys

import pytest

from dpfedadamw.federation.flower import required


@pytest.fixture
def here(monkeypatch):
    """The packages that are taken to be installed; the environment is put back."""
    found = {"flwr", "ray"}
    whole = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: whole("json") if name in found else None
    )
    monkeypatch.setattr(os, "environ", {"RAY_AUTH_TOKEN_PATH": "a file of the user's"})
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    return found


def told():
    """The environment, without what pytest itself notes there."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.mark.parametrize(
    ("there", "simulation", "said"),
    [
        ({"ray"}, False, "needs flwr, which is not installed here"),
        ({"flwr"}, True, "needs ray, which is not installed here"),
        (set(), True, "needs flwr and ray, which are not installed here"),
    ],
)
def test_what_is_missing_is_named_with_how_it_is_installed(here, there, simulation, said):
    here.clear()
    here.update(there)
    with pytest.raises(required.FlowerError, match=said) as error:
        required.require(simulation)
    assert str(error.value).endswith("install with: pip install 'dpfedadamw[flower]'")
    assert list(told()) == ["RAY_AUTH_TOKEN_PATH"]


def test_flower_and_ray_report_nothing_and_look_for_nothing(here):
    here.discard("ray")
    required.require()
    assert told() == {
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_AUTH_TOKEN_PATH": "a file of the user's",
        "RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
    }  # fmt: skip


def test_rays_processes_take_orders_only_with_a_secret_of_this_run(here):
    tokens = set()
    for _ in range(2):
        os.environ["RAY_AUTH_TOKEN_PATH"] = "a file of the user's"
        required.require(simulation=True)
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ
        tokens.add(os.environ["RAY_AUTH_TOKEN"])
    assert len(tokens) == 2
    assert all(len(bytes.fromhex(one)) >= 32 for one in tokens)


def test_a_ray_that_runs_already_keeps_its_secret(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", object())
    required.require(simulation=True)
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_flowers_log_is_kept_off_the_terminal():
    log = logging.getLogger("flwr")
    before = log.level
    try:
        required.quiet()
        assert not log.isEnabledFor(logging.ERROR)
    finally:
        log.setLevel(before)
