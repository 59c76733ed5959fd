"""Gradients of records a second time: plainly, one record at a time, in float64.

Nothing here is shared with the engine's clipped sums but the model's own forward pass: no vmap, no
hooks, no book-keeping of layers. A second, equally plain pass in the precision of the run measures
by how much its rounding moves each record's gradient, which is what `float_bound` goes by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from audit.recomputed import Floats, Singles
from dpfedadamw.experiment import Experiment
from dpfedadamw.models import registry as models
from dpfedadamw.vectors.flat import FlatParameters
from dpfedadamw.vectors.precision import computing_in

# Unit roundoff of float32.
_UNIT = 2.0**-24
# What clipping takes off C, so that a factor rounded to float32 never lifts a record above it.
_MARGIN = 1.0 - 2.0**-22
# Clipping takes a smaller factor for 0: float32 does not hold it in full precision.
_LEAST_FACTOR = float(np.finfo(np.float32).tiny)
# The error of one order of evaluation lies within this many times the root mean square of
# another's, up to a chance of 2·exp(-8²/2) = 3e-14 a coordinate (Higham & Mary 2019, theorem 2.4).
_DEVIATIONS = 8.0
# By what share of themselves parameters are moved to find kinks, and how often.
KINKS, MOVES = 32.0 * _UNIT, 8
# Records' errors that a root mean square is taken of at least.
_FEWEST_MEASURED = 16


@dataclass(frozen=True)
class PlainSum:
    """The clipped sum of a batch in float64.

    Attributes:
        clean: Σ_j c_j g_j, float64 [d].
        bound: How far the run's precision can have moved the engine's sum from it, in the L2 norm.
        raw_norms: ‖g_j‖₂, float64 [b].
        norm_errors: How far the run's precision can have moved each of them, [b].
    """

    clean: Floats
    bound: float
    raw_norms: Floats
    norm_errors: Floats


@dataclass(frozen=True)
class _TwoSums:
    """A clipped sum, how far rounding moved it, and each record's norm, error and factor."""

    total: Floats
    off: float
    norms: Floats
    errors: Floats
    factors: Floats


class PlainModel:
    """A model in one floating-point type, evaluated one record at a time.

    Args:
        experiment: Whose model is built again.
        kind: torch.float64, or torch.float32 for a model as the run has it.
    """

    def __init__(self, experiment: Experiment, kind: torch.dtype) -> None:
        # Built like the run's, and not copied: what an engine left on the run's is not on this one.
        model = models.build(
            experiment.spec.model,
            experiment.dataset.input_shape,
            experiment.dataset.classes,
            0,
            experiment.dataset.task,
        )
        _take_frozen(model, experiment.model)
        self._kind, self._loss = kind, models.loss_of(model)
        self._precision = experiment.spec.compute.precision if kind == torch.float32 else "float32"
        self._model = model.to(experiment.device, kind).train()
        self._flat = FlatParameters(self._model)
        self._trainable = [p for p in self._model.parameters() if p.requires_grad]

    def at(self, point: Tensor) -> PlainModel:
        """The model at parameters [d]."""
        self._flat.assign(point.to(self._kind))
        return self

    def gradient(self, record: Tensor, label: Tensor) -> Tensor:
        """The gradient [d] of the loss of one record [1, …] with its label [1].

        Of several records it is that of their mean loss: of one person's, who stand for one.
        """
        given = record.to(self._kind) if record.is_floating_point() else record
        with torch.enable_grad():
            with computing_in(self._precision, given.device):
                outputs = self._model(given)
            loss = self._loss(outputs.to(self._kind), label).mean()
        if not loss.requires_grad:
            return torch.zeros_like(self._flat.vector)
        gradients = torch.autograd.grad(loss, self._trainable, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).reshape(-1)
                for p, g in zip(self._trainable, gradients, strict=True)
            ]
        )


