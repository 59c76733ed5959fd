"""What clipping promises: a record moves the sum by at most C, a broken one not at all."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpfedadamw.clipping import engines
from dpfedadamw.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.clipping.engines import ClippingError, PlainSum, choose
from dpfedadamw.clipping.forms import Factored
from dpfedadamw.clipping.products import LinearProducts
from dpfedadamw.clipping.vmap import VmapEngine
from dpfedadamw.models.networks.cnn import GroupNormCNN
from dpfedadamw.models.networks.mlp import MultiLayerPerceptron
from dpfedadamw.models.networks.vit import VisionTransformer
from dpfedadamw.privacy.clipped_sum import Clipping
from tests.dpfedadamw.clipping.clipping_harness import assert_same, cross_entropy, engine_of

ENGINES = ["book-keeping", "vmap", "loop"]
SHAPE = (2, 4, 4)
SMALL = {
    "mlp": lambda: MultiLayerPerceptron(SHAPE, [6], 3),
    "cnn": lambda: GroupNormCNN(SHAPE, [4, 8], 2, 3),
    "vit": lambda: VisionTransformer(SHAPE, 2, 8, 1, 2, 2, 3),
}
BROKEN = {"nan": math.nan, "inf": math.inf, "huge": 1e30, "zero": 0.0, "large": 1e6, "tiny": 1e-30}


def spoil(records: Tensor, kind: str, where: str) -> Tensor:
    """Put one adversarial value everywhere in a record, or in one place of it."""
    records = records.clone()
    if where == "everywhere":
        records.fill_(BROKEN[kind])
    else:
        records.view(-1)[3] = BROKEN[kind]
    return records


@settings(max_examples=60)
@given(
    model_name=st.sampled_from(sorted(SMALL)),
    engine=st.sampled_from(ENGINES),
    worth=st.sampled_from([math.nan, math.inf, -math.inf]),
    place=st.integers(0, 2**16),
    everywhere=st.booleans(),
    size=st.integers(0, 5),
)
def test_at_parameters_that_are_not_finite_a_record_still_moves_a_finite_sum_by_at_most_c(
    model_name: str, engine: str, worth: float, place: int, everywhere: bool, size: int
) -> None:
    """A server that lies may broadcast them; a sum that is NaN would tell who is in the batch."""
    torch.manual_seed(place)
    model = SMALL[model_name]()
    parameters = list(model.parameters())
    with torch.no_grad():
        if everywhere:
            parameters[place % len(parameters)].fill_(worth)
        else:
            chosen = parameters[place % len(parameters)].view(-1)
            chosen[place % len(chosen)] = worth
    inputs, targets = torch.rand(size + 1, *SHAPE), torch.randint(0, 3, (size + 1,))
    summed = engine_of(engine, model, cross_entropy, 1.0)
    having, lacking = summed(inputs, targets).total, summed(inputs[:-1], targets[:-1]).total
    assert torch.isfinite(having).all()
    assert float((having.double() - lacking.double()).norm()) <= 1.0 + 1e-6 * (size + 1)


@settings(max_examples=60)
@given(
    model_name=st.sampled_from(sorted(SMALL)),
    engine=st.sampled_from(ENGINES),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**16),
    size=st.integers(0, 5),
    kind=st.sampled_from(sorted(BROKEN)),
    where=st.sampled_from(["everywhere", "somewhere"]),
    norm=st.sampled_from([1e-3, 0.1, 1.0, 50.0]),
    scale=st.sampled_from([0.1, 1.0, 100.0]),
    place=st.integers(0, 5),
)
def test_one_record_moves_the_sum_by_at_most_the_clipping_norm(
    model_name: str,
    engine: str,
    dtype: torch.dtype,
    seed: int,
    size: int,
    kind: str,
    where: str,
    norm: float,
    scale: float,
    place: int,
) -> None:
    torch.manual_seed(seed)
    model = SMALL[model_name]().to(dtype)
    others = torch.randn(size, *SHAPE, dtype=dtype) * scale
    record = spoil(torch.randn(1, *SHAPE, dtype=dtype) * scale, kind, where)
    place = min(place, size)
    inputs = torch.cat([others[:place], record, others[place:]])
    targets = torch.randint(0, 3, (size + 1,))
    rest = torch.cat([targets[:place], targets[place + 1 :]])
    summed = engine_of(engine, model, cross_entropy, norm)
    having, lacking = summed(inputs, targets), summed(others, rest)
    moved = float((having.total.double() - lacking.total.double()).norm())
    # Sums of other records are rounded in both; each is at most C, to 6e-8 or 1e-16.
    assert moved <= norm * (1 + (1e-4 if dtype == torch.float32 else 1e-6))
    assert float(having.clipped_norms.max()) <= norm
    finite = bool(torch.isfinite(having.raw_norms[place]))
    assert torch.isfinite(having.total).all()
    if not finite:
        assert having.nonfinite == 1
        assert float(having.clipped_norms[place]) == 0.0
        # Nothing of it is added; the others may be multiplied in another order.
        assert moved <= (1e-5 if dtype == torch.float32 else 1e-13) * norm * size
    if kind in ("nan", "inf") and model_name == "mlp":
        assert not finite


@pytest.mark.parametrize("kind", sorted(BROKEN))
@pytest.mark.parametrize("model_name", sorted(SMALL))
def test_engines_agree_on_broken_records(model_name: str, kind: str) -> None:
    torch.manual_seed(1)
    model = SMALL[model_name]().double()
    inputs, targets = torch.randn(4, *SHAPE, dtype=torch.float64), torch.arange(4) % 3
    inputs[1] = spoil(inputs[1], kind, "everywhere")
    sums = [engine_of(e, model, cross_entropy, 0.5)(inputs, targets) for e in ENGINES]
    for found in sums[:2]:
        # At 1e30 the model's own normalisation loses digits before any gradient is taken.
        assert_same(found, sums[2], tolerance=1e-12 if kind not in ("huge", "large") else 1e-6)


def test_a_record_of_float32_at_1e30_is_measured_and_clipped() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    inputs = torch.tensor([[1e30, 1e30, 1e30, 1e30], [1.0, 2.0, 3.0, 4.0]])
    for engine in ENGINES:
        found = engine_of(engine, model, weighted, 1.0)(inputs, torch.tensor([1.0, 1.0]))
        assert found.nonfinite == 0
        # Its squares overflow float32, its norm does not: 1e30 · sqrt(4 · 3 + …).
        assert float(found.raw_norms[0]) == pytest.approx(1e30 * math.sqrt(12), rel=1e-6)
        assert float(found.clipped_norms[0]) == pytest.approx(1.0, rel=1e-6)


def test_one_record_of_several_at_1e30_is_measured_as_if_it_were_alone() -> None:
    """Places of a record share a weight, so that no closed form of its norm is at hand."""
    inputs = torch.ones(3, 5, 4)
    inputs[1] *= 1e30
    engine = engine_of("book-keeping", nn.Linear(4, 3), in_all_places, 1.0)
    found = engine(inputs, torch.ones(3))
    assert found.nonfinite == 0
    # By each of 12 weights Σ_t x_t, and by each of 3 biases the number of places.
    usual = 5 * math.sqrt(12 + 3)
    expected = [usual, 5e30 * math.sqrt(12), usual]
    assert found.raw_norms.tolist() == pytest.approx(expected, rel=1e-6)
    assert found.clipped_norms.tolist() == pytest.approx([1.0] * 3, rel=1e-6)


def in_all_places(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum((1, 2)) * targets


class Token(nn.Module):
    """Uses a parameter of its own beside those of a layer inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs + self.token)


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


