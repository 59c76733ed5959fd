"""What a reader keeps of the runs that were verified: the highest numbers, and nothing damaged."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from reports.errors import KeyFileError
from reports.signatures.inventory import Problem
from reports.signatures.verification.remembered import FILE, Seen, read, refuse_earlier, remember
from reports.signatures.verification.results import Found, Outcome, Signer

ONE, TWO = "1" * 64, "2" * 64
NAME = "attestation.json"


def refused(known: Seen, now: Seen) -> list[Problem]:
    found = Found()
    refuse_earlier({"r": {NAME: known, "away.json": known}}, "r", {NAME: now}, Path("m"), found)
    return found.problems


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (Seen(5, ONE), None),
        (Seen(6, TWO), None),
        (Seen(4, ONE), "is number 4 of this run, and number 5 was verified here before"),
        (Seen(5, TWO), "is another number 5 than the one verified here before"),
    ],
)
def test_an_earlier_state_and_another_of_one_number_are_refused(
    now: Seen, said: str | None
) -> None:
    problems = refused(Seen(5, ONE), now)
    if said is None:
        assert problems == []
    else:
        assert [problem.file for problem in problems] == [NAME]
        assert problems[0].reason.startswith(said)


def test_every_attestation_is_compared_also_behind_one_that_is_away() -> None:
    found = Found()
    known = {"r": {"a.json": Seen(5, ONE), "b.json": Seen(5, ONE)}}
    refuse_earlier(known, "r", {"b.json": Seen(1, ONE)}, Path("m"), found)
    assert [problem.file for problem in found.problems] == ["b.json"]
    refuse_earlier(known, "another run", {"a.json": Seen(1, ONE)}, Path("m"), found)
    assert len(found.problems) == 1


def test_what_was_seen_is_kept_for_its_owner_beside_what_was_seen_before(tmp_path: Path) -> None:
    path = tmp_path / "config" / "keys" / "verified.json"
    assert read(path) == {}
    found = Found()
    remember({}, "b", {NAME: Seen(1, ONE)}, path, found)
    assert read(path) == {"b": {NAME: Seen(1, ONE)}}
    remember(read(path), "a", {NAME: Seen(7, TWO)}, path, found)
    remember(read(path), "b", {"public.json": Seen(2, TWO)}, path, found)
    remember(read(path), "b", {NAME: Seen(3, TWO)}, path, found)
    assert read(path) == {
        "a": {NAME: Seen(7, TWO)},
        "b": {NAME: Seen(3, TWO), "public.json": Seen(2, TWO)},
    }
    assert found.statements == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_bytes())["format"] == 1


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    remember({"r": {NAME: Seen(1, ONE)}}, "r", {NAME: Seen(1, ONE)}, path, Found())
    assert not path.exists()


def test_a_memory_that_cannot_be_written_is_said_and_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"")
    found = Found()
    remember({}, "r", {NAME: Seen(1, ONE)}, tmp_path / "keys" / "verified.json", found)
    assert found.problems == []
    assert found.statements[0].startswith("This state could not be remembered (")


@pytest.mark.parametrize(
    "entry",
    [
        {"sequence": "1", "sha256": ONE},
        {"sequence": 1, "sha256": ONE[1:]},
        {"sequence": 1, "sha256": 7},
        {"sequence": 1},
        {"sha256": ONE},
        3,
    ],
)
def test_a_memory_that_was_damaged_is_not_believed(tmp_path: Path, entry: Any) -> None:
    path = tmp_path / "verified.json"
    path.write_text(json.dumps({"runs": {"r": {NAME: entry}}}))
    with pytest.raises(KeyFileError, match=r"verified\.json: is damaged; move it away"):
        read(path)


def test_a_memory_that_is_no_json_is_named_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    path.write_text("{")
    with pytest.raises(KeyFileError, match=f"^{tmp_path}/verified.json.*; move it away"):
        read(path)


# What a check comes to.


def signer(*, pinned: bool = False, own: bool = False) -> Signer:
    return Signer("auditor", "SHA256:key", NAME, pinned, None, own)


def outcome(*signers: Signer, problem: bool = False) -> Outcome:
    found = Found(signers=list(signers))
    if problem:
        found.add(NAME, "is wrong")
    result = found.result()
    assert result.ok == (result.outcome is Outcome.ALL_HOLD)
    assert result.is_intact is (not problem)
    assert (result.to_json()["outcome"], result.to_json()["ok"]) == (
        result.outcome.value,
        result.ok,
    )
    return result.outcome


def test_all_hold_only_where_every_signer_is_known_and_somebody_signed() -> None:
    assert outcome() is Outcome.SIGNER_UNKNOWN
    assert outcome(signer()) is Outcome.SIGNER_UNKNOWN
    assert outcome(signer(pinned=True), signer(own=True)) is Outcome.ALL_HOLD
    assert outcome(signer(pinned=True), signer()) is Outcome.SIGNER_UNKNOWN
    assert outcome(signer(pinned=True), problem=True) is Outcome.NOT_VALID


def test_a_problem_and_a_statement_are_noted_once_and_a_file_named_once() -> None:
    found = Found()
    for _ in range(2):
        found.add_error("a.json", "a.json: is missing.")
        found.say("Something.")
    found.add("b.json", "is missing")
    assert [str(problem) for problem in found.problems] == [
        "a.json: is missing",
        "b.json: is missing",
    ]
    assert found.statements == ["Something."]


def test_the_memory_is_laid_out_for_people_to_read(tmp_path: Path) -> None:
    path = tmp_path / FILE
    assert path.name == "verified.json"
    known = {"b": {NAME: Seen(1, ONE)}}
    remember(known, "a", {"z.json": Seen(3, TWO), "a.json": Seen(2, ONE)}, path, Found())
    assert path.read_text("utf-8") == (
        '{\n  "format": 1,\n  "runs": {\n'
        '    "a": {\n'
        f'      "a.json": {{\n        "sequence": 2,\n        "sha256": "{ONE}"\n      }},\n'
        f'      "z.json": {{\n        "sequence": 3,\n        "sha256": "{TWO}"\n      }}\n'
        "    },\n"
        '    "b": {\n'
        f'      "{NAME}": {{\n        "sequence": 1,\n        "sha256": "{ONE}"\n      }}\n'
        "    }\n  }\n}\n"
    )


def test_a_file_and_a_full_stop_are_taken_off_an_error_and_nothing_else() -> None:
    found = Found()
    found.add_error("a.json", "a.json: is no number X.")
    found.add_error("b.json", "a.json: is missing")
    assert [(one.file, one.reason) for one in found.problems] == [
        ("a.json", "is no number X"), ("b.json", "a.json: is missing"),
    ]  # fmt: skip


def test_a_signer_is_neither_known_nor_dated_unless_that_is_said() -> None:
    plain = Signer("auditor", "SHA256:key", NAME, pinned=False)
    assert (plain.time, plain.own, plain.is_known) == (None, False, False)