class PlainGradients:
    """Sums of gradients over batches, plainly.

    Args:
        experiment: What was run.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.wide = PlainModel(experiment, torch.float64)
        self.narrow = PlainModel(experiment, torch.float32)

    def clipped_sum(
        self,
        point: Tensor,
        records: Tensor,
        labels: Tensor,
        clipping_norm: float,
        taken: Singles,
        sizes: Sequence[int] | None = None,
    ) -> PlainSum:
        """Σ_j g_j · min(1, C(1 − 2⁻²²)/n_j), and how far rounding can move it.

        n_j is the norm that the engine took a record's gradient to have, or its own where that is
        longer. An engine may take a norm to be longer than it is: one that follows from Gram
        matrices is lengthened by what their rounding may hide. It clips more then, never less. A
        record counts 0, as it did in the run, where the run's precision cannot hold its gradient,
        or not its factor in full.

        Args:
            point: θ, [d].
            records: Inputs [b, …].
            labels: int64 [b].
            clipping_norm: C > 0.
            taken: Norms as the engine has them, float32 [b].
            sizes: How many of the records each of b people has; None where each stands for itself.
        """
        parts = _parts(len(labels), sizes)
        found = self._both(point, records, labels, clipping_norm, taken, parts)
        squares = [found.off**2]
        # The error of one record is mostly one number, which may be small by luck: where there are
        # few records, more is measured, at points near this one.
        for number in range(_FEWEST_MEASURED // max(1, len(parts)) if parts else 0):
            near = beside(point, 2.0 * _UNIT, number).to(point.dtype)
            squares.append(self._both(near, records, labels, clipping_norm, taken, parts).off ** 2)
        measured = math.sqrt(sum(squares) / len(squares))
        bound = float_bound(measured, found.norms * found.factors, len(labels))
        return PlainSum(found.total, bound, found.norms, _DEVIATIONS * found.errors)

    def _both(
        self,
        point: Tensor,
        records: Tensor,
        labels: Tensor,
        clipping_norm: float,
        taken: Singles,
        parts: Sequence[slice],
    ) -> _TwoSums:
        """A clipped sum in float64, and how far the same in the run's precision lies from it."""
        wide, narrow = self.wide.at(point), self.narrow.at(point)
        total = torch.zeros(len(point), dtype=torch.float64, device=point.device)
        other = torch.zeros_like(total, dtype=torch.float32)
        norms, errors, factors = np.zeros((3, len(parts)))
        for row, part in enumerate(parts):
            gradient = wide.gradient(records[part], labels[part])
            rounded = narrow.gradient(records[part], labels[part])
            norm = float(torch.linalg.vector_norm(gradient))
            error = float(torch.linalg.vector_norm(rounded.double() - gradient))
            norms[row] = norm
            if not math.isfinite(error):
                continue
            # Two orders of evaluation may agree by luck, and are rounded all the same.
            errors[row] = max(error, _UNIT * norm)
            factors[row] = _factor(np.fmax(norm, taken[row]), clipping_norm)
            total += factors[row] * gradient
            own = float(torch.linalg.vector_norm(rounded, dtype=torch.float64))
            factor = _factor(np.fmax(own, taken[row]), clipping_norm)
            other += rounded * torch.tensor(factor, dtype=torch.float32)
        off = float(torch.linalg.vector_norm(other.double() - total))
        return _TwoSums(total.cpu().numpy(), off, norms, errors, factors)

    def moved(
        self, point: Tensor, records: Tensor, labels: Tensor, sizes: Sequence[int] | None = None
    ) -> Floats:
        """How far the gradient of each record moves near a point, float64 [b].

        ReLU and maximum pooling have kinks, where a gradient jumps. Of a record that lies within
        rounding of one, two orders of evaluation may see different sides, which `float_bound` knows
        of only where the two that it compares do. Here the parameters are moved by a few roundings,
        in float64, several times; the largest distance counts.

        Args:
            point: θ, [d].
            records: Inputs [b, …].
            labels: int64 [b].
            sizes: As of `clipped_sum`.
        """
        parts = _parts(len(labels), sizes)
        found = np.zeros(len(parts))
        for row, part in enumerate(parts):
            gradient = self.wide.at(point).gradient(records[part], labels[part])
            for number in range(MOVES):
                near = self.wide.at(beside(point, KINKS, number))
                off = near.gradient(records[part], labels[part]) - gradient
                found[row] = max(found[row], float(torch.linalg.vector_norm(off)))
        return found

    def mean(self, point: Tensor, records: Tensor, labels: Tensor, divisor: float) -> Tensor:
        """Σ_j g_j over a batch, divided, in the type of the point [d]."""
        model = (self.wide if point.dtype == torch.float64 else self.narrow).at(point)
        total = torch.zeros_like(point)
        for row in range(len(labels)):
            part = slice(row, row + 1)
            total += model.gradient(records[part], labels[part])
        return total / divisor


