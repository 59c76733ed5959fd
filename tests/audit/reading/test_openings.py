"""What a trainer opens: the auditor draws it, and finds whatever was not committed to."""

from __future__ import annotations

import json

import pytest

from audit.reading.ledger import read_ledger
from audit.reading.openings import (
    Coin,
    Opening,
    Tree,
    histories,
    opened_places,
    participations,
    read_openings,
    stream_key,
)
from audit.reexecution import Participation, draw
from audit.untrusted import UntrustedError
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise import key_tree
from dpfedadamw.privacy.noise.key_tree import KeyTree, PublicCoin, leaf_key

KEY, ROUNDS, CLIENTS = bytes(range(32)), 5, 4
ALL = [Participation(round, client, 1) for round in range(ROUNDS) for client in range(CLIENTS)]
DRAWN = draw(ALL, b"n" * 32, "ab" * 32, 6)
HISTORY, OPENED = b"h" * 32, opened_places(DRAWN)


@pytest.fixture(scope="module")
def keys() -> KeyTree:
    return KeyTree(KEY, ROUNDS, CLIENTS)


def written(keys: KeyTree, places=OPENED, key=KEY) -> dict:
    leaves = [
        {
            "round": one.round,
            "client": one.client,
            "key": leaf_key(key, one.round, one.client).hex(),
            "path": keys.path(one.round, one.client),
        }
        for one in places
    ]
    return {"format": 1, "leaves": leaves}


def tree_of(keys: KeyTree) -> Tree:
    return Tree(keys.root, ROUNDS, CLIENTS)


def opened(document: dict, tree: Tree | None, drawn=DRAWN) -> tuple[Opening, ...]:
    return read_openings(json.dumps(document).encode(), tree, drawn)


def test_keys_that_were_committed_to_are_read_and_give_the_engine_s_streams(keys):
    found = opened(written(keys), tree_of(keys))
    assert [(one.round, one.client) for one in found] == [
        (one.round, one.client) for one in opened_places(DRAWN)
    ]
    for one in found:
        mine = stream_key(one, Coin(b"n" * 32, "run"), "noise", HISTORY)
        place = "noise", one.round, one.client, one.attempt, HISTORY
        assert mine == key_tree.stream_key(one.key, PublicCoin(b"n" * 32, "run"), *place)
        bare = stream_key(one, Coin(), "views", HISTORY)
        place = "views", one.round, one.client, one.attempt, HISTORY
        assert bare == key_tree.stream_key(one.key, PublicCoin(), *place)


@pytest.mark.parametrize(("rounds", "clients"), [(1, 1), (1, 2), (2, 2), (3, 4), (5, 6), (7, 1)])
def test_every_leaf_of_every_shape_of_tree_is_found_under_the_root(rounds, clients):
    keys = KeyTree(KEY, rounds, clients)
    every = [
        Participation(round, client, 1) for round in range(rounds) for client in range(clients)
    ]
    document = written(keys, opened_places(every))
    tree = Tree(keys.root, rounds, clients)
    assert len(opened(document, tree, every)) == rounds * (clients + 1)
    for leaf in document["leaves"]:
        leaf["path"].append("00" * 32)
        with pytest.raises(UntrustedError, match="not the one that the intent committed to"):
            opened(document, tree, every)
        leaf["path"].pop()


def test_a_path_of_a_million_digests_is_refused_before_they_are_read(keys):
    document = written(keys)
    document["leaves"][0]["path"] = ["no digest"] * 65
    with pytest.raises(UntrustedError, match="path is not a list of at most 64 items"):
        opened(document, tree_of(keys))


def test_a_key_that_was_not_committed_to_is_refused(keys):
    with pytest.raises(UntrustedError, match="not the one that the intent committed to"):
        opened(written(keys, key=b"k" * 32), tree_of(keys))


def test_keys_exchanged_between_two_clients_are_refused(keys):
    document = written(keys)
    one, two = document["leaves"][0], document["leaves"][1]
    one["key"], two["key"] = two["key"], one["key"]
    with pytest.raises(UntrustedError, match="not the one that the intent committed to"):
        opened(document, tree_of(keys))
    one["path"], two["path"] = two["path"], one["path"]
    with pytest.raises(UntrustedError, match="not the one that the intent committed to"):
        opened(document, tree_of(keys))


def test_what_was_drawn_is_opened_and_nothing_else(keys):
    document = written(keys)
    gone = document["leaves"].pop(3)
    with pytest.raises(UntrustedError, match="was drawn, but is not opened"):
        opened(document, tree_of(keys))
    other = next(one for one in ALL if one not in DRAWN)
    document["leaves"].append(written(keys, [other])["leaves"][0])
    with pytest.raises(UntrustedError, match="is opened, but was not drawn"):
        opened(document, tree_of(keys))
    document["leaves"][-1] = document["leaves"][0]
    with pytest.raises(UntrustedError, match="is opened twice"):
        opened(document, tree_of(keys))
    document["leaves"][-1] = gone
    assert opened(document, tree_of(keys))


