"""What each round of a federation leaves behind, and when there is no further one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedadamw.algorithms.base import ScheduledRound, cosine_learning_rate
from dpfedadamw.data.datasets import Records
from dpfedadamw.errors import PrivacyError
from dpfedadamw.evidence.exchanges import vector_digest
from dpfedadamw.federation import rounds
from dpfedadamw.federation.client import ClientLevel
from dpfedadamw.federation.messages import pack, view
from dpfedadamw.federation.unprotected import Unprotected
from dpfedadamw.privacy.grid import Grid
from dpfedadamw.privacy.sampling import People
from tests.dpfedadamw.federation.client_worlds import (
    CLIENTS,
    EXPECTED,
    RATE,
    ROUNDS,
    SIZE,
    Ungridded,
    federated,
)
from tests.runs import played

PLAIN = "{name: dp-fedavg}"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A federation that was played, its results, and what it told of its clients."""
    federation, state, recorder = federated(PLAIN, tmp_path_factory.mktemp("world"))
    told, results = [], []
    for result in federation.run(state, 0, lambda *one: told.append(one)):
        federation.ledger.append("round", result.entry)
        results.append(result)
    return federation, results, recorder, told


def test_each_round_says_how_many_are_over_and_the_last_says_that_it_is(world):
    _, results, _, _ = world
    assert [result.completed for result in results] == [1, 2, 3]
    assert [result.last for result in results] == [False, False, True]
    assert [result.learning_rate for result in results] == [RATE] * ROUNDS
    assert all(0 < result.seconds < 60 for result in results)


def test_clients_are_told_one_by_one_as_they_end(world):
    _, _, recorder, told = world
    assert told == [
        (done, len(cohort)) for cohort in recorder.cohorts for done in range(1, len(cohort) + 1)
    ]


def test_the_ledger_says_who_took_part_how_long_and_what_was_published(world):
    federation, results, recorder, _ = world
    for index, result in enumerate(results):
        cohort = recorder.cohorts[index]
        entry = dict(result.entry)
        published = rounds.published(federation.plan, result.state)
        assert entry.pop("parameters_sha256") == vector_digest(published).hex()
        for digest in ("broadcast_sha256", "released_sha256", "participations_sha256"):
            assert len(entry.pop(digest)) == 64
        assert entry == {
            "round": index, "clients": cohort, "steps": [3] * len(cohort),
            "queries": [3] * len(cohort),
        }  # fmt: skip
    for before, after in pairwise(results):
        assert after.entry["broadcast_sha256"] == sha256(before.following).hexdigest()


def test_the_next_broadcast_is_the_state_as_it_is_sent(world):
    for result in world[1]:
        parameters, tensors = view(result.following, result.state.parameters)
        assert torch.equal(parameters, result.state.parameters)
        assert tensors.keys() == result.state.state.keys()


def test_the_traffic_that_is_published_is_that_of_as_many_clients_as_are_expected(world):
    _, results, recorder, _ = world
    assert {len(cohort) for cohort in recorder.cohorts} != {EXPECTED}
    assert {result.traffic for result in results} == {
        (EXPECTED * size, EXPECTED * size) for size in [len(results[0].following)]
    }


def test_each_client_of_a_round_has_a_commitment_in_its_release(world):
    _, _, recorder, _ = world
    for cohort, release in zip(recorder.cohorts, recorder.releases, strict=True):
        assert len(release.commitments) == len(release.raw_norms) == len(cohort)
        assert release.kept_by_clients == []
        assert release.divisor == EXPECTED


def test_clients_whose_coordinates_are_public_keep_the_same(tmp_path):
    section = "{name: dp-fedsam-randk, sparsification: {fraction: 0.5}}"
    federation, state, recorder = federated(section, tmp_path)
    list(played(federation, state))
    for cohort, release in zip(recorder.cohorts, recorder.releases, strict=True):
        assert len(release.kept_by_clients) == len(cohort)
        assert all(torch.equal(kept, release.kept) for kept in release.kept_by_clients)
        assert len(release.kept) == SIZE // 2


