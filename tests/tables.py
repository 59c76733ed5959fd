"""Small tables with private columns, and specs that learn the bounds of some of them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np

from dpfedadamw import spec as specs
from dpfedadamw.spec import Spec

LEARNING = """
version: 1
name: learnt
data:
  dataset: table
  path: {path}
  label: outcome
  columns:
    - {{name: age, kind: number, low: -1000, high: 1000, learn_bins: 200,
        learn_quantiles: [0.02, 0.98]}}
    - {{name: ward, kind: category, categories: [A, B, C]}}
    - {{name: income, kind: number, low: 0, high: 1.0e+6, scale: log, indicator: true,
        learn_bins: 64, learn_quantiles: [0.02, 0.98]}}
  column_noise_multiplier: 6
  clients: 4
  partition: {{kind: column, column: hospital}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: dp-fedadamw, learning_rate: 0.1}}
federation: {{rounds: 4, clients_per_round: 3, local_steps: 3}}
privacy:
  unit: record
  clipping_norm: 1.0
  noise_multiplier: 2.0
  delta: 1.0e-5
  sampling: {{kind: poisson, expected_batch_size: 24}}
randomness: {{mode: reproducible, seed: 1}}
"""


def write_table(path: Path, rows: int = 2400) -> Path:
    """Write a table: ages around 45, incomes over one order of magnitude, some of them empty."""
    drawn = np.random.default_rng(3)
    age = np.clip(drawn.normal(45, 10, rows), 1, 99)
    outcome = drawn.random(rows) < 1 / (1 + np.exp(-(age - 45) / 6))
    income = np.exp(drawn.normal(10, 0.5, rows))
    lines = ["age,income,ward,hospital,outcome"]
    for row in range(rows):
        shown = "" if row % 50 == 7 else f"{income[row]:.0f}"
        ward = "ABC"[row % 3]
        lines.append(f"{age[row]:.1f},{shown},{ward},h{row % 4},{int(outcome[row])}")
    path.write_text("\n".join(lines) + "\n")
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tables-")


def table() -> Path:
    """The small table, written once a process."""
    path = Path(_folder().name) / "t.csv"
    return path if path.exists() else write_table(path)


def learning_spec(*overrides: str, path: Path | None = None) -> Spec:
    """A spec that learns the bounds of two columns of a small table."""
    return specs.loads(LEARNING.format(path=path or table()), overrides=overrides)
