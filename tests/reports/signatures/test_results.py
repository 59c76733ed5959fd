"""What a reader keeps of the runs that were verified: the highest numbers, and nothing damaged."""

from __future__ import annotations

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reports.errors import KeyFileError
from reports.signatures.inventory import Problem
from reports.signatures.verification import results
from reports.signatures.verification.results import (
    MEMORY_FILE,
    Found,
    Memory,
    Outcome,
    Present,
    Seen,
    Signer,
    read_memory,
    refuse_earlier,
    remember,
)

ONE, TWO = "1" * 64, "2" * 64
NAME = "attestation.json"
MINE, THEIRS, LATER = "SHA256:mine", "SHA256:theirs", "SHA256:later"


def test_many_problems_are_gathered_at_once_and_each_is_noted_once() -> None:
    found = Found()
    begun = time.process_time()
    for _ in range(2):
        for number in range(50_000):
            found.add(f"file-{number}", "missing")
    # A search of the list for each would take a quarter of an hour.
    assert time.process_time() - begun < 20
    assert len(found.problems) == 50_000


def present(sequence: int, sha256: str = ONE, *keys: str, name: str = NAME) -> dict[str, Present]:
    return {name: Present(Seen(sequence, sha256), frozenset(keys or (MINE,)))}


def refused(known: Seen, now: Seen, key: str = MINE) -> list[Problem]:
    found = Found()
    states = Memory({"r": {NAME: {MINE: known}, "away.json": {MINE: known}}})
    refuse_earlier(states, "r", {NAME: Present(now, frozenset({key}))}, Path("m"), found)
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


@pytest.mark.parametrize("now", [Seen(4, ONE), Seen(5, TWO), Seen(6, TWO)])
def test_what_another_key_signed_says_nothing_of_mine(now: Seen) -> None:
    """Else anyone who is trusted once could make any run void, by a copy with a high number."""
    assert refused(Seen(5, ONE), now, THEIRS) == []


def test_every_attestation_is_compared_also_behind_one_that_is_away() -> None:
    found = Found()
    known = Memory({"r": {name: {MINE: Seen(5, ONE)} for name in ("a.json", "b.json")}})
    refuse_earlier(known, "r", present(1, name="b.json"), Path("m"), found)
    assert [problem.file for problem in found.problems] == ["b.json"]
    refuse_earlier(known, "another run", present(1, name="a.json"), Path("m"), found)
    assert len(found.problems) == 1


def test_what_was_seen_is_kept_for_its_owner_beside_what_was_seen_before(tmp_path: Path) -> None:
    path = tmp_path / "config" / "keys" / "verified.json"
    assert read_memory(path) == Memory()
    found = Found()
    remember("b", present(1), path, found)
    assert read_memory(path) == Memory({"b": {NAME: {MINE: Seen(1, ONE)}}})
    remember("a", present(7, TWO), path, found)
    remember("b", present(2, TWO, name="public.json"), path, found)
    remember("b", present(3, TWO), path, found)
    remember("b", present(9, ONE, THEIRS), path, found)
    assert read_memory(path).states == {
        "a": {NAME: {MINE: Seen(7, TWO)}},
        "b": {
            NAME: {MINE: Seen(3, TWO), THEIRS: Seen(9, ONE)},
            "public.json": {MINE: Seen(2, TWO)},
        },
    }
    assert found.statements == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_bytes())["format"] == 2


def test_memory_goes_with_a_key_to_its_successor_and_back(tmp_path: Path) -> None:
    path, found = tmp_path / "verified.json", Found()
    remember("r", present(5), path, found)
    # The successor signed number 6; what the old key signed before is earlier.
    refuse_earlier(read_memory(path), "r", present(6, TWO, MINE, LATER), path, found)
    remember("r", present(6, TWO, MINE, LATER), path, found)
    assert (found.problems, found.statements) == ([], [])
    refuse_earlier(read_memory(path), "r", present(5), path, found)
    refuse_earlier(read_memory(path), "r", present(4, ONE, MINE, LATER), path, found)
    assert [problem.reason[:11] for problem in found.problems] == ["is number 5", "is number 4"]


