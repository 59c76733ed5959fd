"""Small sweeps for tests: specs with a matrix, with seeds, and with a search."""

from __future__ import annotations

import json

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.errors import SpecError
from dpfedadamw.extensions.sweeps.runner import Runner
from dpfedadamw.spec.matrix import load_sweep
from reports import run_rows
from tests.runs import call, small_spec

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


SEARCHED = """
tune:
  selection: unaccounted
  score: test_accuracy
  grid: {algorithm.learning_rate: [0.1, 0.2]}
"""


SEARCHED_UNDER_OTHERS = (
    SEARCHED.replace("grid:", "seeds: [7, 8]\n  grid:")
    + """
seeds: 3
matrix: {federation.rounds: [2, 3]}
"""
)


def listed(capsys, *arguments: str) -> list[tuple[str, str, int]]:
    """Labels and seed of each cell that `--dry-run` lists."""
    assert call("sweep", *arguments, "--dry-run", "--json") == 0
    return [
        (*cell["values"].values(), cell["seed"]) for cell in json.loads(capsys.readouterr().out)
    ]


def in_this_process(monkeypatch) -> None:
    """Cells are run by the same command, without a process for each."""

    def run(self, jobs):
        for job in jobs:
            self._folder.begin_cell(job.cell)
            call(*self._arguments(job))
            self._finished(job)
            job.state = "done"
            yield job

    monkeypatch.setattr(Runner, "run", run)


def accurate(monkeypatch, accuracy) -> list[tuple[float, int | None]]:
    """Cells end at once, as accurate as their learning rate and seed make them."""
    ran = []

    def row(self, jobs):
        for job in jobs:
            self._folder.begin_cell(job.cell)
            spec = job.cell.spec
            ran.append((spec.algorithm.learning_rate, job.cell.seed))
            columns = dict.fromkeys(run_rows.COLUMNS)
            columns |= {"audit": "PASS", "signatures": "holds", "unit": "record", "run": "a"}
            columns |= {"test_accuracy": accuracy(*ran[-1]), "tune": spec.tune.selection}
            job.folder.write_result({**columns, "tune_score": spec.tune.score})
            job.state = "done"
            yield job

    monkeypatch.setattr(Runner, "run", row)
    return ran
