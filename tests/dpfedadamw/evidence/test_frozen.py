"""The digest of what is not trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfedadamw.evidence.exchanges import frozen_digest


@pytest.fixture
def module():
    made = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).to(torch.bfloat16))
    made[1].requires_grad_(False)
    made.register_buffer("seen", torch.tensor(4), persistent=False)
    return made


def test_a_module_that_is_trained_as_a_whole_has_none():
    assert frozen_digest(nn.Linear(3, 2)) is None


def test_what_is_trained_may_change_and_nothing_else_however_it_is_changed(module):
    before = frozen_digest(module)
    module[0].weight.data.add_(1.0)
    assert frozen_digest(module) == before
    module[1].bias.data[0] += 1.0
    moved = frozen_digest(module)
    assert moved != before
    module.seen += 1
    assert frozen_digest(module) not in (before, moved)


def test_another_shape_type_or_name_is_another_digest(module):
    before = frozen_digest(module)
    module[1].weight.data = module[1].weight.data.reshape(1, 4)
    reshaped = frozen_digest(module)
    module.register_buffer("looked", module._buffers.pop("seen"))
    assert len({before, reshaped, frozen_digest(module)}) == 3
