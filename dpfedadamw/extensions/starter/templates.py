"""What a new project's files say; they run as they stand."""

from __future__ import annotations

import random

SPEC = """\
# What is trained, and how it is protected. docs/spec.md explains every key; check it with
# dpfedadamw epsilon spec.yaml (what it costs) and dpfedadamw spec validate spec.yaml.
version: 1
name: "{name}"
data:
  dataset: table
  path: records.csv
  label: outcome
  numbers: [age, pressure, marker]
  clients: 4
  partition: {{kind: column, column: site}}
algorithm: {{name: dp-fedavg, learning_rate: 2.0}}
federation: {{rounds: 15, clients_per_round: 4}}
privacy:
  unit: record
  clipping_norm: 1.0
  noise_multiplier: 2.0
  delta: 1.0e-5
  sampling: {{kind: poisson, expected_batch_size: 40}}
report:
  purpose: null          # what the model is for: it stands in the report and on the model card
"""
NETS = '''\
"""The model. It is in a module of its own, so that training and service build the same."""

import torch
from torch import nn


class Net(nn.Module):
    """From three numbers to the scores of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(rows)
'''
TRAIN = '''\
"""Trains, audits and signs a run, and exports its model: python train.py."""

import torch

from dpfedadamw import api
from nets import Net

if __name__ == "__main__":
    torch.manual_seed(0)  # of the first weights, which must not depend on private records
    run = api.run("spec.yaml", model=Net())
    print(run.verdict, f"epsilon {run.epsilon}", f"accuracy {run.accuracy:.1%}", run.measures)
    print(run.export("model"), run.report())
'''
SERVE = '''\
"""Answers rows by HTTP: python serve.py, then

curl -d '[{"age": 0.4, "pressure": 0.5, "marker": 0.9}]' http://127.0.0.1:8000
"""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np

from dpfedadamw import api
from nets import Net

SERVED = api.predictor("model", Net())
COLUMNS = SERVED.read_by["numbers"]
# No rows, no number in a cell, one that is not finite, and texts that are no JSON.
REFUSED = (api.DpfedadamwError, ArithmeticError, KeyError, RecursionError, TypeError, ValueError)


def answer(rows: list[dict]) -> list[dict]:
    """The probability of each label, for each row."""
    values = np.array([[row[name] for name in COLUMNS] for row in rows], np.float32)
    found = SERVED.predict(values).probabilities
    return [dict(zip(SERVED.labels, row)) for row in found.tolist()]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        try:
            told = 200, answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        except REFUSED as error:
            needed = f"rows need numbers: {', '.join(COLUMNS)}"
            told = 400, {"error": f"{needed} ({type(error).__name__})"}
        self.send_response(told[0])
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(told[1]).encode())


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
'''
TEST = '''\
"""What is served is what was trained: python -m pytest, after python train.py."""

import csv

import pytest
from dpfedadamw import api
from nets import Net
from serve import COLUMNS, answer


def test_the_service_answers_as_the_run_does():
    with open("records.csv", newline="") as file:
        rows = [{name: float(row[name]) for name in COLUMNS} for row in csv.DictReader(file)]
    expected = api.predict("runs/latest", "records.csv", Net()).probabilities
    found = [list(one.values()) for one in answer(rows)]
    assert found == pytest.approx(expected)


def test_a_row_without_a_column_is_refused():
    with pytest.raises(KeyError):
        answer([{"age": 0.4}])
'''


def records() -> str:
    """Made-up rows of four sites, 600 in all, which stand for a table of the user's own."""
    drawn = random.Random(0)
    lines = ["site,age,pressure,marker,outcome"]
    for number in range(600):
        age, pressure, marker = (drawn.random() for _ in range(3))
        outcome = "yes" if age + marker + drawn.gauss(0.0, 0.2) > 1.2 else "no"
        lines.append(f"site-{number % 4},{age:.3f},{pressure:.3f},{marker:.3f},{outcome}")
    return "\n".join(lines) + "\n"


def files(name: str) -> dict[str, str]:
    """Every file of a new project, by its name."""
    return {
        "spec.yaml": SPEC.format(name=name),
        "records.csv": records(),
        "nets.py": NETS,
        "train.py": TRAIN,
        "serve.py": SERVE,
        "test_serve.py": TEST,
    }
