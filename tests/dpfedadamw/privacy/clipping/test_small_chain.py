"""Small chains in numpy: their sums are the loop's, and what is none of theirs goes another way."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.models.registry import loss_of
from dpfedadamw.privacy.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.privacy.clipping.chain import Chain
from dpfedadamw.privacy.clipping.clipped_sum import Clipping, flat_clip, flat_factors
from dpfedadamw.privacy.clipping.reference import LoopEngine
from dpfedadamw.privacy.clipping.small_chain import SmallChain
from dpfedadamw.tasks import cross_entropy
from tests.dpfedadamw.privacy.clipping import clipping_harness
from tests.dpfedadamw.privacy.clipping.clipping_harness import assert_same, median_norm
from tests.dpfedadamw.privacy.clipping.test_chain import CHAINS, SHAPE, batch

# Products in float32 over eighteen terms, against the same in float64.
CLOSE = 2e-6


def small_of(model: nn.Module, norm: float = 1.0, **other: object) -> SmallChain | None:
    chain = Chain.of(model)
    assert chain is not None
    loss, clipping = other.get("loss", cross_entropy), other.get("clipping", Clipping(norm))
    return SmallChain.of(chain, dict(model.named_parameters()), loss, clipping)


def of_loop(model: nn.Module, norm: float, inputs: Tensor, targets: Tensor):
    """The same sum, record by record and in float64, as float32."""
    wide = copy.deepcopy(model).double()
    found = LoopEngine(wide, cross_entropy, Clipping(norm))(inputs.double(), targets)
    return replace(found, total=found.total.float())


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("records", [1, 7, 40])
@pytest.mark.parametrize("share", [0.5, 1.0, math.inf])
def test_the_sums_are_the_loops(name: str, records: int, share: float) -> None:
    model = CHAINS[name]()
    norm = share * median_norm(model, cross_entropy, *batch())
    small = small_of(model, norm)
    assert small is not None
    found = small(*batch(records))
    assert found is not None
    assert_same(found, of_loop(model, norm, *batch(records)), tolerance=CLOSE)


def test_a_run_s_loss_takes_this_way() -> None:
    model = MultiLayerPerceptron(SHAPE, [8], 5)
    engine = BookKeepingEngine(model, loss_of(model), Clipping(0.5))
    found = engine(*batch())
    small = small_of(model, 0.5)
    assert small is not None
    again = small(*batch())
    assert again is not None
    assert torch.equal(found.total, again.total)
    assert set(engine.layers.values()) == {"in closed form"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e30])
@pytest.mark.parametrize("hidden", [[], [8]])
def test_a_broken_record_adds_exactly_nothing_and_a_huge_one_at_most_c(
    value: float, hidden: list[int]
) -> None:
    model = MultiLayerPerceptron(SHAPE, hidden, 5)
    inputs, targets = batch()
    inputs[3] = value
    small = small_of(model, 0.5)
    assert small is not None
    found = small(inputs, targets)
    assert found is not None
    expected = LoopEngine(model, cross_entropy, Clipping(0.5))(inputs, targets)
    assert_same(found, expected, tolerance=1e-5)
    rest = small(*(one[[0, 1, 2, 4, 5, 6]] for one in (inputs, targets)))
    assert rest is not None
    if found.nonfinite:
        assert found.clipped_norms[3] == 0.0
        assert torch.equal(found.total, rest.total)
    assert float((found.total - rest.total).double().norm()) <= 0.5 * (1.0 + 1e-6)


def test_records_whose_gradient_is_nothing_add_nothing() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 5, bias=False))
    small = small_of(model)
    assert small is not None
    found = small(torch.zeros(3, *SHAPE), torch.arange(3))
    assert found is not None
    assert not found.total.any()
    assert found.raw_norms.tolist() == found.clipped_norms.tolist() == [0.0] * 3
    assert found.nonfinite == 0


@given(
    st.lists(st.floats(0.0, 1e38), min_size=1, max_size=9),
    st.sampled_from([1e-30, 1e-3, 1.0, 7.5, 1e30, math.inf]),
)
def test_factors_are_those_of_the_other_engines(norms: list[float], clipping_norm: float) -> None:
    values = np.asarray(norms)
    with np.errstate(all="ignore"):
        found = flat_factors(values, clipping_norm)
    expected = flat_clip(torch.from_numpy(values), clipping_norm).numpy()
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("scale", [1e-36, 1e-37, 1e-39, 1e-44])
def test_a_factor_too_small_for_float32_is_nothing_as_in_the_other_engines(scale: float) -> None:
    model = MultiLayerPerceptron(SHAPE, [], 5)
    small = small_of(model, scale)
    assert small is not None
    found = small(*batch())
    expected = LoopEngine(model, cross_entropy, Clipping(scale))(*batch())
    assert found is not None
    assert (found.clipped_norms == 0).tolist() == (expected.clipped_norms == 0).tolist()
    assert (found.clipped_norms <= scale).all()


def doubled() -> nn.Module:
    return MultiLayerPerceptron(SHAPE, [], 5).double()


OTHERS: dict[str, Callable[[], SmallChain | None]] = {
    "another loss": lambda: small_of(CHAINS["softmax regression"](), loss=torch.square),
    "cross-entropy of somebody else": lambda: small_of(
        CHAINS["softmax regression"](), loss=clipping_harness.cross_entropy
    ),
    "another rule of clipping": lambda: small_of(
        CHAINS["softmax regression"](), clipping=Clipping(1.0, lambda norms, _c: norms * 0.0)
    ),
    "double precision": lambda: small_of(doubled()),
    "a long vector": lambda: small_of(MultiLayerPerceptron((1, 64, 64), [], 8)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_else_is_for_torch(name: str) -> None:
    assert OTHERS[name]() is None


def test_a_product_that_threads_would_share_is_for_torch() -> None:
    small = small_of(MultiLayerPerceptron((1, 32, 32), [], 8))
    assert small is not None
    most = 2**18 // (32 * 32 * 8)
    inputs, targets = torch.zeros(most + 1, 1, 32, 32), torch.zeros(most + 1, dtype=torch.int64)
    assert small(inputs[:most], targets[:most]) is not None
    assert small(inputs, targets) is None


@pytest.mark.parametrize("label", [5, 99, -1])
def test_a_class_that_the_model_does_not_have_is_refused_as_by_torch(label: int) -> None:
    model = MultiLayerPerceptron(SHAPE, [], 5)
    inputs, targets = batch()
    targets[2] = label
    small = small_of(model)
    assert small is not None
    assert small(inputs, targets) is None
    with pytest.raises(IndexError, match="out of bounds"):
        BookKeepingEngine(model, cross_entropy, Clipping(1.0))(inputs, targets)


def test_a_class_that_torch_leaves_out_is_left_out() -> None:
    model = MultiLayerPerceptron(SHAPE, [], 5)
    inputs, targets = batch()
    targets[2] = -100
    found = BookKeepingEngine(model, cross_entropy, Clipping(1.0))(inputs, targets)
    assert found.raw_norms[2] == 0.0


def test_targets_of_other_kinds_are_for_torch() -> None:
    small = small_of(MultiLayerPerceptron(SHAPE, [], 5))
    assert small is not None
    inputs, targets = batch()
    assert small(inputs, targets.int()) is None
    assert small(inputs, nn.functional.one_hot(targets, 5).float()) is None
