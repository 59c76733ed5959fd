"""Recorded rounds of whole clients' updates: correct ones pass, and usual mistakes fail."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from audit.auditor import audit_run
from audit.evidence import faults
from audit.verdict import Severity, Verdict
from dpfedadamw.extensions.recorders.updates import UpdateRecorder, UpdateRecorderError
from tests.audit.corruptions import attest, finding_of
from tests.dpfedadamw.extensions.recorders import filters, numpy_loop
from tests.runs import call


@pytest.fixture(autouse=True)
def _the_same_draws_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistical checks raise a false alarm now and then; a test may not."""
    monkeypatch.setattr(filters.secrets, "randbits", lambda _: 6_512_087_331)


@pytest.mark.parametrize("rounds", filters.CORRECT, ids=lambda one: one.__name__)
def test_correct_rounds_pass(rounds, tmp_path: Path) -> None:
    run = attest(rounds(tmp_path / "run"))
    assert faults(run) == []
    found = audit_run(run)
    assert {
        one.name: one.measurement
        for one in found.findings
        if one.verdict is not Verdict.PASS and one.severity is Severity.CRITICAL
    } == {}
    assert found.verdict is Verdict.PASS
    assert "whole clients" in found.named("promise").measurement
    assert any("computes its update" in text for text in found.qualifications)


@pytest.mark.parametrize(
    ("rounds", "meant"), filters.BROKEN.items(), ids=[one.__name__ for one in filters.BROKEN]
)
def test_broken_rounds_fail_by_the_check_meant_for_them(rounds, meant, tmp_path: Path) -> None:
    found = audit_run(attest(rounds(tmp_path / "run")))
    failed = {one.name for one in found.findings if one.verdict is Verdict.FAIL}
    assert failed == {meant}
    assert found.verdict is Verdict.FAIL


def test_the_report_speaks_of_clients(tmp_path: Path, capsys) -> None:
    run = filters.server(tmp_path / "run")
    assert call("sign", str(run), "--role", "trainer") == 0
    assert call("audit", str(run), "--write") == 0
    report = json.loads((run / "report.json").read_text())
    assert report["guarantee"]["unit"] == "client"
    assert "replace-one-client" in report["guarantee"]["statement"]
    assert "one record" not in json.dumps(report["guarantee"])
    assert (report["clients"]["count"], report["clients"]["records_total"]) == (40, None)
    assert report["sampling"]["clients_per_round"] == 8
    page = (run / "report.html").read_text()
    assert "30 recorded rounds, 8 clients a round" in page
    assert "40 clients could take part" in page
    capsys.readouterr()
    assert call("compare", str(run), "--json") == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert group["heading"].startswith("a recorded loop, 40 clients")
    assert group["entries"][0]["objection"] == "a recorded loop tells no accuracy"
    assert (run / "report.pdf").read_bytes().startswith(b"%PDF")


def test_records_and_whole_clients_are_no_one_training(tmp_path: Path, capsys) -> None:
    loop = numpy_loop.train(tmp_path / "loop", seed=3)
    rounds = filters.client_filter(tmp_path / "rounds")
    assert call("evidence", "merge", str(loop), str(rounds), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert "the clients do not have the same unit of protection" in found["reasons"]


def test_rounds_without_a_sum_to_ask_are_not_verified(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(filters, "as_sum", lambda _: None)
    found = audit_run(filters.server(tmp_path / "run")).named("sensitivity")
    assert found.verdict is Verdict.NOT_VERIFIED
    assert "active probe" in found.measurement


def test_a_sum_that_fails_is_told_and_the_recording_closes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(filters, "as_sum", lambda _: lambda updates: updates[0])
    with pytest.warns(UserWarning, match="made-up updates"):
        run = filters.server(tmp_path / "run")
    assert finding_of(run, "sensitivity").verdict is Verdict.NOT_VERIFIED


def test_updates_of_other_shapes_and_rounds_out_of_order_are_refused(tmp_path: Path) -> None:
    recorder = UpdateRecorder(tmp_path / "run", 1e-3, producer="x", version="1", clients=4)
    weights, other = [np.zeros(3, np.float32)], [np.zeros(4, np.float32)]
    bill = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "cohort": 2}
    with pytest.raises(UpdateRecorderError, match="no round was recorded"):
        recorder.close()
    with pytest.raises(UpdateRecorderError, match="call charge before"):
        recorder.record(updates=[weights], mean=weights, noised=weights)
    recorder.charge(weights, **bill)
    with pytest.raises(UpdateRecorderError, match="different shapes from the parameters"):
        recorder.record(updates=[other], mean=weights, noised=weights)
    with pytest.raises(UpdateRecorderError, match="not recorded"):
        recorder.charge(weights, **bill)
    recorder.record(updates=[weights], mean=weights, noised=weights)
    with pytest.raises(UpdateRecorderError, match="from the first round"):
        recorder.charge(other, **bill)


def test_made_up_updates_raise_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters.client_filter(tmp_path / "run")


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_the_program_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "evidence.md").read_text("utf-8")
    found = re.search(r"<!-- updates -->\s+```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    drawn = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda *_: drawn(83_215_907))
    exec(compile(found[1], "docs/evidence.md", "exec"), {})
    assert audit_run(attest(tmp_path / "my-server")).verdict is Verdict.PASS