def test_the_step_size_of_a_round_follows_its_schedule(tmp_path):
    federation, state, _ = federated(PLAIN, tmp_path, schedule="cosine")
    rates = [result.learning_rate for result in played(federation, state)]
    assert rates == [cosine_learning_rate(RATE, index, ROUNDS) for index in range(ROUNDS)]


@dataclass
class Silent:
    """Runs clients as ever, but some of them give no answer."""

    inner: object
    lost: set[int]
    asked: list[int]

    def answers(self, parts):
        self.asked += [part.client for part in parts]
        for part, answer in zip(parts, self.inner.answers(parts), strict=True):
            yield None if part.client in self.lost else answer

    def close(self):
        pass


def test_a_client_that_gives_no_answer_is_charged_and_is_not_among_those_that_did(tmp_path):
    federation, state, recorder = federated(PLAIN, tmp_path)
    silent = Silent(federation.runner, {0, 1, 2, 3}, [])
    told = []
    federation = replace(federation, elsewhere=silent)
    first = next(federation.run(state, 0, lambda *one: told.append(one)))
    lost = [client for client in silent.asked if client in silent.lost]
    kept = [client for client in silent.asked if client not in silent.lost]
    assert lost
    assert kept
    assert (first.entry["clients"], first.entry["dropped"]) == (kept, lost)
    assert recorder.cohorts[0] == kept
    assert len(first.entry["steps"]) == len(told) == len(kept)
    (spend,) = federation.ledger.of_kind("spend")
    assert spend["clients"] == silent.asked


def test_what_a_client_keeps_for_itself_is_there_when_it_takes_part_again(tmp_path):
    federation, state, _ = federated(PLAIN, tmp_path)
    given = []

    class Keeping:
        def __init__(self, inner):
            self.inner = inner

        def answers(self, parts):
            for part, answer in zip(parts, self.inner.answers(parts), strict=True):
                given.append((part.current.index, part.client, dict(part.memory)))
                upload = answer.result.upload
                # Every second client keeps something.
                memory = {"mine": torch.tensor([float(part.client)])} if part.client % 2 else {}
                result = replace(answer.result, upload=replace(upload, memory=memory))
                yield replace(answer, result=result)

        def close(self):
            pass

    federation = replace(federation, elsewhere=Keeping(federation.runner))
    results = list(played(federation, state))
    seen = set()
    for index, client, memory in given:
        known = client % 2 and client in {who for at, who in seen if at < index}
        assert list(memory) == (["mine"] if known else [])
        assert not memory or memory["mine"].item() == client
        seen.add((index, client))
    assert set(results[-1].state.memories) == {client for _, client in seen if client % 2}


class Schedule:
    """Gives some steps and some noise in each round, and notes what it goes by."""

    def __init__(self, *steps):
        self.steps, self.inputs = steps, []

    def next_round(self, state, inputs):
        self.inputs.append(inputs)
        return ScheduledRound(self.steps[inputs.round_index], 2.0)

    def readings(self, state):
        return {"seen": len(self.inputs)}


class Bound:
    """Lets every round pass, and notes what it was asked."""

    def __init__(self):
        self.asked = []

    def check(self, *asked):
        self.asked.append(asked)


def test_a_schedule_chooses_steps_and_noise_and_goes_by_what_was_charged(tmp_path, monkeypatch):
    federation, state, recorder = federated(PLAIN, tmp_path)
    bound, schedule = Bound(), Schedule(2, 1, 0)
    federation = replace(federation, round_schedule=schedule)
    monkeypatch.setattr(type(federation.plan), "spending_bound", bound, raising=False)
    results = list(played(federation, state))
    # A round of no steps is none.
    assert [result.completed for result in results] == [1, 2]
    assert [set(result.entry["steps"]) for result in results] == [{2}, {1}]
    assert [result.entry["released"] for result in results] == [{"seen": 1}, {"seen": 2}]
    noise = federation.plan.noise_multiplier
    assert bound.asked == [(0, 2, 2 * noise, 0), (1, 1, 2 * noise, 0)]
    plain = federation.plan.update_noise_standard_deviation
    assert [release.deviation for release in recorder.releases] == [2 * plain] * 2
    first = schedule.inputs[0]
    assert (first.round_index, first.rounds, first.local_steps) == (0, ROUNDS, 3)
    assert (first.spent_steps, first.step_limit) == (0, None)
    assert first.clipping_norm == federation.plan.clipping_norm
    # Clients that are protected as a whole are charged for no steps: the plan's count.
    assert [inputs.previous_steps for inputs in schedule.inputs] == [3, 3, 3]


