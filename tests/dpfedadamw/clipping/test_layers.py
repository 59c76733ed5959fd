"""Every layer, alone, through the harness: book-keeping against the per-record loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping import layers as layer_functions
from dpfedadamw.clipping import sites
from dpfedadamw.clipping.forms import Factored, GradientForm, Kept
from dpfedadamw.clipping.sites import BookKeepingError
from tests.dpfedadamw.clipping.clipping_harness import (
    assert_agrees,
    engine_of,
    weighted_squares,
)

BATCH = 5


class Behind(nn.Module):
    """A layer behind a trained one, so that a wrong gradient of its inputs shows too."""

    def __init__(self, first: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(torch.tanh(self.first(inputs))))


class Scale(nn.Module):
    """A layer that book-keeping does not know."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.gamma


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attention(tokens, tokens, tokens, need_weights=False)[0]


def frozen(layer: nn.Module, name: str) -> nn.Module:
    getattr(layer, name).requires_grad_(False)
    return layer


def trained_norm(layer: nn.Module) -> nn.Module:
    nn.init.normal_(layer.weight)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


FLAT, TOKENS, GRID, IMAGE = (6,), (7, 6), (3, 4, 6), (4, 9, 8)
LAYERS = {
    "linear": (FLAT, lambda: nn.Linear(6, 3)),
    "linear over tokens": (TOKENS, lambda: nn.Linear(6, 3)),
    "linear over a grid": (GRID, lambda: nn.Linear(6, 3)),
    "linear over many tokens": ((40, 6), lambda: nn.Linear(6, 3)),
    "linear over tokens in three runs": ((90, 6), lambda: nn.Linear(6, 3)),
    "wide linear over few tokens": ((2, 6), lambda: nn.Linear(6, 80)),
    "linear without bias": (TOKENS, lambda: nn.Linear(6, 3, bias=False)),
    "linear with frozen bias": (TOKENS, lambda: frozen(nn.Linear(6, 3), "bias")),
    "linear with frozen weight": (TOKENS, lambda: frozen(nn.Linear(6, 3), "weight")),
    "convolution": (IMAGE, lambda: nn.Conv2d(4, 6, 3)),
    "convolution with stride": (IMAGE, lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1)),
    "convolution with oblong kernel": (IMAGE, lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (0, 1))),
    "convolution in groups": (IMAGE, lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2)),
    "convolution by channel": (IMAGE, lambda: nn.Conv2d(4, 8, 3, stride=2, groups=4)),
    "convolution with dilation": (IMAGE, lambda: nn.Conv2d(4, 6, 3, padding=2, dilation=2)),
    "convolution of same size": (IMAGE, lambda: nn.Conv2d(4, 6, 4, padding="same")),
    "convolution with reflection": (
        IMAGE,
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    ),
    "convolution without bias": (IMAGE, lambda: nn.Conv2d(4, 6, 1, bias=False)),
    "convolution of many channels": ((32, 6, 6), lambda: nn.Conv2d(32, 4, 3, padding=1)),
    "convolution to few places": ((32, 4, 4), lambda: nn.Conv2d(32, 40, 3, stride=2, padding=1)),
    "layer norm": (TOKENS, lambda: trained_norm(nn.LayerNorm(6))),
    "layer norm of records": (FLAT, lambda: trained_norm(nn.LayerNorm(6))),
    "layer norm over two dimensions": (TOKENS, lambda: trained_norm(nn.LayerNorm((7, 6)))),
    "layer norm without bias": (TOKENS, lambda: trained_norm(nn.LayerNorm(6, bias=False))),
    "layer norm with frozen weight": (TOKENS, lambda: frozen(nn.LayerNorm(6), "weight")),
    "group norm": (IMAGE, lambda: trained_norm(nn.GroupNorm(2, 4))),
    "group norm of a sequence": ((4, 9), lambda: trained_norm(nn.GroupNorm(2, 4))),
    "group norm of one channel": ((1, 3, 4), lambda: trained_norm(nn.GroupNorm(1, 1))),
    "group norm of records": ((8,), lambda: trained_norm(nn.GroupNorm(2, 8))),
    "group norm with frozen bias": (IMAGE, lambda: frozen(nn.GroupNorm(2, 4), "bias")),
    "unknown layer": (TOKENS, lambda: Scale(6)),
    "root mean square norm": (TOKENS, lambda: nn.RMSNorm(6)),
    "convolution in one dimension": ((4, 9), lambda: nn.Conv1d(4, 3, 3)),
    "attention": (TOKENS, Attend),
    "frozen batch norm": (IMAGE, lambda: nn.BatchNorm2d(4).eval()),
}


