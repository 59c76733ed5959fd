"""Laplacian smoothing of the noised gradient: DP-FedAvg-LS (Liang et al. 2024; Osher et al. 2022).

Smoothing is post-processing of a released value and costs no privacy. Liang et al. smooth the mean
of the clients' noised updates on the server; the operator is linear, so for one local step that is
the same, and smoothing each gradient lets later local steps start from a smoothed point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpfedadamw.algorithms.base import Algorithm, Broadcast, GradientOracle, Observer, Upload
from dpfedadamw.algorithms.keys import DescentKeys
from dpfedadamw.algorithms.registry import AlgorithmEntry, AlgorithmSetup, register
from dpfedadamw.algorithms.server import Averaging
from dpfedadamw.algorithms.sgd import descend
from dpfedadamw.spec.section import Section, key

if TYPE_CHECKING:
    from torch import Tensor


class SmoothingSpec(Section, title="Laplacian smoothing"):
    """How noised gradients are smoothed over neighbouring coordinates."""

    strength: float = key(
        1.0,
        "Strength s of the smoothing (I - s L)⁻¹ with the second difference L; 0 is none.",
        ge=0,
        le=1_000_000,
        examples=(1.0, 0),
    )
    scope: Literal["vector", "tensor"] = key(
        "vector",
        "Coordinates that are smoothed together: vector: all parameters, end to end; tensor: "
        "each parameter tensor by itself.",
        examples=("vector", "tensor"),
    )


class SmoothingKeys(DescentKeys, title="DP-FedAvg-LS"):
    """Local stochastic gradient descent by noised gradients that are smoothed."""

    smoothing: SmoothingSpec = SmoothingSpec()


def eigenvalues(size: int, strength: float, like: Tensor) -> Tensor:
    """Eigenvalues 1 + 2s(1 − cos(2πk/n)) of I − s·L, k = 0…⌊n/2⌋, of ``like``'s dtype.

    L is the second difference on a ring of n coordinates; real input needs half of the spectrum.
    """
    import torch

    # As 4s·sin², in float64: in float32 the cosine of a small angle is 1, and a large s shows it.
    frequency = torch.arange(size // 2 + 1, dtype=torch.float64, device=like.device)
    return (1.0 + 4.0 * strength * torch.sin(math.pi * frequency / size).square()).to(like.dtype)


@dataclass(frozen=True)
class LaplacianSmoothing:
    """Follow (I − s·L)⁻¹ g̃, by the fast Fourier transform.

    Attributes:
        weight_decay: λ ≥ 0, decoupled from the gradient.
        strength: s ≥ 0; 0 is DP-FedAvg.
        segments: Lengths of the consecutive runs of coordinates that are smoothed each on a ring of
            its own: all of them in one, or one a tensor.
    """

    weight_decay: float
    strength: float
    segments: Sequence[int]
    queries_per_step: int = 1

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the local steps of one client."""
        import torch

        del observer  # there is no second moment to show
        divisors = [eigenvalues(n, self.strength, broadcast.parameters) for n in self.segments]

        def smooth(parameters: Tensor) -> Tensor:
            parts = torch.split(oracle.gradient(parameters), list(self.segments))
            return torch.cat(
                [
                    torch.fft.irfft(torch.fft.rfft(part) / divisor, n=len(part))
                    for part, divisor in zip(parts, divisors, strict=True)
                ]
            )

        return Upload(descend(broadcast, oracle, self.weight_decay, smooth))


def _smoothed_descent(setup: AlgorithmSetup[SmoothingKeys]) -> Algorithm:
    """Local descent by the smoothed gradient, averaged."""
    from dpfedadamw.vectors.flat import layout_of

    smoothing, layout = setup.spec.smoothing, layout_of(setup.model)
    segments: tuple[int, ...] = (layout.size,)
    if smoothing.scope == "tensor":
        segments = tuple(part.stop - part.start for part in layout.slices)
    local = LaplacianSmoothing(setup.spec.weight_decay, smoothing.strength, segments)
    return Algorithm(local, Averaging({}, False, setup.server_rate))


register(
    AlgorithmEntry(
        name="dp-fedavg-ls",
        keys=SmoothingKeys,
        units=("record",),
        summary="local DP-SGD, each noised gradient smoothed by a discrete Laplacian",
        source="Liang et al. 2024; Osher et al. 2022",
        assemble=_smoothed_descent,
        relatives={"none": "fedavg"},
    )
)
