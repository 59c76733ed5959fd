"""What a client-level run writes down for the auditor: norms of updates and the noise on their sum.

Private, like all evidence: it stays in ``evidence/``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.evidence.commitments import Commitment, commitment_rows
from dpfedadamw.evidence.coordinates import look
from dpfedadamw.evidence.records import digest_rows, rows_digest, seen_in
from dpfedadamw.evidence.round_files import RoundFiles


@dataclass(frozen=True, kw_only=True)
class UpdateRelease:
    """One round's release, before and after noise.

    Attributes:
        raw_norms: Norm of each participant's update before clipping.
        clipped_norms: After clipping.
        clean_sum: Sum of the clipped updates, float64 [d], or [k] at public coordinates.
        noisy_sum: The same with noise.
        upload_noise: Noise on each upload, where the clients add it; else empty.
        divisor: What the noisy sum is divided by.
        released: The mean update as the server applies it, [d].
        kept: The public coordinates that the server reads the sum at, int64 [k]; None for all.
        kept_by_clients: Those at which each participant gave its values.
        deviation: σC, the standard deviation charged for the noise on the sum.
        further: Names of tensors that uploads or memories hold besides the update: none should be.
        commitments: Of each participation.
    """

    raw_norms: Sequence[float]
    clipped_norms: Sequence[float]
    clean_sum: Tensor
    noisy_sum: Tensor
    upload_noise: Sequence[Tensor]
    divisor: float
    released: Tensor
    kept: Tensor | None
    kept_by_clients: Sequence[Tensor]
    deviation: float
    further: Sequence[str] = ()
    commitments: Sequence[bytes] = ()


class ClientLevelEvidence(RoundFiles):
    """Writes one file a round."""

    def commit(self, clipped: Tensor) -> bytes:
        """The commitment to a client's clipped update [d] before noise."""
        commitment = Commitment(self._salt, self._setup.commitments)
        commitment.update(clipped)
        return commitment.digest()

    def write_round(
        self,
        index: int,
        attempt: int,
        clients: Sequence[int],
        release: UpdateRelease,
        rows: Sequence[NDArray[np.int64] | None],
        witnessed: Sequence[Mapping[str, NDArray[Any]]],
    ) -> None:
        """Write the evidence of one round.

        Args:
            index: t, from 0.
            attempt: Which attempt at the round it is.
            clients: Who took part, [m].
            release: What was released, and what lies behind it.
            rows: Rows of the data set that each participant trained on.
            witnessed: What a witness saw of each one's batches.
        """
        norm = self._setup.clipping_norm
        noise = release.noisy_sum - release.clean_sum
        seen = look(release.noisy_sum, release.clean_sum)
        whole = slice(None) if release.kept is None else release.kept
        self._coordinates.current[whole] += noise.square().float()
        chosen = torch.from_numpy(self._chosen).to(noise.device)
        places = chosen if release.kept is None else release.kept[chosen]
        nonfinite = sum(not math.isfinite(one) for one in release.raw_norms)
        arrays: dict[str, NDArray[Any]] = {
            "clients": np.asarray(clients, dtype=np.int64),
            "attempt": np.asarray(attempt, dtype=np.int64),
            "raw_norms": np.asarray(release.raw_norms, dtype=np.float32),
            "clipped_norms": np.asarray(release.clipped_norms, dtype=np.float32),
            "nonfinite": np.asarray(nonfinite, dtype=np.int64),
            "divisor": np.asarray(release.divisor, dtype=np.float64),
            "noise_sum_squares": self._squares(noise, release.kept),
            "noise_sample": (noise[chosen] / norm).float().cpu().numpy(),
            "noise_silent": np.asarray(seen.silent, dtype=np.int64),
            "noise_largest": np.asarray(seen.largest / norm, dtype=np.float32),
            "clean_sample": release.clean_sum[chosen].double().cpu().numpy(),
            "sample_places": places.cpu().numpy(),
            "commitment": commitment_rows(release.commitments),
            **digest_rows([None if one is None else rows_digest(self._salt, one) for one in rows]),
            **seen_in(clients, witnessed),
            "further_tensors": np.asarray(sorted(set(release.further)), dtype="U64"),
        }
        if self.servers is not None:
            sampled = release.released[places.to(release.released.device)]
            arrays["released_sample"] = sampled.float().cpu().numpy()
        if release.upload_noise:
            arrays |= self._arrays_of_upload_noise(release)
        if release.kept is not None:
            arrays |= _arrays_of_coordinates(release, release.kept)
        self._write(index, arrays, release.deviation**2)

    def _arrays_of_upload_noise(self, release: UpdateRelease) -> dict[str, NDArray[Any]]:
        """The noise that each client added to its upload."""
        looks = [look(one, torch.zeros_like(one)) for one in release.upload_noise]
        squares = [self._squares(one, release.kept) for one in release.upload_noise]
        largest = [one.largest / self._setup.clipping_norm for one in looks]
        return {
            "upload_noise_sum_squares": np.stack(squares),
            "upload_noise_silent": np.asarray([one.silent for one in looks], dtype=np.int64),
            "upload_noise_largest": np.asarray(largest, dtype=np.float32),
        }

    def _squares(self, noise: Tensor, kept: Tensor | None) -> NDArray[np.float64]:
        """Block sums of squared noise, at public coordinates or at all."""
        blocks, whole = self._setup.blocks, noise.square()
        if kept is not None:
            whole = torch.zeros(blocks.parameters, dtype=noise.dtype, device=noise.device)
            whole[kept] = noise.square()
        squares: NDArray[np.float64] = blocks.sum(whole).cpu().numpy()
        return squares


def _arrays_of_coordinates(release: UpdateRelease, kept: Tensor) -> dict[str, NDArray[Any]]:
    """What a release at public coordinates is, and that nothing is released elsewhere."""
    elsewhere = release.released.double()
    elsewhere[kept] = 0.0
    digests = [np.zeros(32, np.uint8), *map(_digest, release.kept_by_clients)]
    return {
        "kept_digest": _digest(kept),
        # One digest more than there are clients, so that there is one to stack.
        "upload_kept_digests": np.stack(digests)[1:],
        "elsewhere_sum_squares": np.asarray(float(elsewhere.square().sum())),
        "released": release.released[kept].float().cpu().numpy(),
    }


def _digest(kept: Tensor) -> NDArray[np.uint8]:
    """SHA-256 of coordinates, each as eight bytes, lowest first."""
    content = kept.cpu().numpy().astype("<i8").tobytes()
    return np.frombuffer(hashlib.sha256(content).digest(), dtype=np.uint8)
