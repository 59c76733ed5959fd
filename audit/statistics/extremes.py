"""How many batches are empty, among the smallest, or among the largest? Exact tests of counts.

Statistics of the check "sensitivity". A sampler that draws an empty batch again, or cuts a large
one short, moves mean and scatter of the sizes by little where batches are small; how many batches
lie at the ends of their law tells it. The batches of all clients and rounds are counted together:
each is there or not with a known chance of its own, so that the count is Poisson binomial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.untrusted.arrays import Integers

# Chances beyond which a batch counts as one of the smallest, or of the largest: so close to each
# other that of small batches no size lies between two of them that many have.
LEVELS = tuple(0.4 * 0.6**number for number in range(12))
# Deviations from the mean beyond which next to nothing of a count's law lies: 10⁻³².
_REACH, _LEAST_REACH = 12.0, 60

Sizes = Mapping[tuple[int, float], Integers]
"""Sizes of batches by how they are drawn: records R and rate q in (0, 1)."""


@dataclass(frozen=True)
class Count:
    """How many of a run's batches there were of a kind, and how many there should be.

    Attributes:
        kind: "empty", "small" or "large".
        p_value: exact, two-sided.
        too_few: whether there were fewer than on the average.
    """

    kind: str
    p_value: float
    too_few: bool


def count_p_value(observed: int, groups: Mapping[float, int]) -> float:
    """Exact two-sided p-value of a Poisson-binomial count: twice the smaller tail.

    The law is the inverse Fourier transform of its characteristic function (Hong 2013), on so many
    points as twelve deviations to both sides of the mean have; sums of tails are exact to 10⁻¹³.

    Args:
        observed: how many of all trials came true.
        groups: by chance, in [0, 1], how many trials have it.
    """
    mean = sum(chance * count for chance, count in groups.items())
    spread = sum(chance * (1.0 - chance) * count for chance, count in groups.items())
    reach = int(np.ceil(_REACH * np.sqrt(spread))) + _LEAST_REACH
    first = max(0, int(mean) - reach)
    points = min(sum(groups.values()), int(mean) + reach) - first + 1
    if not first <= observed < first + points:
        return 0.0
    # The law is real: half of the points give the other half.
    angles = 2.0 * np.pi * np.arange(points // 2 + 1) / points
    turns, log = np.exp(1j * angles) - 1.0, -1j * angles * first
    for chance, count in groups.items():
        log += count * np.log1p(chance * turns)
    law = np.maximum(np.fft.irfft(np.exp(log).conj(), points), 0.0)
    place = observed - first
    return float(min(1.0, 2.0 * min(law[: place + 1].sum(), law[place:].sum())))


def empty_batches(sizes: Sizes) -> Count:
    """How many batches are empty."""
    return _count(
        "empty",
        ((found == 0, float((1.0 - rate) ** records)) for (records, rate), found in sizes.items()),
    )


def ends_of_sizes(sizes: Sizes) -> Iterator[Count]:
    """How many batches lie beyond each of `LEVELS`, at either end."""
    for number in range(len(LEVELS)):
        parts = [(found, _ends(*key)) for key, found in sizes.items()]
        low = ((found < law.low[number], law.below[number]) for found, law in parts)
        high = ((found > law.high[number], law.above[number]) for found, law in parts)
        yield _count("small", low)
        yield _count("large", high)


@dataclass(frozen=True)
class _Ends:
    """Sizes below and above which a batch lies with each of `LEVELS` at most, and the chances."""

    low: list[int]
    high: list[int]
    below: list[float]
    above: list[float]


@lru_cache(maxsize=4096)
def _ends(records: int, rate: float) -> _Ends:
    low = stats.binom.ppf(LEVELS, records, rate)
    high = stats.binom.isf(LEVELS, records, rate)
    return _Ends(
        low.astype(int).tolist(),
        high.astype(int).tolist(),
        stats.binom.cdf(low - 1.0, records, rate).tolist(),
        stats.binom.sf(high, records, rate).tolist(),
    )


def _count(kind: str, parts: Iterable[tuple[NDArray[np.bool_], float]]) -> Count:
    observed, groups = 0, dict[float, int]()
    for found, chance in parts:
        observed += int(np.count_nonzero(found))
        groups[chance] = groups.get(chance, 0) + len(found)
    expected = sum(chance * count for chance, count in groups.items())
    return Count(kind, count_p_value(observed, groups), observed < expected)


def batches_to_see_none(chance: float, alpha: float) -> int:
    """From how many batches on it is seen that none is of a kind that each is with this chance."""
    return int(np.floor(np.log(alpha / 2.0) / np.log1p(-chance))) + 1


def batches_to_see_a_cut(records: int, rate: float, most: int, alpha: float) -> int | None:
    """From how many batches on it is seen that none is larger than `most`; None from no number."""
    law = _ends(records, rate)
    chances = [law.above[n] for n, end in enumerate(law.high) if end >= most and law.above[n] > 0.0]
    return batches_to_see_none(max(chances), alpha) if chances else None
