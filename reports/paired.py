"""Whether seeds tell two specs apart, by the one test that `compare` and `sweep table` use.

Differences are paired: one for each seed that both specs ran with, and Student's t-test of their
mean. Several comparisons are corrected together (Holm 1979).
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

LEVEL = 0.05
PERCENT = f"{100 * LEVEL:.0f} %"
_FEWEST = 2
_Key = TypeVar("_Key", bound=Hashable)


def differences(first: Mapping[_Key, float], other: Mapping[_Key, float]) -> list[float]:
    """First minus other, for each seed that both have.

    Args:
        first: Values by seed.
        other: Likewise.
    """
    common = sorted(first.keys() & other.keys(), key=str)
    return [first[seed] - other[seed] for seed in common]


def interval(each: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval of a mean at 95 %; None for fewer than two differences."""
    if len(each) < _FEWEST:
        return None
    # SciPy takes a second to load, and only repetitions need it.
    from scipy import stats

    mean, error = statistics.fmean(each), statistics.stdev(each) / len(each) ** 0.5
    reach = float(stats.t.ppf(1 - LEVEL / 2, len(each) - 1)) * error
    return mean - reach, mean + reach


def chance(each: Sequence[float]) -> float:
    """Probability of a mean as far from 0 if there were no difference; 1 where that is unknown."""
    if len(each) < _FEWEST:
        return 1.0
    if len(set(each)) == 1:
        return 0.0 if each[0] else 1.0
    from scipy import stats

    mean, deviation = statistics.fmean(each), statistics.stdev(each)
    statistic = abs(mean) / (deviation / len(each) ** 0.5)
    return float(2 * stats.t.sf(statistic, len(each) - 1))


def holm(chances: Mapping[_Key, float]) -> set[_Key]:
    """Which hypotheses fall at `LEVEL` for all of them together (Holm 1979)."""
    fallen: set[_Key] = set()
    for index, where in enumerate(sorted(chances, key=lambda where: chances[where])):
        if chances[where] > LEVEL / (len(chances) - index):
            break
        fallen.add(where)
    return fallen
