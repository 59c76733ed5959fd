"""A lower bound on ε from one run with many canaries (Steinke, Nasr & Jagielski 2023).

"Privacy auditing with one (1) training run", Theorem 5.2: m canaries are included by independent
fair coins, the mechanism is (ε, δ)-DP in each of them, and r coins are guessed from its release.
Then for every v

    P[correct ≥ v] ≤ P[W ≥ v] + 2 m δ · max_{1≤i≤v} P[v > W ≥ v − i]/i,    W ~ Bin(r, e^ε/(1+e^ε)).

Why: given all guesses so far, pure ε-DP lets no coin be guessed better than by randomised response,
so that the number of right guesses is stochastically below W. An (ε, δ)-DP mechanism equals such a
one except on events of probability δ a coin; F of these coins, E[F] ≤ 2mδ counting both values, add
at most F right guesses, so P[correct ≥ v] ≤ E[P[W ≥ v − F]], and P[W ≥ v − i] − P[W ≥ v] is at most
i times its largest slope, the maximum above. That maximum is over i alone, so one pass over the
binomial's masses evaluates it: the efficient form of the paper's Appendix D.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special, stats

_LARGEST_EPSILON = 100.0
_PRECISION = 1e-4


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most probable that so many correct guesses can be under (ε, δ)-DP, in [0, 1].

    Args:
        canaries: m.
        guesses: r ≤ m; fixed beforehand.
        correct: v ≤ r.
        epsilon: ε ≥ 0.
        delta: δ in [0, 1).
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} correct of {guesses} guesses on {canaries} canaries")
    # Counted from the wrong guesses: at large ε the accuracy rounds to 1, its complement does not.
    error = float(special.expit(-epsilon))
    wrong = guesses - correct
    least = float(stats.binom.cdf(wrong, guesses, error))
    if delta == 0.0 or correct == 0:
        return min(1.0, least)
    lower = np.arange(wrong + 1, guesses + 1)
    masses = stats.binom.pmf(lower, guesses, error)
    slopes = np.cumsum(masses) / np.arange(1, len(masses) + 1)
    return min(1.0, least + 2.0 * canaries * delta * float(slopes.max()))


def largest_excluded(excluded: Callable[[float], bool], largest: float = _LARGEST_EPSILON) -> float:
    """The largest value that a test excludes, where it excludes everything below that; else 0.

    Args:
        excluded: from a value ≥ 0 to whether it is excluded.
        largest: the largest value worth asking for.
    """
    if not excluded(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < largest and excluded(high):
        low, high = high, 2.0 * high
    while high - low > _PRECISION:
        middle = (low + high) / 2.0
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return low
