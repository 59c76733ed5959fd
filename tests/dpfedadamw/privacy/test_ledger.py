"""The ledger: chained, on disk before it returns, and never forgetful."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.ledger import GENESIS, Ledger, Spend, canonical, extended
from dpfedadamw.storage.disk import DISK


def test_each_line_carries_the_hash_of_the_line_before(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("header", {"run": "a"})
    ledger.append_all("spend", [{"client": 0}, {"client": 1}])
    previous = GENESIS
    for line in (tmp_path / "ledger.jsonl").read_bytes().splitlines():
        entry = json.loads(line)
        assert entry["previous"] == previous
        body = {k: v for k, v in entry.items() if k != "digest"}
        assert entry["digest"] == hashlib.sha256(canonical(body)).hexdigest()
        previous = hashlib.sha256(line).hexdigest()


def test_an_entry_is_synced_to_disk_before_append_returns(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda d: synced.append((tmp_path / "ledger.jsonl").read_bytes())
    )
    ledger.append("header", {"run": "a"})
    assert len(synced) == 1
    assert b'"run":"a"' in synced[0]


def test_a_half_written_last_line_is_dropped_because_its_noise_was_never_drawn(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append("header", {"run": "a"})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind":"spend","rou')
    again = Ledger(path)
    assert path.read_bytes() == whole
    again.append("spend", {"client": 3})
    assert [entry["kind"] for entry in Ledger(path).entries] == ["header", "spend"]


def test_a_changed_number_is_found_when_the_ledger_is_opened_again(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append("header", {"rounds": 20})
    ledger.append("spend", {"client": 3})
    path.write_bytes(path.read_bytes().replace(b'"rounds":20', b'"rounds":21'))
    with pytest.raises(PrivacyError, match="line 1: the hash chain is broken"):
        Ledger(path)


def swap(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], lines[3]]


def leave_out(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[3]]


def repeat(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1], lines[1], lines[2], lines[3]]


def begin_later(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def make_anew(lines: list[bytes]) -> list[bytes]:
    """A spend is lowered, and its own digest made anew."""
    entry = json.loads(lines[1])
    entry["steps"] = 1
    body = {key: value for key, value in entry.items() if key != "digest"}
    entry["digest"] = hashlib.sha256(canonical(body)).hexdigest()
    return [lines[0], canonical(entry) + b"\n", *lines[2:]]


@pytest.mark.parametrize(
    ("change", "line"),
    [(swap, 2), (leave_out, 2), (repeat, 3), (begin_later, 1), (make_anew, 3)],
)
def test_lines_that_are_whole_by_themselves_but_do_not_follow_each_other_are_found(
    change, line, tmp_path
):
    """Each line's own digest holds: only that of the line before shows that one is missing."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append("header", {"rounds": 20})
    for client in range(3):
        ledger.append("spend", {"client": client, "steps": 5})
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(PrivacyError, match=f"line {line}: the hash chain is broken"):
        Ledger(path)


def test_numbers_that_are_not_finite_are_never_written(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        ledger.append("claim", {"epsilon": float("inf")})
    assert (tmp_path / "ledger.jsonl").read_bytes() == b""


def test_the_one_form_of_an_entry_is_sorted_tight_and_utf_8():
    assert canonical({"b": [1, 0.5], "a": "σ"}) == '{"a":"σ","b":[1,0.5]}'.encode()


def test_entries_are_found_by_their_kind_in_order(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("header", {"rounds": 20})
    ledger.append("spend", {"client": 3})
    ledger.append("spend", {"client": 1})
    assert [entry["client"] for entry in ledger.of_kind("spend")] == [3, 1]
    assert [entry["client"] for entry in Ledger(tmp_path / "ledger.jsonl").of_kind("spend")] == [
        3,
        1,
    ]


def test_a_new_ledger_is_an_empty_public_file(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert (ledger.size, ledger.entries) == (0, [])
    assert (tmp_path / "ledger.jsonl").stat().st_mode & 0o777 == 0o644


def written(path) -> tuple[bytes, list[int]]:
    """A ledger of three lines, and how many bytes it has after each."""
    ledger = Ledger(path)
    sizes = []
    for client in range(3):
        ledger.append("spend", {"client": client})
        sizes.append(ledger.size)
    content = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    assert sizes == ends
    return content, sizes


def test_a_ledger_that_is_opened_again_knows_its_size(tmp_path):
    _, sizes = written(tmp_path / "ledger.jsonl")
    assert Ledger(tmp_path / "ledger.jsonl").size == sizes[-1]


@pytest.mark.parametrize("fewer", [0, 1, 5])
def test_all_bytes_that_were_paid_for_must_be_there_and_need_not_be_all(fewer, tmp_path):
    path = tmp_path / "ledger.jsonl"
    content, sizes = written(path)
    assert len(Ledger(path, synced=sizes[-1] - fewer).entries) == 3
    with pytest.raises(PrivacyError, match=f": {fewer + 1} bytes that were written are missing"):
        Ledger(path, synced=sizes[-1] + fewer + 1)
    assert path.read_bytes() == content


def test_a_broken_line_is_dropped_only_behind_what_was_paid_for(tmp_path):
    path = tmp_path / "ledger.jsonl"
    content, sizes = written(path)
    broken = content[: sizes[1]] + content[sizes[1] :].replace(b'"client":2', b'"client":7')
    path.write_bytes(broken)
    with pytest.raises(PrivacyError, match="line 3: the hash chain is broken"):
        Ledger(path, synced=sizes[1] + 1)
    assert path.read_bytes() == broken
    kept = Ledger(path, synced=sizes[1])
    assert (len(kept.entries), kept.size) == (2, sizes[1])
    kept.append("spend", {"client": 2})
    assert path.read_bytes() == content


def test_a_spend_is_kept_without_its_chain_and_reads_like_its_line(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("spend", {"round": 0, "client": 3})
    for kept in (ledger.entries[0], Ledger(tmp_path / "ledger.jsonl").entries[0]):
        assert kept == {"round": 0, "client": 3, "kind": "spend"}
        assert {**kept, "client": 4}["client"] == 4
        assert kept.get("digest") is None
        with pytest.raises(KeyError):
            kept["previous"]


BEFORE = bytes(range(32))


def test_the_history_of_a_charge_is_all_of_its_line_but_its_chain():
    spend = {"kind": "spend", "round": 2, "client": 3, "time": "now"}
    told = b'{"client":3,"kind":"spend","round":2,"time":"now"}'
    expected = hashlib.sha256(BEFORE + told).digest()
    assert extended(BEFORE, spend) == expected
    assert extended(BEFORE, {**spend, "previous": "a", "digest": "b"}) == expected
    assert extended(bytes(32), spend) != expected


ROUND = {
    "round": 4,
    "clients": [0, 2],
    "steps": [5, 5],
    "queries": 1,
    "broadcast_sha256": "aa",
    "uploads_sha256": "bb",
    "released_sha256": "cc",
}


def test_the_history_of_a_finished_round_is_what_an_auditor_computes_again():
    told = (
        b'{"broadcast_sha256":"aa","clients":[0,2],"queries":1,"released_sha256":"cc","round":4,'
        b'"steps":[5,5],"uploads_sha256":"bb"}'
    )
    expected = hashlib.sha256(BEFORE + told).digest()
    entry = {**ROUND, "kind": "round", "seconds": 1.5, "previous": "a", "digest": "b"}
    assert extended(BEFORE, entry) == expected
    # What a trainer could choose freely is not in it.
    assert extended(BEFORE, {**entry, "seconds": 2.5, "time": "then"}) == expected
    few = {"kind": "round", "round": 4}
    assert extended(BEFORE, few) == hashlib.sha256(BEFORE + b'{"round":4}').digest()


@pytest.mark.parametrize("kind", ["header", "resume", "claim", "end"])
def test_other_lines_are_no_part_of_the_history(kind):
    assert extended(BEFORE, {**ROUND, "kind": kind}) == BEFORE


def test_the_history_follows_every_line_and_is_the_same_when_opened_again(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.history == bytes(32)
    ledger.append("header", {"rounds": 2})
    assert ledger.history == bytes(32)
    spends = [{"round": 0, "client": client} for client in (0, 1)]
    ledger.append_all("spend", spends)
    ledger.append("round", {**ROUND, "round": 0})
    expected = bytes(32)
    for spend in spends:
        expected = extended(expected, {**spend, "kind": "spend"})
    expected = extended(expected, {**ROUND, "round": 0, "kind": "round"})
    assert ledger.history == expected
    assert Ledger(tmp_path / "ledger.jsonl").history == expected


def test_the_first_line_follows_sixty_four_zeros(tmp_path):
    Ledger(tmp_path / "ledger.jsonl").append("header", {"run": "a"})
    (line,) = (tmp_path / "ledger.jsonl").read_bytes().splitlines()
    assert json.loads(line)["previous"] == "0" * 64
    digest = hashlib.sha256(
        b'{"kind":"header","previous":"' + b"0" * 64 + b'","run":"a"}'
    ).hexdigest()
    assert json.loads(line)["digest"] == digest


def test_fields_cannot_stand_for_the_kind_or_the_chain(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("header", {"kind": "claim", "previous": "x", "digest": "y", "run": "a"})
    (entry,) = Ledger(tmp_path / "ledger.jsonl").entries
    assert (entry["kind"], entry["previous"]) == ("header", GENESIS)


def test_a_kept_spend_is_a_mapping_without_its_chain_and_shares_its_names():
    fields = {"kind": "spend", "client": 3, "previous": "a", "digest": "b", "steps": 5}
    one, other = Spend(fields), Spend({**fields, "client": 4})
    assert dict(one) == {"kind": "spend", "client": 3, "steps": 5}
    assert (list(one), len(one), one["steps"]) == (["kind", "client", "steps"], 3, 5)
    assert "previous" not in one
    assert one._names is other._names
    with pytest.raises(KeyError, match="attempt"):
        one["attempt"]
    assert not hasattr(one, "__dict__")


class Noted:
    """The disk, and what is asked of it in order, with each path's name and each number."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        method = getattr(DISK, name)

        def call(*arguments):
            told = [one.name if isinstance(one, Path) else one for one in arguments]
            plain = [one for one in told if isinstance(one, (str, bytes)) or type(one) is int]
            self.asked.append((name, *plain))
            return method(*arguments)

        return call


def test_a_new_ledger_is_named_on_the_disk_and_a_line_is_there_before_it_counts(tmp_path):
    disk = Noted()
    ledger = Ledger(tmp_path / "ledger.jsonl", disk)
    assert [(one[0], *one[2:]) for one in disk.asked if one[0] != "close"] == [
        ("is_file",),
        ("create", 0o644),
        ("sync_folder",),
    ]
    assert [one[0] for one in disk.asked] == ["is_file", "create", "close", "sync_folder"]
    assert disk.asked[-1] == ("sync_folder", tmp_path.name)
    ledger.append("header", {"run": "a"})
    size = ledger.size
    disk.asked.clear()
    ledger.append_all("spend", [{"client": 0}, {"client": 1}])
    assert [one[0] for one in disk.asked] == ["open", "write", "sync", "close"]
    # Behind what is there, whatever a crash left of an earlier line.
    content = (tmp_path / "ledger.jsonl").read_bytes()
    assert disk.asked[1] in [("write", content[size:], size), ("write", 3, content[size:], size)]
    assert ledger.size == len(content)


def test_lines_of_a_killed_writer_are_synced_when_read_and_a_torn_one_is_cut_off(tmp_path):
    path = tmp_path / "ledger.jsonl"
    content, _ = written(path)
    disk = Noted()
    Ledger(path, disk)
    assert [one[0] for one in disk.asked] == ["is_file", "read", "open", "sync", "close"]
    path.write_bytes(content + b"{")
    disk.asked.clear()
    Ledger(path, disk)
    assert [one[0] for one in disk.asked] == ["is_file", "read", "cut", "open", "sync", "close"]
    assert disk.asked[2] == ("cut", "ledger.jsonl", len(content))
    assert path.read_bytes() == content


def test_a_line_whose_write_failed_does_not_count(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("header", {"run": "a"})
    size, history, entries = ledger.size, ledger.history, list(ledger.entries)
    ledger._disk = Noted()
    ledger._disk.sync = lambda file: (_ for _ in ()).throw(OSError("full"))
    with pytest.raises(OSError, match="full"):
        ledger.append("spend", {"client": 0})
    assert (ledger.size, ledger.history, ledger.entries) == (size, history, entries)
    # What was torn is written over by the next, which follows the line before it.
    ledger._disk = DISK
    ledger.append("spend", {"client": 0, "steps": 12345})
    assert [one["kind"] for one in Ledger(tmp_path / "ledger.jsonl").entries] == ["header", "spend"]


def chained(**fields) -> dict[str, object]:
    body = {"kind": "header", "previous": GENESIS, **fields}
    return {**body, "digest": hashlib.sha256(canonical(body)).hexdigest()}


def without(name) -> dict[str, object]:
    entry = chained(run="a")
    del entry[name]
    return entry


@pytest.mark.parametrize(
    "line",
    [
        # The same entry in another form of bytes, under digests that hold.
        json.dumps(chained(run="a")).encode(),
        canonical(chained(run="a")).replace(b'"run":"a"', b'"run":"b","run":"a"'),
        b" " + canonical(chained(run="a")),
        # No entry at all.
        b"",
        b"7",
        b"null",
        b"[1]",
        b'"text"',
        b"{}",
        b"{",
        b"\xff",
        b'{"run":NaN}',
        canonical(without("previous")),
        canonical(without("digest")),
        canonical({**chained(run="a"), "previous": "1" * 64}),
        canonical({**chained(run="a"), "run": "b"}),
    ],
)
def test_a_whole_line_that_is_no_entry_of_the_chain_is_refused(line, tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(canonical(chained(run="a")) + b"\n")
    assert len(Ledger(path).entries) == 1
    path.write_bytes(line + b"\n")
    with pytest.raises(PrivacyError, match="line 1: the hash chain is broken"):
        Ledger(path)
    # Nothing of it was paid for, so where that is known it is dropped.
    assert Ledger(path, synced=0).entries == []
    assert path.read_bytes() == b""


def test_nothing_behind_a_broken_line_is_kept_even_if_it_follows_the_last_good_one(tmp_path):
    path = tmp_path / "ledger.jsonl"
    content, sizes = written(path)
    # What was never paid for is cut off whole: a line behind it would lie elsewhere than it counts.
    path.write_bytes(content[: sizes[1]] + b"torn\n" + content[sizes[1] :])
    kept = Ledger(path, synced=sizes[1])
    assert (len(kept.entries), kept.size) == (2, sizes[1])
    assert path.read_bytes() == content[: sizes[1]]
