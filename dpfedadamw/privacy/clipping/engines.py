"""The private gradient's engines, and the choice among them: Σ_j g_j · min(1, C/‖g_j‖₂).

The oracle asks one engine for the clipped sum of a batch, adds noise to it and divides. Which
engine answers changes the time that it takes, never the sum.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpfedadamw.privacy.clipping.bookkeeping import BookKeepingEngine
from dpfedadamw.privacy.clipping.clipped_sum import (
    ClippedSum,
    ClippedSumEngine,
    Clipping,
    ClippingError,
    ClipRule,
    Loss,
    flat_clip,
    refuse_mixing,
    trainable_parameters,
)
from dpfedadamw.privacy.clipping.precision import FLOAT32, PRECISIONS, EvenBatches
from dpfedadamw.privacy.clipping.reference import LoopEngine, VmapEngine
from dpfedadamw.privacy.clipping.rehearsal import rehearse
from dpfedadamw.privacy.clipping.sites import BookKeepingError

__all__ = [
    "ENGINES",
    "ClipRule",
    "ClippedSum",
    "ClippedSumEngine",
    "ClippingError",
    "choose",
    "flat_clip",
]

ENGINES = ("auto", "book-keeping", "vmap", "loop")


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

    "auto" takes book-keeping where it understands the model, else vmap, else the loop; it knows
    after the first batch.

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
        if engine == "vmap":
            return VmapEngine(model, loss, clipping, precision)
        return _Rehearsed(model, loss, clipping, precision, fall_back=engine == "auto")

    # The loop always has batches of one size: of one record.
    if precision == FLOAT32 or engine == "loop":
        return make(loss)
    return EvenBatches(make, loss, batch, clipping_norm)


class _Rehearsed:
    """Book-keeping after a rehearsal against the loop, and what else there is when that fails."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clipping: Clipping,
        precision: str,
        *,
        fall_back: bool,
    ) -> None:
        self._model = model
        self._loss = loss
        self._clipping = clipping
        self._precision = precision
        self._fall_back = fall_back
        self._rehearsed = False
        self._reason = ""
        self._engine: ClippedSumEngine
        try:
            self._engine = BookKeepingEngine(model, loss, clipping, precision)
        except BookKeepingError as error:
            self._engine = self._without(error)

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
        reason = f" (no book-keeping: {self._reason})" if self._reason else ""
        return self._engine.explain() + reason

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets [b, …]; b may be 0."""
        if isinstance(self._engine, BookKeepingEngine) and len(targets):
            try:
                if not self._rehearsed:
                    refuse_mixing(self._model)
                    pairs = self._precision == FLOAT32
                    rehearse(self._model, self._loss, inputs, targets, pairs=pairs)
                    self._rehearsed = True
                return self._engine(inputs, targets)
            except BookKeepingError as error:
                self._engine = self._without(error)
        if isinstance(self._engine, VmapEngine) and not self._rehearsed and len(targets):
            self._rehearsed = True
            self._engine = self._vmap_or_loop(inputs, targets)
        return self._engine(inputs, targets)

    def _without(self, error: BookKeepingError) -> ClippedSumEngine:
        if not self._fall_back:
            raise ClippingError(
                f"book-keeping cannot follow this model: {error}; use engine auto, vmap or loop"
            ) from error
        self._reason = str(error)
        return VmapEngine(self._model, self._loss, self._clipping, self._precision)

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
