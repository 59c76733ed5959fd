"""Short gradients of many layers, measured and added up side by side."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpfedadamw.clipping import short
from dpfedadamw.clipping.short import ShortGradients

LENGTHS = {"first": 3, "second": 1, "third": 6}


def gathered(records: int = 4) -> tuple[ShortGradients, dict[str, Tensor]]:
    torch.manual_seed(0)
    drawn = {name: torch.randn(records, length) for name, length in LENGTHS.items()}
    gathered = ShortGradients()
    for name, one in drawn.items():
        gathered.add(name, one)
    return gathered, drawn


@pytest.mark.parametrize("most", [1, 16, 2**19])
def test_norms_and_sums_are_those_of_each_gradient_alone(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short, "_JOINED_ENTRIES", most)
    gradients, drawn = gathered()
    whole = torch.cat(list(drawn.values()), 1).double()
    torch.testing.assert_close(gradients.squared_norms(), whole.square().sum(1), rtol=1e-14, atol=0)
    factors = torch.rand(4)
    out = {name: torch.full((length,), math.nan) for name, length in LENGTHS.items()}
    gradients.weighted_sum(factors, None, out)
    for name, one in drawn.items():
        torch.testing.assert_close(out[name], factors @ one)


def test_a_record_that_is_left_out_adds_nothing_even_if_it_is_not_finite() -> None:
    gradients, drawn = gathered()
    drawn["second"][1] = math.nan
    assert torch.isfinite(gradients.squared_norms()).tolist() == [True, False, True, True]
    rows, factors = torch.tensor([0, 2, 3]), torch.rand(3)
    out = {name: torch.zeros(length) for name, length in LENGTHS.items()}
    gradients.weighted_sum(factors, rows, out)
    for name, one in drawn.items():
        torch.testing.assert_close(out[name], factors @ one[rows])


def test_squares_that_float32_cannot_hold_are_measured() -> None:
    gradients = ShortGradients()
    gradients.add("bias", torch.full((2, 3), 1e30))
    torch.testing.assert_close(
        gradients.squared_norms(), torch.full((2,), 3e60, dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_nothing_gathered_has_no_norms_and_writes_nothing() -> None:
    gradients = ShortGradients()
    assert gradients.squared_norms() is None
    gradients.weighted_sum(torch.ones(2), None, {})


def test_gradients_that_nobody_measured_are_added_up_too() -> None:
    gradients, drawn = gathered()
    out = {name: torch.zeros(length) for name, length in LENGTHS.items()}
    gradients.weighted_sum(torch.ones(4), None, out)
    for name, one in drawn.items():
        torch.testing.assert_close(out[name], one.sum(0))


@pytest.mark.parametrize(
    ("most", "together"), [(16, [2, 1]), (15, [1, 1, 1]), (40, [3]), (39, [2, 1]), (28, [2, 1])]
)
def test_as_many_are_laid_side_by_side_as_have_room(
    most: int, together: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four records of three, one and six entries.
    monkeypatch.setattr(short, "_JOINED_ENTRIES", most)
    gradients, _ = gathered()
    gradients.squared_norms()
    assert [len(names) for names, _, _ in gradients._joined] == together
