"""Laplacian smoothing of the noised gradient: DP-FedAvg-LS (Liang et al. 2024; Osher et al. 2022).

Smoothing is post-processing of a released value and costs no privacy. Liang et al. smooth the mean
of the clients' noised updates on the server; the operator is linear, so for one local step that is
the same, and smoothing each gradient lets later local steps start from a smoothed point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, GradientOracle, Observer, Upload
from dpfedadamw.algorithms.sgd import descend


def eigenvalues(size: int, strength: float, like: Tensor) -> Tensor:
    """Eigenvalues 1 + 2s(1 − cos(2πk/n)) of I − s·L, k = 0…⌊n/2⌋, of ``like``'s dtype.

    L is the second difference on a ring of n coordinates; real input needs half of the spectrum.
    """
    frequency = torch.arange(size // 2 + 1, dtype=like.dtype, device=like.device)
    return 1.0 + 2.0 * strength * (1.0 - torch.cos(2.0 * math.pi * frequency / size))


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
