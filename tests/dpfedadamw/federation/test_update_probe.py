"""The sum of a probed round is that of its clients' clipped updates, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedadamw.federation.worker import Worker
from dpfedadamw.run.training import probe_of
from tests.dpfedadamw.federation.test_probes import asked
from tests.runs import begin, small_spec


def client_level(folder, *overrides, algorithm="dp-fedsam"):
    privacy = "privacy={unit: client, clipping_norm: 0.5, noise_multiplier: 2.0, delta: 1.0e-3}"
    return begin(small_spec(algorithm, overrides=(privacy, *overrides)), folder)


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    training = client_level(tmp_path_factory.mktemp("runs"))
    with training.lock:
        yield training


def test_the_sum_of_made_up_updates_is_that_of_each_cut_to_c(clients):
    probe = probe_of(clients)
    assert (probe.unit, probe.parameters, probe.clipping_norm) == ("client", 650, 0.5)
    changes = np.random.default_rng(1).standard_normal((3, 650)).astype(np.float32)
    changes[1] *= 0.1 / np.linalg.norm(changes[1])
    norms = np.linalg.norm(changes.astype(float), axis=1)
    due = (changes * np.minimum(1.0, 0.5 / norms)[:, None]).sum(axis=0)
    assert probe.clipped_sum_of_updates(changes) == pytest.approx(due, abs=1e-6)
    assert not probe.clipped_sum_of_updates(changes[:0]).any()


def test_the_sum_of_a_round_is_that_of_its_clients_without_noise(clients):
    probe = probe_of(clients)
    before = clients.state.parameters.clone()
    given = asked(probe.input_shape)
    both = probe.sum_of_round(*given, (0, 2))
    alone = [probe.sum_of_round(*given, (client,)) for client in (0, 2)]
    assert both == pytest.approx(alone[0] + alone[1], abs=1e-5)
    assert np.array_equal(both, probe.sum_of_round(*given, (0, 2)))
    assert all(0.0 < np.linalg.norm(one) <= 0.5 * (1 + 1e-6) for one in alone)
    assert not np.allclose(alone[0], alone[1])
    elsewhere = probe.sum_of_round(*given, (0, 2), elsewhere=True)
    assert not np.allclose(both, elsewhere)
    assert torch.equal(clients.state.parameters, before)
    assert not probe.sum_of_round(*given, ()).any()


def test_a_probed_client_takes_two_of_its_steps_at_most(tmp_path):
    sums = {}
    for steps in (1, 2, 3):
        training = client_level(
            tmp_path / str(steps), f"federation.local_steps={steps}",
            "algorithm.learning_rate=0.01", algorithm="dp-fedavg",
        )  # fmt: skip
        with training.lock:
            probe = probe_of(training)
            sums[steps] = probe.sum_of_round(*asked(probe.input_shape), (0,))
    assert np.array_equal(sums[2], sums[3])
    # Nothing is clipped here, and a second step goes about as far again.
    one, two = (np.linalg.norm(sums[steps]) for steps in (1, 2))
    assert 1.8 * one < two < 2.0 * one < 0.5


def test_a_probed_round_is_a_first_one_without_noise_and_nothing_is_planted_in_it(
    tmp_path, monkeypatch
):
    training = client_level(tmp_path, "privacy.noise_added_by=clients")
    training.lock.release()
    probe, seen = probe_of(training), []
    take_part = Worker.take_part

    def watching(self, part):
        seen.append((self, part))
        return take_part(self, part)

    monkeypatch.setattr(Worker, "take_part", watching)
    probe.sum_of_round(*asked(probe.input_shape), (2, 0))
    assert [(part.place, part.client, part.memory) for _, part in seen] == [(0, 2, {}), (1, 0, {})]
    for worker, part in seen:
        current, broadcast = part.current, part.current.broadcast
        assert (current.index, current.attempt, current.chosen) == (0, 1, (2, 0))
        assert (broadcast.earlier_steps, broadcast.learning_rate) == (0, 0.1)
        assert current.plan.records == (4, 0, 3)
        assert (current.plan.noise_multiplier, current.plan.noise_added_by) == (0.0, "server")
        assert current.state.memories == {}
        assert worker.unit.observer is None
        assert len(part.data.labels) == current.plan.records[part.client]


def test_public_coordinates_of_the_probe_are_those_of_the_first_round(tmp_path):
    sparse = (
        "algorithm={name: dp-fedsam-randk, learning_rate: 0.1, sparsification: {fraction: 0.1}}"
    )
    training = client_level(tmp_path, sparse)
    training.lock.release()
    changes = np.random.default_rng(1).standard_normal((2, 650)).astype(np.float32)
    found = np.flatnonzero(probe_of(training).clipped_sum_of_updates(changes))
    assert found.tolist() == training.experiment.plan.sparsification.draw(0).tolist()
