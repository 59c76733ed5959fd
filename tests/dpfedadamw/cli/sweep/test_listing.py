"""What `--dry-run` lists."""

from __future__ import annotations

import json

from tests.runs import call
from tests.sweeps import accurate, listed


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
    assert "14 cells, 14 to do: 8 trials, and 6 runs of what they show to be best" in said
    assert listing()[8:] == [("best", "after its search", None)] * 6
    accurate(monkeypatch, lambda rate, seed: rate)
    assert call("sweep", own_seeds, "--only", "federation.rounds=2", "--only", "seed=7|8|0") == 0
    capsys.readouterr()
    assert sorted(listing()[8:]) == sorted(
        [("best", "done", "0.2")] + [("best", "to do", "0.2")] * 2
        + [("best", "after its search", None)] * 3
    )  # fmt: skip
