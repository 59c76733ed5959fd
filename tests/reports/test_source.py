"""What a run's files say is read as it stands, in either form of a claim, and faults are noted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports.errors import SourceError
from reports.source import Auditing, RunSource, epsilons, headline, load, read_claim
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


HEADER: dict[str, Any] = {"kind": "header", "run": "run-1", "unit": "record", "clients": 3}
FILES = ("spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.json", "model.safetensors")


def folder_of(folder: Path, *lines: dict[str, Any], **others: str) -> Path:
    """A run directory of few words: a ledger, a spec, and other files by name."""
    folder.mkdir(exist_ok=True)
    texts = {
        "spec.yaml": "name: one\n",
        "ledger.jsonl": "".join(f"{json.dumps(line)}\n" for line in (HEADER, *lines)),
        "metrics.jsonl": '{"round": 0}\n',
        "model.json": '{"classes": 2}',
        "model.safetensors": "tensors",
    } | {name.replace("_", "."): text for name, text in others.items()}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_is_read_into_what_its_files_say(tmp_path: Path) -> None:
    claim = {"kind": "claim", "delta": 1e-5}
    spend = {"kind": "spend", "client": 2}
    run = folder_of(tmp_path / "run", spend, {"kind": "round", "round": 0, "clients": [2]}, claim)
    audit = {"run": "run-1", "verdict": "PASS", "inputs": {"spec.yaml": digest(run / "spec.yaml")}}
    (run / "audit.json").write_text(json.dumps(audit))
    found = load(run)
    assert found == RunSource(
        spec={"name": "one"},
        header=HEADER,
        claim=claim,
        rounds_completed=1,
        spends=[spend],
        participations=(0, 0, 1),
        metrics=[{"round": 0}],
        audit=audit,
        model={"classes": 2},
        hashes={name: digest(run / name) for name in (*FILES, "audit.json")},
        notes=(),
    )


def test_what_is_missing_or_does_not_belong_to_the_run_is_noted_and_not_used(
    tmp_path: Path,
) -> None:
    run = folder_of(tmp_path / "run", {"kind": "round", "round": 0, "clients": []})
    for name in ("metrics.jsonl", "model.json", "model.safetensors"):
        (run / name).unlink()
    lines = (run / "ledger.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**HEADER, "spec_sha256": "0" * 64})
    (run / "ledger.jsonl").write_text("\n".join(lines))
    found = load(run)
    assert (found.claim, found.metrics, found.model, found.audit) == ({}, [], {}, None)
    assert set(found.hashes) == {"spec.yaml", "ledger.jsonl"}
    assert found.notes == (
        "ledger.jsonl: ends without a claim; the run did not finish.",
        "ledger.jsonl: was written for another spec.yaml than the one in this folder.",
        "metrics.jsonl: missing.",
        "model.json: missing.",
        "model.safetensors: missing.",
        "audit.json: missing.",
    )
    (run / "metrics.jsonl").write_text("[]\n")
    (run / "model.json").write_text("[]")
    again = load(run)
    assert again.notes[2] == "metrics.jsonl, line 1: a JSON object is needed."
    assert (again.metrics, again.model) == ([], {})
    # Its bytes were read, so their digest is known.
    assert "metrics.jsonl" in again.hashes


@pytest.mark.parametrize(
    ("audit", "note"),
    [
        ("[]", "audit.json: a JSON object is needed."),
        ('{"run": "run-2"}', "audit.json: belongs to another run and is not used."),
        ("{}", "audit.json: belongs to another run and is not used."),
        (
            '{"run": "run-1", "inputs": {"model.json": "00"}}',
            "audit.json: judged another model.json and is not used.",
        ),
        ('{"run": "run-1", "inputs": {"elsewhere": "00"}}', None),
        ('{"run": "run-1", "inputs": []}', None),
        ('{"run": "run-1"}', None),
        ("{", "audit.json: not valid JSON ("),
    ],
)
def test_only_an_audit_of_exactly_these_files_is_used(
    tmp_path: Path, audit: str, note: str | None
) -> None:
    found = load(folder_of(tmp_path / "run", {"kind": "claim"}, audit_json=audit))
    assert (found.audit is None) == (note is not None)
    assert len(found.notes) == (note is not None)
    assert "".join(found.notes).startswith(note or "")


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        ("", "ledger.jsonl, line 1: a header with the run's identifier is needed"),
        ('{"kind": "header"}', "ledger.jsonl, line 1: a header with the run's"),
        ('{"kind": "claim", "run": "x"}', "ledger.jsonl, line 1: a header with the run's"),
        ('{"kind": "header", "run": " "}', "ledger.jsonl, line 1: a header with the run's"),
        ("{", "ledger.jsonl, line 1: not valid JSON ("),
    ],
)
def test_without_a_header_that_names_it_there_is_no_run(
    tmp_path: Path, ledger: str, said: str
) -> None:
    with pytest.raises(SourceError) as refusal:
        load(folder_of(tmp_path / "run", ledger_jsonl=ledger))
    assert str(refusal.value).startswith(said)


def test_without_a_folder_spec_or_ledger_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"/none: no such run directory$"):
        load(tmp_path / "none")
    for name in ("spec.yaml", "ledger.jsonl"):
        run = folder_of(tmp_path / name)
        (run / name).unlink()
        with pytest.raises(SourceError, match=f"^{name}: missing in "):
            load(run)


def test_a_recorded_loop_is_as_long_as_its_steps(tmp_path: Path) -> None:
    spend = {"kind": "spend", "step": 0}
    plain = folder_of(tmp_path / "plain", spend, spend)
    assert load(plain).rounds_completed == 0
    head = json.dumps({**HEADER, "producer": {"name": "x"}, "rounds": 9})
    lines = (plain / "ledger.jsonl").read_text().splitlines()[1:]
    loop = folder_of(tmp_path / "loop", ledger_jsonl="\n".join([head, *lines]))
    found = load(loop)
    assert (found.rounds_completed, found.recorded) == (2, True)
    assert (found.header["rounds"], found.header["local_steps"]) == (2, 1)


def of(tmp_path: Path, claim: dict[str, Any] | None = None, **header: Any) -> RunSource:
    run = folder_of(tmp_path / "run", {"kind": "claim", **(claim or {})})
    found = load(run)
    return replace(found, header={**HEADER, **header})


def test_what_a_run_protects_and_counts_follows_from_its_header(tmp_path: Path) -> None:
    kinds = {unit: of(tmp_path, unit=unit) for unit in ("record", "person", "client", "none")}
    assert [one.private for one in kinds.values()] == [True, True, True, False]
    assert [one.protects_clients for one in kinds.values()] == [False, False, True, False]
    assert not of(tmp_path).recorded
    assert not of(tmp_path, producer="x").recorded
    people = of(tmp_path, records=[3, 4.0, None, "5", 2.0**63, -(2**62)], rows=[30, 40])
    assert people.records == [3.0, 4.0, -(2.0**62)]
    assert people.training_records == [30.0, 40.0]
    assert of(tmp_path, records=[3]).training_records == [3.0]
    assert of(tmp_path, records=7).records == []
    assert of(tmp_path).clients == 3
    odd = of(tmp_path, clients="3", clients_per_round=2, run="a\x00b")
    assert (odd.clients, odd.clients_per_round, odd.run) == (None, 2, "a\ufffdb")


@pytest.mark.parametrize(
    ("claimed", "stated", "delta"),
    [(1e-6, 1e-5, 1e-6), (None, 1e-5, 1e-5), ("x", 1e-5, 1e-5), (None, None, None)],
)
def test_delta_is_the_claims_or_what_the_header_meant_it_to_be(
    tmp_path: Path, claimed: Any, stated: Any, delta: float | None
) -> None:
    assert of(tmp_path, {"delta": claimed}, delta=stated).delta == delta


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        ({}, "pld"),
        ({"server": {"accountant": "rdp"}, "third_party": {"accountant": "x"}}, "rdp"),
        (
            {"server": {"accountant": "rdp"}, "third_party": {"accountant": "x"},
             "view_headline": "third-party"},
            "x",
        ),
        ({"server": {"accountant": ""}, "third_party": {"accountant": "x"}}, "x"),
        ({"server": 5, "third_party": {"accountant": "x"}}, "x"),
    ],
)  # fmt: skip
def test_the_accountant_that_leads_is_that_of_the_headline(
    tmp_path: Path, claim: dict[str, Any], name: str
) -> None:
    assert of(tmp_path, claim).accountant == name


@pytest.mark.parametrize(
    ("auditing", "another"),
    [
        (None, False),
        (Auditing("a", "t", one_hand=False), True),
        (Auditing("a", "a", one_hand=False), False),
        (Auditing("a", None, one_hand=False), False),
        (Auditing("a", "t", one_hand=True), False),
    ],
)
def test_an_audit_is_by_another_only_where_both_keys_are_known_and_in_two_hands(
    tmp_path: Path, auditing: Auditing | None, another: bool
) -> None:
    assert replace(of(tmp_path), auditing=auditing).audited_by_another == another


@pytest.mark.parametrize(
    ("clients", "counted"), [(3, (1, 0, 0)), (0, ()), (-1, ()), ("3", ()), (1_000_001, ())]
)
def test_participation_is_counted_where_the_number_of_clients_can_be(
    tmp_path: Path, clients: Any, counted: tuple[int, ...]
) -> None:
    head = json.dumps({**HEADER, "clients": clients})
    line = json.dumps({"kind": "round", "round": 0, "clients": [0]})
    run = folder_of(tmp_path / "run", ledger_jsonl=f"{head}\n{line}\n")
    assert load(run).participations == counted


@pytest.mark.parametrize(
    ("part", "lifted"),
    [
        ({"epsilon": {"pld": 1.0}, "epsilon_pld": 2.0}, None),
        ({"records": 3}, None),
        ({"epsilon": None}, None),
        ({"epsilon_pld": 2.0, "epsilon_rdp": 3.0, "epsilon_rdp_classic": 4.0, "records": 3},
         {"epsilon": {"pld": 2.0, "rdp": 3.0, "rdp-classic": 4.0}, "records": 3}),
        ({"epsilon": 1.0, "epsilon_rdp": 3.0},
         {"epsilon": {"pld": 1.0, "rdp": 3.0}, "accountant": "pld"}),
        ({"epsilon": 1.0, "accountant": "own"}, {"epsilon": {"pld": 1.0}, "accountant": "own"}),
    ],
)  # fmt: skip
def test_each_form_of_an_epsilon_is_lifted_to_one_by_accountant(
    part: dict[str, Any], lifted: dict[str, Any] | None
) -> None:
    for view in ("server", "server_worst_case", "third_party"):
        assert read_claim({view: part, "delta": 1.0}) == {view: lifted or part, "delta": 1.0}
    assert read_claim({"server": {"clients": [part, 5]}}) == {
        "server": {"clients": [lifted or part, 5]}
    }
    assert read_claim({"server": 5, "other": part}) == {"server": 5, "other": part}
