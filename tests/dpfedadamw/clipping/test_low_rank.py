"""Adapted layers: the fused pair and every way of falling back agree with the per-record loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping.engines import choose
from dpfedadamw.clipping.low_rank import pair_of
from dpfedadamw.clipping.sites import BookKeepingError, sites_of
from dpfedadamw.models.networks.dropout import RecordDropout, dropping, number_layers
from tests.dpfedadamw.clipping.clipping_harness import (
    assert_agrees,
    assert_same,
    engine_of,
    weighted_squares,
)

peft = pytest.importorskip("peft")

BATCH, TOKENS, WIDTH, OUTPUTS = 5, 7, 6, 10


class Adapted(nn.Module):
    """A layer with an adapter between two trained ones."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Linear(WIDTH, OUTPUTS)
        self.last = nn.Linear(OUTPUTS, 3)
        settings: dict[str, object] = {"r": 2, "lora_alpha": 3, "target_modules": ["middle"]}
        peft.inject_adapter_in_model(peft.LoraConfig(**{**settings, **options}), self)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("base_layer" not in name or parameter.requires_grad)
            if "lora_B" in name:
                nn.init.normal_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(inputs)))))


def adapted(**options: object) -> Adapted:
    torch.manual_seed(0)
    return Adapted(**options)


