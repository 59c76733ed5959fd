"""One weight as embedding table and output layer: norms and sums are those of both uses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfedadamw.clipping import forms
from dpfedadamw.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.clipping.sites import BookKeepingError
from dpfedadamw.privacy.clipped_sum import Clipping
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.spec.task_section import TokenTask
from dpfedadamw.tasks import Task

ROWS, WIDTH, PLACES = 30, 6, 8
LOSS = Task(TokenTask()).loss


class Model(nn.Module):
    def __init__(self, bias: bool = False, sign: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.between = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, ROWS, bias=bias)
        self.out.weight = self.table.weight
        self.sign = sign

    def forward(self, tokens):
        seen = self.table(tokens)
        return self.out(self.sign * seen + self.between(seen).tanh())


@pytest.fixture(params=[forms.KEPT_ENTRIES, 0], ids=["kept", "factored"])
def held(request, monkeypatch):
    """Gradients are kept in full, or as factors, as those of a large vocabulary are."""
    monkeypatch.setattr(forms, "KEPT_ENTRIES", request.param)
    monkeypatch.setattr(forms, "_COST_OF_KEEPING", 10**9 if request.param else 0)
    return "direct" if request.param else "tied"


def batch(count=5):
    torch.manual_seed(0)
    tokens = torch.randint(0, 5, (count, PLACES))
    targets = torch.randint(0, 5, (count, PLACES))
    targets[1, 3:] = -100
    return tokens, targets


@pytest.mark.parametrize("clipping", [0.3, 100.0])
def test_a_tied_weight_has_the_clipped_sum_of_the_loop(held, clipping):
    torch.manual_seed(1)
    model = Model().double()
    engine = BookKeepingEngine(model, LOSS, Clipping(clipping))
    found, right = engine(*batch()), LoopEngine(model, LOSS, Clipping(clipping))(*batch())
    assert engine.layers["table"] == held
    torch.testing.assert_close(found.raw_norms, right.raw_norms, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.total, right.total, rtol=1e-9, atol=1e-12)


def test_people_have_the_clipped_sum_of_their_means(held):
    torch.manual_seed(1)
    model, sizes = Model().double(), [2, 1, 2]
    found = BookKeepingEngine(model, LOSS, Clipping(0.3)).of_people(*batch(), sizes)
    right = LoopEngine(model, LOSS, Clipping(0.3)).of_people(*batch(), sizes)
    torch.testing.assert_close(found.raw_norms, right.raw_norms, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.total, right.total, rtol=1e-9, atol=1e-12)


def test_a_record_that_is_not_finite_is_left_out(held):
    torch.manual_seed(1)
    model = Model()
    tokens, targets = batch()
    with torch.no_grad():
        model.table.weight[7] = float("inf")
    tokens[2, 0] = 7
    engine = BookKeepingEngine(model, LOSS, Clipping(0.3))
    assert engine(tokens, targets).nonfinite == len(tokens)
    with torch.no_grad():
        model.table.weight[7] = 1e30
    found = engine(tokens, targets)
    assert bool(torch.isfinite(found.total).all())


def test_a_norm_is_never_underestimated_where_both_uses_cancel(held):
    """Of float32, in which rounding may hide what two opposite gradients leave."""
    torch.manual_seed(2)
    for sign in (-1.0, -0.5, 0.5):
        model = Model(sign=sign)
        found = BookKeepingEngine(model, LOSS, Clipping(1.0))(*batch())
        wide = Model(sign=sign).double()
        wide.load_state_dict(model.state_dict())
        right = LoopEngine(wide, LOSS, Clipping(1.0))(*batch())
        assert bool((found.raw_norms >= right.raw_norms * (1 - 1e-6)).all())
        torch.testing.assert_close(found.raw_norms, right.raw_norms, rtol=1e-4, atol=0)


def test_a_weight_of_two_other_layers_is_left_to_other_engines():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    with pytest.raises(BookKeepingError, match="are one parameter"):
        BookKeepingEngine(model, LOSS, Clipping(1.0))
    with pytest.raises(BookKeepingError, match="are one parameter"):
        BookKeepingEngine(Model(bias=True), LOSS, Clipping(1.0))
