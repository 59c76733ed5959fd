"""Clipped sums by Opacus: recurrent layers agree with the loop, and nothing is taken on trust."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping import grad_sample, rehearsal
from dpfedadamw.clipping.engines import ClippingError, choose
from dpfedadamw.clipping.grad_sample import GradSampleEngine
from dpfedadamw.clipping.rehearsal import GradSampleError
from dpfedadamw.models.networks.vit import VisionTransformer
from dpfedadamw.privacy.clipped_sum import Clipping
from dpfedadamw.privacy.plain_form import LoopEngine
from tests.dpfedadamw.clipping.clipping_harness import (
    assert_agrees,
    assert_same,
    cross_entropy,
    median_norm,
)

BATCH, TOKENS = 6, 7


class Reader(nn.Module):
    """A text classifier with recurrent layers."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.words = nn.Embedding(30, layer.input_size)
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of tokens [b, length]."""
        words = self.words(tokens)
        words = words if self.layer.batch_first else words.transpose(0, 1)
        self.layer.flatten_parameters()
        found, _ = self.layer(words)
        return self.head(found.mean(1 if self.layer.batch_first else 0))


LAYERS = {
    "lstm": lambda: nn.LSTM(4, 5, batch_first=True),
    "deep gru both ways": lambda: nn.GRU(4, 5, num_layers=2, bidirectional=True, batch_first=True),
    "deep lstm": lambda: nn.LSTM(4, 5, num_layers=2, batch_first=True),
    "sequences first": lambda: nn.LSTM(4, 5),
    "relu without bias": lambda: nn.RNN(4, 5, nonlinearity="relu", bias=False, batch_first=True),
}


def reader(name: str) -> tuple[Reader, Tensor, Tensor]:
    torch.manual_seed(0)
    tokens = torch.randint(0, 30, (BATCH, TOKENS))
    return Reader(LAYERS[name]()), tokens, torch.arange(BATCH) % 3


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_agree_with_the_loop(name: str) -> None:
    assert_agrees(*reader(name), loss=cross_entropy, engine="opacus")


@pytest.mark.parametrize("name", LAYERS)
def test_opacus_is_chosen_where_there_is_no_book_keeping_and_agrees_in_float32(name: str) -> None:
    model, inputs, targets = reader(name)
    norm = median_norm(model, cross_entropy, inputs, targets)
    engine = choose(model, cross_entropy, norm)
    expected = LoopEngine(model, cross_entropy, Clipping(norm))(inputs, targets)
    assert_same(engine(inputs, targets), expected, tolerance=1e-5)
    assert engine.name == "opacus", engine.explain()
    assert engine.layers == {"words": "by layer", "layer": "cells", "head": "by layer"}
    assert "recurrent layers as Opacus' cells: layer (no book-keeping: " in engine.explain()


@pytest.mark.parametrize("first", [False, True])
def test_the_row_of_padding_is_trained_by_no_record(first: bool) -> None:
    """Also where the record by which the engine is tried has no padding."""
    model, inputs, targets = reader("lstm")
    model.words = nn.Embedding(30, 4, padding_idx=3)
    inputs[inputs == 3] = 4
    inputs[0 if first else 2 :, 4:] = 3
    assert_agrees(model, inputs, targets, loss=cross_entropy, engine="opacus")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_norm": 1.0}, "max_norm or scale_grad_by_freq"),
        ({"scale_grad_by_freq": True}, "max_norm or scale_grad_by_freq"),
        ({"padding_idx": 3}, "whose weight has two layers"),
    ],
)
def test_an_embedding_that_opacus_computes_otherwise_is_refused(
    options: dict[str, Any], said: str
) -> None:
    model, *_ = reader("lstm")
    model.words = nn.Embedding(30, 4, **options)
    if "padding_idx" in options:
        model.out = nn.Linear(4, 30, bias=False)
        model.out.weight = model.words.weight
    with pytest.raises(GradSampleError, match=said):
        GradSampleEngine(model, cross_entropy, Clipping(1.0))


def test_weights_that_move_and_a_frozen_layer_are_seen_in_the_next_batch() -> None:
    model, inputs, targets = reader("lstm")
    engine = GradSampleEngine(model, cross_entropy, Clipping(0.1))
    engine(inputs, targets)
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    model.words.weight.requires_grad_(False)
    expected = LoopEngine(model, cross_entropy, Clipping(0.1))(inputs, targets)
    assert_same(engine(inputs, targets), expected, tolerance=1e-5)
    assert isinstance(model.layer, nn.LSTM)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_batch_and_a_broken_record_cost_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    engine = GradSampleEngine(model, cross_entropy, Clipping(1.0))
    assert not engine(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).total.any()
    records, targets = torch.randn(3, 3), torch.tensor([0, 1, 0])
    records[1] = float("nan")
    found = engine(records, targets)
    assert found.nonfinite == 1
    assert_same(
        found, LoopEngine(model, cross_entropy, Clipping(1.0))(records, targets), tolerance=1e-5
    )


def test_a_large_batch_is_cut_up(monkeypatch) -> None:
    monkeypatch.setattr("dpfedadamw.clipping.grad_sample._CHUNK_ENTRIES", 700)
    assert_agrees(*reader("lstm"), loss=cross_entropy, engine="opacus")


class Neighbours(nn.Module):
    """Adds to each record what the one before it in the batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, records: Tensor) -> Tensor:
        return self.layer(records + records.roll(1, 0))


