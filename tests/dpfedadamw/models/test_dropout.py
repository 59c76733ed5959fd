"""Dropout: a record's mask is its own, whatever else is in the batch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping.engines import choose
from dpfedadamw.models.networks.dropout import DropoutError, RecordDropout, dropping, number_layers
from dpfedadamw.models.networks.vit import VisionTransformer
from tests.dpfedadamw.clipping.clipping_harness import assert_agrees, cross_entropy


class Dropping(nn.Module):
    def __init__(self, probability: float = 0.4) -> None:
        super().__init__()
        self.first, self.second = RecordDropout(probability), RecordDropout(probability)
        self.layer = nn.Linear(40, 3)
        number_layers(self)

    def forward(self, inputs: Tensor) -> Tensor:
        with dropping(self, inputs, self.layer.bias):
            return self.layer(self.second(torch.tanh(self.first(inputs))))


def model_and_records() -> tuple[Dropping, Tensor]:
    torch.manual_seed(0)
    return Dropping().train(), torch.randn(5, 40)


def test_a_records_mask_does_not_depend_on_who_shares_its_batch():
    model, records = model_and_records()
    together = model(records)
    alone = torch.cat([model(record[None]) for record in records])
    torch.testing.assert_close(together, alone)
    shuffled = torch.tensor([3, 1, 4])
    torch.testing.assert_close(model(records[shuffled]), together[shuffled])


def test_masks_change_with_the_weights_and_not_otherwise():
    model, records = model_and_records()
    first = model(records)
    assert torch.equal(model(records), first)
    torch.rand(10)
    assert torch.equal(model(records), first)
    with torch.no_grad():
        model.layer.bias += 1e-6
    assert float((model(records) - first).detach().abs().max()) > 1e-3


def test_records_layers_and_entries_are_dropped_independently_and_at_the_right_rate():
    layers = nn.ModuleList([RecordDropout(0.3), RecordDropout(0.3)]).train()
    number_layers(layers)
    values = torch.randn(200, 500)
    with dropping(layers, values, torch.zeros(1)):
        masks = [layer(torch.ones_like(values)) == 0 for layer in layers]
    for mask in masks:
        # 100 000 draws: the standard deviation of the share is 0.0014.
        assert abs(float(mask.float().mean()) - 0.3) < 0.007
    both = float((masks[0] & masks[1]).float().mean())
    assert abs(both - 0.09) < 0.005
    assert len({bytes(row.tolist()) for row in masks[0]}) == 200


def test_no_two_of_many_layers_draw_the_same_masks():
    layers = nn.ModuleList(RecordDropout(0.3) for _ in range(64)).train()
    number_layers(layers)
    values = torch.randn(1, 200)
    with dropping(layers, values, torch.zeros(1)):
        masks = {bytes((layer(torch.ones_like(values)) == 0)[0].tolist()) for layer in layers}
    assert len(masks) == 64
    # A layer's seed is its number and a digest's: near numbers could come to one seed.
    numbers = sorted(layer.number for layer in layers)
    assert min(b - a for a, b in pairwise(numbers)) > 2**40


def test_what_is_left_is_scaled_up_and_evaluation_drops_nothing():
    layer = RecordDropout(0.25).train()
    values = torch.ones(3, 50)
    with dropping(layer, values, torch.zeros(1)):
        assert {round(v, 6) for v in layer(values).flatten().tolist()} == {0.0, round(4 / 3, 6)}
    assert torch.equal(layer.eval()(values), values)


@pytest.mark.parametrize("engine", ["book-keeping", "loop"])
def test_a_neighbour_moves_the_clipped_sum_by_at_most_the_clipping_norm(engine: str):
    model, records = model_and_records()
    targets = torch.tensor([0, 1, 2, 0, 1])
    chosen = choose(model, cross_entropy, 0.5, engine=engine)
    whole = chosen(records, targets).total
    for left_out in range(5):
        kept = torch.arange(5) != left_out
        moved = whole - chosen(records[kept], targets[kept]).total
        assert float(moved.norm()) <= 0.5 * (1 + 1e-5)


def test_the_clipped_sum_has_the_loops_masks():
    model, records = model_and_records()
    assert_agrees(model, records, torch.tensor([0, 1, 2, 0, 1]), cross_entropy)
    vit = VisionTransformer((3, 8, 8), 4, 16, 2, 2, 2, 5, dropout=0.2, from_scratch=True).train()
    assert_agrees(vit, torch.randn(4, 3, 8, 8), torch.arange(4), cross_entropy)


def test_under_vmap_dropout_is_refused_by_name():
    model, records = model_and_records()
    engine = choose(model, cross_entropy, 1.0, engine="vmap")
    with pytest.raises(DropoutError, match="use engine auto, book-keeping or loop"):
        engine(records, torch.zeros(5, dtype=torch.int64))


def test_dropout_outside_of_a_model_that_names_its_records_is_refused():
    with pytest.raises(DropoutError, match="records as the first dimension"):
        RecordDropout(0.5).train()(torch.randn(2, 3))
