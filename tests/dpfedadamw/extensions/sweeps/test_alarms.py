"""Audits that did not pass, of cells that share their noise."""

from __future__ import annotations

from typing import Any

import pytest

from dpfedadamw.extensions.sweeps.alarms import shared_noise
from reports import run_rows
from tests.runs import call

RUN = {"audit": "FAIL", "randomness": "reproducible", "unit": "record", "seed": 0, "run_seed": 100}
SHARED = "did not pass and share their noise: a chance alarm then occurs in all of them at once"


def rows(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**RUN, "cell": f"c{place}", **change} for place, change in enumerate(changes)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([{}], None),
        ([{}, {"run_seed": 101}], None),
        ([{}, {"audit": "PASS"}, {"audit": "NO CLAIM"}], None),
        # What is drawn by the operating system is shared by none, and without noise none is.
        ([{"randomness": "release"}] * 2, None),
        ([{"unit": "none"}] * 2, None),
        ([{}, {"audit": "PASS"}, {"audit": "NOT VERIFIED"}], "2 of 3 cells of seed 100 (c0, c2)"),
        # The seed of the run tells, whatever else is repeated by a number.
        ([{"seed": 1}, {"seed": 2}], "2 of 2 cells of seed 100 (c0, c1)"),
        # Results of before have the sweep's alone.
        ([{"run_seed": None}, {"run_seed": None}], "2 of 2 cells of seed 0 (c0, c1)"),
        ([{"run_seed": None, "seed": None}] * 2, "2 of 2 cells (c0, c1)"),
        (
            [{}, {"run_seed": 7}, {}, {"run_seed": 7}],
            "2 of 2 cells of seed 100 (c0, c2); 2 of 2 cells of seed 7 (c1, c3)",
        ),
    ],
)
def test_alarms_of_one_seed_are_told_once_with_their_cells(
    changes: list[dict[str, Any]], said: str | None
) -> None:
    found = shared_noise(rows(*changes))
    assert found == (None if said is None else f"{said} {SHARED}, so count each seed once")


@pytest.mark.parametrize(("second", "told"), [("FAIL", True), ("PASS", False)])
def test_a_table_tells_which_alarms_share_their_noise(
    second: str, told: bool, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    row = dict.fromkeys(run_rows.COLUMNS) | RUN | {"signatures": "holds", "test_accuracy": 0.5}
    written = [
        {"cell": cell, "rate": cell, **row, "audit": verdict}
        for cell, verdict in (("a", "FAIL"), ("b", second), ("c", "PASS"), ("d", "PASS"))
    ]
    (tmp_path / "results.csv").write_text(run_rows.as_csv(written))
    assert call("sweep", "table", str(tmp_path), "--rows", "rate") == 0
    error = capsys.readouterr().err
    assert ("alarms: 2 of 4 cells of seed 100 (a, b) did not pass" in error) is told
