"""Products in bfloat16 where a spec says so, weights in float32, and nothing kept between steps."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from dpfedadamw.vectors.precision import PRECISIONS, computing_in, wide

CPU = torch.device("cpu")


def test_the_words_are_those_of_the_spec() -> None:
    assert PRECISIONS == ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("precision", "kind"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_layers_multiply_in_the_precision_and_weights_stay_in_float32(precision, kind) -> None:
    layer = nn.Linear(3, 2)
    with computing_in(precision, CPU):
        assert layer(torch.ones(1, 3)).dtype == kind
    assert layer.weight.dtype == torch.float32
    assert layer(torch.ones(1, 3)).dtype == torch.float32


def test_a_weight_that_changes_is_multiplied_as_it_is_now() -> None:
    layer = nn.Linear(3, 2, bias=False)
    with torch.enable_grad(), computing_in("bfloat16", CPU):
        layer(torch.ones(1, 3))
        layer.weight.data.fill_(1.0)
        assert layer(torch.ones(1, 3)).tolist() == [[3.0, 3.0]]


def test_an_accelerator_multiplies_in_bfloat16_too_whatever_it_would_choose(monkeypatch) -> None:
    """Its own choice is float16, in which gradients overflow."""
    asked = []

    def noted(device, **options):
        asked.append((device, options))
        return contextlib.nullcontext()

    monkeypatch.setattr(torch, "autocast", noted)
    with computing_in("bfloat16", torch.device("cuda", 1)):
        pass
    assert asked == [("cuda", {"dtype": torch.bfloat16, "cache_enabled": False})]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_short_numbers_are_widened_exactly_and_others_are_themselves(kind) -> None:
    short = torch.tensor([1.0, -0.5, 3.0], dtype=kind)
    assert wide(short).dtype == torch.float32
    assert wide(short).tolist() == [1.0, -0.5, 3.0]
    for values in (torch.ones(2), torch.ones(2).double(), torch.arange(2)):
        assert wide(values) is values
