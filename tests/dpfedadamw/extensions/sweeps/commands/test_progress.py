"""What is said of a cell that ended: how well it did, by its task."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dpfedadamw.extensions.sweeps.commands.progress import line_of
from reports import run_rows


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"test_accuracy": 0.5, "audit": "PASS"}, "50.0%"),
        ({"test_accuracy": None, "test_rmse": 0.123456, "audit": "PASS"}, "RMSE 0.1235"),
        ({"test_accuracy": None, "audit": "PASS"}, "no accuracy"),
    ],
)
def test_a_cell_that_is_done_says_its_accuracy_or_its_error(row, said):
    folder, cell = SimpleNamespace(result=lambda: row), SimpleNamespace(label="rate 1")
    job = SimpleNamespace(state="done", folder=folder, cell=cell, seconds=3.0)
    assert line_of(job, [job]).plain == f"1/1  rate 1: {said}, audit PASS, 3 s"


@pytest.mark.parametrize(
    ("party", "server", "audit"),
    [
        (5.0, 20.0, "PASS"),
        (5.0, 20.5, "NO MEANINGFUL PROTECTION AGAINST THE SERVER · PASS"),
        (2.58e9, 2.58e9, "NO MEANINGFUL PROTECTION · PASS"),
        (None, None, "PASS"),
    ],
)
def test_an_epsilon_that_protects_nobody_is_said_before_the_verdict(party, server, audit):
    row = {"audit": "PASS", "epsilon_third_party": party, "epsilon_server_worst_case": server}
    assert run_rows.judged(row) == audit
