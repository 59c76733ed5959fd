"""One client's part: who is asked what, in which order, and who is looked at twice."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.clipping.engines import PerformanceOptions
from dpfedadamw.evidence.record_level import Unobserved
from dpfedadamw.evidence.records import Witness
from dpfedadamw.federation.messages import pack
from dpfedadamw.federation.participation import Participation
from dpfedadamw.federation.worker import Inline, RecordingOracle
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.profiling import profiled
from tests.dpfedadamw.federation.client_worlds import CLIENTS, federated

PLAIN = "{name: dp-fedavg}"


class Told:
    """Notes what it is told, under a name, in a list that others write too."""

    def __init__(self, name, told, **answers):
        self._name, self._told, self._answers = name, told, answers

    def __getattr__(self, what):
        def noted(*given):
            self._told.append((self._name, what, *(float(one) for one in given)))
            return self._answers.get(what, given[0] if given else None)

        return noted


def test_each_question_is_noted_before_it_is_asked_and_its_answer_after():
    told = []
    oracle = Told("oracle", told, gradient=torch.tensor(3.0))
    oracle.noise_variance = 0.25
    exchange = Told("exchange", told, asked=torch.tensor(5.0), answered=torch.tensor(7.0))
    recording = RecordingOracle(oracle, exchange, Told("commitment", told))
    assert recording.noise_variance == 0.25
    recording.next_batch()
    with profiled() as profile:
        assert recording.gradient(torch.tensor(2.0)).item() == 3.0
    assert set(profile.seconds) == {"other", "evidence"}
    # What is committed to is what is kept.
    assert told == [
        ("oracle", "next_batch"),
        ("exchange", "asked", 2.0),
        ("commitment", "point", 5.0),
        ("oracle", "gradient", 2.0),
        ("exchange", "answered", 3.0),
        ("commitment", "gradient", 7.0),
    ]


@pytest.fixture
def world(tmp_path):
    return federated(PLAIN, tmp_path)


def parts(federation, state, *clients):
    current = federation._begin(federation.plan, state, None, 0)
    return [
        Participation(current=current, place=place, client=client, memory={})
        for place, client in enumerate(clients)
    ]


def test_clients_of_this_process_are_run_one_by_one_with_their_own_records(world):
    federation, state, _ = world
    done = []

    class Watching:
        def take_part(self, part):
            done.append((part.client, part.data))
            return part.place

    runner = Inline(Watching(), federation.clients)
    answers = runner.answers(parts(federation, state, 4, 0, CLIENTS - 1))
    assert done == []
    assert next(answers) == 0
    assert [client for client, _ in done] == [4]
    assert list(answers) == [1, 2]
    assert all(data is federation.clients[client] for client, data in done)
    runner.close()


def test_an_answer_says_how_often_its_client_asked_and_what_it_read(world):
    federation, state, _ = world
    (part,) = parts(federation, state, 2)
    current = replace(part.current, broadcast=replace(part.current.broadcast, local_steps=2))
    answer = federation.worker.take_part(replace(part, current=current).of(federation.clients[2]))
    result = answer.result
    assert (result.steps, result.queries, result.evidence, result.seen) == (2, 2, None, {})
    assert result.state.keys() == state.state.keys()


@pytest.mark.parametrize("saw", [True, False])
def test_what_a_witness_saw_goes_with_the_result(world, saw):
    federation, state, recorder = world
    witness = SimpleNamespace(saw=saw, arrays=lambda: {"seen_rows": 7})
    recorder.witness = lambda: witness
    (part,) = parts(federation, state, 2)
    result = federation.worker.take_part(part.of(federation.clients[2])).result
    assert result.seen == ({"seen_rows": 7} if saw else {})


def test_of_records_that_have_no_rows_nothing_is_told_as_seen(world):
    """Empty arrays would read as those of a client that drew no batch."""
    federation, state, recorder = world
    recorder.witness = lambda: Witness(bytes(32))
    (part,) = parts(federation, state, 2)
    result = federation.worker.take_part(part.of(federation.clients[2])).result
    assert result.steps > 0
    assert result.seen == {}


def test_one_check_of_the_engine_serves_all_rounds_and_the_plain_form_needs_none(world):
    federation, _, _ = world
    asked = []

    class Checked:
        def spot_check(self, *given):
            asked.append(given)
            return given

    performance = PerformanceOptions(precision="bfloat16")
    worker = replace(federation.worker, unit=Checked(), performance=performance)
    first = worker._check(federation.plan)
    assert worker._check(replace(federation.plan, rounds=9)) is first
    assert asked == [(federation.worker.flat.module, federation.plan, "bfloat16")]
    plain = replace(worker, engine=SimpleNamespace(name=LoopEngine.name))
    assert plain._check(federation.plan) is None
    assert len(asked) == 1
    # What takes its place has a check of its own: it may be of another unit.
    other = replace(worker, performance=PerformanceOptions())
    assert other._check(federation.plan) is not first
    assert len(asked) == 2


def test_a_rule_reads_the_message_its_own_memory_and_nothing_else_of_the_server(world):
    federation, state, _ = world
    (part,) = parts(federation, state, 2)
    sent = torch.arange(len(state.parameters), dtype=torch.float64)
    current = replace(part.current, message=pack(sent, {"moment": torch.ones(2)}))
    seen = []

    class Rule:
        queries_per_step = 1

        def run(self, broadcast, oracle, observer):
            seen.append((broadcast, oracle.noise_variance, type(observer)))
            for _ in range(2):
                oracle.next_batch()
                oracle.gradient(broadcast.parameters)
            return Upload(torch.zeros_like(broadcast.parameters))

    memory = {"own": torch.ones(3)}
    purposes = []

    class Source:
        def stream(self, purpose, *place):
            purposes.append(purpose)
            return federation.worker.randomness.stream(purpose, *place)

    worker = replace(federation.worker, rule=Rule(), randomness=Source())
    own = replace(part, current=current, memory=memory).of(federation.clients[2])
    with profiled() as profile:
        result = worker.take_part(own).result
    assert "local rule" in profile.seconds
    ((broadcast, noise, observer),) = seen
    assert torch.equal(broadcast.parameters, sent)
    assert {name: value.tolist() for name, value in broadcast.state.items()} == {"moment": [1, 1]}
    assert broadcast.memory is memory
    assert broadcast.learning_rate == part.current.broadcast.learning_rate
    # Clients that are protected as a whole are not noised gradient by gradient.
    assert (noise, observer) == (current.plan.noise_variance(2), Unobserved)
    assert (result.steps, result.queries) == (2, 2)
    assert list(result.state) == ["moment"]
    # Who computes a participation again opens its streams by these names.
    assert sorted(purposes) == ["batches", "noise", "views"]