def test_each_place_says_how_its_norms_were_found() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.alone, self.inside = Alone(), Token()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inside(self.alone(inputs))

    torch.manual_seed(0)
    model = Both()
    model.inside.accepts_copies = True
    engine = BookKeepingEngine(model, weighted, Clipping(1.0))
    engine(torch.randn(3, 4), torch.ones(3))
    found = dict(engine.layers)
    assert found["alone"] == "vmap"
    assert found["inside.token"] == "copies"
    assert found["inside.layer"] not in ("vmap", "copies", "no gradient")


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient does not depend on the outputs."""
    return outputs.sum(1) * targets


def test_a_norm_that_float32_cannot_hold_counts_as_not_finite() -> None:
    model = nn.Linear(2, 2)
    inputs = torch.tensor([[3e38, 3e38], [1.0, 1.0]])
    for engine in ENGINES:
        found = engine_of(engine, model, weighted, 1.0)(inputs, torch.ones(2))
        assert found.nonfinite == 1
        assert found.clipped_norms.tolist() == [0.0, pytest.approx(1.0)]
        assert float(found.total.norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("places", [40, 49, 100])
@pytest.mark.parametrize("seed", range(20))
def test_a_gram_norm_is_never_short_even_where_its_terms_cancel(seed: int, places: int) -> None:
    torch.manual_seed(seed)
    # Places that nearly cancel: Σ_t g_t ⊗ a_t is up to 1e5 times smaller than its terms.
    inputs = torch.randn(6, 1, 32).expand(-1, places, -1) * 100
    inputs = inputs + torch.randn(6, places, 32) * 1e-3
    outputs = torch.randn(6, places, 16) * 100
    outputs = outputs - outputs.mean(1, keepdim=True)
    form = Factored(LinearProducts(), inputs, outputs, None, "gram")
    exact = torch.bmm(outputs.double().transpose(1, 2), inputs.double()).flatten(1).norm(dim=1)
    assert (form.squared_norms().sqrt() >= exact * (1 - 1e-6)).all()
    # Not hugely more either where nothing cancels.
    form = Factored(LinearProducts(), inputs, outputs.abs(), None, "gram")
    exact = (
        torch.bmm(outputs.abs().double().transpose(1, 2), inputs.double()).flatten(1).norm(dim=1)
    )
    torch.testing.assert_close(form.squared_norms().sqrt(), exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize("size", [1e-22, 1e-15, 1.0, 1e10, 1e18])
def test_a_gram_norm_that_float32_cannot_hold_is_not_guessed(size: float) -> None:
    torch.manual_seed(0)
    # Inputs and gradients of opposite size: one Gram matrix underflows where the other grows.
    inputs, outputs = torch.randn(3, 8, 4) * size, torch.randn(3, 8, 5) / size
    form = Factored(LinearProducts(), inputs, outputs, None, "gram")
    exact = torch.bmm(outputs.double().transpose(1, 2), inputs.double()).square().sum((1, 2))
    torch.testing.assert_close(form.exact_squared_norms(torch.arange(3)), exact, rtol=1e-5, atol=0)
    found = form.squared_norms()
    known = ~found.isnan()
    torch.testing.assert_close(found[known], exact[known], rtol=1e-4, atol=0)
    assert known.all() == (size in (1.0,))


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_an_empty_batch_gives_zeros_without_a_forward_pass(engine: str) -> None:
    class Forbidden(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            raise AssertionError

    model = Forbidden(4, 3)
    found = choose(model, cross_entropy, 1.0, engine=engine)(
        torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    )
    assert found.total.tolist() == [0.0] * 15
    assert found.raw_norms.shape == found.clipped_norms.shape == (0,)
    assert found.nonfinite == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_clipping_rule_can_be_replaced(engine: str) -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 3), torch.randn(3, 4)
    targets = torch.tensor([0, 1, 2])
    plain = choose(model, cross_entropy, math.inf, engine=engine)(inputs, targets)
    broken = choose(
        model, cross_entropy, 1e-3, engine=engine, clip=lambda norms, _: torch.ones_like(norms)
    )(inputs, targets)
    torch.testing.assert_close(broken.total, plain.total)


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_batch_norm_is_refused_with_the_way_out(engine: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(ClippingError, match=r"'1' \(BatchNorm2d\).*GroupNorm"):
        choose(model, cross_entropy, 1.0, engine=engine)
    model.eval()
    frozen = choose(model, cross_entropy, 1.0, engine=engine)
    batch = torch.randn(3, *SHAPE), torch.arange(3)
    assert frozen(*batch).nonfinite == 0
    model.train()
    with pytest.raises(ClippingError, match="BatchNorm2d"):
        frozen(*batch)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mean_over_the_batch_is_refused_as_a_loss(engine: str) -> None:
    summed = choose(nn.Linear(4, 3), nn.functional.cross_entropy, 1.0, engine=engine)
    with pytest.raises(ClippingError, match='reduction="none"'):
        summed(torch.randn(3, 4), torch.arange(3))


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ClippingError, match="'fast' is unknown"):
        choose(nn.Linear(4, 3), cross_entropy, 1.0, engine="fast")


@pytest.mark.parametrize("engine", ["book-keeping", "vmap"])
def test_dropout_draws_anew_for_every_record(engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 3))
    same = torch.randn(1, 4).expand(6, -1)
    found = choose(model, cross_entropy, 1.0, engine=engine)(same, torch.zeros(6).long())
    assert len(set(found.raw_norms.tolist())) == 6


def test_the_rehearsal_draws_nothing_from_the_random_stream() -> None:
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 3))
    batch = torch.randn(3, 4), torch.arange(3)
    rehearsed, direct = (
        choose(model, cross_entropy, 1.0),
        engine_of("book-keeping", model, cross_entropy, 1.0),
    )
    torch.manual_seed(0)
    first = rehearsed(*batch)
    torch.manual_seed(0)
    assert torch.equal(first.total, direct(*batch).total)


class FirstPlace(nn.Module):
    """A position table indexed by place: its copies a record would be taken for places."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs + self.table[0])


