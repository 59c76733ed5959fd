"""What is known of a run whose reservation is open, and what it counts at then."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import replace

import pytest

from dpfedadamw.budget import reservations
from dpfedadamw.budget.database import RUNNING, SETTLED, STARTING, Reservation
from dpfedadamw.budget.reservations import Condition, examine, hidden, read_ledger
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.ledger import GENESIS, Ledger, canonical
from tests.dpfedadamw.budget.fake_runs import header, spend

RESERVED = (Composition(8.0, 1.0, 5),)
NUMBER = "0" * 32


def reservation(folder, **changes):
    one = Reservation(
        identifier=NUMBER,
        data_sha256="a" * 64,
        run=folder.name,
        directory=str(folder),
        machine=platform.node(),
        state=RUNNING,
        cost=RESERVED,
    )
    return replace(one, **changes)


def nobody(path):
    return False


@pytest.fixture
def folder(tmp_path):
    """A run that charged two of its five rounds and is not alive any more."""
    made = tmp_path / "fake-1"
    made.mkdir()
    ledger = Ledger(made / "ledger.jsonl")
    ledger.append("header", header(8.0, NUMBER))
    ledger.append("spend", spend(0, 8.0))
    ledger.append("spend", spend(1, 8.0))
    return made


@pytest.mark.parametrize("state", [RUNNING, STARTING])
def test_a_run_that_stopped_counts_at_its_ledger(state, folder):
    condition, cost = examine(reservation(folder, state=state), nobody)
    assert (condition, cost) == (Condition.stopped, (Composition(8.0, 1.0, 2),))


@pytest.mark.parametrize("state", [RUNNING, STARTING])
def test_a_run_on_another_machine_keeps_all_that_it_reserved(state, tmp_path):
    """Its folder is not to be seen from here, whether it starts or trains: it may spend it yet."""
    there = reservation(tmp_path / "not here", state=state, machine="another")
    assert examine(there, nobody) == (Condition.elsewhere, RESERVED)


def test_a_settled_run_counts_at_what_was_settled_wherever_it_was(folder):
    for machine in (platform.node(), "another"):
        one = reservation(folder, state=SETTLED, machine=machine)
        assert examine(one, lambda path: True) == (Condition.settled, RESERVED)


def test_a_run_whose_directory_is_held_is_alive(folder):
    assert hidden(folder) == folder.with_name(".fake-1.starting")
    for state in (RUNNING, STARTING):
        one = reservation(folder, state=state)
        assert examine(one, lambda path: path == folder) == (Condition.running, RESERVED)
    held = examine(reservation(folder, state=STARTING), lambda path: path == hidden(folder))
    assert held == (Condition.starting, RESERVED)
    # Once it runs, its folder has its own name, and nobody's hidden one speaks for it.
    late = examine(reservation(folder), lambda path: path == hidden(folder))
    assert late[0] is Condition.stopped


def test_a_folder_that_is_missing_costs_nothing_only_before_the_run_began(tmp_path):
    missing = tmp_path / "fake-2"
    assert examine(reservation(missing, state=STARTING), nobody) == (Condition.never_began, ())
    assert examine(reservation(missing), nobody) == (Condition.gone, RESERVED)


@pytest.mark.parametrize("state", [RUNNING, STARTING])
def test_a_folder_that_cannot_be_looked_at_keeps_what_was_reserved(state, folder):
    # A file stands where a folder above it should.
    behind = folder / "ledger.jsonl" / "fake-3"
    one = reservation(behind, state=state)
    assert examine(one, nobody) == (Condition.unreadable, RESERVED)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "claim"},
        {"data_sha256": "b" * 64},
        {"budget": {"reservation": "1" * 32}},
        {"budget": {}},
        {"budget": None},
        {"budget": NUMBER},
        {"budget": [NUMBER]},
    ],
)
def test_the_ledger_of_another_run_says_nothing_of_this_one(change, folder):
    whole = header(8.0, NUMBER)
    assert reservations._belongs({**whole, "kind": "header"}, reservation(folder))
    assert not reservations._belongs({**whole, "kind": "header", **change}, reservation(folder))
    (folder / "ledger.jsonl").unlink()
    changed = {**whole, "kind": "header", **change}
    kind = changed.pop("kind")
    Ledger(folder / "ledger.jsonl").append(kind, changed)
    assert examine(reservation(folder), nobody) == (Condition.unreadable, RESERVED)


@pytest.mark.parametrize(
    "fields",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": "much"},
        {"sampling": "by hand"},
        {"steps": None},
        {"client": [1]},
    ],
)
def test_spends_that_make_no_sense_keep_what_was_reserved(fields, folder):
    Ledger(folder / "ledger.jsonl").append("spend", {**spend(2, 8.0), **fields})
    assert examine(reservation(folder), nobody) == (Condition.unreadable, RESERVED)
    Ledger(folder / "ledger.jsonl").append("spend", {"round": 3})
    assert examine(reservation(folder), nobody) == (Condition.unreadable, RESERVED)


def test_a_ledger_is_read_whole_and_left_alone(folder):
    path = folder / "ledger.jsonl"
    content = path.read_bytes()
    entries = read_ledger(path)
    assert [entry["kind"] for entry in entries] == ["header", "spend", "spend"]
    assert [canonical(entry) for entry in entries] == content.splitlines()
    # A line without its end paid for nothing.
    path.write_bytes(content + b'{"kind":"spend"')
    assert read_ledger(path) == entries
    path.write_bytes(content[:-1])
    assert read_ledger(path) == entries[:2]
    path.write_bytes(b"")
    assert read_ledger(path) == []
    assert read_ledger(folder / "missing") == []
    assert read_ledger(folder) == []


def chained(previous, **fields):
    body = {"kind": "header", "previous": previous, **fields}
    return canonical({**body, "digest": hashlib.sha256(canonical(body)).hexdigest()})


def test_one_line_that_does_not_hold_makes_the_whole_ledger_unreadable(folder):
    path = folder / "ledger.jsonl"
    first = chained(GENESIS, run="a")
    good = chained(hashlib.sha256(first).hexdigest(), run="b")
    path.write_bytes(first + b"\n" + good + b"\n")
    assert len(read_ledger(path)) == 2
    entry = json.loads(good)
    for bad in (
        chained(GENESIS, run="b"),
        canonical({**entry, "run": "c"}),
        canonical({name: entry[name] for name in entry if name != "digest"}),
        canonical({name: entry[name] for name in entry if name != "previous"}),
        b"",
        b"null",
        b"7",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"run":NaN}',
    ):
        path.write_bytes(first + b"\n" + bad + b"\n")
        assert read_ledger(path) == []
        path.write_bytes(first + b"\n" + bad + b"\n" + good + b"\n")
        assert read_ledger(path) == []


def test_what_is_known_of_a_run_is_told_in_these_words():
    assert [str(one) for one in Condition] == [
        "settled",
        "starting",
        "running",
        "stopped",
        "never began",
        "on another machine",
        "directory gone",
        "ledger unreadable",
    ]
