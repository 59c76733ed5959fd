"""Norms become factors in one place, and what would break the bound is refused there."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    Clipping,
    ClippingError,
    cut,
    empty_sum,
    exact_squared_norms,
    flat_clip,
    flat_factors,
    joined,
    record_losses,
    refuse_mixing,
    summed,
    trainable_parameters,
)


@given(
    norms=st.lists(st.floats(0, 1e300), min_size=1, max_size=20),
    clipping_norm=st.floats(1e-6, 1e6) | st.just(math.inf),
)
# A factor that float32 holds in seven bits only.
@example(norms=[1.2697933209127758e36], clipping_norm=1e-06)
def test_no_factor_lifts_a_norm_over_the_clipping_norm(
    norms: list[float], clipping_norm: float
) -> None:
    values = torch.tensor(norms, dtype=torch.float64)
    factors = flat_clip(values, clipping_norm)
    assert (factors > 0).all() or clipping_norm < math.inf
    assert (factors <= 1).all()
    assert (factors[values < 0.999 * clipping_norm] == 1).all()
    # Even after the factor is rounded to float32, which is what multiplies.
    weights = Clipping(clipping_norm).weights(values.square(), torch.float32)
    kept = weights.finite
    rounded = weights.factors.float().double()
    assert (rounded[kept] * values[kept] <= clipping_norm).all()
    assert (rounded[~kept] == 0).all()


def test_weights_are_zero_where_float32_would_round_them_up() -> None:
    clipping = Clipping(1.0)
    squared = torch.tensor([1e4, 1e75, math.nan, math.inf], dtype=torch.float64)
    weights = clipping.weights(squared, torch.float32)
    assert weights.finite.tolist() == [True, True, False, False]
    assert weights.factors.tolist() == [pytest.approx(0.01), pytest.approx(10**-37.5), 0.0, 0.0]
    assert Clipping(1e-3).weights(squared, torch.float32).factors[1] == 0.0


def test_a_batch_with_a_gradient_that_is_not_finite_weighs_the_others_as_without_it():
    clipping = Clipping(1.0)
    squares = torch.tensor([0.0, 0.25, 1.0, 9.0, 1e80], dtype=torch.float64)
    whole = clipping.weights(squares[:4], torch.float32)
    spoilt = clipping.weights(torch.cat([squares, torch.tensor([math.nan])]), torch.float32)
    assert whole.all_finite
    assert not spoilt.all_finite
    assert torch.equal(spoilt.factors[:4], whole.factors)
    assert spoilt.factors[4:].tolist() == [0.0, 0.0]
    total = torch.zeros(1)
    one, other = whole.summed(total), spoilt.summed(total)
    assert torch.equal(other.clipped_norms[:4], one.clipped_norms)
    assert (one.nonfinite, other.nonfinite) == (0, 2)
    # Too small a factor for float32 is 0 in both.
    tiny = clipping.weights(torch.tensor([1e76], dtype=torch.float64), torch.float32)
    assert tiny.factors.tolist() == [0.0]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_largest_norm_that_a_number_can_be_is_finite(kind: torch.dtype) -> None:
    largest = min(torch.finfo(kind).max, 1e154)
    # Squares of float64 end at 1e308.
    found = Clipping(1.0).weights(torch.tensor([largest, 1.0], dtype=torch.float64) ** 2, kind)
    assert found.finite.tolist() == [True, True]
    assert found.raw_norms[0] == largest
    beyond = torch.tensor([torch.inf, torch.nan], dtype=torch.float64)
    assert Clipping(1.0).weights(beyond, kind).finite.tolist() == [False, False]


def test_a_batch_is_cut_between_people_alone():
    assert [(part.start, part.stop, list(own)) for part, own in cut([2, 2, 5, 1, 1], 4)] == [
        (0, 4, [2, 2]),
        (4, 9, [5]),
        (9, 11, [1, 1]),
    ]
    assert list(cut([], 4)) == []


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan])
def test_a_clipping_norm_that_is_not_positive_is_refused(norm: float) -> None:
    with pytest.raises(ClippingError, match="greater than 0"):
        Clipping(norm)
    assert Clipping(0.5).norm == 0.5


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_smallest_factor_that_keeps_its_digits_is_kept(kind: torch.dtype) -> None:
    """Below it a dtype drops digits, and rounding could lift the clipped norm over C."""
    tiny = torch.finfo(kind).tiny
    given = torch.tensor([tiny, math.nextafter(tiny, 0.0)], dtype=torch.float64)
    clipping = Clipping(1.0, lambda norms, _: given)
    assert clipping.weights(torch.ones(2, dtype=torch.float64), kind).factors.tolist() == [tiny, 0]


def test_a_norm_beyond_the_gradients_own_type_counts_as_not_finite() -> None:
    squares = torch.tensor([1e80], dtype=torch.float64)
    assert Clipping(1.0).weights(squares, torch.float32).finite.tolist() == [False]
    assert Clipping(1.0).weights(squares, torch.float64).finite.tolist() == [True]


def test_factors_are_the_same_bits_in_numpy_and_in_torch() -> None:
    norms = torch.logspace(-3, 5, 97, dtype=torch.float64)
    assert flat_factors(norms.numpy(), 0.7).tolist() == flat_clip(norms, 0.7).tolist()
    # 1 - 2^-22 of C: what rounding to float32 may add, and a factor of 1 where nothing is cut.
    assert flat_clip(torch.tensor([2.0, 0.1]).double(), 1.0).tolist() == [0.5 - 2.0**-23, 1.0]


@pytest.mark.parametrize("entries", [0, 1, 65_536, 65_537, 140_000])
def test_a_long_gradient_is_measured_in_pieces_to_the_same_norm(entries: int) -> None:
    gradients = torch.full((2, entries), 3.0)
    gradients[1] = 1.0
    found = exact_squared_norms(gradients)
    assert found.dtype == torch.float64
    assert found.tolist() == [9.0 * entries, 1.0 * entries]


def test_only_trained_parameters_are_clipped_and_at_least_one_is_trained() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert list(trainable_parameters(model)) == ["weight"]
    with pytest.raises(ClippingError, match="no trainable parameter; unfreeze at least its head"):
        trainable_parameters(model.requires_grad_(False))


def test_the_sums_of_parts_are_added_and_their_records_stay_in_order() -> None:
    def part(*norms: float) -> ClippedSum:
        each = torch.tensor(norms)
        return ClippedSum(each.sum()[None], each, each / 2, len(norms))

    one = part(1.0, 2.0)
    assert joined([one]) is one
    whole = joined([one, part(3.0), part(4.0)])
    assert whole.total.tolist() == [10.0]
    assert whole.raw_norms.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert whole.clipped_norms.tolist() == [0.5, 1.0, 1.5, 2.0]
    assert whole.nonfinite == 4


def test_no_record_has_a_sum_of_zeros_of_the_parameters_type() -> None:
    found = empty_sum({"a": torch.ones(2, 3).double(), "b": torch.ones(4).double()})
    assert (found.total.tolist(), found.total.dtype) == ([0.0] * 10, torch.float64)
    assert (len(found.raw_norms), len(found.clipped_norms), found.nonfinite) == (0, 0, 0)
    assert found.raw_norms.dtype == torch.float64


def test_a_loss_that_is_averaged_over_the_batch_is_refused() -> None:
    """A mean would divide each record's gradient by the realised batch size, which is private."""
    outputs, targets = torch.randn(3, 2), torch.arange(3) % 2
    each = nn.CrossEntropyLoss(reduction="none")
    assert record_losses(each, outputs, targets).shape == (3,)
    with pytest.raises(ClippingError, match=r'shape \(\) for 3 records.*reduction="none"'):
        record_losses(nn.CrossEntropyLoss(), outputs, targets)


