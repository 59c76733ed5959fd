"""What is kept of a run that ended, and what is erased."""

from __future__ import annotations

from pathlib import Path

from dpfedadamw.storage.lock import RunLock
from tests.runs import call
from tests.sweeps import BASE, in_this_process

TWO = BASE.replace("rounds: 4", "rounds: 1")


def test_evidence_of_runs_that_passed_is_erased_once_their_result_is_kept_and_of_no_other(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)
    (tmp_path / "s.yaml").write_text(f"{TWO}matrix: {{algorithm.learning_rate: [0.1, 0.2]}}\n")
    assert call("sweep", "s.yaml", "--only", "algorithm.learning_rate=0.1") == 0
    cells = Path("sweeps/small/cells")
    (kept,) = cells.glob("*/runs/small-*")
    result = kept.parent.parent / "result.json"
    text = result.read_text()
    before = Path("sweeps/small/results.csv").read_text()

    # What is done is erased too; but nothing of a run that did not pass.
    result.write_text(text.replace('"PASS"', '"FAIL"'))
    assert call("sweep", "s.yaml", "--erase-evidence", "--json") == 1
    (erased,) = (path.parent for path in cells.glob("*/runs/small-*/erasure.json"))
    assert erased != kept
    assert not (erased / "evidence").exists()
    assert (kept / "evidence").is_dir()

    result.write_text(text)
    assert call("sweep", "s.yaml", "--erase-evidence") == 0
    assert not (kept / "evidence").exists()
    assert call("verify", str(kept)) == 0
    assert Path("sweeps/small/results.csv").read_text().startswith(before)
    capsys.readouterr()
    assert call("sweep", "table", "sweeps/small", "--rows", "algorithm.learning_rate") == 0
    assert "| 0.2 |" in capsys.readouterr().out
    assert call("compare", str(kept), str(erased)) == 0


def test_a_run_that_another_sweep_erases_is_left_to_it_and_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)
    (tmp_path / "s.yaml").write_text(f"{TWO}matrix: {{algorithm.learning_rate: [0.1, 0.2]}}\n")
    assert call("sweep", "s.yaml", "--only", "algorithm.learning_rate=0.1") == 0
    (kept,) = Path("sweeps/small/cells").glob("*/runs/small-*")
    with RunLock(kept):
        assert call("sweep", "s.yaml", "--erase-evidence") == 0
    assert (kept / "evidence").is_dir()
    (other,) = (path.parent for path in kept.parents[2].glob("*/runs/small-*/erasure.json"))
    assert other != kept
    assert call("sweep", "s.yaml", "--erase-evidence") == 0
    assert not (kept / "evidence").exists()
