"""A finding by re-execution outlives later audits of the same files, and of no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpfedadamw.filing import after_training as filing
from dpfedadamw.rundir import RunDirectory, open_existing
from tests.runs import call, small_spec, train

CHECK = "reexecution"


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that was audited with a replay, and filed."""
    spec = small_spec("dp-fedavg", rounds=2, clients_per_round=2)
    run = train(spec, tmp_path_factory.mktemp("run"))[0].run
    filing.attest_training(run, filing.load_signers(None, None))
    assert call("audit", str(run.path), "--replay", "2", "--write") == 0
    return run


@pytest.fixture
def case(replayed: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy that a test may change."""
    shutil.copytree(replayed.path, tmp_path / replayed.identifier)
    return open_existing(tmp_path / replayed.identifier)


def filed(run: RunDirectory) -> dict[str, Any]:
    """What audit.json says."""
    return dict(json.loads((run.path / "audit.json").read_text()))


def of_replay(findings: dict[str, Any]) -> dict[str, Any]:
    """Its finding by re-execution."""
    return next(check for check in findings["checks"] if check["name"] == CHECK)


def test_a_later_audit_leaves_it_as_it_was_filed(case: RunDirectory, capsys) -> None:
    before, private = filed(case), (case.evidence / "findings.json").read_bytes()
    capsys.readouterr()
    assert call("audit", str(case.path), "--write") == 0
    assert "is from your earlier audit of the same files" in capsys.readouterr().err
    assert of_replay(before)["verdict"] == "PASS"
    assert "2 of 4 participations" in of_replay(before)["measurement"]
    assert filed(case) == before
    assert (case.evidence / "findings.json").read_bytes() == private
    # Nothing differs from what was filed, so that nothing is said to.
    assert call("audit", str(case.path)) == 0
    assert "differ" not in capsys.readouterr().err


def test_a_failure_is_not_audited_away(case: RunDirectory, monkeypatch) -> None:
    monkeypatch.setattr(
        "audit.checks.shared.recomputed.judge_round",
        lambda *given: given[-1].reasons.append("a lie was found"),
    )
    assert call("audit", str(case.path), "--replay", "1", "--write") == 1
    assert call("audit", str(case.path), "--write") == 1
    assert of_replay(filed(case))["measurement"].startswith("a lie was found")
    assert filed(case)["verdict"] == "FAIL"


@pytest.mark.thorough
def test_a_new_replay_takes_its_place(case: RunDirectory) -> None:
    assert call("audit", str(case.path), "--replay", "3", "--write") == 0
    assert of_replay(filed(case))["details"]["drawn"] == 3


@pytest.mark.parametrize("name", ["evidence/round-00001.npz", "metrics.jsonl", "audit.json"])
def test_of_files_that_were_changed_it_is_not_said(name: str, case: RunDirectory) -> None:
    path = case.path / name
    content = path.read_bytes()
    path.write_bytes(content.replace(b"2 of 4", b"4 of 4") if name == "audit.json" else content * 2)
    found = of_replay(filing.audit(case).to_json())
    assert found["verdict"] == "NOT VERIFIED"
    assert "that of an earlier audit is not taken over" in found["measurement"]


def test_another_auditor_s_finding_stands_for_itself(
    case: RunDirectory, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "mine"))
    found = of_replay(filing.audit(case).to_json())
    assert found["verdict"] == "NOT VERIFIED"
    assert "not signed by a key of yours" in found["measurement"]


def test_weights_that_were_made_again_otherwise_are_not_audited_away(
    case: RunDirectory, monkeypatch
) -> None:
    def start(filed: dict[str, Any]) -> dict[str, Any]:
        return next(one for one in filed["checks"] if one["name"] == "initial-weights")

    assert start(filed(case))["details"]["made_again"] is True
    monkeypatch.setattr("dpfedadamw.reexecution.rounds.tensors_digest", lambda _model: "0" * 64)
    assert call("audit", str(case.path), "--replay", "1", "--write") == 1
    assert call("audit", str(case.path), "--write") == 1
    assert start(filed(case))["verdict"] == "FAIL"
    assert of_replay(filed(case))["verdict"] == "PASS"