def records(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    scales = torch.logspace(-1, 1, BATCH).view(-1, *(1 for _ in shape))
    return torch.randn(BATCH, *shape) * scales, torch.arange(BATCH) % 3


def kind_of_middle(model: nn.Module) -> set[str]:
    return {site.kind for site in sites_of(model) if site.name.startswith("middle")}


@pytest.mark.parametrize("shape", [(WIDTH,), (TOKENS, WIDTH), (2, 3, WIDTH), (90, WIDTH)])
def test_a_pair_agrees_with_the_loop(shape: tuple[int, ...]) -> None:
    model = adapted()
    assert kind_of_middle(model) == {"pair"}
    assert_agrees(model, *records(*shape))


def test_a_pair_of_a_layer_without_bias_agrees_with_the_loop() -> None:
    model = adapted()
    model.middle.base_layer.bias = None
    assert kind_of_middle(model) == {"pair"}
    assert_agrees(model, *records(TOKENS, WIDTH))


def test_a_pair_used_twice_agrees_with_the_loop() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = adapted()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(self.inner.first(inputs).cos()) + self.inner(inputs)

    assert_agrees(Twice(), *records(TOKENS, WIDTH))


@pytest.mark.parametrize("shape", [(WIDTH,), (TOKENS, WIDTH), (90, WIDTH)])
def test_a_pair_whose_a_is_frozen_is_one_place_and_agrees(shape: tuple[int, ...]) -> None:
    model = adapted()
    model.middle.lora_A["default"].weight.requires_grad_(False)
    pair = pair_of(model.middle)
    assert pair is not None
    assert pair.names == ("lora_B.default",)
    assert_agrees(model, *records(*shape))


def test_a_pair_whose_b_is_frozen_is_taken_apart_and_agrees() -> None:
    model = adapted()
    model.middle.lora_B["default"].weight.requires_grad_(False)
    assert pair_of(model.middle) is None
    assert_agrees(model, *records(TOKENS, WIDTH))


def train_bias(model: Adapted) -> None:
    model.middle.base_layer.bias.requires_grad_(True)


def merge(model: Adapted) -> None:
    model.middle.merge()


def second_adapter(model: Adapted) -> None:
    settings = peft.LoraConfig(r=3, target_modules=["middle"])
    peft.inject_adapter_in_model(settings, model, adapter_name="second")
    model.middle.set_adapter(["default", "second"])
    nn.init.normal_(model.middle.lora_B["second"].weight)


OTHERWISE: dict[str, tuple[dict[str, object], Callable[[Adapted], object]]] = {
    "a trained bias of the base": ({}, train_bias),
    "a bias of its own": ({"lora_bias": True}, lambda model: None),
    "a second active adapter": ({}, second_adapter),
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_an_adapter_with_anything_more_is_taken_apart_and_agrees(case: str) -> None:
    options, change = OTHERWISE[case]
    model = adapted(**options)
    change(model)
    assert pair_of(model.middle) is None
    assert_agrees(model, *records(TOKENS, WIDTH))


def test_a_variant_that_reads_its_weights_elsewhere_is_done_otherwise() -> None:
    model = adapted(use_dora=True).double()
    assert pair_of(model.middle) is None
    inputs, targets = records(TOKENS, WIDTH)
    inputs = inputs.double()
    found = choose(model, weighted_squares, 1.0)
    result = found(inputs, targets)
    assert found.name != "book-keeping"
    assert_same(result, engine_of("loop", model, weighted_squares, 1.0)(inputs, targets))


def test_an_adapter_that_changes_between_calls_is_seen_as_it_is() -> None:
    model = adapted().double()
    inputs, targets = records(TOKENS, WIDTH)
    inputs = inputs.double()
    engine = engine_of("book-keeping", model, weighted_squares, 1.0)
    before = engine(inputs, targets)
    merge(model)
    assert pair_of(model.middle) is None
    loop = engine_of("loop", model, weighted_squares, 1.0)
    # A merged adapter is used by nobody: its gradient is zero, that of the others unchanged.
    assert_same(engine(inputs, targets), loop(inputs, targets))
    model.middle.unmerge()
    assert_same(engine(inputs, targets), before, tolerance=1e-9)


def test_dropout_in_an_adapter_draws_anew_for_every_record() -> None:
    model = adapted(lora_dropout=0.5).train()
    assert pair_of(model.middle) is None
    assert pair_of(model.eval().middle) is not None
    model.train()
    same = torch.randn(1, TOKENS, WIDTH).expand(BATCH, -1, -1)
    found = engine_of("book-keeping", model, weighted_squares, 1.0)(same, torch.zeros(BATCH))
    assert len(set(found.raw_norms.tolist())) == BATCH


class DroppingByRecord(nn.Module):
    """An adapted layer whose dropout has one mask a record."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.inner = adapted(lora_dropout=0.5)
        self.inner.middle.lora_dropout["default"] = RecordDropout(p)
        number_layers(self)

    def forward(self, inputs: Tensor) -> Tensor:
        with dropping(self, inputs, self.inner.last.bias):
            return self.inner(inputs)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.4, False)])
def test_idle_dropout_by_record_leaves_the_pair_whole(p: float, training: bool) -> None:
    model = DroppingByRecord(p).train(training)
    assert pair_of(model.inner.middle) is not None
    assert_agrees(model, *records(TOKENS, WIDTH))


def test_active_dropout_by_record_takes_the_pair_apart_and_agrees() -> None:
    model = DroppingByRecord(0.4).train()
    assert pair_of(model.inner.middle) is None
    inputs, targets = records(TOKENS, WIDTH)
    assert_agrees(model, inputs, targets)
    engine = engine_of("book-keeping", model.double(), weighted_squares, 1.0)
    dropped = engine(inputs.double(), targets)
    kept = engine_of("book-keeping", model.eval(), weighted_squares, 1.0)(inputs.double(), targets)
    assert float((dropped.total - kept.total).norm()) > 1e-3 * float(kept.total.norm())


def test_what_cannot_be_told_to_be_idle_counts_as_dropout() -> None:
    model = adapted().train()
    model.middle.lora_dropout["default"] = nn.Sequential()
    assert pair_of(model.middle) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_low_precision_the_adapter_is_not_merged_into_the_weight(dtype: torch.dtype) -> None:
    assert pair_of(adapted().to(dtype).middle) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert pair_of(adapted().middle) is None


def test_a_pair_that_sees_something_else_before_the_records_is_refused_by_name() -> None:
    class Transposed(Adapted):
        def forward(self, inputs: Tensor) -> Tensor:
            turned = self.middle(self.first(inputs).transpose(0, 1)).transpose(0, 1)
            return self.last(turned)

    torch.manual_seed(0)
    model = Transposed()
    assert kind_of_middle(model) == {"pair"}
    engine = engine_of("book-keeping", model, weighted_squares, 1.0)
    with pytest.raises(BookKeepingError, match="'middle' sees inputs of shape"):
        engine(*records(TOKENS, WIDTH))


def test_an_active_adapter_that_a_layer_does_not_have_is_passed_over():
    model = adapted()
    layer = next(module for name, module in model.named_modules() if name.endswith("middle"))
    assert kind_of_middle(model) == {"pair"}
    layer._active_adapter = [*layer.active_adapters, "of-another-layer"]
    assert kind_of_middle(model) == {"pair"}
