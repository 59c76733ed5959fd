"""People's mean gradients: every engine agrees with a plain loop, and nobody moves too much."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from dpfedadamw import tasks
from dpfedadamw.clipping.engines import ENGINES, choose
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.privacy.clipped_sum import ClippingError, PeopleEngine
from dpfedadamw.privacy.oracle import clipped_sum
from dpfedadamw.vectors.flat import FlatParameters
from tests.dpfedadamw.clipping.clipping_harness import cross_entropy
from tests.dpfedadamw.clipping.test_models import MODELS

SIZES = [1, 3, 2, 4]
ROWS = sum(SIZES)


class Sequences(nn.Module):
    """A recurrent layer, which Opacus alone clips quickly."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)
        self.head = nn.Linear(4, 5)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.layer(values)[0][:, -1])


def build(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in float64, ten records, and their classes."""
    torch.manual_seed(0)
    if name == "gru":
        return Sequences().double(), torch.randn(ROWS, 4, 3).double(), torch.arange(ROWS) % 5
    model, some = MODELS[name]()
    inputs = some[torch.arange(ROWS) % len(some)]
    if inputs.is_floating_point():
        inputs = (inputs + 0.3 * torch.randn(inputs.shape)).double()
    else:
        inputs = inputs.roll(1, 1)
    return model.double(), inputs, torch.arange(ROWS) % 2


def by_people(model, inputs, targets, sizes, norm):
    """Σ_p u_p·min(1, C/‖u_p‖), from single records' gradients, in float64; and the norms ‖u_p‖."""
    parameters = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    total, norms, start = 0.0, [], 0
    for size in sizes:
        own = []
        for row in range(start, start + size):
            outputs = functional_call(model, parameters, (inputs[row : row + 1],))
            loss = cross_entropy(outputs, targets[row : row + 1]).sum()
            parts = torch.autograd.grad(loss, [parameters[n] for n in trained], allow_unused=True)
            own.append(
                torch.cat(
                    [
                        (torch.zeros_like(parameters[n]) if g is None else g).reshape(-1)
                        for n, g in zip(trained, parts, strict=True)
                    ]
                )
            )
        start += size
        mean = torch.stack(own).mean(0)
        norms.append(float(mean.norm()))
        total = total + mean * min(1.0, norm / norms[-1])
    return total, norms


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, engine) for name in MODELS for engine in ("book-keeping", "vmap", "loop")),
        ("mlp", "opacus"),
        ("gru", "opacus"),
    ],
)
def test_every_engine_agrees_with_a_loop_over_people_in_float64(name, engine):
    model, inputs, targets = build(name)
    norms = by_people(model, inputs, targets, SIZES, 1.0)[1]
    # Half of the people are clipped.
    norm = sorted(norms)[1] * 1.0001
    right = by_people(model, inputs, targets, SIZES, norm)[0]
    found = choose(model, cross_entropy, norm, engine=engine)
    assert isinstance(found, PeopleEngine)
    told = found.of_people(inputs, targets, SIZES)
    assert found.name == engine
    assert float((told.total - right).norm()) <= 1e-6 * float(right.norm())
    assert told.raw_norms.tolist() == pytest.approx(norms, rel=1e-6)
    assert told.clipped_norms.tolist() == pytest.approx([min(n, norm) for n in norms], rel=1e-6)


