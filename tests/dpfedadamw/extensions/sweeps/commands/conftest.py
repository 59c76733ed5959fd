"""Sweeps for the tests of `sweep`."""

from __future__ import annotations

import pytest

from tests.sweeps import BASE, SEARCHED_UNDER_OTHERS, UNTUNED


@pytest.fixture
def spec(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    text = "matrix: {federation.rounds: [2, 3], federation.local_steps: [1, 2]}\nseeds: 2\n"
    (tmp_path / "s.yaml").write_text(BASE + text)
    return "s.yaml"


@pytest.fixture
def own_seeds(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(UNTUNED + SEARCHED_UNDER_OTHERS)
    return "s.yaml"
