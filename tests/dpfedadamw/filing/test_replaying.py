"""What is wrong with the data, before anything of a run is computed again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpfedadamw.filing import replaying
from dpfedadamw.filing.replaying import OWN_BITS, Order, _data_faults, replay_of
from dpfedadamw.privacy.noise.key_tree import data_commitment
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.reexecution.history import Keys

OTHER = "the records' contents are not those that the ledger's header committed to"
OTHERS = "whom the records are about is not what the ledger's header committed to"


@pytest.mark.parametrize(
    ("header", "faults"),
    [
        ({}, []),
        ({"contents_sha256": "a" * 64}, []),
        ({"contents_sha256": "b" * 64}, [OTHER]),
        ({"people_sha256": "c" * 64}, []),
        ({"people_sha256": "d" * 64}, [OTHERS]),
    ],
)
def test_contents_that_were_committed_to_are_computed_again_from_the_data(
    header: dict[str, str], faults: list[str]
) -> None:
    rerun: Any = SimpleNamespace(
        ledger=SimpleNamespace(header=header),
        experiment=None,
        contents_digest=lambda: "a" * 64,
        people_digest=lambda: "c" * 64,
        same_counts=lambda: True,
    )
    order = Order(keys=KEYS, count=1, seed=bytes(32), salts={})
    assert list(_data_faults(rerun, order)) == faults


KEYS = Keys(lambda _: ReproducibleRandomness(0))


def the_same(**more: Any) -> Any:
    """A run whose data are those that it began with."""
    experiment = SimpleNamespace(dataset=SimpleNamespace(train="records"), owner="owner")
    return SimpleNamespace(
        **{
            "ledger": SimpleNamespace(header={}),
            "experiment": experiment,
            "same_counts": lambda: True,
            **more,
        }
    )


def test_other_histograms_and_other_records_of_those_who_were_drawn_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = [bytes([client]) * 32 for client in range(4)]
    salts = {client: bytes([9 - client]) * 32 for client in (3, 2, 1, 0)}
    monkeypatch.setattr(
        replaying, "client_digests", lambda _records, _owner, count: digests[:count]
    )
    promised = [data_commitment(salts[one], one, digests[one]) for one in range(4)]
    promised[0], promised[1] = promised[1], promised[0]
    asked = {one: salts[one] for one in (3, 1)}
    order = Order(keys=KEYS, count=1, seed=b"", promised=tuple(promised), salts=asked)
    (fault,) = _data_faults(the_same(), order)
    assert fault.startswith("client 1: ")
    both = Order(keys=KEYS, count=1, seed=b"", promised=tuple(promised), salts=salts)
    other = the_same(same_counts=lambda: False)
    found = list(_data_faults(other, both))
    assert "histograms" in found[0]
    assert [one[:9] for one in found[1:]] == ["client 0:", "client 1:"]


def test_rounds_are_computed_one_by_one_and_told_of_after_their_cost() -> None:
    cost, told = SimpleNamespace(rounds=2), list[Any]()

    def rounds(drawn: Any, last: int) -> Any:
        assert (drawn, last) == ([(0, 1), (3, 2)], 5)
        for name in ("first", "second"):
            told.append(name)
            yield name

    rerun = the_same(
        cost=lambda drawn, last: cost if (len(drawn), last) == (2, 5) else None,
        rounds=rounds,
        executed_start="start",
    )
    order = Order(keys=KEYS, count=7, seed=b"seed", salts={})
    replay = replay_of(rerun, order, told.append, lambda *done: told.append(done))
    assert (replay.count, replay.seed, replay.faults) == (7, b"seed", ())
    assert (replay.drawn_by, replay.start) == (OWN_BITS, "start")
    assert list(replay.rounds([(0, 1), (3, 2)], 5)) == ["first", "second"]
    assert told == [cost, "first", (1, 2), "second", (2, 2)]


@pytest.mark.parametrize(
    ("rounds", "clients", "seconds", "more", "count"),
    [
        # 22 of 100 rounds again, and 20 of 1,000 participations for 15 times as long: 0.52.
        (100, 10, 115.3, {}, 20),
        (100, 10, 115.5, {}, 0),
        # All of it again, and 15 times as long alone: 16.
        (1, 1, 3.75, {}, 20),
        (1, 1, 3.76, {}, 0),
        # Half of 44 rounds, and 20 of 44 participations: 0.5 and 6.818.
        (44, 1, 8.19, {}, 20),
        (44, 1, 8.21, {}, 0),
        (1, 1, 1.0, {"unit": "none"}, 0),
        (1, 1, 1.0, {"device": "cuda"}, 0),
        (1, 1, 1.0, {"engine": "flower"}, 0),
    ],
)
def test_twenty_participations_are_computed_again_where_a_minute_is_enough(
    rounds: int,
    clients: int,
    seconds: float,
    more: dict[str, str],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaying, "BY_DEFAULT", 20)
    federation = SimpleNamespace(
        engine=more.get("engine", "inline"), rounds=rounds, clients_per_round=clients
    )
    privacy = SimpleNamespace(unit=more.get("unit", "record"))
    experiment = SimpleNamespace(
        spec=SimpleNamespace(federation=federation, privacy=privacy),
        device=SimpleNamespace(type=more.get("device", "cpu")),
    )
    trained: Any = SimpleNamespace(experiment=experiment)
    assert replaying.by_default(trained, seconds) == count
