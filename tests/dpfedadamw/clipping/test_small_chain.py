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

from dpfedadamw.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.clipping.chain import Chain, SmallChain
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.models.registry import loss_of
from dpfedadamw.privacy.clipped_sum import Clipping, flat_clip, flat_factors
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.tasks import cross_entropy
from tests.dpfedadamw.clipping import clipping_harness
from tests.dpfedadamw.clipping.clipping_harness import assert_same, median_norm
from tests.dpfedadamw.clipping.test_chain import CHAINS, SHAPE, batch

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
        # Another broken record in its place leaves every bit. A batch without one may be
        # summed in another order, which depends on the processor.
        other, labels = inputs.clone(), targets.clone()
        other[3], labels[3] = (math.nan if math.isinf(value) else math.inf), (labels[3] + 1) % 5
        again = small(other, labels)
        assert again is not None
        assert torch.equal(found.total, again.total)
        assert float((found.total - rest.total).norm()) <= CLOSE * float(rest.total.norm())
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


def mixed() -> nn.Module:
    """Layers of two kinds: not all of it is in float32."""
    model = CHAINS["two hidden layers"]()
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
    first.double()
    return model


def test_one_layer_of_another_kind_is_enough_for_torch() -> None:
    assert small_of(mixed()) is None


def test_the_longest_vector_and_the_widest_layer_decide() -> None:
    # 32,767 parameters and no bias are short; one more is not.
    for width, short in ((32_767, True), (32_768, False)):
        model = nn.Sequential(nn.Linear(width, 1, bias=False))
        assert (small_of(model) is not None) is short
    hidden = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    small = small_of(hidden)
    assert small is not None
    assert (small.size, small.widest) == (4 * 3 + 3 + 3 * 2, 12)
    assert [(step.weight, step.bias) for step in small.steps] == [
        (slice(0, 12), slice(12, 15)),
        (None, None),
        (slice(15, 21), None),
    ]
    assert small.methods == {"0": "in closed form", "2": "in closed form"}


def test_records_elsewhere_and_tables_of_classes_are_for_torch() -> None:
    small = small_of(MultiLayerPerceptron(SHAPE, [], 5))
    assert small is not None
    inputs, targets = batch()
    assert small(inputs.to("meta"), targets) is None
    assert small(inputs, targets[:, None]) is None
    assert small(inputs, targets) is not None


def test_a_softmax_regression_by_hand() -> None:
    """With weights of zero, each of two classes has a half; the gradient is (p - 1) x."""
    model = nn.Sequential(nn.Linear(2, 2))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    inputs = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    small = small_of(model, math.inf)
    assert small is not None
    found = small(inputs, torch.tensor([0, 1]))
    assert found is not None
    # By rows of the weight, then the bias: -x/2 and x/2 of class 0, nothing of x = 0.
    expected = [-1.5, -2.0, 1.5, 2.0, -0.5 + 0.5, 0.5 - 0.5]
    assert found.total.tolist() == pytest.approx(expected, rel=1e-6)
    # ‖δ‖² (‖x‖² + 1) with ‖δ‖² = 1/2.
    assert found.raw_norms.tolist() == pytest.approx([math.sqrt(13.0), math.sqrt(0.5)], rel=1e-7)
    small = small_of(model, 1.0)
    assert small is not None
    clipped = small(inputs, torch.tensor([0, 1]))
    assert clipped is not None
    assert clipped.clipped_norms.tolist() == pytest.approx([1.0, math.sqrt(0.5)], rel=1e-6)
    first, second = 1.0 / math.sqrt(13.0), 1.0
    expected = [-1.5 * first, -2 * first, 1.5 * first, 2 * first]
    expected += [-0.5 * first + 0.5 * second, 0.5 * first - 0.5 * second]
    assert clipped.total.tolist() == pytest.approx(expected, rel=1e-6)
    assert (clipped.raw_norms.dtype, clipped.total.dtype) == (torch.float64, torch.float32)


def test_what_is_not_finite_is_counted_and_the_rest_is_the_same_sum() -> None:
    model = MultiLayerPerceptron(SHAPE, [8], 5)
    small = small_of(model, 0.5)
    assert small is not None
    inputs, targets = batch()
    inputs[[1, 4]] = math.nan
    found = small(inputs, targets)
    assert found is not None
    assert found.nonfinite == 2
    assert torch.isnan(found.raw_norms[[1, 4]]).all()
    assert found.clipped_norms[[1, 4]].tolist() == [0.0, 0.0]
    every = small(torch.full_like(inputs, math.nan), targets)
    assert every is not None
    assert (every.nonfinite, every.total.any().item()) == (len(inputs), False)
