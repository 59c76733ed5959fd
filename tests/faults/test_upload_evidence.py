"""How much of what travelled is kept as evidence, and what that means for a leak."""

from __future__ import annotations

import pytest

import audit.reading.exchanges
from dpfedadamw.evidence import exchanges as upload_evidence
from dpfedadamw.filing import after_training as filing
from dpfedadamw.rundir import RunDirectory
from tests.faults.upload_faults import into_the_update, smuggled
from tests.runs import small_spec


def uploads_of(findings):
    return next(check for check in findings["checks"] if check["name"] == "uploads")


def only_some_fit(monkeypatch, capacity):
    for module in (audit.reading.exchanges, upload_evidence):
        monkeypatch.setattr(module, "CAPACITY_BYTES", capacity)
        monkeypatch.setattr(module, "FEWEST_WHOLE", 4)


# 650 coordinates, three queries: 36 kB a participation; 5 of 16 fit, or none.
@pytest.mark.sampled(2)
@pytest.mark.parametrize("capacity", [36_400, 5 * 36_400])
def test_a_leak_is_found_where_only_some_participations_fit(capacity, tmp_path, monkeypatch):
    only_some_fit(monkeypatch, capacity)
    correct = smuggled(small_spec(), tmp_path / "correct")
    assert uploads_of(correct)["verdict"] == "PASS", uploads_of(correct)
    assert 2 <= uploads_of(correct)["details"]["replayed"] < 16
    leaking = uploads_of(smuggled(small_spec(), tmp_path / "leaking", into_the_update))
    assert leaking["verdict"] == "FAIL"
    assert "tensor 'parameters'" in leaking["measurement"]


def test_a_leak_in_the_last_round_alone_is_found_there_alone(tmp_path):
    findings = smuggled(small_spec(), tmp_path, into_the_update, only_round=3)
    text = uploads_of(findings)["measurement"]
    assert "round 3, client" in text
    assert "round 2" not in text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["dp-fedsam", "dp-scaffold", "dp-fedlada"])
def test_other_rules_are_replayed_at_a_sample_of_coordinates(name, tmp_path, monkeypatch):
    only_some_fit(monkeypatch, 36_400)
    findings = smuggled(small_spec(name, rounds=2), tmp_path)
    assert findings["verdict"] == "PASS", uploads_of(findings)
    assert uploads_of(findings)["details"]["coordinates"] < 650


def test_a_rule_that_needs_whole_vectors_says_so_beside_the_verdict(tmp_path, monkeypatch):
    only_some_fit(monkeypatch, 36_400)
    findings = smuggled(small_spec("dp-fedavg-ls", rounds=2), tmp_path)
    check = uploads_of(findings)
    assert (findings["verdict"], check["verdict"]) == ("PASS", "NOT VERIFIED")
    assert check["severity"] == "theoretical"
    assert any("smoothing mixes all coordinates" in text for text in findings["qualifications"])


def test_a_participation_that_should_have_been_kept_cannot_be_left_out(tmp_path):
    findings = smuggled(small_spec(rounds=2), tmp_path)
    assert findings["verdict"] == "PASS"
    run = next(path for path in tmp_path.iterdir() if not path.is_symlink())
    next((run / "evidence").glob("upload-00001-*.npz")).unlink()
    again = filing.audit(RunDirectory(run)).to_json()
    # The trainer signed for it, and the replay misses it.
    assert again["verdict"] == "FAIL"
    assert uploads_of(again)["verdict"] == "NOT VERIFIED"
    assert "is missing" in uploads_of(again)["measurement"]
