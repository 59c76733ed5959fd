"""One record moves a clipped sum, Σ_j g_j · min(1, C/‖g_j‖₂), by at most C.

Engines find norms in different ways; all of them turn norms into factors here, so that no engine
can clip differently from another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfedadamw.errors import PrivacyError
from dpfedadamw.vectors.flat import empty

Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs [b, …] and targets [b, …] to one loss a record, [b]."""

ClipRule = Callable[[Tensor, float], Tensor]
"""Finite norms [n] in float64 and the clipping norm C to one factor a record, float64 [n]."""

# A factor is rounded to float32, and so is every product with it: without this margin the clipped
# gradient of a record could exceed C by a few units in the last place.
_MARGIN = 1.0 - 2.0**-22

# Entries of a record's gradient that are squared in float64 at once.
_EXACT_ENTRIES = 2**16


class ClippingError(PrivacyError):
    """Clipped sums cannot be formed for this model, loss or clipping norm."""


@dataclass(frozen=True)
class ClippedSum:
    """The clipped gradients of a batch, summed, and what the auditor needs to judge them.

    Attributes:
        total: Σ_j c_j g_j over all trainable parameters as one vector [d], in the order of
            ``named_parameters()``, in the parameters' dtype.
        raw_norms: ‖g_j‖₂ before clipping, float64 [b]; not finite where the gradient is not.
        clipped_norms: c_j ‖g_j‖₂, float64 [b]; 0 where the gradient is not finite.
        nonfinite: Number of records whose gradient is not finite. They contribute exactly 0.
    """

    total: Tensor
    raw_norms: Tensor
    clipped_norms: Tensor
    nonfinite: int


class ClippedSumEngine(Protocol):
    """Computes the clipped sum of any batch at the model's current parameters.

    Attributes:
        name: "book-keeping", "opacus", "vmap" or "loop".
        layers: How each layer's per-record norm is found, by module name.
    """

    @property
    def name(self) -> str:
        """What the user calls it."""
        ...

    @property
    def layers(self) -> Mapping[str, str]:
        """Method of each layer, by module name."""
        ...

    def explain(self) -> str:
        """One line for the run's summary."""
        ...

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets [b, …]; b may be 0."""
        ...


@runtime_checkable
class PeopleEngine(ClippedSumEngine, Protocol):
    """An engine that also clips the mean gradients of people: one person, one mean, one factor."""

    def of_people(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> ClippedSum:
        """Σ_p u_p · min(1, C/‖u_p‖₂), u_p the mean of the gradients of person p's records.

        Args:
            inputs: Records [b, …], those of one person after those of another.
            targets: Theirs, [b, …].
            sizes: How many of them each person has, at least 1 each, b in all.
        """
        ...


def summed(
    engine: ClippedSumEngine, inputs: Tensor, targets: Tensor, sizes: Sequence[int] | None
) -> ClippedSum:
    """The clipped sum of records, or of people with these numbers of them.

    Raises:
        ClippingError: If the engine cannot clip the mean gradients of people.
    """
    if sizes is None:
        return engine(inputs, targets)
    if not isinstance(engine, PeopleEngine):
        raise ClippingError(
            f"the clipping engine {engine.name} clips single records, but people are protected"
        )
    return engine.of_people(inputs, targets, sizes)


@dataclass(frozen=True)
class Weights:
    """The factor of each record.

    Attributes:
        raw_norms: ‖g_j‖₂, float64 [b].
        factors: c_j, float64 [b]; 0 where the gradient is not finite.
        finite: Whether each record's gradient is finite, bool [b].
        all_finite: Whether all of them are.
    """

    raw_norms: Tensor
    factors: Tensor
    finite: Tensor
    all_finite: bool

    def summed(self, total: Tensor) -> ClippedSum:
        """The clipped sum with a total that these factors gave."""
        if self.all_finite:
            return ClippedSum(total, self.raw_norms, self.raw_norms * self.factors, 0)
        clipped = torch.where(self.finite, self.raw_norms * self.factors, 0.0)
        return ClippedSum(total, self.raw_norms, clipped, int((~self.finite).sum()))


def flat_clip(norms: Tensor, clipping_norm: float) -> Tensor:
    """min(1, C(1 − 2⁻²²)/‖g‖₂), over a record's whole gradient (Abadi et al. 2016), not by tensor.

    Args:
        norms: Finite norms, float64 [n].
        clipping_norm: C > 0; infinity clips nothing.
    """
    return (torch.full_like(norms, clipping_norm * _MARGIN) / norms).clamp(max=1.0)


def flat_factors(norms: NDArray[np.float64], clipping_norm: float) -> NDArray[np.float64]:
    """`flat_clip` in numpy, to the last bit, for norms that may not be finite too."""
    factors: NDArray[np.float64] = np.minimum(clipping_norm * _MARGIN / norms, 1.0)
    return factors


@dataclass(frozen=True)
class Clipping:
    """The clipping norm together with the rule that applies it.

    Attributes:
        norm: C > 0; infinity clips nothing.
        rule: Norms to factors.

    Raises:
        ClippingError: If the clipping norm is not positive.
    """

    norm: float
    rule: ClipRule = flat_clip

    def __post_init__(self) -> None:
        if math.isnan(self.norm) or self.norm <= 0:
            raise ClippingError(f"clipping norm {self.norm} must be greater than 0")

    def weights(self, squared_norms: Tensor, dtype: torch.dtype) -> Weights:
        """The factor of each record.

        A gradient counts as not finite when its norm is not a number, or is larger than the
        gradient's dtype can hold (3.4e38 for float32; in float64 models the square's limit, 1e154).
        A factor too small for the dtype to hold in full precision, as of a norm beyond 1e37 · C, is
        0: rounding it could lift the clipped norm over C.

        Args:
            squared_norms: ‖g_j‖₂², float64 [b].
            dtype: The gradient's.
        """
        limits = torch.finfo(dtype)
        norms = squared_norms.sqrt()
        finite = norms <= min(limits.max, torch.finfo(torch.float64).max)
        all_finite = bool(finite.all())
        if all_finite:
            factors = self.rule(norms, self.norm)
        else:
            factors = torch.zeros_like(norms)
            factors[finite] = self.rule(norms[finite], self.norm)
        factors = factors.masked_fill(factors < limits.tiny, 0.0)
        return Weights(norms, factors, finite, all_finite)


def exact_squared_norms(gradients: Tensor) -> Tensor:
    """Squared norm of each record's gradient [n, …] in float64 throughout, [n]."""
    flat = gradients.flatten(1)
    # Piece by piece, since a copy of a long gradient in float64 would have to be asked for.
    parts = [part.double().square().sum(1) for part in torch.split(flat, _EXACT_ENTRIES, 1)]
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters with ``requires_grad``, by name, in the order of the flat vector.

    Raises:
        ClippingError: If there is none.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ClippingError("the model has no trainable parameter; unfreeze at least its head")
    return trainable