def test_what_is_known_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    remember("r", present(2), path, Found())
    before = path.stat().st_ino
    remember("r", present(2), path, Found())
    remember("r", present(1), path, Found())
    assert path.stat().st_ino == before
    assert read_memory(path).states["r"][NAME] == {MINE: Seen(2, ONE)}


def test_a_memory_that_cannot_be_written_is_said_and_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"")
    found = Found()
    remember("r", present(1), tmp_path / "keys" / "verified.json", found)
    assert found.problems == []
    assert found.statements[0].startswith("This state could not be remembered (")


def test_a_full_memory_forgets_nothing_and_says_that_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else many runs of a stranger could push out the one that matters."""
    monkeypatch.setattr(results, "_MOST_STATES", 3)
    path, found = tmp_path / "verified.json", Found()
    for number in range(3):
        remember(f"run-{number}", present(1), path, found)
    assert found.statements == []
    whole = path.read_bytes()
    remember("run-3", present(1), path, found)
    remember("r" * 201, present(1), path, found)
    assert path.read_bytes() == whole
    assert "has no room for more than 3 states" in found.statements[0]
    remember("run-0", present(2), path, found)
    assert read_memory(path).states["run-0"][NAME][MINE].sequence == 2


def test_two_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: remember(f"r{n}", present(n + 1), path, Found()), range(40)))
    assert len(read_memory(path).states) == 40


def test_what_was_kept_without_keys_is_told_and_refuses_nothing(tmp_path: Path) -> None:
    """Anybody may have signed that, so it cannot make a run void; it may be a warning."""
    path = tmp_path / "verified.json"
    entry = {"sequence": 5, "sha256": ONE}
    path.write_text(json.dumps({"format": 1, "runs": {"r": {NAME: entry}, "s": {NAME: entry}}}))
    known, found = read_memory(path), Found()
    assert known == Memory({}, {run: {NAME: Seen(5, ONE)} for run in "rs"})
    refuse_earlier(known, "r", present(4), path, found)
    assert found.problems == []
    assert "number 5 of this run was verified here before, by a version that" in found.statements[0]
    remember("r", present(4), path, found)
    assert read_memory(path) == Memory({"r": {NAME: {MINE: Seen(4, ONE)}}}, known.without_keys)
    # Once the same number or a higher one was verified, there is nothing to warn of.
    remember("r", present(5), path, found)
    assert read_memory(path).without_keys == {"s": {NAME: Seen(5, ONE)}}
    refuse_earlier(read_memory(path), "r", present(5), path, found)
    assert len(found.statements) == 1


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
    for document in (
        {"runs": {"r": {NAME: entry}}},
        {"format": 2, "runs": {"r": {NAME: {MINE: entry}}}},
        {"format": 2, "runs": {}, "without_keys": {"r": {NAME: entry}}},
    ):
        path.write_text(json.dumps(document))
        with pytest.raises(KeyFileError, match=r"verified\.json: is damaged; move it away"):
            read_memory(path)


def test_a_memory_that_is_no_json_is_named_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    path.write_text("{")
    with pytest.raises(KeyFileError, match=f"^{tmp_path}/verified.json.*; move it away"):
        read_memory(path)


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
    path = tmp_path / MEMORY_FILE
    assert path.name == "verified.json"
    both = present(3, TWO, name="z.json") | present(2, ONE, MINE, LATER, name="a.json")
    remember("a", both, path, Found())

    def entry(sequence: int, digest: str) -> str:
        return f'{{\n          "sequence": {sequence},\n          "sha256": "{digest}"\n        }}'

    assert path.read_text("utf-8") == (
        '{\n  "format": 2,\n  "runs": {\n'
        '    "a": {\n'
        f'      "a.json": {{\n        "{LATER}": {entry(2, ONE)},\n'
        f'        "{MINE}": {entry(2, ONE)}\n      }},\n'
        f'      "z.json": {{\n        "{MINE}": {entry(3, TWO)}\n      }}\n'
        '    }\n  },\n  "without_keys": {}\n}\n'
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
