"""How the engine computes, as far as nobody's privacy depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from dpfedadamw.vectors.precision import FLOAT32


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