def _parts(records: int, sizes: Sequence[int] | None) -> list[slice]:
    """The records that stand for one: each for itself, or all of a person's together."""
    starts = np.cumsum([0, *([1] * records if sizes is None else sizes)]).tolist()
    return [slice(start, stop) for start, stop in pairwise(starts)]


def float_bound(measured: float, clipped_norms: Floats, at_once: int | None = None) -> float:
    """How far a clipped sum in the run's precision can lie from the one in float64, in L2.

    The engine's sum is Σ_j ĉ_j ĝ_j, rounded at each step: in every operation of the forward and
    backward pass, in norm and factor, in product and sum. No bound on the worst case of a whole
    network is of use, so what rounding does is measured, on another order of the same operations:
    `measured` is the L2 distance from float64 of a sum in the same precision whose records were
    gone through one by one. Under the model of rounding errors as independent and of mean zero, two
    orders have errors of the same root mean square, and one lies within 8 of them but for a chance
    of 2·exp(-8²/2) = 3e-14 (Higham & Mary 2019, theorem 2.4). That root mean square grows with the
    square root of the length of a sum: the engine sums over b records at once within a layer, where
    the other order sums over the places of one, so that its sums are up to b times as long.

    What is common to all coordinates of a record, its factor and the norm behind it, may agree by
    luck in one order: each is rounded by u = 2⁻²⁴ of itself at most, independently, which moves the
    sum by u·√(Σ_j (c_j‖g_j‖)²). That is added before it is multiplied.

    Args:
        measured: As said.
        clipped_norms: c_j‖g_j‖, [b].
        at_once: How many records a layer sums over; b by default.
    """
    longer = math.sqrt(max(1, len(clipped_norms) if at_once is None else at_once))
    return _DEVIATIONS * longer * (measured + _UNIT * float(np.linalg.norm(clipped_norms)))


def update_bound(narrow: Tensor, wide: Tensor) -> float:
    """How far the engine's local training can lie from the one in float64, in L2.

    Args:
        narrow: The update of the same steps, taken plainly in the run's precision, [d].
        wide: The same in float64.
    """
    measured = float(torch.linalg.vector_norm(narrow.double() - wide))
    least = _UNIT * float(torch.linalg.vector_norm(wide))
    return _DEVIATIONS * max(measured, least)


def beside(point: Tensor, share: float, number: int) -> Tensor:
    """Parameters [d] in float64, each moved by up to a share of itself, evenly, by drawn numbers.

    Args:
        point: θ, [d].
        share: By how much, over their size.
        number: Which of several such points.
    """
    generator = torch.Generator().manual_seed(number)
    drawn = torch.rand(len(point), generator=generator, dtype=torch.float64).to(point.device)
    return point.double() * (1.0 + share * (2.0 * drawn - 1.0))


def _factor(norm: float, clipping_norm: float) -> float:
    """What clipping multiplies a gradient of this norm by."""
    found = min(1.0, clipping_norm * _MARGIN / norm) if norm > 0.0 else 1.0
    return found if found >= _LEAST_FACTOR else 0.0


def _take_frozen(model: nn.Module, like: nn.Module) -> None:
    """Give a model another one's tensors, those that are not trained among them."""
    model.load_state_dict(like.state_dict())
