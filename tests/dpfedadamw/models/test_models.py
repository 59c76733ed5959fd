"""Models: shapes, public initial weights, no layer that mixes records, honest refusals."""

from __future__ import annotations

import pytest
import torch

from dpfedadamw.models.registry import ModelError, build
from dpfedadamw.spec import CNNSpec, MLPSpec, ViTSpec

SPECS = {
    "mlp": MLPSpec("mlp", (16,)),
    "softmax": MLPSpec("mlp", ()),
    "cnn": CNNSpec("cnn", (8, 16), 4),
    "vit": ViTSpec("vit", 2, 16, 2, 4, 2),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_record_is_answered_alike_whatever_shares_its_batch(name):
    model = build(SPECS[name], (1, 8, 8), 10, seed=0)
    records = torch.randn(6, 1, 8, 8)
    together = model(records)
    assert together.shape == (6, 10)
    alone = torch.cat([model(record[None]) for record in records])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_every_trainable_tensor_gets_a_gradient(name):
    model = build(SPECS[name], (1, 8, 8), 10, seed=0)
    model(torch.randn(3, 1, 8, 8)).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name


def test_the_seed_decides_the_initial_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (build(SPECS["mlp"], (1, 8, 8), 10, seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_image_models_refuse_flat_records():
    with pytest.raises(ModelError, match="use mlp"):
        build(SPECS["cnn"], (64,), 10, seed=0)


def test_a_patch_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ModelError, match="use a divisor of both"):
        build(ViTSpec("vit", 3, 16, 2, 4, 2), (1, 8, 8), 10, seed=0)
