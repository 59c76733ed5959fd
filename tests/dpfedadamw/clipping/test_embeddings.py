"""Gradients of an embedding table, row by row and by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping.embeddings import TableRows, form_of_lookup
from tests.dpfedadamw.clipping.clipping_harness import assert_agrees

# Three records look up two rows each of a table of four; the second looks one up twice.
INDICES = torch.tensor([[0, 2], [1, 1], [3, 0]])
OUTPUTS = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [1.0, 0.5]], [[7.0, 0], [0, 8.0]]])


def dense(padding: int | None = None) -> Tensor:
    """The gradient of each record by the whole table, [b, rows, width]."""
    whole = torch.zeros(3, 4, 2)
    for record, rows in enumerate(INDICES.tolist()):
        for place, row in enumerate(rows):
            if row != padding:
                whole[record, row] += OUTPUTS[record, place]
    return whole


@pytest.mark.parametrize("padding", [None, 0, 1, 3])
def test_a_record_s_lookups_of_a_row_are_added_before_its_norm_is_taken(padding):
    form = form_of_lookup(INDICES, OUTPUTS, 4, padding)
    whole = dense(padding)
    expected = whole.flatten(1).double().square().sum(1)
    assert form.squared_norms().dtype == torch.float64
    assert form.squared_norms().tolist() == expected.tolist()
    chosen = torch.tensor([2, 0])
    assert form.exact_squared_norms(chosen).tolist() == expected[chosen].tolist()
    assert form.kept().gradients["weight"].tolist() == whole.flatten(1).tolist()
    assert (form.batch, form.rows, form.method) == (3, 4, "rows")
    short, rest = form.split_short()
    assert (short, rest) == ({}, form)


def test_a_padding_row_is_not_trained_and_costs_nothing():
    form = form_of_lookup(INDICES, OUTPUTS, 4, 1)
    assert form.squared_norms()[1] == 0.0
    assert len(form.gradients) == 4
    assert len(form_of_lookup(INDICES, OUTPUTS, 4, None).gradients) == 5


@pytest.mark.parametrize("rows", [None, [0, 1, 2], [0], [2], [0, 2], [2, 1], [1]])
def test_sums_are_weighted_over_the_records_that_are_chosen(rows):
    chosen = [0, 1, 2] if rows is None else rows
    factors = torch.tensor([0.5, 0.25, 2.0])[: len(chosen)]
    # What stood there before is written over.
    out = {"weight": torch.full((8,), 9.0)}
    form = form_of_lookup(INDICES, OUTPUTS, 4, None)
    form.weighted_sum(factors, None if rows is None else torch.tensor(rows), out)
    expected = (factors[:, None, None] * dense()[chosen]).sum(0)
    torch.testing.assert_close(out["weight"], expected.flatten(), rtol=1e-6, atol=0)


def test_a_record_that_is_not_finite_is_left_out_of_the_sum():
    broken = OUTPUTS.clone()
    broken[1] = float("nan")
    out = {"weight": torch.zeros(8)}
    form = form_of_lookup(INDICES, broken, 4, None)
    form.weighted_sum(torch.ones(2), torch.tensor([0, 2]), out)
    assert out["weight"].tolist() == dense()[[0, 2]].sum(0).flatten().tolist()


def test_squares_are_added_up_in_double_precision():
    form = TableRows(
        torch.tensor([[1.0, 2.0**-13]]), torch.tensor([0]), torch.tensor([0]), batch=1, rows=1
    )
    assert form.squared_norms().tolist() == [1.0 + 2.0**-26]


def test_a_form_lies_where_what_was_looked_up_lies_whatever_the_default_device_is():
    with torch.device("meta"):
        form = form_of_lookup(INDICES, OUTPUTS, 4, 1)
    assert form.kept().gradients["weight"].tolist() == dense(1).flatten(1).tolist()


class Positions(nn.Module):
    """A table that all records look up at the same places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(9, 4), nn.Embedding(6, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])[None]
        return self.head(torch.tanh(self.tokens(tokens) + self.positions(places)))


@pytest.mark.parametrize("records", [1, 2, 3, 5])
def test_places_that_all_records_share_are_looked_up_for_each(records):
    torch.manual_seed(0)
    tokens = torch.randint(0, 9, (records, 6))
    assert_agrees(Positions(), tokens, torch.arange(records) % 3)
