"""Small sweeps for tests: specs with a matrix, with seeds, and with a search."""

from __future__ import annotations

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import SpecError
from dpfedadamw.spec.matrix import load_sweep
from tests.runs import small_spec

BASE = specs.dump(small_spec())
UNTUNED = BASE.replace("tune:\n  selection: none\n", "")
METHODS = """
matrix:
  privacy.noise_multiplier: [1.0, 2.0]
  method:
    label: [SGD, Adam]
    algorithm:
      - {name: dp-fedavg, learning_rate: 0.1}
      - {name: dp-fedadamw, learning_rate: 0.02}
    federation.local_steps: [3, 2]
"""
SEARCH = """
tune:
  selection: {selection}
  grid: {{algorithm.learning_rate: [0.1, 0.5]}}
"""
OWN_SEEDS = """
seeds: [0, 1, 2]
tune:
  selection: {selection}
  score: test_accuracy
  seeds: {seeds}
  grid: {{algorithm.learning_rate: [0.1, 0.5]}}
"""


def swept(tmp_path, text, changes=(), base=BASE):
    path = tmp_path / "sweep.yaml"
    path.write_text(base + text)
    return load_sweep(path, changes)


def problems_of(tmp_path, text) -> str:
    with pytest.raises(SpecError) as caught:
        swept(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


def searched_for(tmp_path, text, base=None):
    (tmp_path / "search.yaml").write_text((base or UNTUNED) + text)
    return load_sweep(tmp_path / "search.yaml")


def with_own_seeds(tmp_path, seeds="[100, 101]", selection="unaccounted"):
    return searched_for(tmp_path, OWN_SEEDS.format(seeds=seeds, selection=selection))
