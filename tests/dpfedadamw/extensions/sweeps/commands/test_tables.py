"""`sweep merge` and `sweep table`."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from reports import run_rows
from tests.reports.test_run_rows import row
from tests.runs import call


def test_merging_counts_a_cell_once(tmp_path, capsys):
    row = dict.fromkeys(run_rows.COLUMNS) | {"audit": "PASS", "signatures": "holds"}
    for name, cells in (("one", "ab"), ("two", "bc")):
        (tmp_path / name).mkdir()
        rows = [{"cell": cell, "seed": 0, **row, "run": name} for cell in cells]
        (tmp_path / name / "results.csv").write_text(run_rows.as_csv(rows))
    merged = tmp_path / "all.csv"
    arguments = (str(tmp_path / "one"), str(tmp_path / "two"), "--output", str(merged))
    assert call("sweep", "merge", *arguments) == 0
    assert [(row["cell"], row["run"]) for row in run_rows.read_csv(merged)] == [
        ("a", "one"),
        ("b", "one"),
        ("c", "two"),
    ]
    assert "3 cells; 1 that were run more than once are counted once" in capsys.readouterr().err


def test_a_table_of_what_is_no_results_is_refused(tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    assert call("sweep", "table", str(tmp_path / "x.csv"), "--rows", "a") == 2
    assert "is no table of a sweep's results; it lacks the column cell" in capsys.readouterr().err


@pytest.fixture
def results(tmp_path: Path) -> str:
    """Two methods with two sizes under two seeds, and losses that rank them the other way."""
    rows = [
        row(f"{method}{size}{seed}", seed, accuracy + seed / 4, method=method, size=size,
            test_loss=accuracy, epsilon_third_party=None)
        for method, base in (("adam", 0.5), ("sgd", 0.25))
        for size, accuracy in (("1", base), ("2", base / 2))
        for seed in (0, 1)
    ]  # fmt: skip
    (tmp_path / "results.csv").write_text(run_rows.as_csv(rows))
    return str(tmp_path / "results.csv")


def shown(capsys, *arguments: str) -> list[str]:
    assert call("sweep", "table", *arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_a_table_has_the_rows_columns_and_measure_that_were_asked_for(results, capsys):
    both = shown(capsys, results, "--rows", "method", "--columns", "size")
    assert both[:4] == [
        "| method | 1 | 2 |",
        "|---|---|---|",
        "| adam | **62.5 ± 17.7** | **37.5 ± 17.7** |",
        "| sgd | 37.5 ± 17.7 | 25.0 ± 17.7 |",
    ]
    of_loss = ("--rows", "method", "--where", "size=1", "--measure", "test_loss")
    assert shown(capsys, results, *of_loss)[2:4] == [
        "| adam | 0.500 ± 0.000 |",
        "| sgd | **0.250 ± 0.000** |",
    ]
    latex = [line for line in shown(capsys, results, *of_loss, "--latex") if line[0] != "%"]
    assert latex[:3] == [r"\begin{tabular}{lr}", r"\toprule", r"method & test\_loss \\"]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        (("size=1", "method=sgd"), ["| sgd | 37.5 ± 17.7 |"]),
        (("size!=1",), ["| adam | **37.5 ± 17.7** |", "| sgd | 25.0 ± 17.7 |"]),
        (("size=2", "seed=1"), ["| adam | 50.0 |", "| sgd | 37.5 |"]),
        (("size!=1", "seed!=0", "method!=sgd"), ["| adam | 50.0 |"]),
    ],
)
def test_only_runs_that_hold_every_condition_are_shown(where, kept, results, capsys):
    options = [word for text in where for word in ("--where", text)]
    lines = shown(capsys, results, "--rows", "method", *options)
    assert [line for line in lines[2:] if line.startswith("|")] == kept


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("noise_multiplier=2", "bc"),
        ("noise_multiplier!=2", "ad"),
        ("noise_multiplier=2.0", "bc"),
        ("delta=0.00001", "ab"),
        ("delta=1e-5", "ab"),
        ("delta!=1E-05", "cd"),
        ("delta=", "d"),
        ("delta!=", "abc"),
        ("rounds=5", "ad"),
        ("size=2", "a"),
        ("size!=2.0", "acd"),
        ("dataset=", "cd"),
        ("dataset=digits", "ab"),
    ],
)
def test_a_condition_on_numbers_compares_numbers_and_one_on_nothing_finds_none(
    where, kept, tmp_path, capsys
):
    found = [
        ("a", 1.0, 1e-5, 5, "2", "digits"),
        ("b", 2.0, 1e-5, 6, "2.0", "digits"),
        ("c", 2.0, 1e-6, 6, "x", None),
        ("d", 0.5, None, 5, "x", None),
    ]
    rows = [
        row(method, 0, 0.5, method=method, noise_multiplier=noise, delta=delta, rounds=rounds,
            size=size, dataset=dataset)
        for method, noise, delta, rounds, size, dataset in found
    ]  # fmt: skip
    (tmp_path / "results.csv").write_text(run_rows.as_csv(rows))
    lines = shown(capsys, str(tmp_path), "--rows", "method", "--where", where)
    assert [line[2] for line in lines[2:] if line.startswith("|")] == list(kept)


def test_a_row_is_held_against_the_others_as_markdown_and_as_latex(results, capsys):
    options = ("--rows", "method", "--columns", "size", "--against", "adam")
    assert shown(capsys, results, *options)[:3] == [
        "| adam against | 1 | 2 |",
        "|---|---|---|",
        "| sgd | +25.0 [+25.0, +25.0] **wins** | +12.5 [+12.5, +12.5] **wins** |",
    ]
    lines = shown(capsys, results, *options, "--latex")
    assert r"adam against & 1 & 2 \\" in lines
    assert not any(line.startswith("|") for line in lines)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rows", "method", "--measure", "loss"), "--measure loss: must be one of test_accuracy"),
        (("--rows", "method", "--where", "size"), "--where size: write COLUMN=VALUE or"),
        (("--rows", "method", "--where", "sise=1"), "--where sise=1: write COLUMN=VALUE or"),
        (("--rows", "method", "--where", "size=3"), "--where size=3: no run is left"),
        (
            ("--rows", "method", "--where", "size=3", "--where", "seed=0"),
            "--where size=3: no run is left",
        ),
        (
            ("--rows", "method", "--where", "test_loss=low"),
            "--where test_loss=low: the column has numbers; write one, or nothing",
        ),
        (("--rows", "nothing"), "error: nothing: the results have no such column; they have cell"),
        (("--rows", "method"), "error: adam: several runs of seed 0; the results vary"),
        (
            ("--rows", "method", "--columns", "size", "--against", "rms"),
            "error: rms: no such row; rows are adam, sgd",
        ),
    ],
)
def test_what_cannot_be_tabulated_is_one_line(options, said, results, capsys):
    assert call("sweep", "table", results, *options) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(said)
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


def test_results_without_a_run_are_said_to_have_none(results, capsys):
    path = Path(results)
    path.write_text(path.read_text().splitlines()[0] + "\n")
    assert call("sweep", "table", results, "--rows", "method") == 2
    assert "there is nothing to show: the results have no rows" in capsys.readouterr().err
    assert call("sweep", "table", results, "--rows", "method", "--where", "size=1") == 2
    assert "--where size=1: write COLUMN=VALUE" in capsys.readouterr().err


def test_merged_results_are_csv_for_everybody_and_nothing_is_said_of_repetitions_without_one(
    results, tmp_path, capsys
):
    assert call("sweep", "merge", results, "--output", str(tmp_path / "all.txt")) == 2
    assert "the name must end with .csv" in capsys.readouterr().err
    assert not (tmp_path / "all.txt").exists()
    merged = tmp_path / "all.csv"
    assert call("sweep", "merge", results, "-o", str(merged)) == 0
    assert capsys.readouterr().err.endswith("all.csv: 8 cells\n")
    assert stat.S_IMODE(merged.stat().st_mode) == 0o644
    assert merged.read_text() == Path(results).read_text()
