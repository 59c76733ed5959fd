"""What `audit` and `report` make of their options."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfedadamw.cli import audit as command
from dpfedadamw.cli import canaries
from dpfedadamw.cli.canaries import CanaryAudit
from dpfedadamw.cli.options import Audience
from tests.runs import call


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What is handed to canaries, to the judge of claims or gates, and to comparisons."""
    found: list[Any] = []

    def extension(module: str, _what: str) -> Any:
        name = module.split(".")[-2]
        return SimpleNamespace(
            judge=lambda *given: found.append((name, *given)),
            file_comparison=lambda *given: found.append((name, *given)),
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "extension", extension)
    monkeypatch.setattr(canaries, "audit_with_canaries", found.append)
    return found


def test_a_gate_s_ledger_in_a_run_is_not_judged_in_its_place(
    called: list[Any], tmp_path: Path
) -> None:
    """A run that FAILs would end in the PASS of a gate, here where its spec was removed too."""
    (tmp_path / "run" / "ledger").mkdir(parents=True)
    for name in ("ledger/head.json", "ledger.jsonl", "audit.json"):
        (tmp_path / "run" / name).touch()
    assert call("audit", "run") != 0
    assert called == []


def test_what_is_asked_of_canaries_a_claim_or_a_gate_is_handed_on(
    called: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "head.json").touch()
    for flags in (
        "--paper-claim a-claim --json",
        "gate --key gate.pub --anchor head.json",
        "gate --json",
        "runs/a --canaries 9 --canary-kind input --device cpu --auditor-key k --out there --json",
        "--canaries 5",
    ):
        assert call("audit", *flags.split()) == 0
    assert called == [
        ("claims", "a-claim", True),
        ("gate", Path("gate"), Path("gate.pub"), Path("head.json"), False),
        ("gate", Path("gate"), None, None, True),
        CanaryAudit(
            subject=Path("runs/a"), out_dir=Path("there"), count=9, kind="input", device="cpu",
            auditor_key="k", as_json=True,
        ),
        CanaryAudit(
            subject=None, out_dir=Path("runs"), count=5, kind="gradient", device="auto",
            auditor_key=None, as_json=False,
        ),
    ]  # fmt: skip


def test_canaries_by_their_own_command_are_asked_the_same(called: list[Any]) -> None:
    assert call("canaries") == 0
    assert call("canaries", "a", "--count", "7", "--kind", "secret", "--out", "there") == 0
    assert [(one.subject, one.count, one.kind, one.out_dir) for one in called] == [
        (None, 100, "gradient", Path("runs")), (Path("a"), 7, "secret", Path("there")),
    ]  # fmt: skip


REPLAYS = ("--replay 0", "--data d", "--escrow k", "--draw d.json", "--openings o.json")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        *((f"--canaries 9 {more}", "--canaries") for more in REPLAYS),
        ("--canaries 9 --write", "--canaries"),
        ("--canaries 9 --timestamp http://tsa", "--canaries"),
        ("--canaries 9 --paper-claim c", "--canaries"),
        *((f"--paper-claim c {more}", "--paper-claim") for more in REPLAYS),
        ("runs/a --paper-claim c", "--paper-claim"),
        ("--paper-claim c --write", "--paper-claim"),
        ("--paper-claim c --auditor-key k", "--paper-claim"),
        ("--paper-claim c --timestamp http://tsa", "--paper-claim"),
        *((f"gate {more}", "gate: is a gate's folder") for more in REPLAYS),
        ("gate --write", "gate: is a gate's folder"),
        ("--key k", "--key, --anchor"),
        ("runs/a --anchor a", "--key, --anchor"),
        ("--timestamp http://tsa", "--timestamp"),
        ("--replay -1", "--replay -1"),
        ("--replay 0 --draw d", "--replay N"),
        ("--openings o", "--openings FILE"),
        ("--draw d --openings o --escrow k", "--openings FILE"),
        ("--draw d", "--draw FILE"),
        ("--data d", "--data, --escrow"),
        ("--replay 0 --escrow k", "--data, --escrow"),
        ("--replay 0 --data d", "--data, --escrow"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_read(
    flags: str, named: str, called: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "head.json").touch()
    assert call("audit", *flags.split()) == 2
    assert capsys.readouterr().err.startswith(named)
    assert called == []


@pytest.mark.parametrize(
    "flags",
    [
        "--replay 2 --data d --escrow k",
        "--draw d --escrow k --data d",
        "--draw d --openings o",
        "--replay 0",
        "--write --timestamp http://tsa",
    ],
)
def test_options_that_go_together_come_to_the_run(
    flags: str, called: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("audit", "no-run", *flags.split()) == 2
    assert "no-run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "runs", "target"),
    [
        ("a b", ["a", "b"], "comparison"),
        ("a b --out there", ["a", "b"], "there/comparison"),
        ("a -o here", ["a"], "here"),
        ("a --output here --out there", ["a"], "here"),
        ("", [], "comparison"),
    ],
)
def test_a_comparison_is_written_where_it_is_asked_for(
    flags: str, runs: list[str], target: str, called: list[Any]
) -> None:
    assert call("report", "--compare", *flags.split(), "--audience", "public", "--json") == 0
    assert called == [
        ("comparison", list(map(Path, runs)), Path(target), Audience.public, None, None, True)
    ]


@pytest.mark.parametrize(
    ("flags", "named"), [("a -o here", "--output"), ("a b", "2 runs named"), ("a", "")]
)
def test_a_run_s_report_is_of_one_run_and_written_into_its_folder(
    flags: str, named: str, called: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("report", *flags.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(named)
    assert ("neither" in said or "no such" in said) == (not named)
    assert called == []