class PlacesFirst(nn.Module):
    """Sequences first: with as many places as records, shapes alone show nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(inputs.transpose(0, 1))).transpose(0, 1).mean(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, 4)
        # With a bias of its own, book-keeping leaves it to others.
        self.head = nn.Linear(4, 9)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.tokens(tokens)).mean(1))


class Branching(nn.Module):
    """A forward that asks for values, which vmap cannot give."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        shift = 1.0 if float(inputs.sum()) > 1e9 else 0.5
        return inputs @ self.layer.weight.t() + shift * self.layer.bias


FOLLOWED_OTHERWISE = {
    "a parameter indexed by place": (FirstPlace, torch.randn(3, 4), "opacus"),
    "sequences first": (PlacesFirst, torch.randn(3, 3, 4), "vmap"),
    "two places, two records": (PlacesFirst, torch.randn(2, 2, 4), "vmap"),
    "tied weights": (Tied, torch.randint(0, 9, (3, 5)), "opacus"),
    "a forward that branches": (Branching, torch.randn(3, 4), "loop"),
}


@pytest.mark.parametrize("case", FOLLOWED_OTHERWISE)
def test_what_book_keeping_cannot_follow_is_noticed_and_done_otherwise(case: str) -> None:
    make, inputs, engine = FOLLOWED_OTHERWISE[case]
    torch.manual_seed(0)
    model, targets = make(), torch.arange(len(inputs))
    summed = choose(model, cross_entropy, 0.1)
    expected = choose(model, cross_entropy, 0.1, engine="loop")(inputs, targets)
    assert_same(summed(inputs, targets), expected, tolerance=1e-5)
    assert summed.name == engine
    assert "no book-keeping" in summed.explain()
    with pytest.raises(ClippingError, match="book-keeping cannot follow this model"):
        choose(model, cross_entropy, 0.1, engine="book-keeping")(inputs, targets)


