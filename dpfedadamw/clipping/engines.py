"""The private gradient's engines, and the choice among them: Σ_j g_j · min(1, C/‖g_j‖₂).

The oracle asks one engine for the clipped sum of a batch, adds noise to it and divides. Which
engine answers changes the time that it takes, never the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfedadamw.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.clipping.precision import EvenBatches
from dpfedadamw.clipping.rehearsal import GradSampleError, rehearse
from dpfedadamw.clipping.sites import BookKeepingError
from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    ClippedSumEngine,
    Clipping,
    ClippingError,
    ClipRule,
    Loss,
    flat_clip,
    refuse_mixing,
    summed,
    trainable_parameters,
)
from dpfedadamw.privacy.plain_form import LoopEngine, dense
from dpfedadamw.vectors.precision import FLOAT32, PRECISIONS, computing_in, wide

__all__ = [
    "ENGINES",
    "ClipRule",
    "ClippedSum",
    "ClippedSumEngine",
    "ClippingError",
    "choose",
    "flat_clip",
]

_OPACUS, _VMAP = "opacus", "vmap"
ENGINES = ("auto", "book-keeping", _OPACUS, _VMAP, "loop")


@dataclass(frozen=True, kw_only=True)
class PerformanceOptions:
    """What changes time, memory and rounding, and no privacy.

    Whatever these are, the same records are drawn, each adds at most C to the sum, the noise on it
    is the same, and so is the claim. Nothing that a claim rests on may be added here.

    Attributes:
        engine: Which clipped-sum engine is used; "auto" picks the fastest that fits the model.
        physical_batch_size: Most records whose gradients are formed at once, at least 1.
        precision: "float32" or "bfloat16": what layers multiply in.
    """

    engine: str = "auto"
    physical_batch_size: int = 512
    precision: str = FLOAT32


def choose(
    model: nn.Module,
    loss: Loss,
    clipping_norm: float,
    *,
    engine: str = "auto",
    clip: ClipRule = flat_clip,
    precision: str = FLOAT32,
    batch: int = 1,
) -> ClippedSumEngine:
    """An engine that forms clipped sums of a model's per-record gradients.

    "auto" takes book-keeping where it understands the model, else Opacus, else vmap, else the loop;
    it knows after the first batch.

    Args:
        model: Anything whose forward maps records [b, …] to outputs [b, …].
        loss: Outputs and targets to one loss a record, [b].
        clipping_norm: C > 0; infinity clips nothing.
        engine: One of :data:`ENGINES`.
        clip: Norms and C to one factor a record.
        precision: "float32" or "bfloat16": what layers multiply in.
        batch: How many records all batches hold in bfloat16; a public number.

    Raises:
        ClippingError: If a name is unknown, C is not positive, nothing is trainable, a layer mixes
            records, or the engine asked for by name cannot follow the model.
    """
    if engine not in ENGINES:
        raise ClippingError(f"clipping engine {engine!r} is unknown; use one of {ENGINES}")
    clipping = Clipping(clipping_norm, clip)
    trainable_parameters(model)
    refuse_mixing(model)
    if precision not in PRECISIONS:
        raise ClippingError(f"precision {precision!r} is unknown; use one of {PRECISIONS}")

    def make(loss: Loss) -> ClippedSumEngine:
        if engine == "loop":
            return LoopEngine(model, loss, clipping, precision)
        if engine == _VMAP:
            return _vmap(model, loss, clipping, precision)
        return _Rehearsed(model, loss, clipping, precision, engine)

    # The loop always has batches of one size: of one record.
    if precision == FLOAT32 or engine == "loop":
        return make(loss)
    return EvenBatches(make, loss, batch, clipping_norm)


class _Rehearsed:
    """An engine that was compared with the loop before its first batch, and what else there is.

    Book-keeping is the fastest and comes first, then Opacus, then vmap, then the loop, which any
    model can be run by. The order is fixed and not measured: the same spec has the same rounding.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, clipping: Clipping, precision: str, wanted: str
    ) -> None:
        self._model = model
        self._loss = loss
        self._clipping = clipping
        self._precision = precision
        self._wanted = wanted
        self._left = list(_REHEARSED) if wanted == "auto" else [wanted]
        self._tried = False
        self._reasons: dict[str, str] = {}
        self._engine: ClippedSumEngine = self._next()

    @property
    def name(self) -> str:
        """The engine in use."""
        return self._engine.name

    @property
    def layers(self) -> Mapping[str, str]:
        """How each layer's norms are found, by module name."""
        return self._engine.layers

    def explain(self) -> str:
        """One line for the run's summary."""
        refused = "; ".join(f"no {name}: {reason}" for name, reason in self._reasons.items())
        return self._engine.explain() + (f" ({refused})" if refused else "")

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets [b, …]; b may be 0."""
        return self._summed(inputs, targets, None)

    def of_people(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> ClippedSum:
        """The clipped sum of people's mean gradients: see `clipped_sum.PeopleEngine`."""
        return self._summed(inputs, targets, sizes)

    def _summed(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int] | None) -> ClippedSum:
        while self._engine.name in _REHEARSED and len(targets):
            try:
                if not self._tried:
                    refuse_mixing(self._model)
                    self._rehearse(self._engine.name, inputs, targets, sizes is not None)
                    self._tried = True
                return summed(self._engine, inputs, targets, sizes)
            except (BookKeepingError, GradSampleError) as error:
                self._refused(self._engine.name, error)
                self._engine = self._next()
        if self._engine.name == _VMAP and not self._tried and len(targets):
            self._tried = True
            self._engine = self._vmap_or_loop(inputs, targets)
        return summed(self._engine, inputs, targets, sizes)

    def _next(self) -> ClippedSumEngine:
        """The next engine that can be made for the model."""
        self._tried = False
        while self._left:
            name = self._left.pop(0)
            try:
                return _REHEARSED[name](self._model, self._loss, self._clipping, self._precision)
            except (BookKeepingError, GradSampleError) as error:
                self._refused(name, error)
        return _vmap(self._model, self._loss, self._clipping, self._precision)

    def _rehearse(self, name: str, inputs: Tensor, targets: Tensor, people: bool) -> None:
        def make(model: nn.Module, clipping: Clipping) -> ClippedSumEngine:
            if name == _OPACUS:
                return _opacus(model, self._loss, clipping)
            pairs = self._precision == FLOAT32
            return BookKeepingEngine(model, self._loss, clipping, pairs=pairs)

        rehearse(self._model, self._loss, inputs, targets, make, name, people)

    def _refused(self, name: str, error: ClippingError) -> None:
        if self._wanted != "auto":
            others = ", ".join(one for one in ENGINES if one not in (name, "loop"))
            raise ClippingError(
                f"{name} cannot follow this model: {error}; use engine {others} or loop"
            ) from error
        self._reasons[name] = str(error)

    def _vmap_or_loop(self, inputs: Tensor, targets: Tensor) -> ClippedSumEngine:
        """Vmap if it can run the model at all, tried on one record."""
        state = torch.get_rng_state()
        try:
            self._engine(inputs[:1], targets[:1])
        except ClippingError:
            raise
        except Exception:
            # Whatever a foreign module raises under vmap, the plain loop can still run it, and if
            # the model itself is at fault, the loop raises the same error on the batch.
            return LoopEngine(self._model, self._loss, self._clipping, self._precision)
        finally:
            torch.set_rng_state(state)
        return self._engine


