"""The private gradient's engines, and the choice among them: Σ_j g_j · min(1, C/‖g_j‖₂).

The oracle asks one engine for the clipped sum of a batch, adds noise to it and divides.
"""

from __future__ import annotations

from torch import nn

from dpfedadamw.privacy.clipped_sum import (
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
from dpfedadamw.privacy.per_record import LoopEngine, VmapEngine

__all__ = [
    "ClipRule",
    "ClippedSum",
    "ClippedSumEngine",
    "ClippingError",
    "choose",
    "flat_clip",
]

ENGINES = ("auto", "vmap", "loop")


def choose(
    model: nn.Module,
    loss: Loss,
    clipping_norm: float,
    *,
    engine: str = "auto",
    clip: ClipRule = flat_clip,
) -> ClippedSumEngine:
    """An engine that forms clipped sums of a model's per-record gradients.

    Args:
        model: Anything whose forward maps records [b, …] to outputs [b, …].
        loss: Outputs and targets to one loss a record, [b].
        clipping_norm: C > 0; infinity clips nothing.
        engine: One of :data:`ENGINES`.
        clip: Norms and C to one factor a record.

    Raises:
        ClippingError: If a name is unknown, C is not positive, nothing is trainable, or a layer
            mixes records.
    """
    if engine not in ENGINES:
        raise ClippingError(f"clipping engine {engine!r} is unknown; use one of {ENGINES}")
    clipping = Clipping(clipping_norm, clip)
    trainable_parameters(model)
    refuse_mixing(model)
    if engine == "loop":
        return LoopEngine(model, loss, clipping)
    return VmapEngine(model, loss, clipping)
