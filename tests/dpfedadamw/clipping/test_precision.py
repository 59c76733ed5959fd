"""Layers in bfloat16: no record contributes more than the clipping norm, whoever is beside it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from dpfedadamw.clipping import precision
from dpfedadamw.clipping.engines import ClippingError, PlainSum, choose
from dpfedadamw.clipping.precision import EvenBatches
from dpfedadamw.models.cnn import ResNetSpec, SimpleCNNSpec
from dpfedadamw.models.mlp import MLPSpec
from dpfedadamw.models.registry import build
from dpfedadamw.models.transformers.keys import LoraSpec, PlainTuningSpec
from dpfedadamw.models.vit import ViTTinySpec
from dpfedadamw.privacy.clipped_sum import ClippedSum
from dpfedadamw.spec import ModelSpec
from dpfedadamw.vectors.precision import computing_in
from tests.dpfedadamw.clipping.clipping_harness import cross_entropy

OWN: dict[str, ModelSpec] = {
    "mlp": MLPSpec(hidden=(16,)),
    "simple-cnn": SimpleCNNSpec(channels=(4, 8), hidden=16),
    "resnet18": ResNetSpec(),
    "vit-tiny": ViTTinySpec(dropout=0.1),
}
PUBLISHED = [(name, kind) for name in ("swin-tiny", "roberta-base") for kind in ("lora", "all")]
CASES = [*OWN, *(f"{name} {kind}" for name, kind in PUBLISHED)]
# Eleven million parameters, which take ten seconds.
LONG = {"resnet18": pytest.mark.slow}
TUNINGS = {"lora": LoraSpec(rank=2, alpha=4.0, dropout=0.2), "all": PlainTuningSpec(kind="all")}
NORM, ALLOWED = 0.05, 0.05 * (1 + 1e-6)


def model_and_records(case: str) -> tuple[nn.Module, Tensor, Tensor]:
    if case in OWN:
        torch.manual_seed(1)
        model = build(OWN[case], (1, 8, 8), 10, seed=0).train()
        return model, torch.randn(4, 1, 8, 8), torch.arange(4)
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tests.dpfedadamw.models.small_transformers import records_for, small

    name, kind = case.split()
    small_model = small(name, TUNINGS[kind])
    small_model.cuts_padding = False
    return small_model, *records_for(small_model, name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("case", "engine"),
    [
        *(pytest.param(case, "book-keeping", marks=LONG.get(case, ())) for case in CASES),
        ("simple-cnn", "loop"),
    ],
)
def test_no_record_moves_the_sum_by_more_than_the_clipping_norm(case: str, engine: str):
    model, inputs, targets = model_and_records(case)
    narrow = choose(model, cross_entropy, NORM, engine=engine, precision="bfloat16", batch=6)
    whole = narrow(inputs, targets)
    # All are clipped, so that each contributes as much as is allowed.
    assert (whole.raw_norms > NORM).all()
    for one in range(len(targets)):
        alone = narrow(inputs[one : one + 1], targets[one : one + 1])
        norm = float(alone.total.double().norm())
        assert norm <= ALLOWED
        # The norm that the factor came from is the norm of what was added up.
        assert norm == pytest.approx(float(alone.clipped_norms), rel=1e-5)
        kept = torch.arange(len(targets)) != one
        moved = whole.total.double() - narrow(inputs[kept], targets[kept]).total.double()
        assert float(moved.norm()) <= ALLOWED
        assert float(whole.raw_norms[one]) == pytest.approx(float(alone.raw_norms), rel=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", [pytest.param(case, marks=LONG.get(case, ())) for case in CASES])
def test_gradients_are_float32s_but_for_the_rounding_of_bfloat16(case: str):
    model, inputs, targets = model_and_records(case)
    exact = choose(model, cross_entropy, NORM)(inputs, targets)
    found = choose(model, cross_entropy, NORM, precision="bfloat16", batch=6)(inputs, targets)
    assert found.total.dtype == torch.float32
    error = float((found.total - exact.total).norm() / exact.total.norm())
    assert 1e-4 < error < 0.25
    torch.testing.assert_close(found.raw_norms, exact.raw_norms, rtol=0.05, atol=0)


def test_layers_multiply_in_bfloat16_and_norms_and_sums_are_taken_in_float32():
    model, inputs, targets = model_and_records("vit-tiny")
    engine = choose(model, cross_entropy, NORM, precision="bfloat16", batch=4)
    seen: set[torch.dtype] = set()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda *call: seen.add(call[2].dtype))
    found = engine(inputs, targets)
    assert seen == {torch.bfloat16, torch.float32}  # float32 in the rehearsal against the loop
    seen.clear()
    engine(inputs, targets)
    assert seen == {torch.bfloat16}
    assert found.raw_norms.dtype == torch.float64
    assert "layers in bfloat16, 4 records at a time" in engine.explain()


def test_without_privacy_the_model_computes_in_bfloat16_too():
    model, inputs, targets = model_and_records("mlp")
    exact = PlainSum(model, cross_entropy)(inputs, targets).total
    found = PlainSum(model, cross_entropy, "bfloat16")(inputs, targets).total
    assert found.dtype == torch.float32
    assert 1e-4 < float((found - exact).norm() / exact.norm()) < 0.05


class _Answering:
    """Clipped sums of a model that is its records' mean: one coordinate a record, and a leak."""

    name = "fake"
    layers: Mapping[str, str] = {}

    def __init__(self, leak: float) -> None:
        self.leak = leak
        self.sizes: list[int] = []

    def explain(self) -> str:
        return "fake"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        self.sizes.append(len(targets))
        present = (targets >= 0).double()
        unit = torch.nn.functional.normalize(inputs.double(), dim=1) * present[:, None]
        # As a kernel that adds up in another order when there is one record more.
        total = unit.sum(0) * (1.0 + self.leak * present.sum())
        return ClippedSum(total, inputs.double().norm(dim=1), present, 0)


