"""The second computation by itself: plain sums, and records that lie within rounding of a kink."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedadamw.experiment import Experiment, prepare
from dpfedadamw.privacy.clipped_sum import Clipping
from dpfedadamw.reexecution.plain import PlainGradients
from tests.runs import small_spec

BATCH = 6


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    spec = small_spec(overrides=("model.hidden=[3]",))
    return prepare(spec, torch.device("cpu"))


@pytest.fixture(scope="module")
def gradients(experiment: Experiment) -> PlainGradients:
    return PlainGradients(experiment)


def batch(experiment: Experiment) -> tuple[torch.Tensor, torch.Tensor]:
    train = experiment.dataset.train
    return train.inputs[torch.arange(BATCH)][:], torch.from_numpy(train.labels[:BATCH])


def at_a_kink(experiment: Experiment, row: int) -> torch.Tensor:
    """Parameters at which one record's first hidden unit is 0 but for rounding."""
    model, (inputs, _) = experiment.model, batch(experiment)
    values = {name: value.detach().double() for name, value in model.named_parameters()}
    weight, bias = (name for name in values if values[name].shape[0] == 3)
    reached = float(values[weight][0] @ inputs[row].double().flatten())
    values[bias] = values[bias].clone()
    values[bias][0] = -reached
    return torch.cat([value.reshape(-1) for value in values.values()]).float()


def test_a_norm_that_is_taken_to_be_longer_clips_more_and_a_shorter_one_no_less(
    experiment: Experiment, gradients: PlainGradients
) -> None:
    inputs, labels = batch(experiment)
    point = torch.cat([p.detach().reshape(-1) for p in experiment.model.parameters()])
    own = gradients.clipped_sum(point, inputs, labels, 0.1, np.zeros(BATCH, np.float32))
    assert own.raw_norms.min() > 0.1
    longer = (2.0 * own.raw_norms).astype(np.float32)
    halved = gradients.clipped_sum(point, inputs, labels, 0.1, longer)
    np.testing.assert_allclose(halved.clean, own.clean / 2.0, rtol=1e-6, atol=1e-9)
    shorter = gradients.clipped_sum(point, inputs, labels, 0.1, longer / np.float32(4.0))
    np.testing.assert_array_equal(shorter.clean, own.clean)


@pytest.mark.parametrize("norm", [0.0, 0.5, 2.0, 8e37, 9e37, 3e38])
def test_a_record_counts_as_in_the_run_however_long_its_gradient_is(
    experiment: Experiment, gradients: PlainGradients, norm: float
) -> None:
    inputs, labels = batch(experiment)
    point = torch.cat([p.detach().reshape(-1) for p in experiment.model.parameters()])
    one = gradients.clipped_sum(point, inputs[:1], labels[:1], 1e9, np.zeros(1, np.float32))
    squares = torch.tensor([max(norm, float(one.raw_norms[0])) ** 2], dtype=torch.float64)
    factor = float(Clipping(1.0).weights(squares, torch.float32).factors[0])
    taken = np.array([norm], np.float32)
    found = gradients.clipped_sum(point, inputs[:1], labels[:1], 1.0, taken)
    np.testing.assert_allclose(found.clean, factor * one.clean, rtol=1e-6, atol=0.0)


def test_only_a_record_within_rounding_of_a_kink_moves(
    experiment: Experiment, gradients: PlainGradients
) -> None:
    inputs, labels = batch(experiment)
    moved = gradients.moved(at_a_kink(experiment, 2), inputs, labels)
    others = np.delete(moved, 2)
    assert moved[2] > 1e-3
    assert 0.0 < others.min() <= others.max() < 1e-4