@pytest.mark.parametrize(
    "leaf",
    [
        {},
        {"round": -1},
        {"client": -2},
        {"key": "00"},
        {"key": None},
        {"path": None},
        {"path": ["x"]},
        {"path": [["0" * 64]]},
        {"path": [None]},
        {"path": []},
    ],
)
def test_a_malformed_leaf_is_one_sentence(keys, leaf):
    document = written(keys)
    document["leaves"][0] = {**document["leaves"][0], **leaf} if leaf else {}
    with pytest.raises(UntrustedError):
        opened(document, tree_of(keys))


def test_a_draw_is_of_as_many_as_asked_for_and_moves_with_nonce_and_ledger():
    assert len(DRAWN) == 6
    assert set(DRAWN) < set(ALL)
    assert draw(reversed(ALL), b"n" * 32, "ab" * 32, 6) == DRAWN
    assert draw(ALL, b"m" * 32, "ab" * 32, 6) != DRAWN
    assert draw(ALL, b"n" * 32, "ac" * 32, 6) != DRAWN
    assert set(draw(ALL, b"n" * 32, "ab" * 32, 7)) > set(DRAWN)
    assert draw(ALL, b"n" * 32, "ab" * 32, 99) == tuple(ALL)


def test_every_participation_is_drawn_as_often_as_any_other():
    # 2,000 draws of 5 of 20: each is drawn 500 times, give or take 19.4; 5 deviations allowed.
    counts = dict.fromkeys(ALL, 0)
    for number in range(2000):
        for one in draw(ALL, number.to_bytes(32, "big"), "ab" * 32, 5):
            counts[one] += 1
    assert all(abs(count - 500) < 97 for count in counts.values())


def spend(round: int, client: int, attempt: int = 1) -> dict:
    return {
        "round": round, "client": client, "attempt": attempt, "records": 9, "sampling": "poisson",
        "sampling_rate": 0.5, "expected_batch_size": 4.5, "clipping_norm": 1.0,
        "noise_multiplier": 1.0, "steps": 1, "queries_per_step": 1,
    }  # fmt: skip


def finished(round: int, clients: list[int], digest: str = "aa") -> dict:
    ones = [1] * len(clients)
    digests = {"broadcast_sha256": digest * 32, "state_sha256": "cc" * 32}
    return {"round": round, "clients": clients, "steps": ones, "queries": ones, **digests}


def test_histories_are_those_that_the_engine_draws_under(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("header", {"created": "now"})
    seen: dict[tuple[int, int], tuple[bytes, bytes]] = {}

    def charge(round: int, attempt: int, clients: list[int]) -> None:
        before = ledger.history
        ledger.append_all("spend", [spend(round, client, attempt) for client in clients])
        seen[round, attempt] = before, ledger.history

    charge(0, 1, [0, 1])
    ledger.append("round", finished(0, [0, 1]))
    charge(1, 1, [])
    ledger.append("round", finished(1, []))
    charge(2, 1, [1, 2])
    ledger.append("resume", {"round": 2, "commitment": "dd" * 32})
    charge(2, 2, [2, 3])
    ledger.append("round", finished(2, [2, 3]))
    charge(3, 1, [1])
    ledger.append("resume", {"round": 3, "commitment": "ee" * 32})
    charge(3, 2, [])
    ledger.append("round", finished(3, []))
    raw = (tmp_path / "ledger.jsonl").read_bytes()
    found = histories(raw)
    assert {place: (found.before[place], found.after[place]) for place in found.after} == seen
    assert Ledger(tmp_path / "ledger.jsonl").history == ledger.history
    read = read_ledger(raw)
    assert participations(read) == tuple(
        Participation(*one) for one in ((0, 0, 1), (0, 1, 1), (2, 2, 2), (2, 3, 2))
    )


def test_noise_is_bound_to_what_was_exchanged_and_not_to_what_a_trainer_may_choose(tmp_path):
    def history(name: str, created: str, digest: str, state: str, noise: float = 1.0) -> bytes:
        ledger = Ledger(tmp_path / name)
        ledger.append("header", {"created": created})
        ledger.append("spend", {**spend(0, 0), "noise_multiplier": noise})
        ledger.append("round", {**finished(0, [0], digest), "state_sha256": state})
        return ledger.history

    first = history("a", "now", "aa", "bb")
    assert history("b", "then", "aa", "cc") == first
    assert history("c", "now", "ab", "bb") != first
    assert history("d", "now", "aa", "bb", 2.0) != first