def build(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    shape, make = LAYERS[name]
    first: nn.Module = nn.Conv2d(shape[0], shape[0], 1) if len(shape) == 3 else Scale(shape[-1])
    if shape == GRID:
        first = Scale(shape[-1])
    model = Behind(first, make())
    targets = torch.arange(BATCH) % 3
    return (
        model,
        torch.randn(BATCH, *shape) * torch.logspace(-1, 1, BATCH)[(...,) + (None,) * len(shape)],
        targets,
    )


@pytest.mark.parametrize("name", LAYERS)
def test_layer_agrees_with_the_loop(name: str) -> None:
    assert_agrees(*build(name))


@pytest.mark.parametrize("method", ["gram", "direct, not kept", "direct"])
@pytest.mark.parametrize("name", [n for n in LAYERS if n.startswith(("linear", "convolution"))])
def test_every_form_of_a_layer_agrees_with_the_loop(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def forced(layer, inputs, outputs, *, weight: bool, bias: bool) -> GradientForm:
        of_bias = layer.bias(outputs) if bias else None
        if not weight:
            return Kept({"bias": of_bias})
        seen.append(method)
        form = Factored(layer, inputs, outputs, of_bias, method)
        return form.kept() if method == "direct" else form

    monkeypatch.setattr(layer_functions, "form_of_product", forced)
    assert_agrees(*build(name))
    assert seen or "one dimension" in name or "frozen weight" in name


@pytest.mark.parametrize("padding_index", [None, 0, -1])
def test_embedding_agrees_with_the_loop(padding_index: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4, padding_idx=padding_index), nn.Linear(4, 3))
    # Records look rows up twice, share rows, and one is nothing but padding.
    tokens = torch.tensor([[1, 1, 2, 0], [2, 8, 8, 8], [0, 0, 0, 0], [8, 8, 8, 8], [3, 4, 5, 6]])
    assert_agrees(model, tokens, torch.arange(5) % 3)


class Repeated(nn.Module):
    """Layers used more than once in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.layer = nn.Linear(6, 6)
        self.scale = Scale(6)
        self.norm = nn.LayerNorm(6)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens[:, :2]) + self.table(tokens[:, 2:])
        for _ in range(3):
            hidden = self.norm(self.scale(torch.tanh(self.layer(hidden))))
        return hidden


def test_a_layer_used_several_times_agrees_with_the_loop() -> None:
    torch.manual_seed(0)
    assert_agrees(Repeated(), torch.randint(0, 9, (BATCH, 4)), torch.arange(BATCH) % 3)


def test_a_layer_that_gets_no_gradient_contributes_nothing() -> None:
    torch.manual_seed(0)

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            self.unused(inputs)
            return self.used(inputs)

    found = assert_agrees(Partly(), torch.randn(BATCH, 4), torch.arange(BATCH) % 3)
    assert float(found.total[15:].abs().max()) == 0.0


def test_tied_parameters_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    model[1].weight = model[0].weight
    with pytest.raises(BookKeepingError, match=r"'0\.weight' and '1\.weight'"):
        engine_of("book-keeping", model, weighted_squares, 1.0)


class Functional(nn.Module):
    """Uses a layer's weight behind its back as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + inputs @ self.layer.weight


def test_a_weight_used_outside_its_layer_is_refused_by_name() -> None:
    engine = engine_of("book-keeping", Functional(), weighted_squares, 1.0)
    with pytest.raises(BookKeepingError, match=r"'layer\.weight'"):
        engine(torch.randn(3, 4), torch.zeros(3))


@pytest.mark.parametrize("shape", [FLAT, TOKENS])
@pytest.mark.parametrize("part", [None, "weight", "bias"])
def test_a_layer_of_gpt_2_agrees_with_the_loop(shape: tuple[int, ...], part: str | None) -> None:
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    layer = Conv1D(5, shape[-1])
    nn.init.normal_(layer.bias)
    model = Behind(Scale(shape[-1]), layer if part is None else frozen(layer, part))
    engine = engine_of("book-keeping", model, weighted_squares, 1.0)
    assert len(engine.layers) == 2
    assert_agrees(model, torch.randn(BATCH, *shape), torch.arange(BATCH) % 3)


def test_inputs_without_the_records_first_are_refused_by_name() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs.transpose(0, 1)).transpose(0, 1)

    engine = engine_of("book-keeping", Transposed(), weighted_squares, 1.0)
    with pytest.raises(BookKeepingError, match="'layer' sees inputs of shape"):
        engine(torch.randn(3, 5, 4), torch.zeros(3))


def test_a_layer_that_takes_a_number_of_each_record_for_one_record_is_refused() -> None:
    class Across(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(BATCH, BATCH)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs[:, 0])[:, None]

    engine = engine_of("book-keeping", Across(), weighted_squares, 1.0)
    with pytest.raises(BookKeepingError, match="'layer' sees inputs of shape"):
        engine(torch.randn(BATCH, 3), torch.zeros(BATCH))


@pytest.mark.parametrize("engine", ["book-keeping", "opacus", "vmap", "loop"])
def test_no_record_has_a_sum_of_zeros(engine: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    found = engine_of(engine, model, weighted_squares, 1.0)(torch.zeros(0, 4), torch.zeros(0))
    assert found.total.shape == (4 * 3 + 3 + 3 * 2 + 2,)
    assert not found.total.any()
    assert not found.total.requires_grad
    assert found.raw_norms.shape == found.clipped_norms.shape == (0,)


def test_a_layer_that_takes_its_records_by_name_is_refused() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Scale(4)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs=inputs)

    engine = engine_of("book-keeping", Named(), weighted_squares, 1.0)
    with pytest.raises(BookKeepingError, match="'layer' takes tensors by name"):
        engine(torch.randn(3, 4), torch.zeros(3))


@pytest.mark.parametrize(
    ("options", "known"),
    [({}, True), ({"max_norm": 1.0}, False), ({"scale_grad_by_freq": True}, False)],
)
def test_a_table_whose_rows_depend_on_who_else_is_read_is_not_written_out(
    options: dict[str, object], known: bool
) -> None:
    assert (sites._known_forward(nn.Embedding(9, 4, **options)) is not None) == known
