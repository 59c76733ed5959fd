"""What the auditor pokes at answers with the run's own clipped sums, and with nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpfedadamw.federation import probes
from dpfedadamw.federation.worker import Worker
from dpfedadamw.run.training import probe_of
from tests.runs import begin, small_spec


def client_level(folder, *overrides, algorithm="dp-fedsam"):
    privacy = "privacy={unit: client, clipping_norm: 0.5, noise_multiplier: 2.0, delta: 1.0e-3}"
    return begin(small_spec(algorithm, overrides=(privacy, *overrides)), folder)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    training = begin(small_spec("dp-fedavg"), tmp_path_factory.mktemp("runs"))
    with training.lock:
        yield training


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    training = client_level(tmp_path_factory.mktemp("runs"))
    with training.lock:
        yield training


def asked(shape, seed=0):
    """Seven records: 0, 2, 3 and 6 are the first client's, the others those of the third."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((7, *shape)).astype(np.float32)
    return inputs, generator.integers(0, 10, 7), np.array([0, 2, 0, 0, 2, 2, 0])


def clipped_sum(training, theta, inputs, labels):
    """Σ of the records' gradients at θ, each at most as long as C: by autograd alone."""
    module = copy.deepcopy(training.federation.worker.flat.module).double()
    vector_to_parameters(torch.as_tensor(theta).double(), module.parameters())
    total, longest = torch.zeros(len(theta), dtype=torch.float64), 0.0
    for values, label in zip(inputs, labels, strict=True):
        module.zero_grad()
        outputs = module(torch.from_numpy(values)[None].double())
        cross_entropy(outputs, torch.tensor([int(label)])).backward()
        gradient = parameters_to_vector([one.grad for one in module.parameters()])
        longest = max(longest, float(gradient.norm()))
        total += gradient * min(1.0, training.experiment.plan.clipping_norm / gradient.norm())
    assert longest > training.experiment.plan.clipping_norm
    return total.numpy()


def test_a_step_answers_with_the_clipped_sum_of_the_records_that_are_drawn(training):
    probe = probe_of(training)
    theta = training.state.parameters.detach().numpy().astype(float)
    assert (probe.parameters, probe.clipping_norm) == (650, training.experiment.plan.clipping_norm)
    assert (probe.records_per_person, probe.classes) == (None, 10)
    inputs, labels, owners = asked(probe.input_shape)
    for drawn in ([0, 1, 2, 3], [1, 3], [2]):
        mine = np.flatnonzero(owners == 0)[drawn]
        for at, step in (
            (theta, probe.sum_of_step),
            (theta, probe.precise_sum_of_step),
            (0.5 * theta + 0.05, lambda *given: probe.sum_of_step(*given, elsewhere=True)),
            (-3.0 * theta + 4.0, probe.sum_of_step_far_off),
        ):
            found = step(inputs, labels, owners, np.array(drawn))
            due = clipped_sum(training, at, inputs[mine], labels[mine])
            assert found == pytest.approx(due, abs=2e-5)


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


def test_a_probed_step_draws_alike_views_and_one_batch_and_is_noted_nowhere(training, monkeypatch):
    probe, seen = probe_of(training), []
    oracle = Worker.oracle

    def watching(self, **given):
        seen.append(given)
        return oracle(self, **given)

    monkeypatch.setattr(Worker, "oracle", watching)
    drawn = np.array([0, 2])
    probe.sum_of_step(*asked(probe.input_shape), drawn)
    (given,) = seen
    assert (given["client"], given["local_steps"], given["evidence"]) == (0, 1, None)
    assert given["plan"].noise_multiplier == 0.0
    sampling = given["plan"].sampling
    assert next(sampling.batches(4, None)) is drawn
    assert (sampling.rate(4), sampling.charged_steps(4, 3)) == (1.0, 3)
    assert sampling.normaliser(4) == training.experiment.plan.divisor(0)
    views, others = given["stream"]("views"), given["stream"]("noise")
    first = views.integers(10**6, 9)
    # However many are asked for, each is the same; the next view is another.
    assert set(first.tolist()) == {int(given["stream"]("views").integers(10**6, 1)[0])}
    assert first[0] != views.integers(10**6, 1)[0]
    assert len(set(others.integers(10**6, 9).tolist())) > 1


def test_what_is_read_in_float64_is_the_same_but_for_whole_numbers():
    inputs = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    chosen = torch.tensor([2, 0])
    for given, kind in ((inputs, torch.float64), (inputs.long(), torch.int64)):
        client = probes._InFloat64(given, torch.zeros(3))
        read = client.seen_with(None)[chosen][0:1]
        assert read.dtype == kind
        assert read.tolist() == [[4, 5]]