def cut(sizes: Sequence[int], together: int) -> Iterator[tuple[slice, Sequence[int]]]:
    """Parts of a batch of people with at most so many records each, or those of one person.

    Args:
        sizes: How many records each person has, one after another.
        together: The most.
    """
    start, first = 0, 0
    while first < len(sizes):
        last, stop = first + 1, start + sizes[first]
        while last < len(sizes) and stop + sizes[last] - start <= together:
            stop, last = stop + sizes[last], last + 1
        yield slice(start, stop), sizes[first:last]
        start, first = stop, last


def joined(sums: Sequence[ClippedSum]) -> ClippedSum:
    """The clipped sum of a batch from those of its parts, one or more, in their order."""
    if len(sums) == 1:
        return sums[0]
    total = sums[0].total
    for one in sums[1:]:
        total += one.total
    return ClippedSum(
        total,
        torch.cat([one.raw_norms for one in sums]),
        torch.cat([one.clipped_norms for one in sums]),
        sum(one.nonfinite for one in sums),
    )


def empty_sum(parameters: Mapping[str, Tensor]) -> ClippedSum:
    """The clipped sum of no record: zeros, without a forward pass."""
    some = next(iter(parameters.values()))
    size = sum(parameter.numel() for parameter in parameters.values())
    none = torch.zeros(0, dtype=torch.float64, device=some.device)
    return ClippedSum(empty(size, some.dtype, some.device).zero_(), none, none, 0)


def record_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each record.

    Raises:
        ClippingError: If the loss does not give one value a record. A mean over the batch would
            divide each record's gradient by the realised batch size, which is private.
    """
    losses = loss(outputs, targets)
    if losses.shape != (len(targets),):
        raise ClippingError(
            f"the loss gives shape {tuple(losses.shape)} for {len(targets)} records; it must give "
            'one value a record (reduction="none")'
        )
    return losses


def refuse_mixing(model: nn.Module) -> None:
    """Refuse layers through which one record changes another's gradient, or leaves a trace.

    Raises:
        ClippingError: Naming the layer and the way out.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.instancenorm._InstanceNorm):
            if module.training and module.track_running_stats:
                raise ClippingError(
                    f"layer {name!r} ({type(module).__name__}) keeps running statistics of private "
                    "records; build it with track_running_stats=False or freeze it with eval()"
                )
        elif isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        ):
            raise ClippingError(
                f"layer {name!r} ({type(module).__name__}) normalises over the batch, so a record "
                "changes the gradients of all others and clipping bounds nothing; use GroupNorm, "
                "or freeze the layer with eval()"
            )
