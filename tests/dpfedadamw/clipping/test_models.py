"""Whole models: all engines agree with the loop, and with Opacus; nothing of a call is left."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from torch import Tensor, nn

from dpfedadamw.clipping import chain
from dpfedadamw.clipping import forms as gradient_forms
from dpfedadamw.clipping.engines import choose
from dpfedadamw.models.networks.cnn import GroupNormCNN
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.models.networks.resnet import ResNet18
from dpfedadamw.models.networks.vit import VisionTransformer
from dpfedadamw.privacy.clipped_sum import Clipping
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.vectors.flat import FlatParameters
from tests.bench.models import LowRankEncoder
from tests.dpfedadamw.clipping.clipping_harness import (
    assert_agrees,
    assert_same,
    cross_entropy,
    median_norm,
)

BATCH = 5


class Reader(nn.Module):
    """Embedding with padding, convolution-free: mean of tokens that are not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(30, 8, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(6, 8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        kept = (tokens != 0)[..., None].to(self.positions.dtype)
        hidden = self.norm(self.tokens(tokens) + self.positions) * kept
        return self.head(hidden.sum(1) / kept.sum(1).clamp(min=1))


def images(side: int) -> Tensor:
    return torch.randn(BATCH, 3, side, side)


def low_rank() -> tuple[nn.Module, Tensor]:
    pytest.importorskip("peft")
    model = LowRankEncoder(vocabulary=20, width=12, depth=2, heads=2, length=9, rank=2)
    return model, torch.randint(0, 20, (BATCH, 9))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": lambda: (MultiLayerPerceptron((3, 4, 4), [16, 8], 5), images(4)),
    "cnn": lambda: (GroupNormCNN((3, 9, 9), [8, 16], 4, 5), images(9)),
    "vit": lambda: (VisionTransformer((3, 8, 8), 4, 16, 2, 2, 2, 5), images(8)),
    "reader": lambda: (Reader(), torch.randint(0, 30, (BATCH, 6))),
    "lora": low_rank,
}


def build(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model, inputs, torch.arange(BATCH) % 2


@pytest.mark.parametrize("engine", ["book-keeping", "vmap"])
@pytest.mark.parametrize("name", MODELS)
def test_engines_agree_with_the_loop(name: str, engine: str) -> None:
    assert_agrees(*build(name), loss=cross_entropy, engine=engine)


@pytest.mark.slow
def test_a_residual_network_agrees_with_the_loop() -> None:
    torch.manual_seed(0)
    model = ResNet18()
    # Its layers use every form: few large places, many small ones, gradients too large to keep.
    found = assert_agrees(model, torch.randn(2, 3, 16, 16), torch.tensor([1, 0]), cross_entropy)
    assert len(found.total) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_book_keeping_is_chosen_and_agrees_in_float32(name: str) -> None:
    model, inputs, targets = build(name)
    norm = median_norm(model, cross_entropy, inputs, targets)
    engine = choose(model, cross_entropy, norm)
    expected = LoopEngine(model, cross_entropy, Clipping(norm))(inputs, targets)
    # Float32 rounds to 6e-8; sums and Gram forms over these sizes lose about two digits.
    assert_same(engine(inputs, targets), expected, tolerance=2e-5)
    assert engine.name == "book-keeping", engine.explain()
    assert set(engine.layers.values()) <= {
        "direct",
        "gram",
        "rows",
        "copies",
        "no gradient",
        "in closed form",
        "direct, not kept",
    }


class WithoutShortGradients(nn.Module):
    """An embedding and a wide layer: neither's gradients of a record are written down."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(3000, 40)
        self.head = nn.Linear(40, 700, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.tokens(tokens)).mean(1)


@pytest.mark.parametrize("name", ["mlp", "cnn", "reader", "without short gradients"])
def test_every_tensor_of_a_clipped_sum_is_made_where_the_records_are(name: str) -> None:
    """One made on the default device would stop training on any other."""
    torch.manual_seed(0)
    more = {
        "without short gradients": lambda: (
            WithoutShortGradients(), torch.randint(0, 3000, (BATCH, 6))
        )
    }  # fmt: skip
    model, inputs = (MODELS | more)[name]()
    targets = torch.arange(BATCH) % 2
    if inputs.is_floating_point():
        inputs[1] = math.inf
    engine = choose(model, cross_entropy, 0.1, engine="book-keeping")
    expected = engine(inputs, targets)
    # As another default than where model and records lie.
    with torch.device("meta"):
        assert_same(engine(inputs, targets), expected, tolerance=1e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lora"])
def test_norms_and_sums_agree_with_opacus(name: str) -> None:
    model, inputs, targets = build(name)
    model = model.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    norm = median_norm(model, cross_entropy, inputs, targets)
    found = choose(model, cross_entropy, norm, engine="book-keeping")(inputs, targets)
    wrapped = GradSampleModule(model, loss_reduction="sum")
    cross_entropy(wrapped(inputs), targets).sum().backward()
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    gradients = torch.cat([p.grad_sample.flatten(1) for p in trained], dim=1)
    norms = gradients.norm(dim=1)
    total = (norm / norms).clamp(max=1.0) @ gradients
    torch.testing.assert_close(found.raw_norms, norms, rtol=1e-12, atol=0)
    # Factors below 1 are smaller by 2⁻²² on purpose, which is 2.4e-7.
    assert float((found.total - total).norm()) <= 3e-7 * float(total.norm())


@pytest.mark.parametrize("engine", ["book-keeping", "opacus", "vmap", "loop"])
def test_without_a_clipping_norm_the_sum_is_the_plain_gradient(engine: str) -> None:
    model, inputs, targets = build("cnn")
    model, inputs = model.double(), inputs.double()
    cross_entropy(model(inputs), targets).sum().backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters()])
    found = choose(model, cross_entropy, math.inf, engine=engine)(inputs, targets)
    torch.testing.assert_close(found.total, plain, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found.clipped_norms, found.raw_norms)


@pytest.mark.parametrize("engine", ["book-keeping", "opacus", "vmap", "loop"])
def test_the_sum_is_laid_out_as_the_flat_vector_is(engine: str) -> None:
    model, inputs, targets = build("vit")
    model.embedding.weight.requires_grad_(False)
    flat = FlatParameters(model)
    found = choose(model, cross_entropy, math.inf, engine=engine)(inputs, targets)
    before = float(cross_entropy(model(inputs), targets).sum())
    part = next(part for part in flat.layout.slices if part.name == "head.bias")
    expected = (model(inputs).softmax(1) - nn.functional.one_hot(targets, 5)).sum(0)
    assert found.total.shape == flat.vector.shape
    torch.testing.assert_close(found.total[part.start : part.stop], expected.detach())
    flat.vector.sub_(found.total, alpha=1e-3 / float(found.total.norm()))
    assert float(cross_entropy(model(inputs), targets).sum()) < before


@pytest.mark.parametrize("engine", ["book-keeping", "opacus", "vmap", "loop"])
@pytest.mark.parametrize("name", MODELS)
def test_a_call_leaves_model_and_gradients_as_they_were(name: str, engine: str) -> None:
    model, inputs, targets = build(name)
    outputs = model(inputs).detach()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    attributes = {key: set(vars(module)) for key, module in model.named_modules()}
    parameters = {key: id(value) for key, value in model.named_parameters()}
    choose(model, cross_entropy, 1.0, engine=engine)(inputs, targets)
    assert torch.equal(model(inputs), outputs)
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert attributes == {key: set(vars(module)) for key, module in model.named_modules()}
    assert parameters == {key: id(value) for key, value in model.named_parameters()}
    assert all(p.grad is None for p in model.parameters())
    assert model.training


@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_a_call_outlives_it_even_without_garbage_collection(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs, targets = build(name)
    engine = choose(model, cross_entropy, 1.0)
    engine(inputs, targets)
    seen: list[weakref.ref[Tensor]] = []
    for form in (gradient_forms.Kept, gradient_forms.Factored):
        original = form.split_short

        def watched(self: object, original: Callable[..., object] = original) -> object:
            values = vars(self).get("gradients", {"A": vars(self).get("inputs")})
            seen.extend(weakref.ref(value) for value in values.values())
            return original(self)

        monkeypatch.setattr(form, "split_short", watched)
    written_out = chain.weighted_sum

    def watched_chain(used: list[Any], *rest: Any) -> None:
        seen.extend(weakref.ref(value) for one in used for value in (one.inputs, one.gradients))
        written_out(used, *rest)

    monkeypatch.setattr(chain, "weighted_sum", watched_chain)
    gc.collect()
    gc.disable()
    try:
        engine(inputs.clone(), targets)
        assert len(seen) >= 3
        assert not [reference for reference in seen if reference() is not None]
        assert all(not m._forward_hooks and not m._backward_hooks for m in model.modules())
        kept = weakref.ref(model)
        del model, engine
        assert kept() is None
    finally:
        gc.enable()


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4))
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        self.layer(inputs + self.token)
        raise ZeroDivisionError


def test_a_failing_forward_leaves_the_model_as_it_was() -> None:
    model = Fails()
    token = model.token
    with pytest.raises(ZeroDivisionError):
        choose(model, cross_entropy, 1.0)(torch.randn(3, 4), torch.zeros(3, dtype=torch.int64))
    assert model.token is token
    assert "forward" not in vars(model.layer)
