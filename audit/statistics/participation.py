"""Did clients take part as chance would have them? Exact tests of counts, scatter and overlap.

Statistics of the check "participation". Where each client is drawn by itself, counts are binomial,
and their scatter has an exact law, by convolution; where S of N are drawn, what two rounds share is
hypergeometric.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import signal, stats

_BINS = 1 << 19
_REACH = 8.0
# An overlap's law is convolved once a round; beyond this many clients its normal limit serves.
_MOST_CELLS = 1 << 22


def dispersion_p_value(counts: NDArray[np.int64], trials: int, rate: float) -> float:
    """Exact two-sided p-value of the scatter of independent Binomial(trials, rate) counts.

    The statistic is the sum of the counts' squared distances from their mean, each rounded down to
    a grid and cut off eight standard deviations out. Its law under independence is that of a sum of
    equal terms, so it is computed, not approximated: few rounds raise no more false alarms than
    many.

    Args:
        counts: [n] the counts.
        trials: of each count.
        rate: strictly between 0 and 1.
    """
    total, width, cap = _scatter(trials, rate, len(counts))
    observed = int(_binned(counts.astype(np.float64), trials * rate, width, cap).sum())
    lower = float(total[: observed + 1].sum())
    upper = float(total[observed:].sum())
    return min(1.0, 2.0 * min(lower, upper))


def rounds_to_see_constant_counts(trials: int, rate: float, alpha: float) -> int:
    """From how many counts on a scatter of zero has a p-value below alpha."""
    law, _, _ = _squares(trials, rate, 1)
    chance = float(law[0])
    return max(1, int(np.ceil(np.log(alpha / 2.0) / np.log(chance))))


def overlap_p_value(shared: int, clients: int, chosen: int, rounds: int) -> float:
    """Two-sided p-value of how many clients successive rounds share.

    Whoever was in a round, the next one's set is independent of it, so the numbers shared are
    independent hypergeometric variables, one for each pair of neighbours.

    Args:
        shared: clients in common, summed over the pairs.
        clients: N.
        chosen: S.
        rounds: T, at least 2.
    """
    cells = np.arange(chosen + 1)
    law = stats.hypergeom.pmf(cells, clients, chosen, chosen)
    if chosen * rounds <= _MOST_CELLS:
        total, factor, left = np.ones(1), law, rounds - 1
        while left:
            if left & 1:
                total = np.maximum(signal.fftconvolve(total, factor), 0.0)
            left >>= 1
            factor = np.maximum(signal.fftconvolve(factor, factor), 0.0) if left else factor
        lower, upper = float(total[: shared + 1].sum()), float(total[shared:].sum())
    else:
        share = chosen / clients
        mean = chosen * share
        variance = mean * (1.0 - share) * (clients - chosen) / (clients - 1)
        z = (shared - (rounds - 1) * mean) / np.sqrt((rounds - 1) * variance)
        lower, upper = float(stats.norm.cdf(z)), float(stats.norm.sf(z))
    return min(1.0, 2.0 * min(lower, upper))


@lru_cache(maxsize=8)
def _scatter(trials: int, rate: float, terms: int) -> tuple[NDArray[np.float64], float, int]:
    """Law of the whole statistic, with the bins' width and the last bin of one term."""
    law, width, cap = _squares(trials, rate, terms)
    return _power(law, terms), width, cap


def _squares(trials: int, rate: float, terms: int) -> tuple[NDArray[np.float64], float, int]:
    """Law of one binned squared distance, with the bins' width and the last bin."""
    mean, variance = trials * rate, trials * rate * (1.0 - rate)
    largest = min(_REACH**2 * max(variance, 1.0), max(mean, trials - mean) ** 2)
    width = max(1.0, largest * terms / _BINS)
    cap = int(np.floor(largest / width))
    values = np.arange(trials + 1, dtype=np.float64)
    bins = _binned(values, mean, width, cap)
    law = np.zeros(cap + 1)
    np.add.at(law, bins, stats.binom.pmf(values, trials, rate))
    return law, width, cap


def _binned(values: NDArray[np.float64], mean: float, width: float, cap: int) -> NDArray[np.int64]:
    squares = np.floor(np.square(values - mean) / width + 1e-9)
    return np.minimum(squares, float(cap)).astype(np.int64)


def _power(law: NDArray[np.float64], terms: int) -> NDArray[np.float64]:
    """Law of the sum of `terms` independent variables of this law."""
    result, factor = np.ones(1), law
    while terms:
        if terms & 1:
            result = np.maximum(signal.fftconvolve(result, factor), 0.0)
        terms >>= 1
        if terms:
            factor = np.maximum(signal.fftconvolve(factor, factor), 0.0)
    return result