# Book-keeping fits nearly every model; what computes the others is loaded where it does not.
def _opacus(
    model: nn.Module, loss: Loss, clipping: Clipping, precision: str = FLOAT32
) -> ClippedSumEngine:
    from dpfedadamw.clipping.grad_sample import GradSampleEngine

    return GradSampleEngine(model, loss, clipping, precision)


def _vmap(model: nn.Module, loss: Loss, clipping: Clipping, precision: str) -> ClippedSumEngine:
    from dpfedadamw.clipping.vmap import VmapEngine

    return VmapEngine(model, loss, clipping, precision)


# Engines that are held to the loop before the first batch, the fastest first.
_REHEARSED: Mapping[str, Callable[[nn.Module, Loss, Clipping, str], ClippedSumEngine]] = {
    BookKeepingEngine.name: BookKeepingEngine,
    _OPACUS: _opacus,
}


class PlainSum:
    """Σ_j g_j by ordinary automatic differentiation, for runs without privacy.

    It clips nothing and measures no record.

    Attributes:
        name: "plain".
        layers: Empty: no layer needs a method of its own.
    """

    name = "plain"

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        precision: str = FLOAT32,
    ) -> None:
        self._model = model
        self._loss = loss
        self._precision = precision
        self.layers: Mapping[str, str] = {}

    def explain(self) -> str:
        """One line for the run's summary."""
        return "plain: ordinary gradients, nothing is clipped"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The sum of the gradients of a batch; norms are left empty."""
        trainable = [p for p in self._model.parameters() if p.requires_grad]
        none = torch.zeros(0, device=inputs.device)
        if not len(targets):
            total = torch.cat([torch.zeros_like(p).reshape(-1) for p in trainable])
            return ClippedSum(total.detach(), none, none, 0)
        with computing_in(self._precision, inputs.device):
            outputs = self._model(inputs)
        loss = self._loss(wide(outputs), targets).sum()
        gradients = torch.autograd.grad(loss, trainable, allow_unused=True)
        total = torch.cat(
            [dense(p, g).reshape(-1) for p, g in zip(trainable, gradients, strict=True)]
        )
        return ClippedSum(total.detach(), none, none, 0)
