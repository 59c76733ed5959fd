"""Client-level privacy: whole updates are clipped, summed, noised, and divided by a public number.

What the gradient oracle is to records, this is to clients. One client's update, over all trainable
parameters as one vector, moves the sum by at most C; the noise on the sum has standard deviation σC
(McMahan et al. 2018; DP-FedSAM, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedadamw.privacy.noise import Method, add_gaussian_noise
from dpfedadamw.privacy.randomness import Stream

# One float32 step below 1: a clipped update, rounded to float32, stays within C.
_SAFETY = 1.0 - 2.0**-22


@dataclass(frozen=True)
class ClippedUpdate:
    """One client's update after clipping.

    Attributes:
        update: The clipped update, [d]; zero where the raw one was not finite.
        raw_norm: L2 norm before clipping; may be infinite or NaN.
        clipped_norm: L2 norm after clipping, at most C.
    """

    update: Tensor
    raw_norm: float
    clipped_norm: float


def clip_update(update: Tensor, clipping_norm: float) -> ClippedUpdate:
    """Scale one client's update to a norm of at most C.

    Over the whole vector, never tensor by tensor: clipped singly, n tensors would have a joint norm
    of up to C·√n. An update that is not finite contributes exactly nothing.

    Args:
        update: The update, [d].
        clipping_norm: C > 0.
    """
    raw = float(torch.linalg.vector_norm(update, dtype=torch.float64))
    if not math.isfinite(raw):
        return ClippedUpdate(torch.zeros_like(update), raw, 0.0)
    if raw <= clipping_norm:
        return ClippedUpdate(update, raw, raw)
    clipped = (update.double() * (clipping_norm / raw * _SAFETY)).to(update.dtype)
    return ClippedUpdate(
        clipped, raw, float(torch.linalg.vector_norm(clipped, dtype=torch.float64))
    )


def sum_of_updates(updates: Sequence[Tensor], size: int, device: torch.device) -> Tensor:
    """Sum updates [d] in float64; zero [d] for an empty round."""
    total = torch.zeros(size, dtype=torch.float64, device=device)
    for update in updates:
        total += update
    return total


def noise_upload(
    clipped: ClippedUpdate,
    standard_deviation: float,
    participants: int,
    stream: Stream,
    method: Method,
) -> Tensor:
    """Add one client's share of the noise: variance (σC)²/m, so that m shares make (σC)².

    Args:
        clipped: The client's clipped update.
        standard_deviation: σC.
        participants: m ≥ 1, clients of the round.
        stream: The client's noise.
        method: How normal numbers are drawn.

    Returns:
        The noised update, float64 [d] on the noise's grid.
    """
    share = standard_deviation / math.sqrt(participants)
    return add_gaussian_noise(clipped.update, share, stream, method)


def release_mean(
    total: Tensor,
    standard_deviation: float,
    expected_clients: float,
    stream: Stream | None,
    method: Method,
) -> tuple[Tensor, Tensor]:
    """The noised sum, and the mean update that the server applies.

    Args:
        total: Sum of the clipped updates, or of the noised ones where clients add the noise, [d].
        standard_deviation: σC.
        expected_clients: S, public and fixed. Never the realised number of participants: that
            depends on who is there, and so would the sensitivity.
        stream: The server's noise; None where the clients have added theirs.
        method: How normal numbers are drawn.

    Returns:
        The noised sum, float64 [d], and it divided by S.
    """
    if stream is not None:
        total = add_gaussian_noise(total, standard_deviation, stream, method)
    return total, total / expected_clients
