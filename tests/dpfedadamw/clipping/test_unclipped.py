"""Plain sums of gradients, for runs without privacy."""

from __future__ import annotations

import torch
from torch import nn

from dpfedadamw.clipping.unclipped import PlainSum
from tests.dpfedadamw.clipping.clipping_harness import cross_entropy


class HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.unused = nn.Linear(4, 1)
        self.frozen = nn.Linear(5, 1).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(inputs)


def test_the_sum_is_that_of_all_records_and_a_parameter_that_is_not_used_has_zeros() -> None:
    model, inputs, targets = HalfUsed(), torch.randn(6, 3), torch.arange(6) % 2
    found = PlainSum(model, cross_entropy)(inputs, targets)
    cross_entropy(model(inputs), targets).sum().backward()
    weight, bias = model.head.weight.grad, model.head.bias.grad
    assert weight is not None
    assert bias is not None
    expected = torch.cat([weight.flatten(), bias, torch.zeros(5)])
    torch.testing.assert_close(found.total, expected)
    assert not found.total.requires_grad


def test_nothing_is_measured_of_any_record() -> None:
    model = HalfUsed()
    sums = [
        PlainSum(model, cross_entropy)(torch.randn(count, 3), torch.zeros(count, dtype=torch.int64))
        for count in (0, 4)
    ]
    for one in sums:
        assert one.raw_norms.shape == one.clipped_norms.shape == (0,)
        assert one.nonfinite == 0
        assert len(one.total) == 3 * 2 + 2 + 4 + 1
    assert not sums[0].total.any()
    assert not sums[0].total.requires_grad
    assert sums[1].total.any()


def test_it_says_what_it_is() -> None:
    plain = PlainSum(HalfUsed(), cross_entropy)
    assert plain.explain() == "plain: ordinary gradients, nothing is clipped"
    assert (plain.name, plain.layers) == ("plain", {})
