"""What is read off a loop's objects at each step, and that they are left as they were."""

from __future__ import annotations

import hashlib
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpfedadamw.extensions.recorders.evidence import Charge, fingerprint
from dpfedadamw.extensions.recorders.opacus.attachment import (
    Attachment,
    _by_record,
    _places,
    _settings_of,
    digest_of,
    fingerprint_of,
)


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values))


@pytest.mark.parametrize(
    ("rule", "given", "due"),
    [
        (torch.optim.SGD, {"lr": 0.1}, [0.1, 0, 0, 0, 0, 0, 0, 0]),
        (
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01},
            [0.1, 0.9, 0.2, 0.01, 0, 0, 0, 0],
        ),
        (
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9, "nesterov": True},
            [0.1, 0.9, 0, 0, 1, 0, 0, 0],
        ),
        (
            torch.optim.AdamW,
            {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.02},
            [0.01, 0, 0, 0.02, 0, 0.8, 0.95, 1e-6],
        ),
    ],
)
def test_the_settings_of_an_update_stand_in_the_order_of_the_format(
    rule: Any, given: dict[str, Any], due: list[float]
) -> None:
    optimizer = rule([parameter(1.0)], **given)
    assert _settings_of(optimizer.param_groups[0]) == due


def test_chosen_coordinates_are_found_in_the_parameter_that_has_them() -> None:
    parameters = [torch.zeros(3), torch.zeros(0, 2), torch.zeros(2, 2)]
    found = _places(parameters, np.array([0, 2, 3, 6]))
    assert [one.tolist() for one in found] == [[0, 2], [], [0, 3]]


def test_each_record_has_one_row_of_gradients_for_each_backward_pass() -> None:
    gradients = torch.arange(24.0).reshape(2, 3, 4)
    (one,) = _by_record(gradients)
    assert torch.equal(one, gradients.reshape(2, 12))
    first, second = _by_record([gradients, torch.ones(5)])
    assert (first.shape, second.shape) == ((2, 12), (5, 1))
    assert _by_record(None) == []


def test_checksum_and_digest_are_those_of_the_parameters_as_float32() -> None:
    values = [torch.tensor([[-1.0, 2.5]]).double(), torch.tensor([-0.0])]
    plain = struct.pack("<3f", -1.0, 2.5, -0.0)
    assert fingerprint_of(values) == 2**53 + sum(struct.unpack("<3i", plain))
    assert fingerprint_of(values) == fingerprint([one.float().numpy() for one in values])
    assert digest_of(values) == hashlib.sha256(plain).hexdigest()
    turned = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T
    assert digest_of([turned]) == hashlib.sha256(struct.pack("<4f", 1, 3, 2, 4)).hexdigest()


def test_each_sampled_coordinate_has_the_group_of_its_parameter() -> None:
    parameters = [parameter(1.0, 2.0), parameter(3.0), parameter(4.0, 5.0)]
    groups = [{"params": [parameters[2]]}, {"params": [parameters[0]]}]
    places = [torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1])]
    fake: Any = SimpleNamespace(
        _optimizer=SimpleNamespace(param_groups=groups), parameters=parameters, _places=places
    )
    # What the optimiser does not have is counted to its first group.
    found = Attachment._groups(fake)
    assert (found.tolist(), found.dtype) == ([1, 1, 0, 0], np.int64)


@pytest.mark.parametrize(
    ("changes", "rate", "divisor"),
    [
        ({}, 0.125, 24.0),
        ({"accumulated_iterations": 3}, 0.375, 72.0),
        ({"accumulated_iterations": 0}, 0.125, 24.0),
        # Nobody is drawn more often than always.
        ({"accumulated_iterations": 16}, 1.0, 384.0),
        ({"loss_reduction": "sum"}, 0.125, 1.0),
        ({"loss_reduction": "sum", "expected_batch_size": None}, 0.125, 1.0),
    ],
)
def test_a_step_is_charged_at_what_opacus_bills(
    changes: dict[str, Any], rate: float, divisor: float
) -> None:
    plain = {
        "accumulated_iterations": 1, "expected_batch_size": 24, "loss_reduction": "mean",
        "max_grad_norm": 0.5, "noise_multiplier": 1.5,
    }  # fmt: skip
    loader = DataLoader(TensorDataset(torch.zeros(16)), batch_size=2)
    fake: Any = SimpleNamespace(_optimizer=SimpleNamespace(**plain | changes), _loader=loader)
    assert Attachment._charge(fake) == Charge(
        sampling_rate=rate,
        expected_batch_size=divisor,
        clipping_norm=0.5,
        noise_multiplier=1.5,
    )


