"""How often is one record in two batches of the same participation? A test that needs no law.

Statistic of the check "sensitivity". Independent draws repeat themselves: a record that is in c of
K batches is in c(c-1)/2 pairs of them. Shuffled epochs do not repeat within an epoch, whatever the
sizes of their batches look like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.accounting.losses import log_sum_exp
from audit.untrusted.arrays import Integers


@dataclass(frozen=True)
class Group:
    """Records alike: K batches a participation, chance q to be in each, how many such records."""

    steps: int
    rate: float
    records: int


def pairs(inclusions: Integers) -> int:
    """Σ c(c-1)/2 over records."""
    return int((inclusions * (inclusions - 1) // 2).sum())


def repeats_p_value(observed: int, groups: Sequence[Group]) -> float:
    """Two-sided p-value of the number of pairs, never too small.

    Chernoff's bound with the exact law of each count, Binomial(K, q), so it holds for few records
    as for many. Batches of a fixed size make counts dependent, but negatively associated, and a
    pair count grows with its count: the moments of the sum are then at most the products that are
    used here (Joag-Dev & Proschan 1983), and the bound holds for them too.

    Args:
        observed: pairs of all groups together.
        groups: what they are made of; a rate of 1 leaves nothing to chance and is passed over.
    """
    laws = [(group.records, *_law(group)) for group in groups if group.rate < 1.0]
    observed -= sum(
        group.records * group.steps * (group.steps - 1) // 2
        for group in groups
        if group.rate >= 1.0
    )
    if not laws:
        return 1.0
    weights = [np.exp(logs) for _, _, logs in laws]
    means = [float(np.dot(w, values)) for w, (_, values, _) in zip(weights, laws, strict=True)]
    spread = sum(
        count * float(np.dot(w, (values - mean) ** 2))
        for (count, values, _), w, mean in zip(laws, weights, means, strict=True)
    )
    if spread <= 0.0:
        return 1.0
    mean = sum(count * one for (count, _, _), one in zip(laws, means, strict=True))
    side = 1.0 if observed > mean else -1.0
    tilts = side * np.geomspace(1e-3, 1e3, 90) / np.sqrt(spread)
    bounds = [
        sum(count * log_sum_exp(logs + tilt * values) for count, values, logs in laws)
        - tilt * observed
        for tilt in tilts
    ]
    if observed == 0:
        # The limit of the least tilt: nobody is in two batches at all.
        bounds.append(sum(count * log_sum_exp(logs[values == 0]) for count, values, logs in laws))
    return float(min(1.0, 2.0 * np.exp(min(0.0, *bounds))))


def _law(group: Group) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pair counts c(c-1)/2 and their log probabilities, where these do not vanish."""
    mean, deviation = group.steps * group.rate, np.sqrt(group.steps * group.rate) + 1.0
    low = max(0, int(mean - 60.0 * deviation))
    high = min(group.steps, int(mean + 60.0 * deviation))
    counts = np.arange(low, high + 1, dtype=np.float64)
    logs = stats.binom.logpmf(counts, group.steps, group.rate)
    kept = logs > -700.0
    return counts[kept] * (counts[kept] - 1.0) / 2.0, logs[kept]
