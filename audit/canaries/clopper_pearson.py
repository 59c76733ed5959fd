"""A lower bound on ε from many runs, each with or without one canary.

The classic membership test: over independent runs a threshold on the canary's score tells "in" from
"out" with some false positive rate (FPR) and false negative rate (FNR). Under (ε, δ)-DP every
threshold has TPR ≤ e^ε FPR + δ and TNR ≤ e^ε FNR + δ (Kairouz, Oh & Viswanath 2015), so that

    ε ≥ max( log((1 − FNR − δ)/FPR), log((1 − FPR − δ)/FNR) ).

Both rates are replaced by their exact upper limits (Clopper & Pearson 1934). Each limit holds with
half of the level, and where several thresholds are tried each gets an equal share of it.

Trials must be independent of each other: runs, not the canaries of one run, which share its noise
and its model. For one run there are `one_run` and `f_dp`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def upper_limit(events: int, trials: int, level: float) -> float:
    """Exact upper confidence limit of a rate: below the true one with probability ≤ level."""
    if not 0 <= events <= trials:
        raise ValueError(f"{events} of {trials}")
    if events == trials:
        return 1.0
    return float(stats.beta.isf(level, events + 1, trials - events))


def epsilon_from_rates(false_positives: float, false_negatives: float, delta: float) -> float:
    """ε that a test with at most these error rates proves, at least 0."""
    bounds = [0.0]
    for hit, miss in (
        (1.0 - false_negatives, false_positives),
        (1.0 - false_positives, false_negatives),
    ):
        if hit > delta and miss > 0.0:
            bounds.append(float(np.log((hit - delta) / miss)))
    return max(bounds)


def epsilon_lower_bound(
    included: NDArray[np.float64],
    excluded: NDArray[np.float64],
    thresholds: Sequence[float],
    delta: float,
    level: float,
) -> float:
    """The largest lower bound on ε over some thresholds, all together at one level.

    Args:
        included: scores of the runs that held the canary, higher meaning "in".
        excluded: scores of the runs that did not.
        thresholds: chosen without these scores; a score above one means "in".
        delta: δ at which ε is bounded.
        level: probability at most with which the bound exceeds the true ε.

    Returns:
        0 where nothing is shown.
    """
    if not thresholds or not len(included) or not len(excluded):
        return 0.0
    share = level / len(thresholds)
    best = 0.0
    for threshold in thresholds:
        # Two limits a threshold: each with half of the threshold's share.
        positives = upper_limit(int(np.sum(excluded > threshold)), len(excluded), share / 2.0)
        negatives = upper_limit(int(np.sum(included <= threshold)), len(included), share / 2.0)
        best = max(best, epsilon_from_rates(positives, negatives, delta))
    return best
