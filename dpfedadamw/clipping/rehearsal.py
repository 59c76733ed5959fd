"""Whether an engine understands a model: a rehearsal against the plain per-record loop.

Book-keeping, and Opacus likewise, takes a layer's first dimension for the records'. A model may
well use it otherwise (sequences first, windows folded into the batch, a parameter indexed by
place), and a gradient that is charged to the wrong record is not clipped. So before the first batch
a copy of the model, with its parameters shaken, answers a few made-up records in both ways.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from dpfedadamw.clipping.sites import BookKeepingError, views_of
from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    ClippedSumEngine,
    Clipping,
    ClippingError,
    Loss,
    summed,
    trainable_parameters,
)
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.privacy.spot_check import MOVES, moved

# Two batch sizes: what depends on a dimension that merely has the size of one batch shows in the
# other.
_BATCH_SIZES = (3, 2)
# Rounding in float32 stays far below; a record mistaken for another is of order one.
_TOLERANCE = 2e-3
# How many moves by rounding are tried: a model that an engine cannot follow costs little more.
_TRIES = 6


class GradSampleError(ClippingError):
    """Opacus cannot give this model's per-record gradients; other engines may."""


def _unequal(norms: Tensor, _: float) -> Tensor:
    """A factor of its own for every record, so that no two can be mistaken for one another."""
    return 1.0 / (1.0 + torch.arange(len(norms), dtype=norms.dtype, device=norms.device))


Make = Callable[[nn.Module, Clipping], ClippedSumEngine]


def rehearse(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    make: Make,
    name: str,
    people: bool = False,
) -> None:
    """Compare an engine with the loop on made-up records of a batch's shape.

    Inputs of floating point are drawn at random. Whole numbers are the batch's first record, moved
    around: only "agrees" is reported.

    Args:
        model: The model; a copy of it is used, in evaluation mode.
        loss: Outputs and targets to one loss a record.
        inputs: A batch [b, …] with b ≥ 1, for its shape and dtype.
        targets: Its targets.
        make: Makes the engine for a copy of the model.
        name: What messages call it.
        people: Whether people's mean gradients are clipped: then the last two records are of one.

    Raises:
        BookKeepingError: If the two disagree, or if the engine fails.
    """
    try:
        # Frozen parameters stay as they are, so the copy shares them.
        frozen: dict[int, object] = {id(p): p for p in model.parameters() if not p.requires_grad}
        rehearsed = copy.deepcopy(model, frozen).eval()
    except Exception as error:
        raise BookKeepingError(f"the model cannot be copied for a rehearsal ({error})") from error
    generator = torch.Generator().manual_seed(0)
    for parameter in trainable_parameters(rehearsed).values():
        _shake(parameter, generator)
    for size in _BATCH_SIZES:
        batch = _made_up(inputs, size, generator), targets[torch.arange(size) % len(targets)]
        sizes = [*[1] * (size - 2), 2] if people else None
        by_the_loop = partial(_by_the_loop, rehearsed, loss, *batch, sizes or [1] * size)
        expected = by_the_loop()
        try:
            with warnings.catch_warnings():
                # That something is slow here is said by what is chosen.
                warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                found = summed(make(rehearsed, Clipping(1.0, _unequal)), *batch, sizes)
        except (BookKeepingError, GradSampleError):
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise BookKeepingError(f"its forward fails under {name} ({reason})") from error
        try:
            _compare(trainable_parameters(rehearsed), expected, found)
        except BookKeepingError:
            if not _near_a_kink(rehearsed, by_the_loop, found):
                raise


def _near_a_kink(
    model: nn.Module, by_the_loop: Callable[[], ClippedSum], found: ClippedSum
) -> bool:
    """Whether the loop agrees where its layers' inputs are moved by what rounding moves them.

    Where that decides whether a path counts in a gradient, it is no mistake (`spot_check`).
    """
    for units in MOVES[:_TRIES]:
        with moved(model, units), contextlib.suppress(BookKeepingError):
            _compare(trainable_parameters(model), by_the_loop(), found)
            return True
    return False


def _by_the_loop(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, sizes: Sequence[int]
) -> ClippedSum:
    """What an engine should find with factors `_unequal`."""
    engine = LoopEngine(model, loss, Clipping(math.inf))
    total: Tensor | None = None
    norms, start = [], 0
    for record, size in enumerate(sizes):
        part, start = slice(start, start + size), start + size
        one = engine.of_people(inputs[part], targets[part], [size])
        norms.append(one.raw_norms)
        # In place and an exact factor, as `_unequal` gives: vectors may be long.
        scaled = one.total.div_(1.0 + record)
        total = scaled if total is None else total.add_(scaled)
    assert total is not None
    raw_norms = torch.cat(norms)
    return ClippedSum(total, raw_norms, raw_norms, 0)


def _shake(parameter: Tensor, generator: torch.Generator) -> None:
    """Move a parameter a little: one at zero would hide the gradients of others."""
    values = parameter.detach()
    spread = float(values.double().std()) if values.numel() > 1 else 0.0
    noise = torch.randn(values.shape, generator=generator).to(values)
    parameter.data = values + (0.02 + 0.1 * spread) * noise


def _made_up(inputs: Tensor, size: int, generator: torch.Generator) -> Tensor:
    if inputs.is_floating_point():
        return torch.randn(size, *inputs.shape[1:], generator=generator).to(inputs)
    last = inputs.dim() - 1
    rolled = [inputs[:1].roll(shift, last) if last else inputs[:1] for shift in range(size)]
    return torch.cat(rolled)


def _compare(parameters: dict[str, nn.Parameter], expected: ClippedSum, found: ClippedSum) -> None:
    whole = float(expected.total.double().norm())
    views = views_of(found.total, parameters)
    for name, right in views_of(expected.total, parameters).items():
        error = float((views[name].double() - right.double()).norm())
        if not error <= _TOLERANCE * float(right.double().norm()) + 1e-5 * whole:
            raise BookKeepingError(
                f"parameter {name!r} is used in a way that it cannot follow (its gradients differ "
                "from the loop's)"
            )
    error = float((found.raw_norms - expected.raw_norms).abs().max())
    if not error <= _TOLERANCE * float(expected.raw_norms.max()):
        raise BookKeepingError("norms differ from the loop's")
