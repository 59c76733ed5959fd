"""One harness for all layers and models: every engine against the plain per-record loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpfedadamw.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.clipping.grad_sample import GradSampleEngine
from dpfedadamw.clipping.vmap import VmapEngine
from dpfedadamw.privacy.clipped_sum import ClippedSum, Clipping
from dpfedadamw.privacy.plain_form import LoopEngine

ENGINES = {
    "book-keeping": BookKeepingEngine,
    "opacus": GradSampleEngine,
    "vmap": VmapEngine,
    "loop": LoopEngine,
}
# All engines add up the same products in different orders; float64 rounding of sums over a few
# thousand terms stays near 1e-14.
EXACT = 1e-12


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def weighted_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss for outputs of any shape, of another scale for every target."""
    return outputs.flatten(1).square().sum(1) * (1.0 + targets) / 2


def engine_of(name: str, model: nn.Module, loss: Callable[..., Tensor], norm: float):
    return ENGINES[name](model, loss, Clipping(norm))


def median_norm(model: nn.Module, loss: Callable[..., Tensor], inputs: Tensor, targets: Tensor):
    """A clipping norm that clips about half of the records."""
    norms = LoopEngine(model, loss, Clipping(1.0))(inputs, targets).raw_norms
    return float(norms.median())


def assert_same(found: ClippedSum, expected: ClippedSum, tolerance: float = EXACT) -> None:
    scale = float(expected.total.double().norm())
    assert found.total.shape == expected.total.shape
    assert found.total.dtype == expected.total.dtype
    difference = float((found.total.double() - expected.total.double()).norm())
    assert difference <= tolerance * scale, f"totals differ by {difference / scale:.2e}"
    torch.testing.assert_close(
        found.raw_norms, expected.raw_norms, rtol=tolerance, atol=0, equal_nan=True
    )
    torch.testing.assert_close(
        found.clipped_norms, expected.clipped_norms, rtol=tolerance, atol=1e-300
    )
    assert found.nonfinite == expected.nonfinite


def assert_agrees(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[..., Tensor] = weighted_squares,
    engine: str = "book-keeping",
    tolerance: float = EXACT,
) -> ClippedSum:
    """Compare an engine with the loop in float64, clipping half of the records and none."""
    model = model.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    for norm in (median_norm(model, loss, inputs, targets), float("inf")):
        expected = LoopEngine(model, loss, Clipping(norm))(inputs, targets)
        assert float(expected.total.norm()) > 0
        found = engine_of(engine, model, loss, norm)(inputs, targets)
        assert_same(found, expected, tolerance)
    return found
