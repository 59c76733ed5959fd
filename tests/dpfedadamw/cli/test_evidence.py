"""What `evidence` says of folders that other programs wrote."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from audit import auditor, evidence
from audit.evidence import clients
from audit.evidence.clients import Merged
from audit.reading import bundle
from audit.verdict import Verdict
from tests.runs import call


@pytest.mark.parametrize("faults", [[], ["ledger.jsonl, line 2: is no JSON", "round 3: missing"]])
def test_faults_of_form_are_a_line_each_and_end_with_2(
    faults: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evidence, "faults", lambda folder: faults if folder == Path("r") else None)
    code = 2 if faults else 0
    assert call("evidence", "check", "r") == code
    shown = capsys.readouterr()
    assert shown.err.splitlines() == faults
    assert bool(shown.out) == (not faults)
    assert call("evidence", "check", "r", "--json") == code
    assert json.loads(capsys.readouterr().out) == {"run_dir": "r", "faults": faults}


def one(folder: str, epsilon: float | None, failed: list[str]) -> dict[str, Any]:
    verdict = "FAIL" if failed else "PASS"
    return {
        "folder": folder, "run": folder, "verdict": verdict, "epsilon": epsilon, "failed": failed,
    }  # fmt: skip


GOOD = Merged(
    Verdict.PASS, 1.5, 1e-5, (), (one("a", 1.5, []), one("b", 0.25, [])), ("assumed: disjoint",)
)
BAD = Merged(
    Verdict.FAIL, None, None, ("not one training",),
    (one("a", None, ["noise", "views"]), one("b", 30.0, [])), ("assumed: disjoint",),
)  # fmt: skip
BARE = Merged(Verdict.PASS, 30.0, 1e-5, (), (one("a", 30.0, []),), ())


@pytest.mark.parametrize(
    ("merged", "code", "lines"),
    [
        (
            GOOD,
            0,
            [
                "a: PASS  costs epsilon 1.50",
                "b: PASS  costs epsilon 0.25",
                "all clients: epsilon 1.50 at delta = 1e-05",
                "overall: PASS",
                "  assumed: disjoint",
            ],
        ),
        (
            BAD,
            1,
            [
                "a: FAIL  noise, views",
                "b: PASS  costs epsilon 30.00",
                "not one training",
                "overall: FAIL",
                "  assumed: disjoint",
            ],
        ),
        (
            BARE,
            0,
            [
                "a: PASS  costs epsilon 30.00",
                "all clients: epsilon 30.00 at delta = 1e-05",
                "overall: NO MEANINGFUL PROTECTION · PASS",
            ],
        ),
    ],
    ids=["good", "bad", "bare"],
)
def test_clients_are_audited_one_by_one_and_judged_together(
    merged: Merged,
    code: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: list[Any] = []

    def merge(audited: list[Any]) -> Merged:
        given[:] = [(client.folder, client.header, client.findings) for client in audited]
        return merged

    ledgers = {Path("in/a"): SimpleNamespace(header="the header of a"), Path("in/b"): None}
    monkeypatch.setattr(clients, "merge", merge)
    monkeypatch.setattr(auditor, "audit_run", lambda folder: f"findings on {folder}")
    monkeypatch.setattr(
        bundle, "open_bundle", lambda folder: SimpleNamespace(ledger=ledgers[folder])
    )
    assert call("evidence", "merge", "in/a", "in/b") == code
    assert capsys.readouterr().out.splitlines() == lines
    assert given == [
        ("a", "the header of a", "findings on in/a"), ("b", None, "findings on in/b"),
    ]  # fmt: skip
    assert call("evidence", "merge", "in/a", "in/b", "--json") == code
    assert json.loads(capsys.readouterr().out) == merged.to_json()
