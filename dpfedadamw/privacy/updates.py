"""One client moves a round's sum by at most C, and the sum is noised before it is released.

What the gradient oracle is to records, this is to clients. One client's update, over all trainable
parameters as one vector, moves the sum by at most C; the noise on the sum has standard deviation σC
(McMahan et al. 2018; DP-FedSAM, section 4).

Sparse updates. Let s_i be what client i keeps of its update and u_i = s_i·min(1, C/‖s_i‖₂).

* Public coordinates. The same k coordinates M for every client, a function of public randomness
  and earlier releases. Given those, M is a constant, u_i depends on client i alone and ‖u_i‖ ≤ C,
  so Σ u_i in k dimensions has sensitivity C, and noise N(0, σ²C² I_k) on these k coordinates is the
  Gaussian mechanism of multiplier σ. Off M the release is the constant 0 and tells nothing. The
  factor d/k of Fed-SMP lies inside s_i, before clipping; after it, the sensitivity would be C·d/k.
* Private coordinates. Client i keeps its own k largest. Then M_i depends on its records, but u_i is
  still a function of client i alone with ‖u_i‖ ≤ C, whatever M_i is. So Σ u_i in d dimensions has
  sensitivity C, and noise N(0, σ²C² I_d) on all d coordinates is the same mechanism, which hides
  M_i with the rest. Noise on the union of the M_i alone would publish that union: no ε holds.

Either way the choice costs nothing beyond σ and C, and the accounting is that of dense updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.grid import on_grid
from dpfedadamw.privacy.noise.noise import Method, add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import Stream
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.vectors.sparsification import Sparsification

# Rounding to float32 adds a 2^-24th to a norm at most: a clipped update stays within C.
_SAFETY = 1.0 - 2.0**-22


@dataclass(frozen=True)
class ClippedUpdate:
    """One client's update after clipping.

    Attributes:
        update: The clipped update, [d], or [k] at public coordinates; zero where the raw one was
            not finite.
        raw_norm: L2 norm before clipping, of what was kept; may be infinite or NaN.
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


def contribute(
    update: Tensor,
    clipping_norm: float,
    sparsification: Sparsification | None = None,
    kept: Tensor | None = None,
) -> ClippedUpdate:
    """What one client adds to the sum: its update, made sparse and then clipped.

    Args:
        update: The whole update, [d].
        clipping_norm: C > 0.
        sparsification: What is kept of it; None for all.
        kept: The round's public coordinates, int64 [k]; None where they are not public.

    Returns:
        With public coordinates the values at them, [k]; else the update with zeros, [d].
    """
    if sparsification is None:
        return clip_update(update, clipping_norm)
    if kept is None:
        sparse = torch.zeros_like(update)
        largest = largest_coordinates(update, sparsification.kept)
        sparse[largest] = update[largest]
        return clip_update(sparse, clipping_norm)
    sparse = update[kept] * sparsification.scale
    # A client whose update is broken counts zero, wherever the fault lies.
    if not torch.isfinite(update).all():
        sparse = torch.full_like(sparse, math.nan)
    return clip_update(sparse, clipping_norm)


def largest_coordinates(update: Tensor, count: int) -> Tensor:
    """The ``count`` coordinates of largest magnitude, ascending; the lower one wins a tie.

    What is not a number counts as largest, so that it cannot be dropped unseen.
    """
    magnitudes = update.abs().nan_to_num(nan=math.inf, posinf=math.inf)
    order = torch.sort(magnitudes, descending=True, stable=True).indices
    return order[:count].sort().values


def spread(values: Tensor, kept: Tensor | None, size: int) -> Tensor:
    """Values at public coordinates [k] as a vector [d] that is 0 elsewhere; others as they are."""
    if kept is None:
        return values
    whole = values.new_zeros(size)
    whole[kept] = values
    return whole


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


@dataclass(frozen=True, kw_only=True)
class Release:
    """The release of a round.

    Attributes:
        noisy: The noised sum, float64 [d], or [k] at public coordinates.
        mean: It divided by S and rounded to the public grid, in the updates' dtype.
        by_server: Whether noise was added here.
    """

    noisy: Tensor
    mean: Tensor
    by_server: bool


def release(
    plan: PrivacyPlan, uploads: Sequence[Tensor], zero: Tensor, noise: Stream | None
) -> Release:
    """Sum a round's uploads, add noise and divide by the public number of clients.

    Args:
        plan: The plan of the round.
        uploads: The clipped updates, or the noised ones where clients add the noise, each like
            ``zero``; none in an empty round, which releases noise all the same.
        zero: An update of zeros, [d], or [k] at public coordinates.
        noise: The server's; nothing is drawn from it where clients have added theirs. None under a
            plan that has no noise, which no round of a run is under.

    Raises:
        PrivacyError: If the noise of a plan that has some is left out.
    """
    if noise is None and plan.noise_multiplier > 0.0:
        raise PrivacyError("the noise of a round is missing, although its plan has some")
    assert plan.unit.grid is not None
    # Where the clients add the noise, an empty round still needs some: the server's.
    by_server = plan.noise_added_by == "server" or not uploads
    noisy, mean = release_mean(
        sum_of_updates(uploads, len(zero), zero.device),
        plan.update_noise_standard_deviation,
        plan.clients_per_round,
        noise if by_server else None,
        plan.gaussian_sampler,
    )
    rounded = on_grid(mean.to(zero.dtype), plan.unit.grid.update)
    return Release(noisy=noisy, mean=rounded, by_server=by_server)
