"""The engines that form every gradient: by hand on gradients that are the records themselves."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping import vmap
from dpfedadamw.clipping.vmap import VmapEngine
from dpfedadamw.privacy.clipped_sum import Clipping, ClippingError
from dpfedadamw.privacy.plain_form import LoopEngine

ENGINES = [LoopEngine, VmapEngine]


class Dot(nn.Module):
    """w·x, whose gradient by w is x, and by a parameter that it does not use is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.3, -0.7]))
        self.unused = nn.Parameter(torch.tensor([9.0]))

    def forward(self, records: Tensor) -> Tensor:
        return records @ self.weight


def itself(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs * targets


RECORDS = torch.tensor([[3.0, 4.0], [0.0, 0.5], [-2.0, 0.0], [6.0, 8.0], [0.0, 0.0]])
ONES = torch.ones(5)
# C = 2: the first and the fourth are cut to 2, the third has just that norm.
TOTAL = [1.2 - 2.0 + 1.2, 1.6 + 0.5 + 1.6, 0.0]
RAW, CLIPPED = [5.0, 0.5, 2.0, 10.0, 0.0], [2.0, 0.5, 2.0, 2.0, 0.0]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sum_is_that_of_the_records_cut_to_the_norm(engine):
    found = engine(Dot(), itself, Clipping(2.0))(RECORDS, ONES)
    torch.testing.assert_close(found.total, torch.tensor(TOTAL), rtol=1e-6, atol=1e-6)
    assert found.raw_norms.tolist() == pytest.approx(RAW, rel=1e-12)
    assert found.clipped_norms.tolist() == pytest.approx(CLIPPED, rel=1e-6)
    assert found.nonfinite == 0
    assert (found.total.dtype, found.raw_norms.dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("broken", [(1,), (0, 4), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_records_without_a_finite_gradient_are_left_out_and_counted(engine, broken, value):
    records = RECORDS.clone()
    records[list(broken), 1] = value
    rest = [one for one in range(5) if one not in broken]
    found = engine(Dot(), itself, Clipping(2.0))(records, ONES)
    expected = engine(Dot(), itself, Clipping(2.0))(RECORDS[rest], ONES[rest])
    torch.testing.assert_close(found.total, expected.total, rtol=1e-6, atol=1e-6)
    assert found.nonfinite == len(broken)
    assert not torch.isfinite(found.raw_norms[list(broken)]).any()
    assert found.clipped_norms[list(broken)].tolist() == [0.0] * len(broken)


def test_a_sparse_gradient_of_an_embedding_is_a_gradient_like_others():
    tokens, targets = torch.tensor([[1, 2, 2], [3, 0, 1]]), torch.tensor([0, 1])
    sums = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 2, sparse=sparse), nn.Flatten(), nn.Linear(6, 2))
        loss = partial(nn.functional.cross_entropy, reduction="none")
        sums.append(LoopEngine(model, loss, Clipping(0.5))(tokens, targets))
    assert torch.equal(sums[0].total, sums[1].total)
    assert torch.equal(sums[0].raw_norms, sums[1].raw_norms)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_depends_on_nothing_has_no_gradient(engine):
    found = engine(Dot(), lambda outputs, targets: 0.0 * targets, Clipping(2.0))(RECORDS, ONES)
    assert found.total.tolist() == [0.0] * 3
    assert found.raw_norms.tolist() == found.clipped_norms.tolist() == [0.0] * 5


@pytest.mark.parametrize("engine", ENGINES)
def test_no_records_have_a_sum_of_zeros_and_nothing_is_computed(engine):
    found = engine(Dot(), lambda *_: 1 / 0, Clipping(2.0))(RECORDS[:0], ONES[:0])
    assert found.total.tolist() == [0.0] * 3
    assert (len(found.raw_norms), found.nonfinite) == (0, 0)


@pytest.mark.parametrize(
    ("entries", "chunks"), [(3, 5), (2, 5), (1, 5), (6, 3), (8, 3), (9, 2), (14, 2), (15, 1)]
)
def test_as_many_gradients_are_held_at_once_as_there_is_room_for(entries, chunks, monkeypatch):
    """Of three parameters: a gradient has three entries, and one is formed in any case."""
    monkeypatch.setattr(vmap, "_CHUNK_ENTRIES", entries)
    calls = []

    def counted(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        return itself(outputs, targets)

    found = VmapEngine(Dot(), counted, Clipping(2.0))(RECORDS, ONES)
    assert len(calls) == chunks
    torch.testing.assert_close(found.total, torch.tensor(TOTAL), rtol=1e-6, atol=1e-6)
    assert found.raw_norms.tolist() == pytest.approx(RAW, rel=1e-12)
    assert found.clipped_norms.tolist() == pytest.approx(CLIPPED, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_norms_are_taken_in_double_precision(engine):
    found = engine(Dot(), itself, Clipping(2.0))(torch.tensor([[1.0, 2.0**-13]]), ONES[:1])
    assert found.raw_norms.tolist() == [math.sqrt(1.0 + 2.0**-26)]


def test_each_engine_says_what_it_does_and_has_no_layers_of_its_own():
    loop, whole = (engine(Dot(), itself, Clipping(2.0)) for engine in ENGINES)
    assert (loop.name, whole.name) == ("loop", "vmap")
    assert loop.layers == whole.layers == {}
    assert loop.explain() == "loop: one forward and backward pass for each record"
    assert whole.explain() == "vmap: every record's gradient is formed in full, in chunks"


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, records: Tensor) -> Tensor:
        return nn.functional.dropout(records * self.weight, 0.5).sum(1)


def test_a_mask_is_drawn_for_each_record_under_vmap():
    torch.manual_seed(1)
    found = VmapEngine(Masked(), itself, Clipping(math.inf))(torch.ones(4, 64), torch.ones(4))
    # Of 64 coordinates, 0 or 2, half are kept: masks of their own have norms of their own.
    assert len(set(found.raw_norms.tolist())) > 1


def test_a_layer_through_which_records_change_one_another_is_refused():
    mixing = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    with pytest.raises(ClippingError, match="normalises over the batch"):
        LoopEngine(mixing, itself, Clipping(2.0))(RECORDS, ONES)
