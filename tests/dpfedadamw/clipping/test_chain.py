"""Linear layers one after another: which models are, and that their sums are the loop's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.clipping.chain import Chain
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.privacy.clipped_sum import Clipping, ClippingError
from dpfedadamw.privacy.plain_form import LoopEngine
from tests.dpfedadamw.clipping.clipping_harness import (
    assert_agrees,
    assert_same,
    cross_entropy,
    median_norm,
    weighted_squares,
)

SHAPE = (2, 3, 3)
CHAINS: dict[str, Callable[[], nn.Module]] = {
    "softmax regression": lambda: MultiLayerPerceptron(SHAPE, [], 5),
    "two hidden layers": lambda: MultiLayerPerceptron(SHAPE, [8, 7], 5),
    "without biases": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(18, 6, bias=False), nn.ReLU(), nn.Linear(6, 5, bias=False)
    ),
    "ends in ReLU": lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 5), nn.ReLU()),
    "begins with ReLU": lambda: nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(18, 5)),
    "one within another": lambda: nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(18, 6)), nn.ReLU(), nn.Linear(6, 5)
    ),
}


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(18, 18)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.layer(inputs.flatten(1)))

    def applied_modules(self) -> tuple[nn.Module, ...]:
        return nn.Flatten(), self.layer, self.layer


def frozen() -> nn.Module:
    model = MultiLayerPerceptron(SHAPE, [8], 5)
    model.head.bias.requires_grad_(False)
    return model


def replaced() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 5), nn.ReLU())
    model[2].forward = lambda values: 2.0 * values
    return model


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "another layer": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(18), nn.Linear(18, 5)),
    "a frozen bias": frozen,
    "a layer twice": Doubled,
    "another forward": replaced,
    "a part flattened": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(9, 5), nn.Flatten()),
    "no parameters": lambda: nn.Sequential(nn.Flatten(), nn.ReLU()),
}


def batch(records: int = 7) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(records, *SHAPE), torch.arange(records) % 5


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("loss", [cross_entropy, weighted_squares])
def test_the_sums_of_a_chain_are_the_loops(name: str, loss: Callable[..., Tensor]) -> None:
    model = CHAINS[name]()
    assert Chain.of(model) is not None
    assert_agrees(model, *batch(), loss)
    # Written out, and not by way of autograd.
    engine = BookKeepingEngine(model, loss, Clipping(1.0))
    engine(batch()[0].double(), batch()[1])
    assert set(engine.layers.values()) == {"in closed form"}


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_else_is_no_chain(name: str) -> None:
    assert Chain.of(OTHERS[name]()) is None


def test_a_layer_of_ones_own_is_not_asked_for_what_it_applies() -> None:
    """Every module can be called, and one without arguments would fail."""
    model = nn.Module()
    model.applied_modules = nn.Sequential(nn.Flatten(), nn.Linear(18, 5))
    model.forward = model.applied_modules
    assert Chain.of(model) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38, 1e30])
@pytest.mark.parametrize("hidden", [[], [8]])
def test_a_broken_record_adds_exactly_nothing_and_a_huge_one_at_most_c(
    value: float, hidden: list[int]
) -> None:
    model = MultiLayerPerceptron(SHAPE, hidden, 5)
    inputs, targets = batch()
    inputs[3] = value
    norm = median_norm(model, cross_entropy, *batch())
    expected = LoopEngine(model, cross_entropy, Clipping(norm))(inputs, targets)
    found = BookKeepingEngine(model, cross_entropy, Clipping(norm))(inputs, targets)
    assert_same(found, expected, tolerance=1e-5)


def test_who_watches_a_layer_sees_what_passes() -> None:
    model, seen = MultiLayerPerceptron(SHAPE, [8], 5), list[Tensor]()
    engine = BookKeepingEngine(model, cross_entropy, Clipping(1.0))
    expected = engine(*batch())
    hook = model.head.register_forward_hook(lambda _module, inputs, _outputs: seen.append(*inputs))
    assert_same(engine(*batch()), expected, tolerance=1e-5)
    assert len(seen) == 1
    hook.remove()
    engine(*batch())
    assert len(seen) == 1


@pytest.mark.parametrize(
    "kind",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_layer_that_anybody_watches_is_called(kind: str, place: int) -> None:
    model = MultiLayerPerceptron(SHAPE, [8], 5)
    written_out = Chain.of(model)
    assert written_out is not None
    inputs, _ = batch()
    assert written_out.follows(inputs)
    layer = [one for one in model.modules() if isinstance(one, nn.Linear)][place]
    hook = getattr(layer, kind)(lambda *_: None)
    assert not written_out.follows(inputs)
    hook.remove()
    assert written_out.follows(inputs)


def test_a_layer_that_is_frozen_later_is_noticed() -> None:
    model = MultiLayerPerceptron(SHAPE, [8], 5)
    engine = BookKeepingEngine(model, cross_entropy, Clipping(1.0))
    whole = engine(*batch())
    model.head.requires_grad_(False)
    rest = engine(*batch())
    assert len(rest.total) == len(whole.total) - 8 * 5 - 5
    assert (rest.raw_norms < whole.raw_norms).all()


def test_inputs_that_are_no_vectors_take_the_ordinary_way() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    assert_agrees(model, *batch(), weighted_squares)


def test_a_loss_over_the_whole_batch_is_refused() -> None:
    engine = BookKeepingEngine(
        MultiLayerPerceptron(SHAPE, [], 5), nn.functional.cross_entropy, Clipping(1.0)
    )
    with pytest.raises(ClippingError, match="one value a record"):
        engine(*batch())


def test_a_loss_that_does_not_depend_on_the_outputs_has_no_gradient() -> None:
    model = MultiLayerPerceptron(SHAPE, [8], 5)
    engine = BookKeepingEngine(model, lambda _outputs, targets: targets.double(), Clipping(1.0))
    found = engine(*batch())
    assert not found.raw_norms.any()
    assert not found.total.any()


def test_a_chain_follows_records_that_are_vectors_or_that_it_makes_vectors_of() -> None:
    plain, flattening = nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    for model, expected in ((plain, [True, False]), (flattening, [True, True])):
        chain = Chain.of(model)
        assert chain is not None
        shapes = (torch.ones(5, 4), torch.ones(5, 2, 2))
        assert [chain.follows(inputs) for inputs in shapes] == expected
        assert not chain.follows(torch.ones(5, 4, dtype=torch.float64))
