"""The whole audit from outside: it fails closed, writes what it should, and stands alone."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import audit.auditor
from audit import AuditError, audit_run, record_probe, write_findings
from audit.__main__ import main, render
from audit.checks import checks_for
from audit.reading.bundle import open_bundle
from audit.verdict import Finding, Findings, Severity, Verdict, clean_numbers
from tests.audit.corruptions import attest, flip
from tests.audit.synthetic_run import Settings, SoftmaxProbe, build_run

ROOT = Path(__file__).resolve().parents[2]


def test_corrupted_layouts_never_cause_a_traceback(tmp_path: Path) -> None:
    run = attest(build_run(tmp_path / "run", Settings(rounds=1)))
    path = run / "evidence" / "layout.json"
    raw = path.read_bytes()
    rng = random.Random(3)
    for _ in range(40):
        path.write_bytes(raw)
        flip(path, path, rng)
        # A changed name of a block or sampled coordinate carries no claim and may pass.
        assert audit_run(run).verdict in set(Verdict)


def test_an_exception_inside_a_check_is_not_verified(
    good_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> Any:
        raise ZeroDivisionError

    broken = tuple(replace(check, rule=explode) for check in checks_for(None))
    monkeypatch.setattr(audit.auditor, "checks_for", lambda _: broken)
    findings = audit_run(good_run)
    assert findings.verdict is Verdict.NOT_VERIFIED
    assert "ZeroDivisionError" in findings.findings[0].measurement


def test_an_empty_directory_is_not_verified(tmp_path: Path) -> None:
    findings = audit_run(tmp_path)
    assert findings.verdict is Verdict.NOT_VERIFIED
    assert findings.run == "unknown"


def test_findings_are_written_atomically_and_private_ones_are_private(good_run: Path) -> None:
    findings = audit_run(good_run)
    write_findings(good_run, findings)
    first = (good_run / "audit.json").read_bytes()
    write_findings(good_run, audit_run(good_run))
    assert (good_run / "audit.json").read_bytes() == first
    assert json.loads(first)["verdict"] == "PASS"
    private = good_run / "evidence" / "findings.json"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert "variance_ratio" in private.read_text()
    assert "variance_ratio" not in first.decode()
    assert not list(good_run.rglob(".*"))


def test_a_missing_evidence_folder_is_not_created(good_run: Path) -> None:
    shutil.rmtree(good_run / "evidence")
    write_findings(good_run, audit_run(good_run))
    assert (good_run / "audit.json").is_file()
    assert not (good_run / "evidence").exists()
    with pytest.raises(AuditError, match="no such folder"):
        record_probe(good_run, SoftmaxProbe(0.5))


def test_the_probe_is_recorded_privately_and_the_same_each_time(good_run: Path) -> None:
    path = record_probe(good_run, SoftmaxProbe(0.5))
    first = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert record_probe(good_run, SoftmaxProbe(0.5)).read_bytes() == first
    with np.load(path) as file:
        assert {"names", "kind", "clipping_norm", "difference_norm", "batch_size"} <= set(file)
        assert file["sums_with"].shape == (60, 24)


def test_progress_names_every_check(good_run: Path) -> None:
    seen: list[str] = []
    audit_run(good_run, progress=seen.append)
    assert seen == [check.title for check in checks_for(open_bundle(good_run).header)]


def _finding(verdict: Verdict, severity: Severity) -> Finding:
    return Finding("n", "t", verdict, severity, "c", "m", "t", "p", "l")


def test_the_overall_rule() -> None:
    critical, small = Severity.CRITICAL, Severity.THEORETICAL
    good, bad = _finding(Verdict.PASS, critical), _finding(Verdict.FAIL, small)
    open_ = _finding(Verdict.NOT_VERIFIED, critical)
    minor = _finding(Verdict.NOT_VERIFIED, small)

    def overall(*findings: Finding, claims_privacy: bool = True) -> Verdict:
        return Findings("r", "record", findings, claims_privacy).verdict

    assert overall() is Verdict.NOT_VERIFIED
    assert overall(good) is Verdict.PASS
    assert overall(good, minor) is Verdict.PASS
    assert overall(good, open_) is Verdict.NOT_VERIFIED
    assert overall(good, open_, bad) is Verdict.FAIL
    assert overall(good, claims_privacy=False) is Verdict.NO_CLAIM
    assert overall(good, bad, claims_privacy=False) is Verdict.FAIL


def test_the_auditor_stands_alone(good_run: Path) -> None:
    program = (
        "import importlib.abc, sys\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in BLOCKED:\n"
        "            raise ImportError(name + ' is not installed here')\n"
        "BLOCKED = {'torch', 'dpfedadamw', 'reports', 'opacus', 'dp_accounting'}\n"
        "sys.meta_path.insert(0, Block())\n"
        "from audit.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(good_run), "--json"],
        capture_output=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "PASS"


def test_exit_codes_of_the_command(
    good_run: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    with pytest.raises(SystemExit) as wrong:
        main([])
    assert wrong.value.code == 2
    assert main([str(good_run)]) == 0
    (good_run / "evidence" / "round-00000.npz").unlink()
    assert main([str(good_run)]) == 1
    output = capfdbinary.readouterr().out.decode()
    assert "NOT VERIFIED" in output
    assert "noise-scale" in output


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(Verdict.PASS, 0), (Verdict.NO_CLAIM, 0), (Verdict.FAIL, 1), (Verdict.NOT_VERIFIED, 1)],
)
def test_the_command_ends_with_0_where_a_run_passed_or_claims_nothing(
    verdict: Verdict,
    code: int,
    good_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """A script that goes on after 0 must not go on after a run that could not be verified."""
    claims = verdict is not Verdict.NO_CLAIM
    one = _finding(verdict if claims else Verdict.PASS, Severity.CRITICAL)
    found = Findings("run", "record", (one,), claims_privacy=claims)
    assert found.verdict is verdict
    monkeypatch.setattr("audit.auditor.audit_run", lambda _: found)
    assert main([str(good_run)]) == code
    assert verdict.value.encode() in capfdbinary.readouterr().out


def test_what_the_command_prints_as_json_is_the_content_of_audit_json_to_the_byte(
    good_run: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    finding = replace(_finding(Verdict.PASS, Severity.CRITICAL), measurement="ε ≤ 1 at δ")
    findings = Findings("run", "record", (finding,), inputs={"b": "1" * 64, "a": "2" * 64})
    monkeypatch.setattr("audit.auditor.audit_run", lambda _: findings)
    write_findings(good_run, findings)
    assert main([str(good_run), "--json"]) == 0
    assert capfdbinary.readouterr().out == (good_run / "audit.json").read_bytes()


def test_a_full_standard_output_is_one_line_and_a_reader_that_went_away_is_no_error(
    good_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([str(good_run)]) == 2
    assert capsys.readouterr().err == "standard output: No space left on device\n"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        assert main([str(good_run)]) == 0
    monkeypatch.setattr(sys, "stdout", None)
    assert main([str(good_run), "--json"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError(), 2, "not enough memory"),
        (KeyboardInterrupt(), 130, "stopped"),
        (OSError(24, "Too many open files", "ledger.jsonl"), 2, "ledger.jsonl: Too many open"),
    ],
)
def test_what_the_machine_cannot_do_is_one_line_and_never_a_traceback(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def fails(_: Path) -> None:
        raise error

    monkeypatch.setattr("audit.auditor.open_bundle", fails)
    assert main([str(tmp_path)]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(line)
    assert len(printed.err.splitlines()) == 1


def test_hostile_texts_cannot_steer_the_terminal() -> None:
    odd = "a\x1b[2Jb\nverdict  PASS"
    finding = replace(
        _finding(Verdict.FAIL, Severity.CRITICAL), measurement=odd, qualifications=(odd,)
    )
    shown = render(Findings(odd, "record", (finding,)))
    assert "\x1b" not in shown
    assert [line for line in shown.splitlines() if line.startswith("verdict")] == ["verdict  FAIL"]


def test_the_table_is_the_runs_name_the_verdict_the_notes_and_each_check() -> None:
    passed = Finding(
        "noise-scale", "Has the noise its scale?", Verdict.PASS, Severity.CRITICAL,
        "c", "word " * 20, "t", "p", "l", qualifications=("Mind this.", "And that."),
    )  # fmt: skip
    missing = replace(
        passed, name="views", title="Are views right?", verdict=Verdict.NOT_APPLICABLE,
        measurement="no claim", qualifications=("Mind this.",),
    )  # fmt: skip
    again = replace(passed, name="reexecution", measurement="all agree", qualifications=())
    found = Findings("r-1", "record", (passed, missing))
    level, *rest = render(found).split("\n")[2:]
    assert render(found).split("\n")[:2] == ["run      r-1", "verdict  PASS"]
    assert level.startswith("level    1 of 4, consistent: ")
    assert rest == [
        "note     Mind this.",
        "note     And that.",
        "",
        "PASS            noise-scale    Has the noise its scale?",
        " " * 16 + " ".join(["word"] * 16),
        " " * 16 + " ".join(["word"] * 4),
        "NOT APPLICABLE  views          Are views right?",
        " " * 16 + "no claim",
    ]
    second = render(Findings("r-1", "record", (passed, again))).split("\n")[2]
    assert second.startswith("level    2 of 4, re-executed: ")
    for verdict in (Verdict.FAIL, Verdict.NOT_VERIFIED):
        worse = Findings("r-1", "record", (again, replace(passed, verdict=verdict)))
        assert worse.level is None
        assert "level  " not in render(worse)


def test_what_is_filed_has_every_public_part_of_a_finding_and_no_private_one() -> None:
    finding = Finding(
        "views", "Are views right?", Verdict.NOT_VERIFIED, Severity.THEORETICAL, "claimed",
        "measured", "tolerance", "power", "limits", {"a": 1.23456789049, "b": [Severity.CRITICAL]},
        {"clients": (3, math.inf)}, ("Mind this.",),
    )  # fmt: skip
    found = Findings(
        "r-1", "client", (finding, finding), True, {"spec.yaml": "1" * 64}, {"numpy": "2"}, "anyone"
    )
    public = {
        "name": "views", "title": "Are views right?", "verdict": "NOT VERIFIED",
        "severity": "theoretical", "claim": "claimed", "measurement": "measured",
        "tolerance": "tolerance", "power": "power", "limits": "limits",
        "details": {"a": 1.23456789, "b": ["critical"]},
    }  # fmt: skip
    assert found.to_json() == {
        "format": 1,
        "run": "r-1",
        "verdict": "PASS",
        "unprotected_against": "anyone",
        "qualifications": ["Mind this."],
        "auditor": {"package": "dpfedadamw audit 0.1.0", "numpy": "2"},
        "checks": [public, public],
        "inputs": {"spec.yaml": "1" * 64},
    }
    assert found.private_json() == {
        "format": 1, "run": "r-1", "verdict": "PASS", "private": {"views": {"clients": [3, None]}},
    }  # fmt: skip
    assert found.named("views") is finding
    with pytest.raises(KeyError):
        found.named("noise-scale")


@pytest.mark.parametrize(
    ("value", "filed"),
    [
        (1 / 3, 0.333333333),
        (np.float64(2e-20 / 3), 6.66666667e-21),
        (np.int64(3), 3.0),
        (math.nan, None),
        (-math.inf, None),
        (2**60, 2**60),
        (True, True),
        (None, None),
        ("0.123456789012", "0.123456789012"),
        ({1: (0.5, [math.inf])}, {"1": [0.5, [None]]}),
        (Verdict.NOT_VERIFIED, "NOT VERIFIED"),
    ],
)
def test_numbers_are_filed_with_nine_digits_and_none_that_is_not_finite(
    value: Any, filed: Any
) -> None:
    found = clean_numbers(value)
    assert found == filed
    assert type(found) is type(filed)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--key", "x"], "--key and --anchor belong to a gate's folder"),
        (["--anchor", "x"], "--key and --anchor belong to a gate's folder"),
    ],
)
def test_what_belongs_to_a_gate_is_refused_for_a_run(
    good_run: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(good_run), *arguments]) == 2
    assert capsys.readouterr().err == f"{good_run}: {says}\n"


def test_a_long_run_of_fifty_clients_is_audited_quickly(tmp_path: Path) -> None:
    settings = Settings(rounds=100, clients=50, clients_per_round=5, local_steps=4, smallest=300)
    run = attest(build_run(tmp_path / "run", settings))
    findings = audit_run(run)
    assert findings.verdict is Verdict.PASS
    assert len(findings.named("accounting").details["over_rounds"]) == 40
