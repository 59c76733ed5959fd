"""Privacy loss distributions: the tight accountant, which carries every claim.

The distributions are those of dp-accounting (Koskela et al. 2020; Doroshenko et al. 2022), for the
directions add and remove; what is added here is the choice of the discretisation, a cache of single
steps, the mixture over hidden participation, and the one distribution that dp-accounting lacks,
that of fixed-size batches (`fixed_size`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting.fixed_size import fixed_size_pld
from dpfedadamw.privacy.accounting.rdp import epsilon_rdp
from dpfedadamw.privacy.accounting.registry import ACCOUNTANTS, Accountant, Leading
from dpfedadamw.privacy.composition import (
    SAMPLINGS,
    SMALLEST_DELTA,
    Composition,
    Compositions,
    check_delta,
    merge,
)

__all__ = ["delta_pld", "epsilon_pld", "mixture_epsilon_pld", "privacy_profile"]


def epsilon_pld(composition: Compositions, delta: float) -> float:
    """Return the smallest ε for a δ, by privacy loss distributions (tight and pessimistic).

    The discretisation adapts to the composition so that it adds about 10^-4 of ε or less, always
    upwards (Doroshenko et al. 2022, "connect the dots").

    Args:
        composition: one composition, or several on the same records after one another.
        delta: δ in [1e-10, 1).

    Returns:
        ε ≥ 0, infinite if no finite ε holds.

    Raises:
        PrivacyError: if δ is out of range.
    """
    check_delta(delta)
    return _epsilon_pld(merge(composition), delta)


def delta_pld(composition: Compositions, epsilon: float) -> float:
    """Return the smallest δ for an ε ≥ 0, by privacy loss distributions.

    Raises:
        PrivacyError: if ε is negative.
    """
    if not epsilon >= 0:
        raise PrivacyError(f"an epsilon is at least 0, not {epsilon}")
    parts = merge(composition)
    distribution = _composed(parts, _interval(parts, 1e-5))
    return min(1.0, max(0.0, float(distribution.get_delta_for_epsilon(float(epsilon)))))


def privacy_profile(composition: Compositions, points: int = 40) -> list[tuple[float, float]]:
    """Return δ(ε) at equally spaced ε, from ε = 0 to where δ is about 10^-10.

    Args:
        composition: one composition, or several on the same records after one another.
        points: how many, at least 2.
    """
    parts = merge(composition)
    distribution = _composed(parts, _interval(parts, 1e-5))
    last = float(distribution.get_epsilon_for_delta(SMALLEST_DELTA))
    if not math.isfinite(last):
        raise PrivacyError("the composition has no finite epsilon and so no profile")
    grid = np.linspace(0.0, max(last, 1e-3), points)
    deltas = (float(distribution.get_delta_for_epsilon(float(epsilon))) for epsilon in grid)
    return [(float(e), min(1.0, max(0.0, d))) for e, d in zip(grid, deltas, strict=True)]


def mixture_epsilon_pld(
    kinds: Sequence[tuple[Composition, int]], participation: float, delta: float
) -> float:
    """Return the ε with E[δ(ε)] ≤ δ over rounds that each happen with a probability.

    The hockey-stick divergence is jointly convex, so this bounds a run whose pattern of
    participation is hidden and independent of the data. It needs no sum over patterns: for T like
    rounds the binomial mixture of n-fold compositions is the T-fold composition of one round that
    happens with probability `participation`, and otherwise reveals nothing; unlike rounds are
    composed after one another.

    Args:
        kinds: what one participation costs, and in how many rounds it costs that.
        participation: l in (0, 1].
        delta: δ in [1e-10, 1).

    Raises:
        PrivacyError: if an argument is out of range.
    """
    check_delta(delta)
    if not 0 < participation <= 1:
        raise PrivacyError(f"a participation lies in (0, 1], not at {participation}")
    whole = merge([replace(part, steps=part.steps * rounds) for part, rounds in kinds])
    if participation == 1.0:
        return epsilon_pld(whole, delta)
    rounded = sum(
        rounds if part.sampling_rate == 1.0 else part.steps * rounds for part, rounds in kinds
    )
    interval = _interval(whole, delta, rounded)
    absent = privacy_loss_distribution.identity(value_discretization_interval=interval)
    total: Any = None
    for part, rounds in kinds:
        one = _composed((part,), interval).compute_mixture(absent, participation)
        some = one.self_compose(rounds)
        total = some if total is None else total.compose(some)
    return float(total.get_epsilon_for_delta(delta))


@lru_cache(maxsize=1024)
def _epsilon_pld(parts: tuple[Composition, ...], delta: float) -> float:
    return float(_composed(parts, _interval(parts, delta)).get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _step_pld(noise_multiplier: float, rate: float, fixed_size: bool, interval: float) -> Any:
    if fixed_size and rate < 1.0:
        return fixed_size_pld(noise_multiplier, rate, interval)
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, value_discretization_interval=interval
    )


def _composed(parts: tuple[Composition, ...], interval: float) -> Any:
    total: Any = None
    for part in parts:
        sigma = part.noise_over_sensitivity
        fixed_size = part.sampling == "fixed-size"
        if part.sampling_rate == 1.0:
            # Gaussians without subsampling add up to one Gaussian, exactly.
            one = _step_pld(sigma / math.sqrt(part.steps), 1.0, False, interval)
        else:
            one = _step_pld(sigma, part.sampling_rate, fixed_size, interval)
            one = one if part.steps == 1 else one.self_compose(part.steps)
        total = one if total is None else total.compose(one)
    return total


def _interval(parts: tuple[Composition, ...], delta: float, rounded: int | None = None) -> float:
    """Choose the discretisation of the privacy loss.

    Rounding the loss of each of n steps to a grid of width h raises ε by at most about n·h²; with
    n·h² ≤ 10^-4·ε the error stays below 10^-4 of ε. Where a grid that fine would take too much
    time or memory (a million steps, or a loss spread over thousands), it is coarser; ε is then
    further above the truth, and never below it.

    Args:
        parts: what is composed.
        delta: δ at which ε is wanted.
        rounded: how many losses are rounded and added up; None counts the subsampled steps, since
            Gaussians without subsampling are added up before they are rounded.
    """
    epsilon = epsilon_rdp(parts, max(delta, SMALLEST_DELTA))
    if not math.isfinite(epsilon):
        raise PrivacyError(
            "the composition has no finite epsilon: the noise multiplier is too small"
        )
    if rounded is None:
        rounded = sum(part.steps for part in parts if part.sampling_rate < 1.0) or 1
    width = max(
        math.sqrt(1e-4 * max(epsilon, 1e-2) / rounded),
        epsilon * 1e-6,
        max(_step_range(part) for part in parts) * 5e-6,
    )
    decade = 10.0 ** math.floor(math.log10(width))
    return max(1e-6, next(decade * f for f in (5.0, 2.0, 1.0) if decade * f <= width * (1 + 1e-9)))


def _step_range(part: Composition) -> float:
    """Return the largest privacy loss of one step at ten standard deviations, roughly."""
    if part.sampling_rate == 1.0:
        return 0.0
    sigma = part.noise_over_sensitivity
    return max(0.0, math.log(part.sampling_rate) + (0.5 + 10.0 * sigma) / sigma**2)


ACCOUNTANTS.register(
    Accountant(
        name="pld",
        label="PLD",
        source="Koskela, Jälkö & Honkela 2020; Doroshenko et al. 2022",
        samplings=frozenset(SAMPLINGS),
        epsilon=epsilon_pld,
        leads=Leading(mixture=mixture_epsilon_pld, profile=privacy_profile),
    )
)
