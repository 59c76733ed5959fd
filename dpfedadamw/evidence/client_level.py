"""What a client-level run writes down for the auditor: norms of updates and the noise on their sum.

Private, like all evidence: it stays in ``evidence/``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.evidence.commitments import Commitment, commitment_rows
from dpfedadamw.evidence.coordinates import CoordinateSums, look
from dpfedadamw.evidence.exchanges import UploadRecorder
from dpfedadamw.evidence.record_level import round_file, sampled_coordinates, write_layout
from dpfedadamw.evidence.records import Witness, digest_rows, rows_digest, seen_in
from dpfedadamw.evidence.servers import ServerRecorder
from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.vectors.flat import Blocks


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


class ClientLevelEvidence:
    """Writes one file a round.

    Args:
        directory: The run's ``evidence/``.
        blocks: The measuring partition.
        clipping_norm: C.
        rounds: T.
        released: How many coordinates a round releases with noise: d, or k public ones. The noise
            is sampled at positions among them.
        commitments: How participations are hashed, as the ledger's header says.
    """

    def __init__(
        self,
        directory: Path,
        blocks: Blocks,
        *,
        clipping_norm: float,
        rounds: int,
        released: int,
        commitments: str,
    ) -> None:
        self._directory = directory
        self._commitments = commitments
        self._salt = read_salt(directory / "salt")
        self._blocks = blocks
        self._clipping_norm = clipping_norm
        self._sample = sampled_coordinates(released, rounds)
        sample = self._sample
        self.uploads = UploadRecorder(
            directory, blocks, queries=0, rounds=rounds, per_round=1, sample=sample
        )
        self.servers: ServerRecorder | None = None
        if not self.uploads.complete:
            self.servers = ServerRecorder(directory, blocks.parameters, rounds=rounds, per_round=1)
        self._coordinates = CoordinateSums.start(
            directory, blocks.sizes.new_empty(blocks.parameters)
        )
        write_layout(directory, blocks, beta2=None, sample=sample, rounds=rounds, unit="client")

    def commit(self, clipped: Tensor) -> bytes:
        """The commitment to a client's clipped update [d] before noise."""
        commitment = Commitment(self._salt, self._commitments)
        commitment.update(clipped)
        return commitment.digest()

    def restore(self, completed_rounds: int) -> None:
        """Continue after a resume: delete what was left of rounds that will be run again."""
        self.uploads.forget_after(completed_rounds)
        if self.servers is not None:
            self.servers.forget_after(completed_rounds)
        self._coordinates.restore(completed_rounds)

    def witness(self) -> Witness:
        """What notes a record of each batch of one client's part in a round."""
        return Witness(self._salt)

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
        noise = release.noisy_sum - release.clean_sum
        seen = look(release.noisy_sum, release.clean_sum)
        whole = slice(None) if release.kept is None else release.kept
        self._coordinates.current[whole] += noise.square().float()
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
            "noise_sum_squares": self._squares(noise, release.kept),
            "noise_sample": (noise[chosen] / self._clipping_norm).float().cpu().numpy(),
            "noise_silent": np.asarray(seen.silent, dtype=np.int64),
            "noise_largest": np.asarray(seen.largest / self._clipping_norm, dtype=np.float32),
            "clean_sample": release.clean_sum[chosen].double().cpu().numpy(),
            "sample_places": (chosen if release.kept is None else release.kept[chosen])
            .cpu()
            .numpy(),
            "commitment": commitment_rows(release.commitments),
            **digest_rows([None if one is None else rows_digest(self._salt, one) for one in rows]),
            **seen_in(clients, witnessed),
            "further_tensors": np.asarray(sorted(set(release.further)), dtype="U64"),
        }
        if self.servers is not None:
            places = torch.from_numpy(arrays["sample_places"]).to(release.released.device)
            arrays["released_sample"] = release.released[places].float().cpu().numpy()
        if release.upload_noise:
            looks = [look(one, torch.zeros_like(one)) for one in release.upload_noise]
            arrays |= {
                "upload_noise_sum_squares": np.stack(
                    [self._squares(one, release.kept) for one in release.upload_noise]
                ),
                "upload_noise_silent": np.asarray([one.silent for one in looks], dtype=np.int64),
                "upload_noise_largest": np.asarray(
                    [one.largest / self._clipping_norm for one in looks], dtype=np.float32
                ),
            }
        if release.kept is not None:
            elsewhere = release.released.double()
            elsewhere[release.kept] = 0.0
            arrays |= {
                "kept_digest": _digest(release.kept),
                "upload_kept_digests": np.stack(
                    [np.zeros(32, np.uint8), *map(_digest, release.kept_by_clients)]
                )[1:],
                "elsewhere_sum_squares": np.asarray(float(elsewhere.square().sum())),
                "released": release.released[release.kept].float().cpu().numpy(),
            }
        write_arrays(self._directory / round_file(index), arrays)
        self._coordinates.close_round(release.deviation**2)

    def _squares(self, noise: Tensor, kept: Tensor | None) -> NDArray[np.float64]:
        whole = noise.square()
        if kept is not None:
            whole = torch.zeros(self._blocks.parameters, dtype=noise.dtype, device=noise.device)
            whole[kept] = noise.square()
        squares: NDArray[np.float64] = self._blocks.sum(whole).cpu().numpy()
        return squares


def _digest(kept: Tensor) -> NDArray[np.uint8]:
    """SHA-256 of coordinates, each as eight bytes, lowest first."""
    content = kept.cpu().numpy().astype("<i8").tobytes()
    return np.frombuffer(hashlib.sha256(content).digest(), dtype=np.uint8)
