"""Models: shapes, public initial weights, no layer that mixes records, honest refusals."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

from audit.checks.initial_weights import OWN_MODELS
from dpfedadamw.errors import ModelError
from dpfedadamw.models.cnn import CNNSpec, ResNetSpec, SimpleCNNSpec
from dpfedadamw.models.mlp import MLPSpec
from dpfedadamw.models.networks.vit import sines
from dpfedadamw.models.registry import MODELS, build, preprocessing, synthetic_records
from dpfedadamw.models.vit import ViTSpec, ViTTinySpec
from dpfedadamw.preprocessing import ImagePreprocessing
from dpfedadamw.vectors.flat import blocks_of

SPECS = {
    "mlp": MLPSpec(hidden=(16,)),
    "softmax": MLPSpec(hidden=()),
    "cnn": CNNSpec(channels=(8, 16), groups=4),
    "simple-cnn": SimpleCNNSpec(channels=(4, 8), hidden=16),
    "resnet18": ResNetSpec(),
    "vit-tiny": ViTTinySpec(dropout=0.1),
    "vit": ViTSpec(patch=2, width=16, depth=2, heads=4, mlp_ratio=2),
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
        assert (parameter.grad is not None) == parameter.requires_grad, parameter_name


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
        build(ViTSpec(patch=3, width=16, depth=2, heads=4, mlp_ratio=2), (1, 8, 8), 10, seed=0)


def test_resnet18_has_the_published_number_of_parameters():
    # He et al. 2016 with a 3x3 stem for 10 classes, as commonly trained on CIFAR-10.
    model = build(ResNetSpec(), (3, 32, 32), 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())


def test_vit_tiny_is_that_of_its_paper():
    model = build(ViTTinySpec(dropout=0.1), (3, 32, 32), 100, seed=0)
    assert model.position.shape == (1, 65, 192)
    assert torch.equal(model.position, sines(65, 192))
    assert not model.position.requires_grad
    assert len(model.layers) == 6
    assert model.layers[0].attention.heads == 3
    assert model.layers[0].mlp_dropout.p == 0.1


def test_images_too_small_for_pooling_are_refused():
    with pytest.raises(ModelError, match="at least 4 pixels a side"):
        build(SPECS["simple-cnn"], (1, 3, 8), 10, seed=0)


def test_vit_tiny_refuses_images_that_its_patches_do_not_divide():
    with pytest.raises(ModelError, match="use vit, with a patch that does"):
        build(SPECS["vit-tiny"], (1, 6, 6), 10, seed=0)


def test_the_packages_own_models_take_images_as_they_are():
    assert preprocessing(SPECS["resnet18"]) == ImagePreprocessing()


def test_any_numbers_become_records_of_tokens_one_by_one():
    model = torch.nn.Flatten()
    values = torch.tensor([0.0, 1.5, -2.0, torch.inf, -torch.inf, torch.nan, -1e38, 1e30])
    batch = torch.stack([values.view(2, 4), values.flip(0).view(2, 4)])
    assert synthetic_records(model, batch) is batch
    model.vocabulary = 50
    found = synthetic_records(model, batch)
    assert found.dtype == torch.int32
    assert found.shape == batch.shape
    assert int(found.min()) >= 0
    assert int(found.max()) < 50
    assert (found[:, 1] == 0).all()
    assert torch.equal(synthetic_records(model, batch[1:]), found[1:])
    assert len(found[:, 0].unique()) > 2


@pytest.mark.parametrize("name", SPECS)
def test_what_a_model_says_of_its_parameters_is_of_those_that_it_has(name):
    model = build(SPECS[name], (1, 8, 8), 10, seed=0)
    roles = model.parameter_roles
    said = {*roles.attention_heads, *roles.values, *roles.row_wise, *roles.fused}
    said |= {*roles.columns, *roles.whole}
    assert said <= {parameter for parameter, _ in model.named_parameters()}
    assert roles.row_wise >= {"head.weight", "head.bias"}


def test_tables_classes_heads_and_neurons_of_the_vision_transformer_are_cut_as_hessians_are():
    names = blocks_of(build(SPECS["vit"], (1, 8, 8), 10, seed=0), "hessian").names
    # Sixteen patches and the class token, ten classes, two layers of four heads and sixteen wide.
    pieces = Counter(re.sub(r" \d+\]", "]", name) for name in names)
    expected = {"position[row]": 17, "class_token[row]": 1, "head[row]": 10}
    for layer in ("layers.0.attention", "layers.1.attention"):
        expected |= {f"{layer}.query[head]": 4, f"{layer}.key[head]": 4}
        expected[f"{layer}.value[neuron]"] = 16
    assert {name: pieces[name] for name in expected} == expected


OF_RECORDS = ("classification", "regression", "multi_label")
TABLE_14 = "DP-FedAdamW, Table 14; "
# Where each is from, what it answers, whether it takes no memory on meta, whether keys rebuild it.
REGISTERED = {
    "mlp": ("Rumelhart, Hinton & Williams 1986", OF_RECORDS, True, True),
    "cnn": ("Wu & He 2018 (GroupNorm)", OF_RECORDS, True, True),
    "simple-cnn": (
        "DP-FedSAM (EMNIST); ALI-DPFL; McMahan et al. 2017", OF_RECORDS, True, True
    ),
    "resnet18": ("He et al. 2016; DP-FedAdamW, section 9.3", OF_RECORDS, True, True),
    "vit": ("Dosovitskiy et al. 2021", OF_RECORDS, True, True),
    "vit-tiny": ("FedAdamW, appendix C", OF_RECORDS, True, True),
    "vit-base": (
        f"{TABLE_14}google/vit-base-patch16-224-in21k; apache-2.0", OF_RECORDS, True, True
    ),
    "swin-tiny": (
        f"{TABLE_14}microsoft/swin-tiny-patch4-window7-224; apache-2.0", OF_RECORDS, True, True
    ),
    "swin-base": (
        f"{TABLE_14}microsoft/swin-base-patch4-window7-224-in22k; apache-2.0",
        OF_RECORDS, True, True,
    ),
    "roberta-base": (f"{TABLE_14}FacebookAI/roberta-base; mit", OF_RECORDS, True, True),
    "transformers": (
        "yours, or the Hugging Face hub", (*OF_RECORDS, "causal_lm"), True, True
    ),
    "python": ("yours", (*OF_RECORDS, "token_classification"), False, True),
    "module": ("yours", (*OF_RECORDS, "token_classification"), False, False),
}  # fmt: skip


def test_of_each_model_it_is_known_where_it_is_from_and_what_it_can_do():
    found = {
        name: (entry.source, entry.tasks, entry.on_meta, entry.rebuilt)
        for name, entry in MODELS.items()
    }
    assert found == REGISTERED


def test_the_auditor_knows_which_models_are_this_package_s_own():
    """Of these nobody may say that code from outside made their weights."""
    own = {
        name
        for name, entry in MODELS.items()
        if entry.rebuilt and not MODELS.origin(name) and entry.names_code.__name__ == "_none_named"
    }
    assert own == OWN_MODELS
