"""Forms of per-record gradients: which one is chosen, in what pieces, and what may be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from dpfedadamw.clipping import forms
from dpfedadamw.clipping.forms import Costs, Factored, Kept, form_of_product
from dpfedadamw.clipping.products import LinearProducts
from dpfedadamw.privacy.clipped_sum import exact_squared_norms

EPSILON = float(torch.finfo(torch.float32).eps)


def drawn(*shape: int, kind: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=kind, generator=torch.Generator().manual_seed(0))


@dataclass
class Costing(LinearProducts):
    """A linear layer that says what it costs, and notes how many records it is asked for."""

    said: Costs
    asked: list[int] = field(default_factory=list)

    def costs(self, inputs: Tensor, outputs: Tensor) -> Costs:
        return self.said

    def products(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        self.asked.append(len(inputs))
        return super().products(inputs, outputs)

    def grams(self, inputs: Tensor, outputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        self.asked.append(len(inputs))
        return super().grams(inputs, outputs)


def method(entries: int, product: int, gram: int, records: int = 1) -> str:
    layer = Costing(Costs(places=2, entries=entries, product=product, gram=gram))
    form = form_of_product(
        layer, drawn(records, 2, 3), drawn(records, 2, 4), weight=True, bias=False
    )
    return "kept" if isinstance(form, Kept) else form.method


def test_the_cheapest_form_is_chosen() -> None:
    # A Gram form costs extra; to keep a gradient costs as much as forty multiplications an entry.
    assert method(entries=10, product=1000, gram=400) == "gram"
    assert method(entries=10, product=1000, gram=401) == "kept"
    assert method(entries=100, product=1000, gram=1000) == "direct, not kept"
    assert method(entries=100, product=1000, gram=999) == "gram"
    assert method(entries=100, product=1000, gram=1001) == "kept"
    # Four million entries of a batch are kept, and not one more.
    assert method(entries=2**20, product=1, gram=2, records=4) == "kept"
    assert method(entries=2**20 + 1, product=1, gram=2, records=4) == "direct, not kept"
    assert method(entries=2**20 + 1, product=2, gram=1, records=4) == "gram"


def test_a_bias_stands_beside_its_weight_and_alone() -> None:
    inputs, outputs = drawn(5, 2, 3), drawn(5, 2, 4)
    layer = Costing(Costs(2, 1, 1, 2))
    alone = form_of_product(layer, inputs, outputs, weight=False, bias=True)
    assert isinstance(alone, Kept)
    assert list(alone.gradients) == ["bias"]
    both = form_of_product(layer, inputs, outputs, weight=True, bias=True)
    assert isinstance(both, Kept)
    assert list(both.gradients) == ["weight", "bias"]
    for gradient in (alone.gradients["bias"], both.gradients["bias"]):
        torch.testing.assert_close(gradient, outputs.sum(1))
    factored = form_of_product(Costing(Costs(2, 1, 2, 1)), inputs, outputs, weight=True, bias=True)
    assert isinstance(factored, Factored)
    torch.testing.assert_close(factored.bias, outputs.sum(1))
    expected = both.squared_norms()
    torch.testing.assert_close(factored.squared_norms(), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        factored.exact_squared_norms(torch.tensor([3, 1])), expected[[3, 1]], rtol=1e-12, atol=0
    )
    torch.testing.assert_close(factored.kept().squared_norms(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("how", ["gram", "direct, not kept"])
@pytest.mark.parametrize("rows", [None, torch.tensor([4, 0, 2])])
def test_sums_of_a_form_are_weighted(how: str, rows: Tensor | None) -> None:
    inputs, outputs = drawn(5, 2, 3), drawn(5, 2, 4)
    bias = outputs.sum(1)
    one = Factored(Costing(Costs(2, 12, 1, 1)), inputs, outputs, bias, how)
    factors = drawn(5) if rows is None else drawn(3)
    chosen = torch.arange(5) if rows is None else rows
    weights = torch.einsum("ntp,ntd->npd", outputs, inputs)[chosen]
    for form in (one, one.kept()):
        out = {
            name: torch.empty(n, dtype=torch.float64) for name, n in (("weight", 12), ("bias", 4))
        }
        form.weighted_sum(factors, rows, out)
        expected = torch.einsum("n,npd->pd", factors, weights).flatten()
        torch.testing.assert_close(out["weight"], expected)
        torch.testing.assert_close(out["bias"], factors @ bias[chosen])


@pytest.mark.parametrize(
    ("how", "costs", "limit", "pieces"),
    [
        # Two matrices of four places a record.
        ("gram", Costs(4, 99, 1, 1), 64, [2, 2, 1]),
        ("gram", Costs(4, 99, 1, 1), 63, [1, 1, 1, 1, 1]),
        ("gram", Costs(4, 99, 1, 1), 160, [5]),
        ("direct, not kept", Costs(99, 10, 1, 1), 20, [2, 2, 1]),
        ("direct, not kept", Costs(99, 10, 1, 1), 9, [1, 1, 1, 1, 1]),
        ("direct, not kept", Costs(99, 10, 1, 1), 50, [5]),
    ],
)
def test_what_is_formed_at_once_is_bounded(
    how: str, costs: Costs, limit: int, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "_CHUNK_ENTRIES", limit)
    layer = Costing(costs)
    inputs, outputs = drawn(5, 4, 3), drawn(5, 4, 2)
    found = Factored(layer, inputs, outputs, None, how).squared_norms()
    assert layer.asked == pieces
    expected = torch.einsum("ntp,ntd->npd", outputs, inputs).square().sum((1, 2))
    torch.testing.assert_close(found, expected)


def test_a_gram_form_adds_what_rounding_may_hide() -> None:
    inputs, outputs = drawn(3, 5, 4, kind=torch.float32), drawn(3, 5, 2, kind=torch.float32)
    # Two places that take each other back, which leave a gradient of nothing.
    inputs[0, :2], outputs[0, 0], outputs[0, 1] = 1.0, 1.0, -1.0
    inputs[0, 2:] = 0.0
    found = Factored(LinearProducts(), inputs, outputs, None, "gram").squared_norms()
    wide_in, wide_out = inputs.double(), outputs.double()
    exact = torch.einsum("ntp,ntd->npd", wide_out, wide_in).square().sum((1, 2))
    hidden = 8 * EPSILON * (wide_in.norm(dim=2) * wide_out.norm(dim=2)).sum(1).square()
    assert exact[0] == 0
    torch.testing.assert_close(found[0], hidden[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found, exact + hidden, rtol=1e-5, atol=0)
    assert (found > exact).all()


def test_a_gram_form_of_one_place_hides_nothing() -> None:
    inputs, outputs = torch.full((1, 1, 4), 0.5), torch.full((1, 1, 2), 3.0)
    found = Factored(LinearProducts(), inputs, outputs, None, "gram").squared_norms()
    assert found.tolist() == [18.0]


def test_a_gram_form_is_trusted_below_traces_of_two_to_the_64() -> None:
    def norms(places: int, of_inputs: float, of_outputs: float) -> Tensor:
        inputs = torch.full((1, places, 1), of_inputs)
        outputs = torch.full((1, places, 1), of_outputs)
        return Factored(LinearProducts(), inputs, outputs, None, "gram").squared_norms()

    # Each place adds 2^62 to a trace.
    for pair in ((2.0**31, 1.0), (1.0, 2.0**31)):
        assert torch.isfinite(norms(3, *pair)).all()
        assert torch.isnan(norms(4, *pair)).all()


@pytest.mark.parametrize("length", [1, 1024, 4096, 4097, 5120, 6000, 70_000])
def test_squared_norms_are_added_up_in_double_precision(length: int) -> None:
    gradients = drawn(3, length, kind=torch.float32)
    exact = gradients.double().square().sum(1)
    torch.testing.assert_close(forms.squared_norms(gradients), exact, rtol=2e-7, atol=0)
    torch.testing.assert_close(exact_squared_norms(gradients), exact, rtol=1e-14, atol=0)
    assert forms.squared_norms(gradients).dtype == torch.float64


def test_squares_of_short_gradients_cannot_overflow_and_those_of_long_ones_show_it() -> None:
    short, long = torch.full((1, 4096), 1e30), torch.full((1, 4097), 1e30)
    assert float(forms.squared_norms(short)) == pytest.approx(4096e60)
    # The caller asks for these once more, in float64 throughout.
    assert float(forms.squared_norms(long)) == float("inf")
    assert float(exact_squared_norms(long)) == pytest.approx(4097e60)


def test_short_gradients_are_measured_split_short() -> None:
    kept = Kept({"weight": drawn(2, 4097), "bias": drawn(2, 4096)})
    short, rest = kept.split_short()
    assert list(short) == ["bias"]
    assert isinstance(rest, Kept)
    assert list(rest.gradients) == ["weight"]
    assert Kept({"weight": drawn(2, 5, 3)}).split_short()[1] is None
    long = Kept({"weight": drawn(2, 5000)})
    assert long.split_short() == ({}, long)
    inputs, outputs = drawn(2, 1, 3), drawn(2, 1, 4097)
    whole = Factored(LinearProducts(), inputs, outputs, outputs.sum(1), "gram")
    assert whole.split_short() == ({}, whole)
    fewer = Factored(LinearProducts(), inputs, outputs, drawn(2, 4096), "gram")
    short, rest = fewer.split_short()
    assert list(short) == ["bias"]
    assert isinstance(rest, Factored)
    assert rest.bias is None


def test_uses_of_one_parameter_add_up() -> None:
    one, other = drawn(2, 3, 4), drawn(2, 12) + 1.0
    both = Kept({"weight": one}, "direct").plus(Kept({"weight": other}))
    torch.testing.assert_close(both.gradients["weight"], one.flatten(1) + other)
    assert both.kept() is both