def test_the_steps_before_are_those_that_the_last_round_was_charged(tmp_path):
    federation, _, _ = federated(PLAIN, tmp_path)
    spent = [
        {"round": 0, "attempt": 1, "steps": 7}, {"round": 1, "attempt": 1, "steps": 5},
    ]  # fmt: skip
    federation.ledger.append_all("spend", spent)
    found = [federation._inputs(index) for index in range(3)]
    assert [one.previous_steps for one in found] == [3, 7, 5]
    assert {one.spent_steps for one in found} == {12}
    assert found[0].noise_variance == federation.plan.noise_variance(0)


def test_no_round_is_charged_beyond_the_limit_on_epsilon(tmp_path, monkeypatch):
    federation, state, _ = federated(PLAIN, tmp_path)

    class Watch:
        def allows(self, entries, index):
            return index < 2

    monkeypatch.setattr(type(federation.plan), "watch", Watch(), raising=False)
    results = list(played(federation, state))
    assert [(result.completed, result.last) for result in results] == [(1, False), (2, True)]
    assert len(list(federation.ledger.of_kind("spend"))) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_round_is_charged_for_a_model_that_is_no_numbers(tmp_path, bad):
    federation, state, _ = federated(PLAIN, tmp_path)
    parameters = state.parameters.clone()
    parameters[3] = bad
    gone = replace(state, parameters=parameters)
    assert list(federation.run(gone, 0)) == []
    assert federation.ledger.entries == []
    assert rounds.divergence(gone, 5) == {"diverged": {"rounds": 5}}
    assert rounds.divergence(state, 5) == {}
    moments = replace(state, state={"moment": torch.tensor([bad]), "empty": torch.zeros(0)})
    assert rounds.has_diverged(moments)
    counts = replace(state, state={"count": torch.tensor([3]), "empty": torch.zeros(0)})
    assert not rounds.has_diverged(counts)


def test_a_plan_that_promises_privacy_without_noise_runs_no_round(tmp_path):
    federation, state, _ = federated(PLAIN, tmp_path)
    silent = replace(federation, plan=replace(federation.plan, noise_multiplier=0.0))
    with pytest.raises(PrivacyError, match="round 0: the plan of a private run has no noise"):
        next(silent.run(state, 0))
    assert federation.ledger.entries == []


def test_a_round_that_is_begun_again_is_another_attempt_of_the_same_seed(tmp_path):
    federation, state, recorder = federated(PLAIN, tmp_path)
    first = next(federation.run(state, 0))
    again = []
    recorder.write_round = lambda index, attempt, *rest: again.append((index, attempt, rest[1]))
    second = next(federation.run(state, 0))
    ((index, attempt, release),) = again
    assert (index, attempt) == (0, 2)
    assert [spend["attempt"] for spend in federation.ledger.of_kind("spend")] == [1, 2]
    assert torch.equal(release.noisy_sum, recorder.releases[0].noisy_sum)
    assert torch.equal(first.state.parameters, second.state.parameters)


def test_a_run_goes_on_from_a_later_round_and_from_the_message_that_is_there(tmp_path):
    whole, state, _ = federated(PLAIN, tmp_path)
    results = list(played(whole, state))
    (tmp_path / "other").mkdir()
    federation, begin, _ = federated(PLAIN, tmp_path / "other")
    first = next(played(federation, begin))
    message = pack(first.state.parameters, first.state.state)
    assert message == first.following
    second = next(federation.run(first.state, 1, None, message))
    assert torch.equal(second.state.parameters, results[1].state.parameters)
    assert second.completed == 2


