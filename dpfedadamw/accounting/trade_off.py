"""f-DP: what a reader can detect, and the Gaussian mechanism that reveals at least as much.

A reader tests whether a record was used. The trade-off function f gives the least rate of misses of
any such test by its rate of false alarms (Dong, Roth & Su 2022). It follows from the privacy
profile: each point (ε, δ) bounds f from below by two lines (their Proposition 2.4). A profile on a
grid that is nowhere below the truth so gives an f that is nowhere above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpfedadamw.accounting.pld import privacy_profile
from dpfedadamw.accounting.registry import leading
from dpfedadamw.privacy.composition import SMALLEST_DELTA, Composition, Compositions, merge

FALSE_ALARMS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
# Points of a profile: μ is then at most about 1 % above the least that the profile allows.
_POINTS = 400
_RELATIVE_ERROR = 1e-6


@dataclass(frozen=True)
class GaussianBound:
    """A Gaussian mechanism that no test tells less of than the one that it bounds.

    Attributes:
        mu: μ: neighbours lie at most as far apart as N(0, 1) and N(μ, 1).
        exact: Whether the two are equal: noise on every record in every step. Otherwise rates of
            misses may be smaller by `SMALLEST_DELTA`, which is where the profile ends.
    """

    mu: float
    exact: bool


def least_misses(profile: Sequence[tuple[float, float]], false_alarms: float) -> float:
    """Return a lower bound on f at a rate of false alarms.

    Args:
        profile: Points (ε, δ), each of which holds.
        false_alarms: In [0, 1].
    """
    lines = [0.0]
    for epsilon, delta in profile:
        lines.append(1.0 - delta - math.exp(min(epsilon, 700.0)) * false_alarms)
        lines.append(math.exp(-epsilon) * (1.0 - delta - false_alarms))
    return max(lines)


def gaussian_bound(composition: Compositions) -> GaussianBound:
    """Return μ of a composition.

    It is exact without subsampling. Otherwise it is the least μ whose δ at the end of each stretch
    between two points of the profile is not below the composition's at its beginning: both fall
    with ε, so the Gaussian's curve is nowhere below.

    Args:
        composition: One composition, or several on the same records after one another.
    """
    parts = merge(composition)
    if all(part.sampling_rate == 1.0 for part in parts):
        squares = (part.steps / part.noise_over_sensitivity**2 for part in parts)
        return GaussianBound(math.sqrt(sum(squares)), exact=True)
    points = np.array(privacy_profile(parts, _POINTS))
    ends, deltas = points[1:, 0], points[:-1, 1]

    def covers(mu: float) -> bool:
        return bool(np.all(_gaussian_delta(mu, ends) >= deltas))

    low, high = 0.0, 1.0
    while not covers(high):
        low, high = high, 2.0 * high
    while high - low > _RELATIVE_ERROR * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if covers(middle) else (middle, high)
    return GaussianBound(high, exact=False)


def gaussian_dp(composition: Compositions) -> dict[str, Any]:
    """Return μ of a composition, as a claim states it; see `GaussianBound`."""
    bound = gaussian_bound(composition)
    smaller = 0.0 if bound.exact else SMALLEST_DELTA
    return {"mu": bound.mu, "exact": bound.exact, "misses_smaller_by": smaller}


def f_dp(composition: Compositions) -> dict[str, Any]:
    """Return μ and the trade-off curve of a composition, ready for JSON."""
    profile = privacy_profile(composition, _POINTS)
    curve = [[rate, least_misses(profile, rate)] for rate in FALSE_ALARMS]
    return {**gaussian_dp(composition), "trade_off": curve}


def curves(spent: Sequence[Composition], *, selected: bool) -> dict[str, Any]:
    """Return what a claim states of its headline besides ε: the privacy profile and μ.

    Args:
        spent: What the headline is the ε of; nothing if nothing was released.
        selected: Whether the run is the best of several trials. These curves are its own alone, so
            μ, which would be read as that of the selection, is left out.
    """
    if not spent:
        return {"profile": [[0.0, 0.0]]}
    stated = {"profile": [list(point) for point in leading()[1].profile(spent)]}
    return stated if selected else {**stated, "gaussian_dp": gaussian_dp(spent)}


def _gaussian_delta(mu: float, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
    """δ(ε) of N(0, 1) and N(μ, 1): Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), without overflow."""
    first = special.log_ndtr(mu / 2.0 - epsilon / mu)
    second = epsilon + special.log_ndtr(-mu / 2.0 - epsilon / mu)
    found: NDArray[np.float64] = np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
    return found
