"""`sweep merge` and `sweep table`."""

from __future__ import annotations

from reports import run_rows
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
