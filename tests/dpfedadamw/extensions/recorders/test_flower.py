"""Recorders inside Flower's own simulation, whose rounds are calls in processes of Ray's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from audit.auditor import audit_run
from audit.verdict import Verdict
from tests.audit.corruptions import attest
from tests.runs import call

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

pytestmark = pytest.mark.flower
_ROOT = Path(__file__).parents[4]


def _simulated(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"tests.dpfedadamw.extensions.recorders.{module}", *arguments]
    ended = subprocess.run(
        command, cwd=_ROOT, timeout=600, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.parametrize(("way", "verdict"), [("keeps", "PASS"), ("forgets", "FAIL")])
def test_clients_of_flower_are_judged_by_all_rounds_whichever_process_ran_them(
    way: str, verdict: str, tmp_path: Path, capsys
) -> None:
    _simulated("flower_clients", str(tmp_path), "6", way)
    clients = [str(tmp_path / f"client-{place}") for place in range(2)]
    processes = (tmp_path / "processes-0").read_text().split()
    assert len(processes) == 6
    assert call("evidence", "close", *clients) == 0
    for client in clients:
        attest(Path(client))
    capsys.readouterr()
    assert call("evidence", "merge", *clients, "--json") == (verdict != "PASS")
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == verdict
    failed = [] if verdict == "PASS" else ["accounting"]
    assert [one["failed"] for one in found["clients"]] == [failed] * 2
    spends = [
        json.loads(line)["kind"] == "spend"
        for line in (tmp_path / "client-0" / "ledger.jsonl").read_text().splitlines()
    ]
    # Five batches in each of six rounds, and what they all cost.
    assert sum(spends) == 30
    assert found["epsilon"] == pytest.approx(7.93, abs=0.01)


@pytest.mark.parametrize(
    ("way", "folder", "failed"),
    [
        ("local", "client-1", []),
        ("local-sensitivity", "client-1", ["accounting"]),
        ("local-beyond-one", "client-1", ["accounting"]),
        ("central", "server", []),
        ("central-weighted", "server", ["sensitivity"]),
    ],
)
def test_flowers_own_client_level_privacy_is_judged(
    way: str, folder: str, failed: list[str], tmp_path: Path
) -> None:
    _simulated("flower_updates", str(tmp_path), way)
    run = tmp_path / folder
    if way.startswith("local"):
        assert call("evidence", "close", str(run)) == 0
    found = audit_run(attest(run))
    assert [one.name for one in found.findings if one.verdict is Verdict.FAIL] == failed
    assert found.verdict is (Verdict.FAIL if failed else Verdict.PASS)
