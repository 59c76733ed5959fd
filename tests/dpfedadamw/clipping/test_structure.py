"""A model that changes between two batches is looked through again."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfedadamw.clipping import bookkeeping
from dpfedadamw.clipping.bookkeeping import BookKeepingEngine, Structure
from dpfedadamw.privacy.clipped_sum import Clipping, ClippingError


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.InstanceNorm1d(8), nn.Linear(8, 3))


def own_forward(module: nn.Sequential) -> None:
    vars(module[0])["forward"] = lambda values: values


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "a layer is exchanged": lambda module: module.__setitem__(0, nn.Linear(4, 8)),
    "a layer is added": lambda module: module.append(nn.ReLU()),
    "a parameter is exchanged": lambda module: setattr(
        module[0], "weight", nn.Parameter(torch.zeros(8, 4))
    ),
    "a parameter is frozen": lambda module: module[3].bias.requires_grad_(False),
    "a layer is set to testing": lambda module: module[1].eval(),
    "a layer keeps statistics": lambda module: setattr(module[2], "track_running_stats", True),
    "a layer computes something else": own_forward,
}


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change):
    changed = model()
    structure = Structure(changed)
    assert structure.unchanged()
    CHANGES[change](changed)
    assert not structure.unchanged()


def test_new_values_of_parameters_are_no_change():
    module = model()
    structure = Structure(module)
    for parameter in module.parameters():
        parameter.data = torch.zeros_like(parameter)
    module[3].weight.grad = torch.zeros(3, 8)
    assert structure.unchanged()


def test_a_model_is_looked_through_once_until_it_changes(monkeypatch):
    looked = []
    sites_of = bookkeeping.sites_of

    def counting(*arguments, **options):
        looked.append(1)
        return sites_of(*arguments, **options)

    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    engine = BookKeepingEngine(module, loss, Clipping(math.inf))
    monkeypatch.setattr(bookkeeping, "sites_of", counting)
    inputs, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    first = engine(inputs, targets).total
    assert torch.equal(engine(inputs, targets).total, first)
    assert len(looked) == 1
    module[2].bias.requires_grad_(False)
    # No chain of linear layers any more, all of whose parameters are trained: it rounds otherwise.
    torch.testing.assert_close(engine(inputs, targets).total, first[:-3])
    assert len(looked) == 2


def test_a_layer_that_begins_to_mix_records_is_refused():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3))
    module[1].eval()
    engine = BookKeepingEngine(module, loss, Clipping(1.0))
    inputs, targets = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    engine(inputs, targets)
    module[1].train()
    for _ in range(2):
        with pytest.raises(ClippingError, match="normalises over the batch"):
            engine(inputs, targets)
