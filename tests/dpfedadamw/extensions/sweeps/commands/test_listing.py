"""What `--dry-run` lists."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from dpfedadamw.cli import display, terminal
from dpfedadamw.extensions.sweeps.folder import SweepFolder
from dpfedadamw.spec.matrix import load_sweep
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


LONG = """
matrix: {federation.rounds: [20000, 40000]}
seeds: 2
readings: {data.clients: five is a guess}
"""
# Softmax regression, forwards and backwards: 24 records in 3 steps of 4 clients in 20,000 rounds.
OPERATIONS = 3 * 2 * 64 * 10 * 24 * 3 * 4 * 20_000


@pytest.fixture
def four(tmp_path, monkeypatch) -> list[str]:
    """Cells of every state; their digests: done in a minute, cut off, failed, and to do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal.out, "_width", 300)
    (tmp_path / "s.yaml").write_text(BASE + LONG)
    cells = load_sweep("s.yaml").cells
    folder = SweepFolder(tmp_path / "sweeps" / "small")
    folder.begin_cell(cells[0]).write_result({"seconds": 60, "test_accuracy": 0.5})
    for cell in cells[1:3]:
        run = folder.begin_cell(cell).runs / "small-20260101T000000Z-00000000"
        run.mkdir()
        (run / "spec.yaml").touch()
    folder.cell(cells[2]).failure.write_text("no memory")
    return [cell.digest for cell in cells]


def test_each_cell_is_listed_with_its_state_and_the_time_by_rounds_and_operations(four, capsys):
    assert call("sweep", "s.yaml", "--dry-run", "--json", "--gpu-rate", "0.001") == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "cell": four[place], "values": {"federation.rounds": rounds}, "seed": seed,
            "state": state, "expected_seconds": seconds,
            "estimated_operations": pytest.approx(operations),
            "estimated_gpu_seconds": pytest.approx(operations / 1e9), "printed": {},
        }
        for place, (rounds, seed, state, seconds, operations) in enumerate((
            ("20000", 0, "done", None, OPERATIONS),
            ("20000", 1, "cut off", pytest.approx(60.0), OPERATIONS),
            ("40000", 0, "failed", pytest.approx(120.0), 2 * OPERATIONS),
            ("40000", 1, "to do", pytest.approx(120.0), 2 * OPERATIONS),
        ))
    ]  # fmt: skip


def test_combinations_are_listed_with_the_time_of_what_is_left_of_them(four, capsys):
    assert call("sweep", "s.yaml", "--dry-run", "--gpu-rate", "0.001") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    # One done, and of 22 s each on such a GPU what is left.
    assert "20000 1 done, 1 cut off 60 s 22 s" in lines
    assert "40000 1 failed, 1 to do 4 min 88 s" in lines
    assert "in every row: seeds: 2" in lines
    assert "4 cells, 3 to do; about 5 min of computing, one at a time" in lines
    (gpu,) = [line for line in lines if line.startswith("on a GPU")]
    assert gpu.startswith("on a GPU about 111 s in all")
    assert "from 1.1e+11 training operations at 0.001 TFLOP/s" in gpu
    assert lines[-1] == "ours, data.clients: five is a guess"


def test_before_any_cell_is_done_no_time_is_expected_and_afterwards_none_is_left(
    four, tmp_path, capsys
):
    for path in (tmp_path / "sweeps").rglob("result.json"):
        path.unlink()
    assert call("sweep", "s.yaml", "--dry-run") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 cells, 4 to do; the expected time is known once" in said
    assert "of computing" not in said
    folder = SweepFolder(tmp_path / "sweeps" / "small")
    for cell in load_sweep("s.yaml").cells:
        folder.begin_cell(cell).write_result({"seconds": 60})
    assert call("sweep", "s.yaml", "--dry-run") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "4 cells, 0 to do" in lines
    assert not any("GPU about" in line or "min" in line for line in lines)
