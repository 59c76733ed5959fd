"""``site``: where it writes, what it says, and what it refuses in a line."""

from __future__ import annotations

import json

from tests.reports.conftest import build_run
from tests.runs import call


def test_it_writes_a_page_over_a_folder_of_runs(tmp_path, capsys):
    build_run(tmp_path / "runs" / "one", rounds=2, clients=3)
    out = tmp_path / "out"
    assert call("site", str(tmp_path / "runs"), str(out), "--title", "Ours", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"page": str(out / "index.html"), "runs": 1, "reports": 0}
    assert "<h1>Ours</h1>" in (out / "index.html").read_text("utf-8")


def test_what_is_wrong_is_a_line_and_nothing_is_written(tmp_path, capsys):
    for name in ("one", "two"):
        run = build_run(tmp_path / "runs" / name, rounds=2, clients=3)
        (run / "ledger.jsonl").write_text("{")
    assert call("site", str(tmp_path / "runs"), str(tmp_path / "out")) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert len(lines) == 2
    assert all(line.startswith("error: ") and "ledger.jsonl" in line for line in lines)
    assert not (tmp_path / "out").exists()
