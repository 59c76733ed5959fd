"""``site``: where it writes, what it says, and what it refuses in a line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from reports.extensions.site import folder
from reports.extensions.site.reading import Keys
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


def test_a_person_is_told_the_page_and_the_counts_and_models_are_left_out_unless_asked_for(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        build_run(tmp_path / "runs" / f"{number}", rounds=2, clients=3, identifier=f"{number}" * 8)
    assert call("site", "runs", "out") == 0
    assert " ".join(capsys.readouterr().out.split()) == (
        "page out/index.html runs 2 with a public report 0"
    )
    assert "<h1>Training runs</h1>" in (tmp_path / "out/index.html").read_text("utf-8")


def test_keys_and_models_are_asked_of_what_writes_and_public_reports_are_counted(
    tmp_path, monkeypatch, capsys
):
    asked = []

    def write(*places, **options):
        asked.append((places, options))
        return SimpleNamespace(runs=[SimpleNamespace(files=files) for files in ("ab", "", "c")])

    monkeypatch.setattr(folder, "write", write)
    places = (tmp_path / "runs", tmp_path / "out")
    keys = ("--trainer-key", "t.pub", "--auditor-key", "a.pub")
    for options, expected in (
        ((), {"title": "Training runs", "keys": Keys(None, None), "models": False}),
        (
            (*keys, "--models", "--title", "T"),
            {"title": "T", "keys": Keys(Path("t.pub"), Path("a.pub")), "models": True},
        ),
    ):
        assert call("site", *map(str, places), *options, "--json") == 0
        assert asked.pop() == (places, expected)
        told = json.loads(capsys.readouterr().out)
        assert (told["runs"], told["reports"]) == (3, 2)