def test_records_are_divided_by_their_owners_in_their_order():
    values = np.arange(6, dtype=np.float32).reshape(6, 1)
    owner = np.array([2, 0, 2, 0, 2, 3])

    class Inputs:
        def to(self, device):
            return self

        def select(self, rows):
            return torch.from_numpy(values[rows])

    records = Records(Inputs(), np.arange(10, 16))
    people = People(np.array([0, 1, 2, 3, 4, 5]), 1)
    found = rounds.client_data(records, owner, 5, torch.device("cpu"), people)
    assert [one.labels.tolist() for one in found] == [[11, 13], [], [10, 12, 14], [15], []]
    assert [one.inputs.flatten().tolist() for one in found][2] == [0.0, 2.0, 4.0]
    assert all(one.people is not None for one in found)
    alone = rounds.client_data(records, owner, CLIENTS, torch.device("cpu"))
    assert (len(alone), alone[0].people) == (CLIENTS, None)


def test_earlier_steps_are_those_of_all_rounds_where_an_empty_one_moves_the_model_too(tmp_path):
    federation, state, _ = federated(PLAIN, tmp_path)
    # At client level a round without clients releases noise, and so counts.
    assert [federation._earlier_steps(index) for index in (0, 1, 2)] == [0, 3, 6]
    assert federation._begin(federation.plan, state, None, 2).broadcast.earlier_steps == 6
    plain = replace(federation, worker=replace(federation.worker, unit=Unprotected()))
    plain.ledger.append_all("round", [{"round": 0, "steps": [2, 2]}, {"round": 1, "steps": []}])
    assert [plain._earlier_steps(index) for index in (0, 1, 2)] == [0, 2, 2]


def test_a_model_is_published_on_the_grid_of_weights_and_as_it_is_without_one(tmp_path):
    federation, state, _ = federated(PLAIN, tmp_path)
    state = replace(state, parameters=torch.tensor([1.0 + 2.0**-9, 2.0**-9, -3.0]))
    for grid, due in (
        (None, state.parameters),
        (Grid(update=12, weights=4), torch.tensor([1, 0, -3.0])),
    ):
        plan = replace(federation.plan, unit=SimpleNamespace(grid=grid))
        assert torch.allclose(rounds.published(plan, state), due.to(state.parameters), atol=2**-8)
        assert torch.equal(rounds.published(plan, state), state.parameters) == (grid is None)


class Coarse(Ungridded):
    """Weights of six bits, so that it shows which model lies on their grid."""

    grid = Grid(update=52, vectors=52, summaries=52, weights=6)


def test_only_the_last_model_is_put_on_the_grid_of_weights(tmp_path):
    federation, state, _ = federated(PLAIN, tmp_path)
    federation = replace(federation, plan=replace(federation.plan, unit=Coarse()))
    results = list(played(federation, state))
    on_it = [
        torch.equal(rounds.published(federation.plan, one.state), one.state.parameters)
        for one in results
    ]
    assert on_it == [False, False, True]
    for one in results:
        published = rounds.published(federation.plan, one.state)
        assert one.entry["parameters_sha256"] == vector_digest(published).hex()


def test_each_clients_records_keep_their_order_however_many_there_are():
    owner = np.random.default_rng(4).integers(0, 3, 500)

    class Inputs:
        def to(self, device):
            return self

        def select(self, rows):
            return torch.from_numpy(rows)

    found = rounds.client_data(Records(Inputs(), np.arange(500)), owner, 3, torch.device("cpu"))
    for client, one in enumerate(found):
        assert (
            one.labels.tolist() == one.inputs.tolist() == np.flatnonzero(owner == client).tolist()
        )


def test_what_is_as_long_as_the_model_is_let_go_of_once_it_is_sent(tmp_path, monkeypatch):
    federation, state, _ = federated(PLAIN, tmp_path)
    kept, receive = [], ClientLevel.receive

    def watching(self, current):
        kept.extend(len(answer.result.upload.update) for answer in current.answers)
        return receive(self, current)

    monkeypatch.setattr(ClientLevel, "receive", watching)
    list(played(federation, state))
    assert set(kept) == {0}
