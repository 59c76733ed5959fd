"""What a client-level run writes down for the auditor: norms of updates and the noise on their sum.

Private, like all evidence: it stays in ``evidence/``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.evidence import round_file, sampled_coordinates, write_arrays, write_layout
from dpfedadamw.parameters import Blocks


@dataclass(frozen=True)
class UpdateRelease:
    """One round's release, before and after noise.

    Attributes:
        raw_norms: Norm of each participant's update before clipping.
        clipped_norms: After clipping.
        clean_sum: Sum of the clipped updates, float64 [d].
        noisy_sum: The same with noise, float64 [d].
        upload_noise: Noise on each upload [d], where the clients add it; else empty.
        divisor: What the noisy sum is divided by.
    """

    raw_norms: Sequence[float]
    clipped_norms: Sequence[float]
    clean_sum: Tensor
    noisy_sum: Tensor
    upload_noise: Sequence[Tensor]
    divisor: float


class ClientLevelEvidence:
    """Writes one file a round.

    Args:
        directory: The run's ``evidence/``.
        blocks: The measuring partition.
        clipping_norm: C.
        rounds: T.
    """

    def __init__(self, directory: Path, blocks: Blocks, clipping_norm: float, rounds: int) -> None:
        self._directory = directory
        self._blocks = blocks
        self._clipping_norm = clipping_norm
        self._sample = sampled_coordinates(blocks.parameters, rounds)
        write_layout(directory, blocks, None, self._sample, rounds, "client")

    def write_round(
        self, index: int, attempt: int, clients: Sequence[int], release: UpdateRelease
    ) -> None:
        """Write the evidence of one round."""
        noise = release.noisy_sum - release.clean_sum
        chosen = torch.from_numpy(self._sample).to(noise.device)
        arrays: dict[str, NDArray[Any]] = {
            "clients": np.asarray(clients, dtype=np.int64),
            "attempt": np.asarray(attempt, dtype=np.int64),
            "raw_norms": np.asarray(release.raw_norms, dtype=np.float32),
            "clipped_norms": np.asarray(release.clipped_norms, dtype=np.float32),
            "nonfinite": np.asarray(
                sum(not math.isfinite(norm) for norm in release.raw_norms), dtype=np.int64
            ),
            "divisor": np.asarray(release.divisor, dtype=np.float64),
            "noise_sum_squares": self._squares(noise),
            "noise_sample": (noise[chosen] / self._clipping_norm).float().cpu().numpy(),
        }
        if release.upload_noise:
            arrays["upload_noise_sum_squares"] = np.stack(
                [self._squares(one) for one in release.upload_noise]
            )
        write_arrays(self._directory / round_file(index), arrays)

    def _squares(self, noise: Tensor) -> NDArray[np.float64]:
        squares: NDArray[np.float64] = self._blocks.sum(noise.square()).cpu().numpy()
        return squares