class Drawing(Branching):
    """Draws, and cannot be run under vmap."""

    def forward(self, inputs: Tensor) -> Tensor:
        torch.rand(3)
        return super().forward(inputs)


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), Drawing()])
def test_a_trial_of_vmap_draws_nothing_from_the_random_stream(model: nn.Module) -> None:
    engine = engines._Rehearsed(model, cross_entropy, Clipping(1.0), "float32", "auto")
    engine._engine = VmapEngine(model, cross_entropy, Clipping(1.0), "float32")
    before = torch.get_rng_state()
    chosen = engine._vmap_or_loop(torch.randn(3, 4, generator=torch.Generator()), torch.arange(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert chosen.name == ("loop" if isinstance(model, Drawing) else "vmap")


def test_a_model_of_which_nothing_is_trained_is_refused_before_any_batch() -> None:
    with pytest.raises(ClippingError, match="no trainable parameter; unfreeze at least its head"):
        choose(nn.Linear(4, 3).requires_grad_(False), cross_entropy, 1.0, engine="loop")


def test_low_rank_pairs_are_one_place_in_float32_alone() -> None:
    for pairs, precision, expected in (
        (True, "float32", True),
        (True, "bfloat16", False),
        (False, "float32", False),
    ):
        engine = BookKeepingEngine(
            nn.Linear(4, 3), cross_entropy, Clipping(1.0), precision, pairs=pairs
        )
        assert engine._pairs is expected


class HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.unused = nn.Linear(4, 1)
        self.frozen = nn.Linear(5, 1).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs)


def test_a_plain_sum_is_that_of_all_records_and_a_parameter_that_is_not_used_has_zeros() -> None:
    model, inputs, targets = HalfUsed(), torch.randn(6, 3), torch.arange(6) % 2
    found = PlainSum(model, cross_entropy)(inputs, targets)
    cross_entropy(model(inputs), targets).sum().backward()
    weight, bias = model.head.weight.grad, model.head.bias.grad
    assert weight is not None
    assert bias is not None
    expected = torch.cat([weight.flatten(), bias, torch.zeros(5)])
    torch.testing.assert_close(found.total, expected)
    assert not found.total.requires_grad


def test_a_plain_sum_measures_nothing_of_any_record() -> None:
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


def test_plain_sums_say_what_they_are() -> None:
    plain = PlainSum(HalfUsed(), cross_entropy)
    assert plain.explain() == "plain: ordinary gradients, nothing is clipped"
    assert (plain.name, plain.layers) == ("plain", {})
