"""A private selection, as `sweep` runs it."""

from __future__ import annotations

import json

import pytest

from dpfedadamw.accounting.selection import Trials
from dpfedadamw.extensions.sweeps import selection
from tests.dpfedadamw.extensions.sweeps.test_selection import PRIVATE, TUNE
from tests.runs import call
from tests.sweeps import in_this_process


def drawn_once(monkeypatch) -> None:
    """As if a single trial had been drawn, so that the test is short."""
    law, numbers = Trials(4.0, 1.0), (one.to_bytes(32, "big") for one in range(10_000))
    secret = next(one for one in numbers if law.drawn(one) == 1)
    monkeypatch.setattr(selection, "_secret", lambda cells: secret)


def test_a_private_selection_is_foretold_run_and_published_under_its_own_epsilon(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    in_this_process(monkeypatch)
    drawn_once(monkeypatch)
    (tmp_path / "s.yaml").write_text(PRIVATE.replace("rounds: 4", "rounds: 1") + TUNE)
    assert call("epsilon", "s.yaml", "--json") == 0
    foretold = json.loads(capsys.readouterr().out)
    assert call("sweep", "s.yaml", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out) == foretold
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]

    assert call("sweep", "s.yaml") == 0
    said = capsys.readouterr()
    assert "ε of the selection" in said.out
    assert call("sweep", "s.yaml", "--json") == 0
    found = json.loads(capsys.readouterr().out)["result"]
    assert found["audit"] == "PASS"
    assert found["epsilon_third_party"] == foretold["third_party"]["epsilon"]["rdp"]
    assert found["epsilon_server_worst_case"] is None
    folders = sorted(path.name for path in (tmp_path / "sweeps" / "small").iterdir())
    assert folders == ["selection.json", "winner"]


@pytest.mark.parametrize(
    "option", [("--only", "a=b"), ("--shard", "1/2"), ("--smoke",), ("--from", "a.csv")]
)
def test_a_private_selection_is_run_whole(option, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(PRIVATE + TUNE)
    assert call("sweep", "s.yaml", *option) == 2
    assert f"{option[0]}: a private selection is run as a whole" in capsys.readouterr().err


def test_a_private_selection_erases_by_itself_and_keeps_the_winners_evidence(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(PRIVATE + TUNE)
    assert call("sweep", "s.yaml", "--erase-evidence") == 2
    assert "keeps only the winner's evidence" in capsys.readouterr().err
