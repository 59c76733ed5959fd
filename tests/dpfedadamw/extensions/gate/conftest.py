"""A small gate that has begun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.data.registry import DATASETS
from dpfedadamw.extensions.gate import book, settings
from dpfedadamw.extensions.gate.door import Gate
from dpfedadamw.preprocessing import ImagePreprocessing

# Three releases: σ = 4 costs ε = 0.93, 1.36, 1.70 and 2.00 at δ = 1e-5 after one to four.
GATE = {
    "unit": "record",
    "shards": 4,
    "clip": 0.5,
    "noise_multiplier": 4.0,
    "budget": {"epsilon": 1.8, "delta": 1e-5},
    "model": {"weight": "float32[3, 2]", "bias": "float64[2]"},
    "ledger": "ledger",
    "anchor": "elsewhere/head.json",
}
Begin = Callable[..., Gate]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """Begins a gate in tmp_path, with other values for some keys."""

    def begun(**changes: object) -> Gate:
        path = tmp_path / "gate.yaml"
        path.write_text(settings.write({**GATE, **changes}), encoding="utf-8")
        found = settings.read(path)
        book.begin(found, book.load_key(make=True))
        return Gate.open(path)

    return begun


@pytest.fixture
def gate(begin: Begin) -> Gate:
    """The small gate."""
    return begin()


@pytest.fixture(scope="session")
def digits():
    """Images as vectors of 64 numbers, and labels."""
    every = DATASETS["digits"].bring(specs.load("quickstart").data, ImagePreprocessing())
    found = every.parts["train"]
    return found.values.reshape(-1, 64), found.labels
