"""The writer of evidence without torch, and the report on what it wrote."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from audit.auditor import audit_run, write_findings
from audit.verdict import Finding, Verdict
from dpfedadamw.extensions.recorders.evidence import Charge, EvidenceError, EvidenceWriter
from reports.content.build import build
from tests.audit.corruptions import attest, finding_of
from tests.audit.synthetic_run import rewrite_ledger
from tests.dpfedadamw.extensions.recorders import numpy_loop


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attest(numpy_loop.train(tmp_path_factory.mktemp("loops") / "by-hand", seed=1))


def _undone(found: list[Finding]) -> set[str]:
    return {one.name for one in found if one.verdict is not Verdict.PASS}


def test_a_loop_in_numpy_passes_but_for_the_probe_that_it_has_not(run: Path) -> None:
    found = audit_run(run)
    assert _undone(list(found.findings)) == {"sensitivity", "reexecution", "outside-budget"}
    assert found.named("sensitivity").verdict is Verdict.NOT_VERIFIED
    assert found.verdict is Verdict.NOT_VERIFIED


def test_its_steps_fill_more_than_one_file(run: Path) -> None:
    assert len(list((run / "evidence").glob("round-*.npz"))) == 2


def test_too_little_noise_fails(tmp_path: Path) -> None:
    run = numpy_loop.train(tmp_path / "run", seed=2, noise=0.8, charged=1.1)
    assert finding_of(run, "noise-scale").verdict is Verdict.FAIL


def test_a_model_that_was_exchanged_fails(tmp_path: Path) -> None:
    run = numpy_loop.train(tmp_path / "run", seed=3)
    raw = bytearray((run / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (run / "model.safetensors").write_bytes(raw)
    assert finding_of(run, "weights").verdict is Verdict.FAIL


def test_the_report_states_what_the_loop_states(run: Path) -> None:
    findings = audit_run(run)
    write_findings(run, findings)
    for audience in ("internal", "public"):
        data = build(run, audience).data()
        stated = findings.named("accounting").details["stated"]
        assert data["guarantee"]["epsilon"] == pytest.approx(stated)
        assert "anyone who sees the model" in data["guarantee"]["statement"]
        assert data["mechanism"]["rounds_completed"] == numpy_loop.STEPS
        assert "cryptographic generator" not in data["randomness"]["statement"]
        assert "numpy-example" in data["mechanism"]["statement"]


def test_the_writer_needs_no_torch() -> None:
    code = "import sys, dpfedadamw.extensions.recorders.updates; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delta": 1.0}, "between 0 and 1"),
        ({"records": 0}, "is empty"),
        ({"tensors": ()}, "no trainable parameter"),
        ({"sampling": "random"}, "poisson"),
    ],
)
def test_a_declaration_out_of_range_is_refused_before_anything_is_made(
    changes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(EvidenceError, match=said):
        EvidenceWriter(tmp_path / "run", numpy_loop.misdeclared(**changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_recording_is_its_owners_alone_whatever_rights_its_folder_had(
    there: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
        folder.chmod(0o777)
    before = os.umask(0)
    try:
        numpy_loop.train(folder, seed=5)
    finally:
        os.umask(before)
    held = [folder, folder / "evidence"]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in held} == {
        "run": 0o700,
        "evidence": 0o700,
    }
    files = list((folder / "evidence").iterdir())
    assert {path.name for path in files} >= {"layout.json", "salt", "round-00001.npz"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_charge_without_noise_is_refused(tmp_path: Path) -> None:
    writer = EvidenceWriter(tmp_path / "run", numpy_loop.declared())
    charge = Charge(
        sampling_rate=0.1, expected_batch_size=3.0, clipping_norm=1.0, noise_multiplier=0.0
    )
    with pytest.raises(EvidenceError, match="noise_multiplier"):
        writer.charge(charge)
    writer.release()


def test_a_ledger_of_more_records_than_can_be_counted_is_not_verified(tmp_path: Path) -> None:
    run = numpy_loop.train(tmp_path / "run", seed=6)

    def inflate(entries) -> None:
        for entry in entries:
            if entry["kind"] == "spend":
                entry["records"] = 10**12

    rewrite_ledger(run, inflate)
    found = audit_run(run)
    assert found.named("sampling").verdict is Verdict.NOT_VERIFIED
    assert found.named("promise").verdict is Verdict.FAIL


def test_a_recording_that_was_cut_off_is_not_verified(tmp_path: Path) -> None:
    run = numpy_loop.train(tmp_path / "run", seed=4)
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:40]))
    found = audit_run(run)
    assert found.verdict is Verdict.FAIL
    assert found.named("accounting").verdict is Verdict.NOT_VERIFIED
    assert json.dumps(found.to_json())