def test_batches_are_of_one_size_whatever_was_drawn():
    fake = _Answering(0.0)
    even = EvenBatches(lambda _: fake, cross_entropy, 4, 1.0)
    inputs = torch.randn(9, 3)
    for count in (1, 4, 5, 9):
        found = even(inputs[:count], torch.zeros(count, dtype=torch.int64))
        assert found.raw_norms.shape == found.clipped_norms.shape == (count,)
        expected = torch.nn.functional.normalize(inputs[:count].double(), dim=1).sum(0)
        torch.testing.assert_close(found.total, expected)
    assert set(fake.sizes) == {4}


def test_bfloat16_is_refused_where_neighbours_move_each_others_gradients():
    even = EvenBatches(lambda _: _Answering(1e-3), cross_entropy, 4, 1.0)
    with pytest.raises(ClippingError, match=r"bfloat16 cannot be used here.*Use float32"):
        even(torch.randn(2, 3), torch.zeros(2, dtype=torch.int64))


def test_records_whose_gradient_is_not_finite_are_counted_and_what_fills_a_batch_is_not():
    class Broken(_Answering):
        def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
            norms = torch.where(inputs[:, 0] > 1e3, torch.nan, inputs.double().norm(dim=1))
            return ClippedSum(inputs.sum(0), norms, (targets >= 0).double(), 99)

    even = EvenBatches(lambda _: Broken(0.0), cross_entropy, 4, 1.0)
    # Not what is looked for here, and never asked of made-up records.
    even._rehearsed = True
    inputs = torch.ones(7, 3)
    inputs[[1, 5, 6]] = 1e4
    assert even(inputs, torch.zeros(7, dtype=torch.int64)).nonfinite == 3
    # The filling is a copy of the first record, which is no record more.
    assert even(inputs[5:6], torch.zeros(1, dtype=torch.int64)).nonfinite == 1


def test_an_empty_batch_has_a_sum_of_zeros():
    model, inputs, targets = model_and_records("mlp")
    engine = choose(model, cross_entropy, NORM, precision="bfloat16", batch=4)
    assert float(engine(inputs[:0], targets[:0]).total.abs().sum()) == 0.0


def test_an_unknown_precision_is_refused():
    model, _, _ = model_and_records("mlp")
    with pytest.raises(ClippingError, match="precision 'half' is unknown"):
        choose(model, cross_entropy, 1.0, precision="half")


def test_the_loop_has_batches_of_one_record_and_fills_none_up():
    model, inputs, targets = model_and_records("mlp")
    loop = choose(model, cross_entropy, NORM, engine="loop", precision="bfloat16", batch=6)
    assert "at a time" not in loop.explain()
    assert not isinstance(loop, EvenBatches)
    book = choose(model, cross_entropy, NORM, precision="bfloat16", batch=6)
    assert isinstance(book, EvenBatches)
    assert loop(inputs, targets).raw_norms.shape == (len(targets),)


class Watching(_Answering):
    """Keeps what it was asked."""

    def __init__(self, leak: float) -> None:
        super().__init__(leak)
        self.asked: list[tuple[Tensor, Tensor]] = []

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        self.asked.append((inputs, targets))
        return super().__call__(inputs, targets)


