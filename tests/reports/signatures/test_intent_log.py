"""What an auditor remembers: one nonce an intent, one draw a run, and what came to nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from reports.errors import EnvelopeError, KeyFileError
from reports.signatures.challenges import Intent, now, read_intent, write_intent
from reports.signatures.intent_log import FILE, opened
from tests.reports.signatures.test_challenges import PROMISED
from tests.reports.signing_keys import fresh

KEYS = {name: fresh("trainer") for name in ("one", "two")}


def intent(number: int, data: int = 0, trainer: str = "one") -> Intent:
    promised = dataclasses.replace(
        PROMISED, run=f"run-{number}", root=f"{number:064x}", handle=f"{data:064x}"
    )
    return read_intent(write_intent(promised, KEYS[trainer], "0.1.0", now()), "it")


def counts(folder: Path, one: Intent) -> tuple[int, int, int, int]:
    with opened(folder) as log:
        seen = log.challenge(one).seen
    return seen.of_trainer, seen.for_data, seen.dropped, seen.dropped_of_trainer


def judge(folder: Path, one: Intent, verdict: str) -> None:
    with opened(folder) as log:
        log.judge(one.sha256, "ab" * 32, one.promised.run, verdict)


def test_intents_that_came_to_nothing_are_counted_by_trainer_and_by_data(tmp_path):
    first = intent(1)
    assert counts(tmp_path, first) == (1, 1, 0, 0)
    assert counts(tmp_path, intent(2)) == (2, 2, 1, 1)
    judge(tmp_path, first, "PASS")
    assert counts(tmp_path, intent(3)) == (3, 3, 1, 1)
    assert counts(tmp_path, intent(4, data=1)) == (4, 1, 0, 2)
    assert counts(tmp_path, intent(5, trainer="two")) == (1, 1, 0, 0)
    assert counts(tmp_path, intent(6)) == (5, 4, 2, 3)


def test_a_run_that_was_drawn_from_and_never_opened_or_did_not_pass_came_to_nothing(tmp_path):
    one, two = intent(1), intent(2)
    counts(tmp_path, one)
    with opened(tmp_path) as log:
        log.draw(one.sha256, "ab" * 32, "run-1")
    assert counts(tmp_path, two) == (2, 2, 1, 1)
    judge(tmp_path, one, "PASS")
    judge(tmp_path, two, "FAIL")
    assert counts(tmp_path, intent(3)) == (3, 3, 1, 1)
    # The last verdict counts.
    judge(tmp_path, one, "NOT VERIFIED")
    judge(tmp_path, two, "PASS")
    assert counts(tmp_path, intent(4)) == (4, 4, 2, 2)


def test_a_verdict_is_noted_once_and_of_one_s_own_challenges_alone(tmp_path):
    one = intent(1)
    judge(tmp_path, one, "PASS")
    assert (tmp_path / FILE).read_bytes() == b""
    counts(tmp_path, one)
    judge(tmp_path, one, "PASS")
    noted = (tmp_path / FILE).read_bytes()
    judge(tmp_path, one, "PASS")
    assert (tmp_path / FILE).read_bytes() == noted
    assert noted.count(b"judged") == 1
    last = json.loads(noted.splitlines()[-1])
    assert {name: last[name] for name in ("kind", "intent", "run", "ledger", "verdict")} == {
        "kind": "judged",
        "intent": one.sha256,
        "run": one.promised.run,
        "ledger": "ab" * 32,
        "verdict": "PASS",
    }


def test_an_intent_has_one_nonce_and_the_count_that_it_had(tmp_path):
    one = intent(1)
    with opened(tmp_path) as log:
        first = log.challenge(one)
        assert log.challenge(intent(2)).nonce != first.nonce
    with opened(tmp_path) as log:
        assert log.challenge(one) == first
    assert len(first.nonce) == 32
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_run_is_drawn_from_once_and_from_one_ledger(tmp_path):
    one = intent(1)
    with opened(tmp_path) as log, pytest.raises(EnvelopeError, match="got no nonce from this key"):
        log.draw(one.sha256, "ab" * 32, "run-1")
    with opened(tmp_path) as log:
        log.challenge(one)
        first = log.draw(one.sha256, "ab" * 32, "run-1")
        assert first != log.challenge(one).nonce
    with opened(tmp_path) as log:
        assert log.draw(one.sha256, "ab" * 32, "run-1") == first
        with pytest.raises(EnvelopeError, match="from another ledger"):
            log.draw(one.sha256, "ac" * 32, "run-1")


def test_a_line_that_was_changed_or_taken_away_is_noticed(tmp_path):
    for number in range(3):
        counts(tmp_path, intent(number))
    path = tmp_path / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    for number, content in (
        (2, [lines[0], lines[2]]),
        (1, [lines[1], lines[2]]),
        (2, [lines[0].replace(b"run-0", b"run-9"), *lines[1:]]),
        (2, [lines[0], b"{}\n", *lines[1:]]),
    ):
        path.write_bytes(b"".join(content))
        told = rf"line {number}: does not follow .* changed after it was written"
        with pytest.raises(EnvelopeError, match=told), opened(tmp_path):
            pass


def test_a_line_that_was_torn_gave_no_nonce_away_and_goes(tmp_path):
    counts(tmp_path, intent(1))
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    assert counts(tmp_path, intent(2)) == (2, 2, 1, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[0] == whole
    assert [json.loads(line)["run"] for line in lines] == ["run-1", "run-2"]


def test_a_folder_that_others_may_write_to_holds_no_log(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(KeyFileError, match="others may write"), opened(tmp_path):
        pass


def test_each_line_names_the_one_before_and_the_first_names_none(tmp_path):
    for number in range(2):
        counts(tmp_path / "a" / "folder", intent(number))
    lines = (tmp_path / "a" / "folder" / FILE).read_bytes().splitlines(keepends=True)
    first, second = (json.loads(line) for line in lines)
    assert first["previous"] == "0" * 64
    assert second["previous"] == hashlib.sha256(lines[0]).hexdigest()
    assert (first["kind"], first["spec"]) == ("challenged", PROMISED.spec_sha256)


def test_a_log_that_is_a_link_or_cannot_be_written_is_named(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match=r"intents\.jsonl: cannot be written"):
        counts(tmp_path, intent(1))
    assert (tmp_path / "elsewhere").read_bytes() == b""
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(KeyFileError, match=r"intents\.jsonl: cannot be written"):
        counts(tmp_path, intent(1))


@pytest.mark.parametrize("lacking", ["nonce", "seen", "time"])
def test_a_line_that_lacks_what_it_should_hold_is_named(tmp_path, lacking):
    one = intent(1)
    counts(tmp_path, one)
    path = tmp_path / FILE
    entry = json.loads(path.read_bytes())
    del entry[lacking]
    path.write_bytes(json.dumps(entry).encode() + b"\n")
    with pytest.raises(EnvelopeError, match="a line lacks what it should hold"):
        counts(tmp_path, one)


def test_a_torn_line_goes_whole_though_the_next_is_shorter(tmp_path):
    counts(tmp_path, intent(1))
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole + whole.replace(b"run-1", b"run-" + b"1" * 99)[:-1])
    counts(tmp_path, intent(2))
    assert [json.loads(line)["run"] for line in path.read_bytes().splitlines()] == [
        "run-1", "run-2",
    ]  # fmt: skip


def test_each_event_is_one_line_of_sorted_compact_json_in_the_folders_log(tmp_path):
    one = intent(1)
    with opened(tmp_path) as log:
        nonce = log.challenge(one).nonce
        drawn = log.draw(one.sha256, "ab" * 32, "run-1")
        log.judge(one.sha256, "ab" * 32, "run-1", "PASS")
    lines = (tmp_path / "intents.jsonl").read_bytes().splitlines()
    entries = [json.loads(line) for line in lines]
    for line, entry in zip(lines, entries, strict=True):
        assert line == json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
        assert len(entry.pop("time")) == len("2026-11-22T12:00:00Z")
        entry.pop("previous")
    assert entries == [
        {
            "kind": "challenged", "intent": one.sha256, "run": "run-1", "trainer": one.fingerprint,
            "handle": one.promised.handle, "spec": PROMISED.spec_sha256, "nonce": nonce.hex(),
            "seen": {"of_trainer": 1, "for_data": 1, "dropped": 0, "dropped_of_trainer": 0},
        },
        {
            "kind": "drawn", "intent": one.sha256, "run": "run-1", "ledger": "ab" * 32,
            "nonce": drawn.hex(),
        },
        {
            "kind": "judged", "intent": one.sha256, "run": "run-1", "ledger": "ab" * 32,
            "verdict": "PASS",
        },
    ]  # fmt: skip


def test_a_run_that_passed_and_is_then_drawn_from_or_judged_otherwise(tmp_path):
    one = intent(1)
    counts(tmp_path, one)
    judge(tmp_path, one, "PASS")
    with opened(tmp_path) as log:
        log.draw(one.sha256, "ab" * 32, "run-1")
    assert counts(tmp_path, intent(2)) == (2, 2, 0, 0)
    judge(tmp_path, one, "FAIL")
    assert counts(tmp_path, intent(3)) == (3, 3, 2, 2)


def test_a_nonce_is_on_the_disk_before_anybody_learns_it(tmp_path, monkeypatch):
    path, kept, fsync = tmp_path / FILE, [], os.fsync

    def keeps(descriptor: int) -> None:
        fsync(descriptor)
        kept.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", keeps)
    with opened(tmp_path) as log:
        nonce = log.challenge(intent(1)).nonce
        assert path.read_bytes() == kept[-1]
    assert nonce.hex() in kept[-1].decode()


def test_a_log_has_one_writer_at_a_time(tmp_path):
    fcntl = pytest.importorskip("fcntl")

    def locked() -> bool:
        with (tmp_path / FILE).open("rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with opened(tmp_path):
        assert locked()
    assert not locked()


def test_a_folder_that_is_made_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        counts(tmp_path / "keys", intent(1))
    finally:
        os.umask(before)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
