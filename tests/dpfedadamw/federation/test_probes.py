"""What the auditor pokes at answers with the run's own clipped sums, and with nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

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
