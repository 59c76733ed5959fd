"""The release of a client-level round: one noised mean update.

What it is made of is `privacy.updates`; here are messages and evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedadamw.evidence.client_level import UpdateRelease
from dpfedadamw.federation.messages import unpack_update
from dpfedadamw.federation.participation import Round
from dpfedadamw.privacy import updates
from dpfedadamw.privacy.noise.randomness import Stream
from dpfedadamw.vectors.sparsification import KEPT, Sparsification


@dataclass(frozen=True, kw_only=True)
class Combined:
    """What whoever combines a round's uploads makes of them.

    Attributes:
        uploads: Each client's, float32 [d], or [k] at public coordinates.
        noisy: Their sum with noise, float64.
        released: The mean update as the server applies it, [d].
        kept: The public coordinates, int64 [k]; None for all.
        by_server: Whether noise was added here.
    """

    uploads: Sequence[Tensor]
    noisy: Tensor
    released: Tensor
    kept: Tensor | None
    by_server: bool


def combine_updates(current: Round, noise: Stream | None) -> Combined:
    """Read a round's uploads and release their noised mean (`privacy.updates.release`).

    Args:
        current: The round, with its answers.
        noise: The server's; None under a plan that has none.

    Raises:
        PrivacyError: If the noise of a plan that has some is left out.
    """
    plan, broadcast, answers = current.plan, current.broadcast, current.answers
    whole, device = len(broadcast.parameters), broadcast.parameters.device
    kept = public_coordinates(plan.sparsification, current.index, broadcast.state, device)
    # What is off public coordinates is neither sent nor noised: there the release is 0.
    zero = broadcast.parameters.new_zeros(whole if kept is None else len(kept))
    uploads = [unpack_update(answer.message, len(zero), zero) for answer in answers]
    made = updates.release(plan, uploads, zero, noise)
    return Combined(
        uploads=uploads,
        noisy=made.noisy,
        released=updates.spread(made.mean, kept, whole),
        kept=kept,
        by_server=made.by_server,
    )


def release_mean_update(current: Round, noise: Stream | None) -> UpdateRelease:
    """Combine a round's uploads, with what the evidence is to say of it.

    Args:
        current: The round, with its answers, as whoever has the clients' evidence knows them.
        noise: As of `combine_updates`.

    Raises:
        PrivacyError: If the noise of a plan that has some is left out.
    """
    return evidence_of(current, combine_updates(current, noise))


def evidence_of(current: Round, combined: Combined) -> UpdateRelease:
    """A round's release with what lies behind it, from the clipped updates of all its clients."""
    plan, answers = current.plan, current.answers
    clipped = [answer.clipped for answer in answers if answer.clipped is not None]
    size, device = len(combined.noisy), combined.noisy.device
    shares = [
        upload.double() - one.update.double()
        for upload, one in zip(combined.uploads, clipped, strict=True)
        if not combined.by_server
    ]
    results = [answer.result.upload for answer in answers]
    return UpdateRelease(
        raw_norms=[one.raw_norm for one in clipped],
        clipped_norms=[one.clipped_norm for one in clipped],
        clean_sum=updates.sum_of_updates([one.update for one in clipped], size, device),
        noisy_sum=combined.noisy,
        upload_noise=shares,
        divisor=float(plan.clients_per_round),
        released=combined.released,
        kept=combined.kept,
        kept_by_clients=[answer.kept for answer in answers if answer.kept is not None],
        commitments=[answer.commitment for answer in answers],
        deviation=plan.update_noise_standard_deviation,
        further=[name for upload in results for name in (*upload.state, *upload.memory)],
    )


def public_coordinates(
    sparsification: Sparsification | None,
    round_index: int,
    state: Mapping[str, Tensor],
    device: torch.device,
) -> Tensor | None:
    """The coordinates of a round's release, int64 [k]; None where all coordinates are released.

    Args:
        sparsification: The plan's.
        round_index: t, from 0.
        state: What the server broadcasts beside the parameters.
        device: Where the coordinates are needed.
    """
    if sparsification is None or not sparsification.public:
        return None
    if KEPT in state:
        return state[KEPT].to(device).long()
    return torch.from_numpy(sparsification.draw(round_index)).to(device)
