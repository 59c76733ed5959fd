"""A spec becomes an experiment; where only its plan is asked for, the model has no weights."""

from __future__ import annotations

import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import check, prepare
from tests.limits import measured
from tests.runs import call


@pytest.mark.parametrize(
    "name", ["quickstart", "digits-cnn", "digits-vit", "digits-fed-smp", "digits-dp-fedsam-topk"]
)
def test_a_plan_needs_no_weights(name):
    spec = specs.load(name)
    outline, whole = (prepare(spec, torch.device(kind)) for kind in ("meta", "cpu"))
    assert outline.plan == whole.plan
    assert outline.plan.expected_claim() == whole.plan.expected_claim()
    assert {one.device.type for one in outline.model.parameters()} == {"meta"}
    assert {one.device.type for one in whole.model.parameters()} == {"cpu"}
    shapes = [[tuple(p.shape) for p in one.model.parameters()] for one in (outline, whole)]
    assert shapes[0] == shapes[1]


def test_what_a_model_of_thousands_of_millions_of_weights_costs_is_told_in_little_memory(capsys):
    change = "model={name: mlp, hidden: [65536, 65536, 65536]}"  # 34 GB in float32
    with measured() as spent:
        check(specs.load("quickstart", [change]))
        assert call("epsilon", "quickstart", "--set", change) == 0
    assert spent.bytes < 2**28
