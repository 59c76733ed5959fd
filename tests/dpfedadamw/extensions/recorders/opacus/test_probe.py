"""A recorded loop's own clipped sum, asked with made-up records: by hand for one linear layer."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from dpfedadamw.extensions.recorders.opacus.probe import LoopProbe

CLIP = 0.7
WEIGHTS = torch.tensor([[0.5, -1.0], [2.0, 0.25], [-0.5, 1.5]])
INPUTS = np.array([[1.0, 2.0], [9.0, 9.0], [0.1, -0.2], [3.0, -1.0], [0.0, 0.0]])
LABELS = np.array([0, 2, 1, 2, 1])
# The second record is another client's.
CLIENTS = np.array([0, 1, 0, 0, 0])


def private(*further: nn.Module) -> tuple[GradSampleModule, DPOptimizer]:
    layer = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(WEIGHTS)
    model = GradSampleModule(nn.Sequential(layer, *further))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=CLIP,
        expected_batch_size=4,
    )  # fmt: skip
    return model, optimizer


def probe_of(model: Any, optimizer: Any, criterion: Any = None) -> LoopProbe:
    return LoopProbe(model, model._module, optimizer, [*model.parameters()], (2,), criterion)


def by_hand(weights: np.ndarray, rows: list[int]) -> np.ndarray:
    """The sum of the records' clipped gradients of the cross-entropy."""
    total = np.zeros((3, 2))
    for row in rows:
        logits = weights @ INPUTS[row]
        chances = np.exp(logits - logits.max())
        chances = chances / chances.sum() - np.eye(3)[LABELS[row]]
        gradient = np.outer(chances, INPUTS[row])
        total += gradient * min(1.0, CLIP / max(1e-12, float(np.linalg.norm(gradient))))
    return total.ravel()


def test_the_sum_is_the_loops_own_at_its_parameters_and_at_two_others() -> None:
    model, optimizer = private()
    probe = probe_of(model, optimizer)
    assert (probe.classes, probe.parameters, probe.clipping_norm) == (3, 6, CLIP)
    given = INPUTS, LABELS, CLIENTS
    weights = WEIGHTS.double().numpy()
    # Of client 0's records, which are 0, 2, 3 and 4.
    for drawn, rows in (([0, 1, 2], [0, 2, 3]), ([2], [3]), ([3, 3], [4, 4]), ([1], [2])):
        chosen = np.array(drawn)
        found = probe.sum_of_step(*given, chosen)
        np.testing.assert_allclose(found, by_hand(weights, rows), atol=1e-5)
        found = probe.sum_of_step(*given, chosen, elsewhere=True)
        np.testing.assert_allclose(found, by_hand(weights / 2, rows), atol=1e-5)
        found = probe.sum_of_step_far_off(*given, chosen)
        np.testing.assert_allclose(found, by_hand(4.0 - 3.0 * weights, rows), atol=1e-5)
    nobody = probe.sum_of_step(*given, np.zeros(0, np.int64))
    assert (nobody.tolist(), nobody.dtype) == ([0.0] * 6, np.float32)
    # Nothing of it stays.
    (parameter,) = model.parameters()
    assert torch.equal(parameter, WEIGHTS)
    assert (parameter.grad, parameter.grad_sample, parameter.summed_grad) == (None, None, None)


def test_the_loss_is_the_loops_own_if_it_names_one() -> None:
    def of_answers(answers: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
        return 0.01 * answers.sum(1).mean()

    due = 0.01 * np.outer(np.ones(3), INPUTS[0] + INPUTS[2]).ravel()
    # Ghost clipping's holds the loop's.
    for criterion in (of_answers, SimpleNamespace(criterion=of_answers)):
        probe = probe_of(*private(), criterion)
        found = probe.sum_of_step(INPUTS, LABELS, CLIENTS, np.array([0, 1]))
        np.testing.assert_allclose(found, due, atol=1e-6)


def test_chance_is_switched_off_and_statistics_of_a_batch_of_one_are_not_asked_for() -> None:
    model, optimizer = private(nn.Dropout(0.5), nn.Identity())
    model._module[2] = nn.BatchNorm1d(3, affine=False)
    probe = probe_of(model, optimizer)
    assert [one.training for one in model._module] == [True, False, True]
    assert np.isfinite(probe.sum_of_step(INPUTS, LABELS, CLIENTS, np.array([2]))).all()
    assert [one.training for one in model._module] == [True, False, True]
    # One that the loop itself does not train stays so.
    model._module[2].eval()
    probe.sum_of_step(INPUTS, LABELS, CLIENTS, np.array([2]))
    assert not model._module[2].training


class Text(nn.Module):
    """Reads tokens and notes them."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Embedding(40, 3), nn.Embedding(9, 3))
        self.norm = nn.BatchNorm1d(3)
        self.read: list[Any] = []

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        self.read.append(input_ids.tolist())
        return {"logits": self.inside[0](input_ids).mean(1)}


def test_made_up_records_become_tokens_of_the_first_vocabulary() -> None:
    model = Text()
    optimizer: Any = SimpleNamespace(max_grad_norm=1.0)
    probe = LoopProbe(
        model, model, optimizer, [*model.parameters()], (3,), None, "input_ids", tokens=True
    )
    assert probe.classes == 3
    # Of a float the bits but for its sign.
    one = struct.unpack("<i", struct.pack("<f", 1.5))[0] % 40
    probe._logits(torch.tensor([[1.5, -1.5, 0.0]]))
    assert model.read[-1] == [[one, one, 0]]
    # Attention drops by itself; layers with parameters stay in training, as Opacus wants it.
    assert (model.training, model.inside.training) == (False, False)
    assert all(layer.training for layer in (*model.inside, model.norm))


def test_passes_that_no_backward_pass_followed_are_forgotten() -> None:
    model, optimizer = private()
    layer = model._module[0]
    model(torch.ones(2, 2))
    assert layer.activations
    (parameter,) = model.parameters()
    assert parameter._forward_counter == 1
    probe = probe_of(model, optimizer)
    found = probe.sum_of_step(INPUTS, LABELS, CLIENTS, np.array([0]))
    np.testing.assert_allclose(found, by_hand(WEIGHTS.double().numpy(), [0]), atol=1e-5)


@pytest.mark.parametrize("error", [False, True])
def test_parameters_elsewhere_are_the_models_again_whatever_happens(error: bool) -> None:
    model, optimizer = private()
    probe = probe_of(model, optimizer)
    if error:
        probe._criterion = lambda *_: 1 // 0
        with pytest.raises(ZeroDivisionError):
            probe.sum_of_step_far_off(INPUTS, LABELS, CLIENTS, np.array([0]))
    else:
        probe.sum_of_step_far_off(INPUTS, LABELS, CLIENTS, np.array([0]))
    (parameter,) = model.parameters()
    assert torch.equal(parameter, WEIGHTS)