def test_what_lies_between_the_sums_before_and_after_noise_is_the_noise() -> None:
    noised, untouched, bare = parameter(1.0, 2.0, 0.0), parameter(7.0, 7.0), parameter(5.0)
    noised.grad, noised.summed_grad = torch.tensor([1.0, 2.0, -8.0]), torch.tensor([0.5, 2.0, 1.0])
    bare.grad = torch.tensor([3.0])
    untouched.summed_grad = torch.tensor([2.0, 0.0])
    fake: Any = SimpleNamespace(
        parameters=[noised, untouched, bare],
        _places=[torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([0])],
        _summed=[torch.tensor([2]), torch.tensor([0]), torch.tensor([0])],
        _optimizer=SimpleNamespace(noise_multiplier=2.0, max_grad_norm=1.5),
        _squares=torch.tensor([1.0, 1.0, 1.0]),
    )
    found = Attachment._look(fake, np.array([0.5, 1.0, 0.0, 0.0]))
    assert found.noise_sum_squares.tolist() == [81.25, 0.0, 9.0]
    assert found.clean_sum_squares.tolist() == [5.25, 4.0, 0.0]
    assert (found.silent, found.largest) == (3, 9.0)
    assert found.noise.tolist() == [0.5, -9.0, 0.0, 3.0]
    assert (found.clean.tolist(), found.clean.dtype) == ([0.5, 1.0, 0.0, 0.0], np.float32)
    # In units of the deviation that is charged, which is 3.
    assert fake._squares.tolist() == [10.0, 1.0, 2.0]
    noised.grad = torch.tensor([10.5, 2.0, 1.0])
    assert Attachment._look(fake, np.zeros(4)).largest == 10.0


IMAGES, TOKENS = torch.zeros(5, 3, 4), torch.zeros(5, 7, dtype=torch.int64)
LABELS = torch.zeros(5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("args", "keywords", "due"),
    [
        ((IMAGES,), {}, ((3, 4), None, False)),
        ((TOKENS,), {}, ((7,), None, True)),
        ((), {"pixels": IMAGES}, ((3, 4), "pixels", False)),
        ((), {"pixels": IMAGES, "labels": LABELS}, ((3, 4), "pixels", False)),
        ((IMAGES,), {"labels": LABELS, "scale": 2.0}, ((3, 4), None, False)),
        # A model of transformers makes up its masks.
        ((), {"input_ids": TOKENS, "attention_mask": TOKENS}, ((7,), "input_ids", True)),
        # More than one tensor, and nobody says which are records.
        ((IMAGES, LABELS), {}, None),
        ((IMAGES, IMAGES), {}, None),
        ((), {"left": IMAGES, "right": IMAGES}, None),
        ((IMAGES,), {"input_ids": TOKENS}, None),
        ((), {"input_ids": IMAGES, "attention_mask": TOKENS}, None),
        ((LABELS,), {}, None),
        ((), {}, None),
    ],
)
def test_of_what_a_model_reads_the_shape_of_one_record_is_kept(
    args: Any, keywords: Any, due: Any
) -> None:
    passed: list[int] = []
    fake: Any = SimpleNamespace(
        _template=None, _batches=SimpleNamespace(forward=lambda: passed.append(1))
    )
    Attachment._forward(fake, nn.Identity(), args, keywords)
    assert fake._template == due
    # The first call that says it holds.
    Attachment._forward(fake, nn.Identity(), (torch.zeros(5, 9),), {})
    assert fake._template == (((9,), None, False) if due is None else due)
    assert len(passed) == 2


class Spoilt(Exception):  # noqa: N818  # it is no error of anything
    """Ends what is undisturbed."""


@pytest.mark.parametrize("ends", [False, True])
def test_what_is_undisturbed_is_afterwards_as_it_was(ends: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model[2].eval()
    parameters = [*model[0].parameters()]
    gradient = torch.ones(2, 2)
    parameters[0].grad, parameters[0].grad_sample = gradient, None
    optimizer = SimpleNamespace(_is_last_step_skipped=True, _step_skip_queue=[True, False])
    queue = optimizer._step_skip_queue
    fake: Any = SimpleNamespace(
        parameters=parameters, inner=model, _model=model, _optimizer=optimizer
    )
    before = {name: one.clone() for name, one in model.state_dict().items()}
    drawn = torch.get_rng_state()
    try:
        with Attachment.undisturbed(fake):
            torch.nn.init.normal_(parameters[0])
            torch.nn.init.normal_(parameters[1])
            model.train()
            model(torch.randn(4, 2))
            model.eval()
            parameters[0].grad = parameters[0].grad_sample = torch.zeros(2, 2)
            parameters[1].grad = torch.zeros(2)
            optimizer._is_last_step_skipped = False
            queue.clear()
            if ends:
                raise Spoilt
    except Spoilt:
        assert ends
    assert torch.equal(torch.get_rng_state(), drawn)
    for name, one in model.state_dict().items():
        assert torch.equal(one, before[name]), name
    assert parameters[0].grad is gradient
    assert parameters[0].grad_sample is None
    assert parameters[1].grad is None
    assert [one.training for one in model] == [True, True, False]
    assert model.training
    assert optimizer._is_last_step_skipped
    assert optimizer._step_skip_queue is queue
    assert queue == [True, False]
