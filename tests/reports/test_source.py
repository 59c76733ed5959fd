"""Reports on a ledger of the old form say what those on the new form say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.source import RunSource, epsilons, headline, load, read_claim
from tests.old_claims import to_old_form
from tests.reports.data import data_of


def rewritten(run: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    lines = (run / "ledger.jsonl").read_text("utf-8").strip().split("\n")
    claim = json.loads(lines[-1])
    change(claim)
    text = "\n".join([*lines[:-1], json.dumps(claim)]) + "\n"
    (run / "ledger.jsonl").write_text(text, "utf-8")
    return run


def without_hashes(report: dict[str, Any]) -> dict[str, Any]:
    report["identity"].pop("hashes")
    return report


@pytest.mark.parametrize("audience", ["internal", "public"])
def test_a_claim_of_the_old_form_gives_the_same_report(make_run: Any, audience: str) -> None:
    run = rewritten(make_run(), lambda claim: None)
    (run / "audit.json").unlink()
    new = without_hashes(data_of(run, audience))
    old = without_hashes(data_of(rewritten(run, to_old_form), audience))
    assert "epsilon_pld" in (run / "ledger.jsonl").read_text("utf-8")
    assert old == new
    assert new["guarantee"]["epsilon"] > 0


def test_an_accountant_that_is_not_described_is_shown_by_its_name(make_run: Any) -> None:
    def add(claim: dict[str, Any]) -> None:
        for row in claim["server"]["clients"]:
            row["epsilon"]["toy"] = 77.125

    report = data_of(rewritten(make_run(), add))
    rows = {row["name"]: row for row in report["accounting"]["conversions"]}
    assert rows["toy"]["epsilon"] == 77.125
    assert {row["epsilon"]["toy"] for row in report["clients"]["rows"]} == {77.125}


def with_rounds(run: Path, *rounds: dict[str, Any]) -> RunSource:
    """The run as it is read where its ledger has these lines of rounds, and no others."""
    lines = (run / "ledger.jsonl").read_text("utf-8").splitlines()
    kept = [line for line in map(json.loads, lines) if line["kind"] != "round"]
    made = [{"kind": "round", **one} for one in rounds]
    text = "".join(f"{json.dumps(line)}\n" for line in [kept[0], *made, *kept[1:]])
    (run / "ledger.jsonl").write_text(text, "utf-8")
    return load(run)


def test_a_round_that_was_repeated_counts_once_and_its_last_line_stands(make_run: Any) -> None:
    found = with_rounds(
        make_run(clients=4),
        {"round": 0, "clients": [0, 1]},
        {"round": 1, "clients": [0, 3]},
        {"round": 1, "clients": [0, 2]},
    )
    assert (found.rounds_completed, found.participations) == (2, (2, 1, 1, 0))


@pytest.mark.parametrize("junk", [None, "1", 1.0, True, [], {}, [1], 2**63])
def test_rounds_without_a_number_are_one_round_whatever_they_have_in_its_place(
    make_run: Any, junk: Any
) -> None:
    found = with_rounds(
        make_run(clients=4),
        {"round": 0, "clients": [0, 1]},
        {"round": junk, "clients": [0]},
        {"clients": [0, -1, 4, "2", [3], 3]},
    )
    assert (found.rounds_completed, found.participations) == (2, (2, 1, 0, 1))


def test_both_forms_of_a_claim_read_alike() -> None:
    old = {
        "server": {"epsilon": 7.0, "accountant": "pld", "clients": [{"epsilon_pld": 7.0}]},
        "third_party": {"epsilon": 5.0, "epsilon_rdp": 6.0},
    }
    new = read_claim(old)
    assert read_claim(new) == new
    assert epsilons(new["server"]["clients"][0]) == {"pld": 7.0}
    assert epsilons(new["third_party"]) == {"pld": 5.0, "rdp": 6.0}
    assert (headline(new["server"]), headline(new["third_party"])) == (7.0, 5.0)
    assert headline(read_claim({"server": {"epsilon": None, "clients": []}})["server"]) is None