def test_people_are_given_to_no_engine_that_clips_single_records() -> None:
    class OfRecords:
        name = "own"

        def __call__(self, inputs, targets):
            return "of records"

    class OfPeople(OfRecords):
        layers, explain = {}, str

        def of_people(self, inputs, targets, sizes):
            return f"of {len(sizes)} people"

    inputs = targets = torch.ones(3)
    assert summed(OfRecords(), inputs, targets, None) == "of records"
    assert summed(OfPeople(), inputs, targets, [2, 1]) == "of 2 people"
    with pytest.raises(ClippingError, match="engine own clips single records, but people are"):
        summed(OfRecords(), inputs, targets, [2, 1])


MIXING = {
    "batch norm": (nn.BatchNorm1d(2), "normalises over the batch.*use GroupNorm"),
    "batch norm without statistics": (
        nn.BatchNorm2d(2, track_running_stats=False).eval(),
        "normalises over the batch",
    ),
    "instance norm with statistics": (
        nn.InstanceNorm2d(2, track_running_stats=True),
        "keeps running statistics.*track_running_stats=False",
    ),
}
APART = {
    "frozen batch norm": nn.BatchNorm2d(2).eval(),
    "instance norm": nn.InstanceNorm1d(2),
    "frozen instance norm": nn.InstanceNorm2d(2, track_running_stats=True).eval(),
    "group norm": nn.GroupNorm(1, 2),
}


@pytest.mark.parametrize("layer", MIXING)
def test_a_layer_that_mixes_records_or_remembers_them_is_refused_by_its_name(layer: str) -> None:
    module, message = MIXING[layer]
    with pytest.raises(ClippingError, match=rf"'1' \({type(module).__name__}\) {message}"):
        refuse_mixing(nn.ModuleList([nn.Linear(2, 2), module]))


@pytest.mark.parametrize("layer", APART)
def test_a_layer_that_keeps_records_apart_is_accepted(layer: str) -> None:
    refuse_mixing(nn.ModuleList([APART[layer]]))