@pytest.mark.parametrize("engine", ["book-keeping", "opacus"])
def test_a_model_that_mixes_records_does_not_pass_the_rehearsal(engine: str) -> None:
    records, targets = torch.randn(3, 3), torch.tensor([0, 1, 0])
    with pytest.raises(ClippingError, match=f"^{engine} cannot follow this model: .* or loop$"):
        choose(Neighbours(), cross_entropy, 1.0, engine=engine)(records, targets)
    chosen = choose(Neighbours(), cross_entropy, 1.0)
    chosen(records, targets)
    assert chosen.name == "vmap"
    assert "no book-keeping: " in chosen.explain()
    assert "no opacus: " in chosen.explain()


def test_an_engine_that_is_wrong_is_noticed(monkeypatch) -> None:
    model, inputs, targets = reader("lstm")
    whole = GradSampleEngine._gradients

    def swapped(self: GradSampleEngine, *given: object) -> Tensor:
        return whole(self, *given).flip(0)

    monkeypatch.setattr(GradSampleEngine, "_gradients", swapped)
    with pytest.raises(rehearsal.BookKeepingError, match=r"norms differ|a way that it cannot"):
        rehearsal.rehearse(
            model,
            cross_entropy,
            inputs,
            targets,
            lambda copied, clipping: GradSampleEngine(copied, cross_entropy, clipping),
            "opacus",
        )


def test_what_opacus_has_no_cells_for_is_refused() -> None:
    for layer in (
        nn.LSTM(4, 5, proj_size=2),
        nn.LSTM(4, 5, num_layers=2, dropout=0.5),
    ):
        with pytest.raises(GradSampleError, match="Opacus cannot wrap this model"):
            GradSampleEngine(nn.Sequential(layer), cross_entropy, Clipping(1.0))
    with pytest.raises(GradSampleError, match="float32, not in bfloat16"):
        GradSampleEngine(nn.Linear(2, 2), cross_entropy, Clipping(1.0), "bfloat16")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_parameter_of_its_own_is_right_by_functorch() -> None:
    torch.manual_seed(0)
    model = VisionTransformer((3, 8, 8), 4, 16, 1, 2, 2, 5)
    assert_agrees(model, torch.randn(3, 3, 8, 8), torch.tensor([0, 1, 2]), engine="opacus")


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("one line\nand another"), "one line"), (KeyError(), "KeyError")],
)
def test_why_an_engine_fails_is_told_in_a_line(error: Exception, said: str) -> None:
    def make(*_: object) -> object:
        raise error

    model, inputs, targets = nn.Linear(3, 2), torch.randn(2, 3), torch.arange(2)
    with pytest.raises(rehearsal.BookKeepingError) as found:
        rehearsal.rehearse(model, cross_entropy, inputs, targets, make, "this engine")
    assert str(found.value) == f"its forward fails under this engine ({said})"


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("one line\nand another"), "one line"), (ValueError(), "ValueError")],
)
def test_why_opacus_cannot_wrap_a_model_is_told_in_a_line(
    error: Exception, said: str, monkeypatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr(grad_sample, "_with_cells", refuse)
    with pytest.raises(grad_sample.GradSampleError) as found:
        grad_sample.GradSampleEngine(nn.Linear(3, 2), cross_entropy, Clipping(1.0))
    assert str(found.value) == f"Opacus cannot wrap this model ({said})"


def test_recurrent_layers_are_found_by_name() -> None:
    model = nn.ModuleDict(
        {"words": nn.Embedding(9, 4), "reader": nn.GRU(4, 5), "head": nn.Linear(5, 2)}
    )
    assert grad_sample.recurrent_layers(model) == ["reader"]
    assert grad_sample.recurrent_layers(nn.Linear(3, 2)) == []


def test_layers_with_parameters_of_their_own_are_looked_on_at_in_training_and_their_folders_stay():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 3)).eval()
    inside = grad_sample._twin_of(model).module._module
    states = {name: module.training for name, module in inside.named_modules()}
    assert states == {"": False, "0": False, "0.0": True, "0.1": False, "1": True}
    # The model itself stays as it was handed over.
    assert not any(module.training for module in model.modules())
