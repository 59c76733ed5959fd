"""Products of inputs and output gradients: costs by their formulas, values by their definition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpfedadamw.clipping.forms import Costs
from dpfedadamw.clipping.products import (
    ConvolutionProducts,
    LinearProducts,
    TransposedLinearProducts,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def whole(pieces: Iterator[tuple[Tensor, Tensor]], which: int) -> Tensor:
    """The full symmetric matrices [n, groups, T, T] of runs over the upper half."""
    runs = [one[which] for one in pieces]
    places = runs[0].shape[-1]
    full = torch.full((*runs[0].shape[:2], places, places), float("nan"), dtype=torch.float64)
    start = 0
    for run in runs:
        stop = start + run.shape[-2]
        full[..., start:stop, start:] = run
        full[..., start:, start:stop] = run.transpose(-1, -2)
        start = stop
    assert start == places
    return full


def test_costs_of_a_linear_layer() -> None:
    # T = 5 places, d = 7, p = 11: d·p entries, T·d·p multiplications, T²(d + p) by Gram matrices.
    expected = Costs(places=5, entries=77, product=385, gram=450)
    assert LinearProducts().costs(drawn(3, 5, 7), drawn(3, 5, 11)) == expected
    flat = Costs(places=1, entries=77, product=77, gram=18)
    assert LinearProducts().costs(drawn(3, 7), drawn(3, 11)) == flat
    deep = Costs(places=6, entries=77, product=462, gram=648)
    assert LinearProducts().costs(drawn(3, 2, 3, 7), drawn(3, 2, 3, 11)) == deep


@pytest.mark.parametrize("places", [1, 15, 16, 17, 31, 32, 33, 48, 49, 64, 80, 81])
def test_grams_of_a_linear_layer_come_in_runs_that_make_up_all_of_them(places: int) -> None:
    inputs, outputs = drawn(2, places, 3), drawn(2, places, 4)
    pieces = list(LinearProducts().grams(inputs, outputs))
    for which, values in enumerate((inputs, outputs)):
        expected = torch.einsum("nsd,ntd->nst", values, values)[:, None]
        torch.testing.assert_close(whole(iter(pieces), which), expected, **EXACT)
    # Runs of 32, and what is left joins the last one where it is no more than half a run.
    rows = [of_inputs.shape[-2] for of_inputs, _ in pieces]
    assert all(row == 32 for row in rows[:-1])
    assert len(rows) == 1 or 16 < rows[-1] <= 48


@pytest.mark.parametrize(("width", "outs"), [(3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("places", [(), (6,), (2, 3)])
def test_gradients_of_linear_layers_are_their_definition(
    width: int, outs: int, places: tuple[int, ...]
) -> None:
    inputs, outputs = drawn(4, *places, width), drawn(4, *places, outs)
    factors = drawn(4)
    flat_in, flat_out = inputs.view(4, -1, width), outputs.view(4, -1, outs)
    expected = torch.einsum("ntp,ntd->npd", flat_out, flat_in)
    layer, turned = LinearProducts(), TransposedLinearProducts()
    torch.testing.assert_close(layer.products(inputs, outputs), expected, **EXACT)
    torch.testing.assert_close(turned.products(inputs, outputs), expected.transpose(1, 2), **EXACT)
    torch.testing.assert_close(layer.bias(outputs), flat_out.sum(1), **EXACT)
    total = torch.einsum("n,npd->pd", factors, expected)
    for one, summed in ((layer, total), (turned, total.t())):
        out = torch.empty(width * outs, dtype=torch.float64)
        one.weighted(inputs, outputs, factors, out)
        torch.testing.assert_close(out, summed.flatten(), **EXACT)


# Kernel, stride, padding, dilation, groups, channels, outputs, height, width.
CONVOLUTIONS = {
    "plain": ((3, 3), (1, 1), (1, 1), (1, 1), 1, 4, 6, 5, 5),
    "no square at all": ((2, 3), (1, 2), (1, 0), (1, 1), 1, 3, 2, 4, 7),
    "dilated": ((2, 2), (1, 1), (0, 2), (2, 1), 1, 2, 3, 6, 5),
    "groups": ((3, 1), (2, 1), (0, 1), (1, 2), 2, 4, 6, 7, 3),
    "a channel a group": ((3, 3), (1, 1), (1, 1), (1, 1), 4, 4, 4, 4, 6),
    "many channels": ((1, 2), (1, 1), (0, 0), (1, 1), 1, 16, 3, 3, 8),
    "many channels a group": ((2, 2), (2, 2), (1, 1), (1, 1), 2, 34, 4, 5, 4),
    "one place": ((3, 3), (1, 1), (0, 0), (1, 1), 1, 2, 5, 3, 3),
}


def convolution(name: str) -> tuple[ConvolutionProducts, Tensor, Tensor]:
    *sizes, groups, channels, outs, height, width = CONVOLUTIONS[name]
    inputs = drawn(3, channels, height, width)
    kernel, stride, padding, dilation = sizes
    weight = torch.zeros(outs, channels // groups, *kernel, dtype=torch.float64)
    shape = F.conv2d(inputs, weight, None, stride, padding, dilation, groups).shape
    return ConvolutionProducts(kernel, stride, padding, dilation, groups), inputs, drawn(*shape)


def defined(layer: ConvolutionProducts, inputs: Tensor, outputs: Tensor) -> Tensor:
    """Every record's weight gradient by automatic differentiation, [n, p, c/groups, k₁, k₂]."""
    found = []
    for record, gradient in zip(inputs, outputs, strict=True):
        shape = (outputs.shape[1], inputs.shape[1] // layer.groups, *layer.kernel)
        weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        result = F.conv2d(
            record[None], weight, None, layer.stride, layer.padding, layer.dilation, layer.groups
        )
        found.extend(torch.autograd.grad((result * gradient).sum(), weight))
    return torch.stack(found)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions_are_their_definition(name: str) -> None:
    layer, inputs, outputs = convolution(name)
    expected = defined(layer, inputs, outputs)
    torch.testing.assert_close(layer.products(inputs, outputs), expected, **EXACT)
    torch.testing.assert_close(layer.bias(outputs), outputs.flatten(2).sum(2), **EXACT)
    factors = drawn(3)
    out = torch.empty(expected[0].numel(), dtype=torch.float64)
    layer.weighted(inputs, outputs, factors, out)
    total = torch.einsum("n,n...->...", factors, expected)
    torch.testing.assert_close(out, total.flatten(), **EXACT)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("pixels", [False, True])
def test_grams_of_convolutions_are_inner_products_of_patches(
    name: str, pixels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, inputs, outputs = convolution(name)
    # Either way gives the same; which one is cheaper is another matter.
    monkeypatch.setattr(
        ConvolutionProducts, "_cost_of_pixels", lambda *_: -1 if pixels else float("inf")
    )
    places = outputs[0, 0].numel()
    patches = F.unfold(inputs, layer.kernel, layer.dilation, layer.padding, layer.stride)
    grouped = patches.view(3, layer.groups, -1, places)
    of_outputs = outputs.view(3, layer.groups, -1, places)
    pieces = list(layer.grams(inputs, outputs))
    for which, values in enumerate((grouped, of_outputs)):
        expected = torch.einsum("ngds,ngdt->ngst", values, values)
        torch.testing.assert_close(whole(iter(pieces), which), expected, **EXACT)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_costs_of_a_convolution(name: str) -> None:
    layer, inputs, outputs = convolution(name)
    (first, second), channels = layer.kernel, inputs.shape[1]
    places, outs = outputs[0, 0].numel(), outputs.shape[1]
    entries = outs * channels // layer.groups * first * second
    height = inputs.shape[2] + 2 * layer.padding[0]
    width = inputs.shape[3] + 2 * layer.padding[1]
    slowness = 8 if layer.stride == (1, 1) else 64
    patches = places**2 * channels * first * second
    pixels = (height * width) ** 2 * channels
    pixels += slowness * first * second * layer.groups * places**2
    expected = Costs(places, entries, places * entries, min(patches, pixels) + places**2 * outs)
    assert layer.costs(inputs, outputs) == expected


def test_the_cheaper_way_to_the_gram_matrices_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    for name in ("_patches", "_gram_of_pixels"):
        plain = getattr(ConvolutionProducts, name)

        def noted(layer: ConvolutionProducts, *given: object, way=name, plain=plain) -> Tensor:
            taken.append(way)
            return plain(layer, *given)

        monkeypatch.setattr(ConvolutionProducts, name, noted)
    large = ConvolutionProducts((3, 3), (1, 1), (1, 1), (1, 1), 1)
    large.grams(drawn(1, 64, 5, 5), drawn(1, 2, 5, 5)).__next__()
    strided = ConvolutionProducts((3, 3), (2, 2), (0, 0), (1, 1), 1)
    strided.grams(drawn(1, 2, 7, 7), drawn(1, 2, 3, 3)).__next__()
    assert taken == ["_gram_of_pixels", "_patches"]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "groups", "patches", "pixels"),
    [
        # T = 9: T²·c·k₁k₂ = 81·4·6; (h w)²·c + slowness·k₁k₂·groups·T².
        ((2, 3), (1, 1), (0, 0), 1, 1944, 30**2 * 4 + 8 * 6 * 81),
        ((2, 3), (1, 1), (1, 2), 2, 1944, (7 * 10) ** 2 * 4 + 8 * 12 * 81),
        ((3, 5), (1, 2), (0, 0), 1, 4860, 30**2 * 4 + 64 * 15 * 81),
        ((3, 5), (2, 1), (0, 0), 4, 4860, 30**2 * 4 + 64 * 60 * 81),
    ],
)
def test_the_costs_of_either_way_are_those_of_its_formula(
    kernel, stride, padding, groups, patches, pixels
) -> None:
    layer = ConvolutionProducts(kernel, stride, padding, (1, 1), groups)
    inputs = drawn(1, 4, 5, 6)
    assert layer._cost_of_patches(inputs, 9) == patches
    assert layer._cost_of_pixels(inputs, 9) == pixels