def test_a_batch_is_rehearsed_once_with_made_up_records_and_the_labels_in_turn():
    fake = Watching(0.0)
    even = EvenBatches(lambda _: fake, cross_entropy, 4, 1.0)
    inputs, targets = torch.randn(3, 5), torch.tensor([7, 8, 9])
    even(inputs, targets)
    assert len(fake.asked) == 4
    made = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    absent = torch.iinfo(torch.int64).min
    for (records, labels), rows, said in zip(
        fake.asked,
        ([1, 2, 3, 1], [0, 0, 0, 0], [0, 1, 2, 3]),
        ([8, 9, 7, absent], [7, absent, absent, absent], [7, 8, 9, 7]),
        strict=False,
    ):
        assert torch.equal(records, made[rows])
        assert labels.tolist() == said
    # What is asked for comes last, filled up by copies of its first record.
    assert torch.equal(fake.asked[3][0], inputs[[0, 1, 2, 0]])
    assert fake.asked[3][1].tolist() == [7, 8, 9, absent]
    even(inputs, targets)
    assert len(fake.asked) == 5


def test_tokens_are_rehearsed_turned_round_and_a_batch_of_one_beside_another():
    fake = Watching(0.0)
    even = EvenBatches(lambda _: fake, cross_entropy, 3, 1.0)
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    even(tokens, torch.tensor([0, 1]))
    assert fake.asked[2][0].tolist() == [[1, 2, 3, 4], [4, 1, 2, 3], [3, 4, 1, 2]]


def test_a_batch_of_one_record_has_nobody_beside_it_and_needs_no_rehearsal():
    fake = Watching(1e-3)
    even = EvenBatches(lambda _: fake, cross_entropy, 1, 1.0)
    inputs = torch.randn(3, 4)
    found = even(inputs, torch.zeros(3, dtype=torch.int64))
    assert len(fake.asked) == len(found.raw_norms) == 3
    model, inputs, targets = model_and_records("mlp")
    single = choose(model, cross_entropy, NORM, precision="bfloat16", batch=1)
    several = choose(model, cross_entropy, NORM, precision="bfloat16", batch=4)
    torch.testing.assert_close(
        single(inputs, targets).total, several(inputs, targets).total, rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize(("share", "refused"), [(0.98, False), (1.02, True)])
@pytest.mark.parametrize("norm", [0.5, 3.0])
def test_neighbours_may_move_a_sum_by_a_hundred_thousandth_of_what_all_of_them_add(
    share: float, refused: bool, norm: float
):
    made = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(made.double(), dim=1)
    # With a leak of λ a record's neighbours add λ times the sum, once for each that is there.
    together, others, alone = 4 * unit.sum(0), 3 * unit[1:].sum(0), unit[:1].sum(0)
    moved = (together - others - alone).norm()
    leak = share * 1e-5 * 4 * norm / float(moved)
    even = EvenBatches(lambda _: _Answering(leak), cross_entropy, 4, norm)
    if refused:
        with pytest.raises(ClippingError, match="bfloat16 cannot be used here"):
            even(torch.randn(2, 3), torch.zeros(2, dtype=torch.int64))
    else:
        even(torch.randn(2, 3), torch.zeros(2, dtype=torch.int64))


def test_what_fills_a_batch_has_no_loss_and_a_target_that_is_partly_unknown_has():
    asked: list[Tensor] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        asked.append(targets)
        return (outputs - targets).square().flatten(1).sum(1) + 1.0

    of_present = precision._without_absent(loss)
    nan = float("nan")
    targets = torch.tensor([[1.0, 2.0], [nan, nan], [nan, 2.0]])
    outputs = torch.zeros(3, 2)
    assert of_present(outputs, targets).tolist() == [6.0, 0.0, 5.0]
    assert asked[-1].tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 2.0]]
    # Classes are whole numbers, of which one is never a class.
    absent = precision._absent(torch.zeros(1, dtype=torch.int64))
    assert absent == -(2**63)
    found = precision._without_absent(lambda outputs, targets: outputs + targets)
    assert found(torch.ones(3), torch.tensor([3, absent, 0])).tolist() == [4.0, 0.0, 1.0]
    assert str(precision._absent(torch.zeros(1))) == "nan"


def test_layers_multiply_in_bfloat16_only_where_that_is_asked_for():
    layer, inputs = nn.Linear(4, 4), torch.randn(2, 4)
    with computing_in("float32", torch.device("cpu")):
        assert layer(inputs).dtype == torch.float32
    with computing_in("bfloat16", torch.device("cpu")):
        assert layer(inputs).dtype == torch.bfloat16
        assert not torch.is_autocast_cache_enabled()


def test_even_batches_are_named_and_explained_as_the_engine_that_answers():
    fake = _Answering(0.0)
    even = EvenBatches(lambda _: fake, cross_entropy, 4, 1.0)
    assert (even.name, even.layers) == ("fake", fake.layers)
    assert even.explain() == "fake; layers in bfloat16, 4 records at a time"
