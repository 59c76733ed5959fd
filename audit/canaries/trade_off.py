"""How well two neighbours may be told apart: the most that a mechanism's profile allows.

For every event, P(event) ≤ g(Q(event)) where P and Q are the mechanism's laws on neighbouring data
sets. With the trade-off function f of f-DP (Dong, Roth & Su 2022), g = 1 − f(·) on the false
positive rate; (ε, δ)-DP gives two straight lines of it, and a whole profile δ(ε) the lower envelope
of a line a point. Everything here is such an envelope, so that leaving points out only makes the
bounds weaker, never wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from audit.accounting.registry import LossPair

_POINTS = 160
_SMALLEST_DELTA = 1e-12
# Beyond it e^ε does not fit a float64, and no number of canaries reaches that far.
_LARGEST_EPSILON = 600.0


@dataclass(frozen=True)
class TradeOff:
    """P(event) ≤ min_k (slope_k · Q(event) + intercept_k), for any event and any two neighbours.

    Attributes:
        slopes: [K], above 0.
        intercepts: [K], at least 0.
    """

    slopes: NDArray[np.float64]
    intercepts: NDArray[np.float64]

    def most(self, false_positives: float) -> float:
        """The largest P(event) where Q(event) is `false_positives`, in [0, 1]."""
        return float(min(1.0, np.min(self.slopes * false_positives + self.intercepts)))

    def least(self, true_positives: float) -> float:
        """The smallest Q(event) that P(event) = `true_positives` asks for; infinite above 1."""
        if true_positives > 1.0:
            return float("inf")
        breaks, rises, starts = self._inverse
        line = bisect_right(breaks, true_positives)
        return max(0.0, rises[line] * true_positives + starts[line])

    @cached_property
    def _inverse(self) -> tuple[list[float], list[float], list[float]]:
        """The lines (p − intercept)/slope that are largest somewhere, and where the next one is.

        `least` is asked thousands of times for each bound; with these it takes one bisection.
        """
        rises, starts = 1.0 / self.slopes, -self.intercepts / self.slopes
        breaks: list[float] = []
        kept: list[int] = []
        for line in np.lexsort((starts, rises)).tolist():
            while kept:
                rise = rises[line] - rises[kept[-1]]
                # The line that came last is nowhere largest if this one is as steep and not lower,
                # or overtakes it before it overtook the one below.
                meets = (starts[kept[-1]] - starts[line]) / rise if rise > 0.0 else -np.inf
                if len(kept) > 1 and meets <= breaks[-1]:
                    breaks.pop()
                    kept.pop()
                elif len(kept) == 1 and rise <= 0.0:
                    kept.pop()
                else:
                    breaks.append(float(meets))
                    break
            kept.append(line)
        return breaks, rises[kept].tolist(), starts[kept].tolist()


def from_profile(epsilons: Sequence[float], deltas: Sequence[float]) -> TradeOff:
    """The envelope of points of a profile: the mechanism is (ε_k, δ_k)-DP for every k.

    P ≤ e^ε Q + δ, and the same of the complements with P and Q exchanged, 1 − Q ≤ e^ε (1 − P) + δ,
    which is P ≤ e^-ε Q + 1 − e^-ε (1 − δ).

    Args:
        epsilons: each at least 0.
        deltas: each in [0, 1]; larger than the true ones is safe.
    """
    epsilon = np.asarray(epsilons, dtype=np.float64)
    delta = np.clip(np.asarray(deltas, dtype=np.float64), 0.0, 1.0)
    steep, flat = np.exp(epsilon), np.exp(-epsilon)
    return TradeOff(
        np.concatenate([steep, flat]),
        np.concatenate([delta, -np.expm1(-epsilon) + flat * delta]),
    )


def approximate_dp(epsilon: float, delta: float) -> TradeOff:
    """The envelope of (ε, δ)-DP alone."""
    return from_profile([epsilon], [delta])


def of_losses(shares: Sequence[tuple[float, LossPair]]) -> TradeOff:
    """The envelope of the average over canaries that meet different mechanisms.

    Each canary's own P_i ≤ e^ε Q_i + δ_i(ε) for the same ε; the average over the canaries is
    P ≤ e^ε Q + Σ w_k δ_k(ε), which is all that the bound of `f_dp` needs. Points are spread evenly
    over the ε at which the largest δ_k(ε) is above 1e-12.

    Args:
        shares: w_k, the share of the canaries that meet a mechanism, with its composed privacy
            losses, discretised upwards; at least one. Where the shares do not add up to 1, the
            other canaries are in nothing that is released.
    """
    last = max(pair.epsilon(_SMALLEST_DELTA) for _, pair in shares)
    if not np.isfinite(last):
        # Some mass is charged to an infinite loss: no ε comes below it.
        last = max(pair.epsilon(2.0 * _charged(pair) + _SMALLEST_DELTA) for _, pair in shares)
    epsilons = np.linspace(0.0, min(max(last, 1e-6), _LARGEST_EPSILON), _POINTS)
    deltas = [sum(share * pair.delta(float(one)) for share, pair in shares) for one in epsilons]
    return from_profile(epsilons.tolist(), deltas)


def _charged(pair: LossPair) -> float:
    return max(pair.remove.infinite, pair.add.infinite)
