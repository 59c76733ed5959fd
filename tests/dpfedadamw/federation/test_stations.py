"""What a client is asked, and the round as it knows it from that and the broadcast alone."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch

from dpfedadamw.federation.participation import Participation
from dpfedadamw.federation.stations import Asked, Station
from dpfedadamw.federation.worker import Worker
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from tests.dpfedadamw.federation.client_worlds import RATE, federated

PLAIN = "{name: dp-fedavg}"


@pytest.fixture
def asked(tmp_path):
    """A federation, a round of it with numbers of its own, and one client's part."""
    federation, state, _ = federated(PLAIN, tmp_path, by="clients")
    current = federation._begin(federation.plan, state, None, 2)
    broadcast = replace(current.broadcast, local_steps=2, earlier_steps=9)
    plan = replace(current.plan, noise_multiplier=0.75)
    current = replace(
        current, attempt=4, history=b"h" * 32, chosen=(8, 3, 5), broadcast=broadcast, plan=plan
    )
    return federation, Participation(current=current, place=1, client=3, memory={})


def test_a_client_is_asked_for_all_that_is_neither_broadcast_nor_its_own(asked):
    _, part = asked
    assert asdict(Asked.of(part)) == {
        "round": 2, "attempt": 4, "client": 3, "place": 1, "cohort": 3, "local_steps": 2,
        "earlier_steps": 9, "learning_rate": RATE, "noise_multiplier": 0.75, "history": b"h" * 32,
    }  # fmt: skip


def test_a_station_knows_the_round_but_not_who_else_takes_part(asked):
    federation, part = asked
    current = part.current
    station = Station(plan=federation.plan, worker=federation.worker, clients=federation.clients)
    seen = station.round_of(Asked.of(part), current.message)
    assert (seen.index, seen.attempt, seen.history) == (2, 4, b"h" * 32)
    assert seen.chosen == (3, 3, 3)
    assert seen.plan == replace(federation.plan, local_steps=2, noise_multiplier=0.75)
    assert torch.equal(seen.broadcast.parameters, current.broadcast.parameters)
    assert torch.equal(seen.state.parameters, current.broadcast.parameters)
    assert seen.broadcast.state.keys() == current.broadcast.state.keys() == seen.state.state.keys()
    assert (seen.broadcast.learning_rate, seen.broadcast.local_steps) == (RATE, 2)
    assert (seen.broadcast.earlier_steps, seen.message) == (9, current.message)


def test_a_stations_answer_is_that_of_the_run_itself_under_the_noise_it_was_given(asked):
    federation, part = asked
    station = Station(
        plan=federation.plan, worker=federation.worker, clients={3: federation.clients[3]}
    )
    worker, message = federation.worker, part.current.message
    plan = replace(part.current.plan, local_steps=2)
    mine = replace(part, current=replace(part.current, plan=plan)).of(federation.clients[3])
    for seed in (5, 6):
        source = ReproducibleRandomness(seed)
        there = station.answer(Asked.of(part), message, {}, source)
        unit = worker.unit.drawing_from(source)
        here = replace(worker, randomness=source, unit=unit).take_part(mine)
        assert there.message == here.message
        assert (there.result.steps, there.result.queries) == (2, 2)
    assert there.message != worker.take_part(mine).message


def test_a_station_has_one_spot_check_for_all_participations(asked, monkeypatch):
    """One for each would compare the first batch of every participation."""
    federation, part = asked
    made, given = [], []
    unit = federation.worker.unit

    def spot_check(*of):
        made.append(of)
        return "the check"

    def take_part(worker, part):
        given.append(worker._check(part.current.plan))

    monkeypatch.setattr(type(unit), "spot_check", lambda self, *of: spot_check(*of))
    monkeypatch.setattr(Worker, "take_part", take_part)
    station = Station(plan=federation.plan, worker=federation.worker, clients=federation.clients)
    for seed in (5, 6):
        station.answer(Asked.of(part), part.current.message, {}, ReproducibleRandomness(seed))
    assert given == ["the check", "the check"]
    assert len(made) == 1
