"""What `--dry-run` lists."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from dpfedadamw.cli import display, terminal
from tests.runs import call
from tests.sweeps import BASE, accurate, listed


def test_dry_run_lists_and_makes_nothing(spec, tmp_path, capsys):
    assert len(listed(capsys, spec)) == 8
    assert call("sweep", spec, "--dry-run") == 0
    assert "8 cells, 8 to do" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_dry_run_counts_trials_and_what_the_best_is_run_as(own_seeds, capsys, monkeypatch):
    def listing() -> list[tuple[str, str, str | None]]:
        assert call("sweep", own_seeds, "--dry-run", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        return [
            (cell["stage"], cell["state"], cell["values"].get("algorithm.learning_rate"))
            for cell in found
        ]

    assert call("sweep", own_seeds, "--dry-run") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "14 cells, 14 to do: 8 trials, and 6 runs of the best settings" in said
    assert listing()[8:] == [("best", "after its search", None)] * 6
    accurate(monkeypatch, lambda rate, seed: rate)
    assert call("sweep", own_seeds, "--only", "federation.rounds=2", "--only", "seed=7|8|0") == 0
    capsys.readouterr()
    assert sorted(listing()[8:]) == sorted(
        [("best", "done", "0.2")] + [("best", "to do", "0.2")] * 2
        + [("best", "after its search", None)] * 3
    )  # fmt: skip


PRINTED = """
matrix: {federation.rounds: [2, 3, 4], federation.local_steps: [1, 2]}
expected:
  test_accuracy:
    source: Some Paper, Table 1
    rows: federation.local_steps
    columns: federation.rounds
    values:
      "1": [66.37, 67.01 ± 0.26, null]
      "2": [null, 12.5, 0]
  test_loss:
    source: Some Paper, Table 2
    rows: federation.rounds
    values: {"2": 1.25, "3": 0.5, "4": 2}
"""


def test_a_dry_run_says_what_a_paper_prints_for_each_cell_and_no_more(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(BASE + PRINTED)
    assert call("sweep", "s.yaml", "--dry-run", "--json") == 0
    names = ("federation.rounds", "federation.local_steps")
    found = {
        tuple(cell["values"][name] for name in names): cell["printed"]
        for cell in json.loads(capsys.readouterr().out)
    }
    assert found == {
        ("2", "1"): {"test_accuracy": pytest.approx(0.6637), "test_loss": 1.25},
        ("3", "1"): {"test_accuracy": pytest.approx(0.6701), "test_loss": 0.5},
        ("4", "1"): {"test_loss": 2.0},
        ("2", "2"): {"test_loss": 1.25},
        ("3", "2"): {"test_accuracy": pytest.approx(0.125), "test_loss": 0.5},
        ("4", "2"): {"test_accuracy": 0.0, "test_loss": 2.0},
    }
    monkeypatch.setattr(terminal.out, "_width", 200)
    assert call("sweep", "s.yaml", "--dry-run") == 0
    printed = capsys.readouterr().out.splitlines()
    (row,) = [line for line in printed if "66.37 %" in line]
    assert "test_accuracy 66.37 %, test_loss 1.250" in row
    assert sum("test_accuracy" in line for line in printed) == 4


HEADS = (
    "data.partition.alpha", "method", "algorithm.learning_rate", "algorithm.server.learning_rate",
    "stage", "seeds", "state", "expected", "GPU, estimated",
)  # fmt: skip
ROWS = [
    ("0.1", method, rate, "3", "trial", "5", state, "", "12 min")
    for method in ("DP-FedAvg", "DP-LocalAdamW", "DP-FedSAM at DP-FedAvg's σ")
    for rate, state in (("0.3", "done"), ("1", "3 done, 2 after its search"))
]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_labels_are_broken_between_words_and_what_rows_share_is_said_once(width, capsys):
    Console(width=width).print(display.labelled(HEADS, ROWS))
    said = capsys.readouterr().out
    table, _, shared = said.partition("in every row: ")
    assert max(map(len, said.splitlines())) <= width
    words = {word for row in ROWS for cell in row[1:2] + row[6:7] for word in cell.split()}
    assert words <= set(table.split())
    assert "algorithm." in table.split()
    assert "seeds: 5; GPU, estimated: 12 min" in " ".join(shared.split())
    assert not {"stage", "expected", "trial"} & set(table.split())


def test_in_a_pipe_every_row_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    label = "a method whose name nobody would want to have broken in two, and certainly not here"
    methods = f"method: {{label: ['{label}', Adam], federation.rounds: [2, 3]}}"
    (tmp_path / "s.yaml").write_text(f"{BASE}\nmatrix: {{{methods}}}\n")
    assert call("sweep", "s.yaml", "--dry-run") == 0
    assert f" {label} " in capsys.readouterr().out
