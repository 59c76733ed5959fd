"""``audit --replay`` and ``audit --draw``, as an auditor types them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfedadamw.cli import replaying, terminal
from dpfedadamw.reexecution import history, rounds, whole
from dpfedadamw.run import environment
from tests.challenged import Parties, challenged, challenged_and_signed
from tests.faults.challenge_forgeries import FORGERIES
from tests.faults.forgeries import check_of
from tests.runs import call


@pytest.fixture(scope="module")
def announced(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """A challenged run, drawn from and opened."""
    parties = challenged(tmp_path_factory.mktemp("announced"))
    assert parties.draw(3) == parties.open() == 0
    return parties


def audited(parties: Parties, capsys, *arguments: str) -> dict[str, object]:
    """What the auditor's command finds."""
    capsys.readouterr()
    parties.auditor("audit", str(parties.run), "--json", *arguments)
    return dict(json.loads(capsys.readouterr().out))


def test_what_was_opened_is_computed_again(announced: Parties, capsys) -> None:
    found = audited(
        announced, capsys, "--draw", announced.file("draw.json"),
        "--openings", announced.file("openings.json"),
    )  # fmt: skip
    judged = check_of(found)
    assert (judged["verdict"], found["verdict"]) == ("PASS", "PASS")
    assert judged["details"]["drawn"] == 3
    assert "second nonce" in judged["details"]["drawn_by"]
    # The auditor remembers that something came of the intent.
    log = Path(announced.file("auditor-keys/intents.jsonl")).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in log[:3]] == ["challenged", "drawn", "judged"]
    assert json.loads(log[2])["verdict"] == "PASS"
    # Whole rounds are not open, so that the server's part is not computed.
    assert judged["details"]["rounds_run_again"] == 0


@pytest.mark.thorough
def test_where_a_whole_round_is_opened_the_server_s_step_is_computed_too(
    announced: Parties, capsys
) -> None:
    assert announced.draw(8, "all.json") == announced.open("all.json", "all-opened.json") == 0
    found = audited(
        announced, capsys, "--draw", announced.file("all.json"),
        "--openings", announced.file("all-opened.json"),
    )  # fmt: skip
    details = check_of(found)["details"]
    assert check_of(found)["verdict"] == "PASS"
    assert (details["rounds_run_again"], details["published_parameters"]) == (2, True)


def test_with_the_escrow_what_was_drawn_is_computed_again_and_the_server_too(
    announced: Parties, capsys
) -> None:
    found = audited(
        announced, capsys, "--draw", announced.file("draw.json"), "--escrow", str(announced.escrow)
    )
    assert check_of(found)["verdict"] == "PASS"
    assert check_of(found)["details"]["published_parameters"] is True
    assert any("3 of 8 participations" in text for text in found["qualifications"])


@pytest.mark.thorough
def test_own_bits_draw_others_and_are_told(announced: Parties, capsys) -> None:
    found = audited(announced, capsys, "--replay", "2", "--escrow", str(announced.escrow))
    details = check_of(found)["details"]
    assert (details["drawn"], details["participations"]) == (2, 8)
    assert len(bytes.fromhex(details["seed"])) == 32
    assert [one["share"] for one in details["chances"]] == [0.01, 0.05, 0.2]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_who_has_its_way_with_the_noise_fails_once_it_is_opened(
    forge, tmp_path: Path, capsys
) -> None:
    parties = challenged_and_signed(tmp_path, forge)
    assert parties.draw(2) == parties.open() == 0
    found = audited(
        parties, capsys, "--draw", parties.file("draw.json"),
        "--openings", parties.file("openings.json"),
    )  # fmt: skip
    assert (check_of(found)["verdict"], found["verdict"]) == ("FAIL", "FAIL")


def test_another_key_than_the_one_committed_to_is_refused(announced: Parties, capsys) -> None:
    path = Path(announced.file("openings.json"))
    opened = json.loads(path.read_text())
    opened["leaves"][1]["key"] = "ab" * 32
    forged = path.with_name("forged.json")
    forged.write_text(json.dumps(opened))
    code = announced.auditor(
        "audit", str(announced.run), "--draw", announced.file("draw.json"), "--openings",
        str(forged),
    )  # fmt: skip
    assert code == 2
    assert "is not the one that the intent committed to" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--replay", "-1"), "must be at least 0"),
        (("--escrow", "key"), "belong to --replay N"),
        (("--data", "folder"), "belong to --replay N"),
        (("--replay", "2", "--draw", "draw.json"), "give one of them"),
        (("--openings", "openings.json"), "goes with --draw FILE"),
        (("--draw", "draw.json"), "give --openings FILE"),
        (("--replay", "2"), "Give --escrow FILE"),
        (("--replay", "2", "--escrow", "missing"), "not a readable key escrow"),
        (("--canaries", "9", "--replay", "2"), "leave out --replay"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    announced: Parties, arguments: tuple[str, ...], told: str, capsys
) -> None:
    assert call("audit", str(announced.run), *arguments) == 2
    assert told in " ".join(capsys.readouterr().err.split())


SAME = SimpleNamespace(file="model.safetensors", same=True, note="byte for byte")
OTHER = SimpleNamespace(file="ledger.jsonl", same=False, note="charges, digests and claim " * 9)


@pytest.mark.parametrize("differences", [(), ("torch 2.1 and 2.2",)])
@pytest.mark.parametrize("compared", [(SAME,), (SAME, OTHER)])
def test_a_whole_run_again_says_which_files_differ_and_what_may_explain_it(
    compared: tuple[Any, ...],
    differences: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "a-run"
    run.mkdir()
    (run / "spec.yaml").touch()
    same, asked = OTHER not in compared, list[Any]()
    found = SimpleNamespace(same=same, compared=compared, differences=differences, rounds=3)

    def again(rerun: Any, of: Any, progress: Any) -> Any:
        progress(1, 3)
        asked.append((rerun, of.path))
        return found

    monkeypatch.setattr(history, "PastLedger", lambda _: SimpleNamespace(header="header"))
    monkeypatch.setattr(replaying, "keys_of", lambda header, escrow: (header, escrow))
    monkeypatch.setattr(environment, "device_of", lambda _, named: f"{named} here")
    monkeypatch.setattr(rounds, "Rerun", lambda of, *given: given)
    monkeypatch.setattr(whole, "replay", again)
    # Narrow enough that one of the columns must be folded.
    monkeypatch.setattr(terminal.out, "_width", 42)
    monkeypatch.setenv("COLUMNS", "42")
    given = ("--escrow", "key", "--data", "there", "--device", "cpu")
    assert call("replay", str(run), *given, "--json") == (0 if same else 1)
    assert json.loads(capsys.readouterr().out) == {
        "run": "a-run",
        "same": same,
        "files": [vars(one) for one in compared],
        "environment": list(differences),
    }
    assert call("replay", str(run)) == (0 if same else 1)
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    # Names of files are whole, and what was compared is folded.
    assert ["model.safetensors", "same", "byte", "for", "byte"] in rows
    assert any(row[:2] == ["ledger.jsonl", "DIFFERS"] for row in rows) == (not same)
    assert ("torch 2.1" in " ".join(shown.split())) == (bool(differences) and not same)
    assert asked == [
        ((("header", [Path("key")]), "cpu here", Path("there")), run),
        ((("header", []), "auto here", None), run),
    ]
