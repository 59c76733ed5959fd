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


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    training = begin(small_spec("dp-fedavg"), tmp_path_factory.mktemp("runs"))
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
