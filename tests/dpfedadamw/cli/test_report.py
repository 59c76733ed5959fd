"""``report``: one run's three files again, several runs in one report, and what is refused."""

from __future__ import annotations

import json
import shutil

import pytest

from reports.signatures.keys import fingerprint, load_public
from tests.reports import drawings
from tests.reports.signing_keys import create
from tests.runs import call

undrawn = drawings.undrawn


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs of different privacy below one folder."""
    home = tmp_path_factory.mktemp("reports")
    small = ("rounds=2", "local_steps=1", "clients_per_round=2")
    sets = [word for one in small for word in ("--set", f"federation.{one}")]
    for spec in ("quickstart", "digits-baseline-fedavg"):
        call("run", spec, *sets, "--out", str(home))
    return home


def runs_in(folder):
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def test_a_run_leaves_three_forms_and_report_writes_the_public_ones(folder, capsys):
    run = runs_in(folder)[-1]
    for kind in ("json", "pdf", "html"):
        assert (run / f"report.{kind}").is_file()
    assert call("report", str(run), "--audience", "public", "--json") == 0
    files = json.loads(capsys.readouterr().out)
    assert set(files) == {"json", "pdf", "html"}
    assert all(path.rsplit("/", 1)[1].startswith("report-public.") for path in files.values())
    assert call("verify", str(run)) == 0


def test_only_somebody_without_the_trainers_key_audits_independently(
    folder, tmp_path, monkeypatch, capsys
):
    run = tmp_path / "run"
    shutil.copytree(runs_in(folder)[-1], run)

    def audited_by():
        return json.loads((run / "report.json").read_text("utf-8"))["trust"]

    assert call("report", str(run)) == 0
    assert audited_by()["auditor"] == "trainer"
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys of somebody else"))
    # Who has audited nothing has nothing to report under a key of their own.
    assert call("report", str(run)) == 2
    assert "was not signed by a key of yours" in capsys.readouterr().err.replace("\n", " ")
    assert audited_by()["auditor"] == "trainer"
    assert call("audit", str(run), "--write") == 0
    assert audited_by()["auditor"] == "another key"
    signed = [fingerprint(load_public(run / f"{role}.pub")) for role in ("auditor", "trainer")]
    assert audited_by()["keys"] == signed


def test_a_run_that_signs_with_both_keys_is_self_audited_wherever_they_lie(
    tmp_path, monkeypatch, capsys
):
    named = [create(role, tmp_path / role).private for role in ("trainer", "auditor")]
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "empty"))
    few = ("rounds=1", "local_steps=1", "clients_per_round=2")
    small = [word for one in few for word in ("--set", f"federation.{one}")]
    keys = ("--trainer-key", str(named[0]), "--auditor-key", str(named[1]))
    call("run", "digits-baseline-fedavg", *small, *keys, "--out", str(tmp_path / "runs"))
    trust = json.loads((tmp_path / "runs" / "latest" / "report.json").read_text("utf-8"))["trust"]
    assert trust["auditor"] == "trainer"
    assert trust["keys"] == []


def test_several_runs_make_one_report(folder, tmp_path, capsys):
    target = tmp_path / "side by side"
    runs = [str(run) for run in runs_in(folder)]
    assert call("report", "--compare", *runs, "--output", str(target), "--json") == 0
    files = json.loads(capsys.readouterr().out)
    assert set(files) == {"json", "pdf", "html", "signature"}
    assert call("verify", str(target)) == 0
    assert call("verify", str(target), "--trainer-key", "x.pub") == 2
    data = json.loads((target / "comparison.json").read_text("utf-8"))
    assert len(data["groups"]) == 2
    assert data["not_ranked_together"]


def test_a_comparison_lies_where_the_runs_do_and_not_in_the_working_directory(
    folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    run = str(runs_in(folder)[0])
    assert call("report", "--compare", run, run, "--out", "elsewhere") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
    assert (tmp_path / "elsewhere" / "comparison" / "comparison.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("RUN", "RUN"), "a report on several runs needs --compare"),
        (("RUN", "--output", "x"), "--output: belongs to --compare"),
        (("--compare",), "nothing to compare"),
        (("--compare", "RUN", "--auditor-key", "nowhere.pem"), "nowhere.pem"),
        (("--compare", "RUN", "nowhere"), "nowhere"),
        (("nowhere",), "nowhere"),
    ],
)
def test_wrong_wishes_are_refused_in_one_line(
    folder, arguments, said, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    run = str(runs_in(folder)[0])
    assert call("report", *(run if word == "RUN" else word for word in arguments)) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []
