"""The ledger: chained, on disk before it returns, and never forgetful."""

from __future__ import annotations

import hashlib
import json
import os

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.ledger import GENESIS, Ledger, canonical


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