@pytest.mark.parametrize("sizes", [SIZES, [2] * 5, [1] * 10, [10]])
@pytest.mark.parametrize("hidden", [[], [8]])
@pytest.mark.parametrize("share", [0.5, 1.0, math.inf])
def test_small_models_and_larger_ones_agree_with_a_loop_over_people(sizes, hidden, share):
    torch.manual_seed(4)
    model = MultiLayerPerceptron((3,), hidden, 3)
    inputs, targets = torch.randn(ROWS, 3), torch.arange(ROWS) % 3
    wide = copy.deepcopy(model).double()
    norms = by_people(wide, inputs.double(), targets, sizes, 1.0)[1]
    norm = share * sorted(norms)[len(norms) // 2]
    right = by_people(wide, inputs.double(), targets, sizes, norm)[0]
    for loss in (tasks.cross_entropy, cross_entropy):
        engine = choose(model, loss, norm)
        told = engine.of_people(inputs, targets, sizes)
        # Products in float32; a norm is overestimated by what rounding might hide.
        assert float((told.total.double() - right).norm()) <= 1e-5 * float(right.norm())
        assert told.raw_norms.tolist() == pytest.approx(norms, rel=1e-5)
        assert float(told.clipped_norms.max()) <= norm
        assert set(engine.layers.values()) == {"in closed form"}


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_that_is_chosen_stays_with_it_in_float32(name):
    model, inputs, targets = build(name)
    right, norms = by_people(model, inputs, targets, SIZES, 0.1)
    narrow = copy.deepcopy(model).float()
    records = inputs.float() if inputs.is_floating_point() else inputs
    engine = choose(narrow, cross_entropy, 0.1)
    told = engine.of_people(records, targets, SIZES)
    assert engine.name == "book-keeping"
    assert float((told.total.double() - right).norm()) <= 1e-4 * float(right.norm())
    assert told.raw_norms.tolist() == pytest.approx(norms, rel=1e-3)


rows = st.lists(
    st.sampled_from([0.0, 1e-3, 1.0, -50.0, 1e4, math.inf, math.nan]), min_size=1, max_size=6
)


# A run's own loss is summed in numpy where the model is small.
WAYS = [
    *((name, cross_entropy) for name in ENGINES if name != "auto"),
    ("book-keeping", tasks.cross_entropy),
]


@given(person=rows, place=st.integers(0, 3), together=st.integers(1, 12))
@settings(max_examples=40)
@pytest.mark.parametrize(("engine", "loss"), WAYS)
def test_a_person_with_any_records_moves_no_sum_by_more_than_the_clipping_norm(
    engine, loss, person, place, together
):
    """Added or removed, with any number of records of any size, wherever the batch is cut."""
    torch.manual_seed(1)
    flat, norm = FlatParameters(MultiLayerPerceptron((3,), [4], 3)), 0.25
    answers = choose(flat.module, loss, norm, engine=engine)
    others = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    own = torch.tensor(person)[:, None] * torch.tensor([1.0, -0.5, 2.0])
    sizes, at = [1, 3, 2], [0, 1, 4, 6][place]

    def summed(records, labels, sizes):
        where = flat.vector.clone()
        return clipped_sum(answers, flat, where, (records, labels), together, sizes).total.double()

    labels = torch.arange(6) % 3
    both = (
        torch.cat([others[:at], own, others[at:]]),
        torch.cat([labels[:at], torch.arange(len(own)) % 3, labels[at:]]),
    )
    without = summed(others, labels, sizes)
    moved = summed(*both, [*sizes[:place], len(own), *sizes[place:]]) - without
    # Sums of a few clipped means in float32.
    assert float(moved.norm()) <= norm * (1.0 + 1e-5)
    if not all(map(math.isfinite, person)):
        assert float(moved.norm()) <= 1e-5 * norm


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e8, 1e12])
@pytest.mark.parametrize("hidden", [[], [4]])
@pytest.mark.parametrize(("engine", "loss"), WAYS)
def test_records_that_cancel_leave_no_more_than_the_clipping_norm(engine, loss, hidden, scale):
    """Long gradients that cancel to a short mean: what rounding leaves of them is bounded too."""
    torch.manual_seed(3)
    model = MultiLayerPerceptron((3,), hidden, 2)
    for parameter in model.parameters():
        # Both classes are as likely, so that the gradients of equal records cancel.
        parameter.data[..., :].mul_(0.0 if parameter is list(model.parameters())[-1] else 1e-9)
    inputs = scale * torch.tensor([[0.3, -0.7, 1.1]]).repeat(6, 1)
    inputs[1::2] *= 1.0 + 1e-6
    answers = choose(model, loss, 0.25, engine=engine)
    told = answers.of_people(inputs, torch.arange(6) % 2, [6])
    assert float(told.total.double().norm()) <= 0.25 * (1.0 + 1e-4)


def test_engines_for_records_are_not_asked_for_people():
    model, inputs, targets = build("mlp")

    class OfRecords:
        name = "own"

        def __call__(self, inputs, targets):
            raise AssertionError

    flat = FlatParameters(model)
    with pytest.raises(ClippingError, match="the clipping engine own clips single records"):
        clipped_sum(OfRecords(), flat, flat.vector.clone(), (inputs, targets), 99, SIZES)


@given(person=st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=6), place=st.integers(0, 3))
@settings(max_examples=15)
@pytest.mark.parametrize("engine", ["book-keeping", "loop"])
def test_in_bfloat16_a_person_moves_no_sum_by_more_than_the_clipping_norm(engine, person, place):
    """Batches are filled up to six records, the most that a person has, and cut between people."""
    torch.manual_seed(1)
    norm = 0.25
    model = MultiLayerPerceptron((3,), [16], 3)
    answers = choose(model, cross_entropy, norm, engine=engine, precision="bfloat16", batch=6)
    others = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
    own = torch.tensor(person)[:, None] * torch.tensor([1.0, -0.5, 2.0])
    sizes, at = [1, 3, 2], [0, 1, 4, 6][place]
    labels = torch.arange(6) % 3
    without = answers.of_people(others, labels, sizes).total.double()
    told = answers.of_people(
        torch.cat([others[:at], own, others[at:]]),
        torch.cat([labels[:at], torch.arange(len(own)) % 3, labels[at:]]),
        [*sizes[:place], len(own), *sizes[place:]],
    )
    assert len(told.raw_norms) == 4
    # Sums of a few clipped means in float32.
    assert float((told.total.double() - without).norm()) <= norm * (1.0 + 1e-5)
    wide = copy.deepcopy(model).double()
    right = by_people(wide, own.double(), torch.arange(len(own)) % 3, [len(own)], norm)[1]
    # Products of numbers with 8 significant bits, over two layers.
    assert float(told.raw_norms[place]) == pytest.approx(right[0], rel=0.05, abs=0.01)
