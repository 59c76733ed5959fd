"""Were the batches drawn as the ledger says? The part of the check "sensitivity" on samplers.

Four kinds of tests, as none sees every fault:

* sizes, and how often each record was used, for sizes alone do not tell samplers apart;
* how many batches are empty, among the smallest, or among the largest: a sampler that draws an
  empty batch again, or cuts a large one short, moves mean and scatter of the sizes by little where
  batches are small. The batches of all clients and rounds are counted together: each is there or
  not with a known chance of its own, so that the count is Poisson binomial;
* how often one record is in two batches of a participation, which needs no law: a record in c of K
  batches is in c(c-1)/2 pairs of them, and shuffled epochs do not repeat within an epoch;
* in how many batches of the whole run the record is that was in most of them. All other tests are
  of many records at once, and miss one that is drawn in another's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.accounting.registry import log_sum_exp
from audit.accounting.sampling import epoch_sizes
from audit.reading.ledger_lines import Spend
from audit.statistics.intervals import (
    FALSE_ALARM,
    binomial_p_value,
    chi_square_interval,
    skewed_upper_end,
)
from audit.untrusted.archives import Integers

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
    counts = np.arange(low, high + 1)
    logs = stats.binom.logpmf(counts, group.steps, group.rate)
    kept = logs > -700.0
    return counts[kept] * (counts[kept] - 1.0) / 2.0, logs[kept]


def record_p_value(counts: Integers, trials: Mapping[float, int]) -> float:
    """P-value of the record that was in most batches, times how many records there are.

    Its count is a sum of independent trials, in Poisson batches as in those of a fixed size. Where
    their chances differ, the upper tail is at most that of as many trials at the mean chance, for
    counts of at least one above the mean (Hoeffding 1956, theorem 4).

    Args:
        counts: in how many batches each record was, [R].
        trials: by chance, in [0, 1], how many batches were drawn with it.
    """
    number = sum(trials.values())
    mean = sum(rate * count for rate, count in trials.items())
    most = int(counts.max(initial=0))
    if most < mean + 1.0:
        return 1.0
    tail = float(stats.binom.sf(most - 1, number, min(1.0, mean / number)))
    return min(1.0, len(counts) * tail)


_RATE_SHARE, _SPREAD_SHARE, _REPEATS_SHARE = 0.3, 0.2, 0.2
_EMPTY_SHARE, _ENDS_SHARE, _RECORDS_SHARE = 0.05, 0.15, 0.1
_LEAST_VARIANCE = 1.0

_EXTREMES = {
    ("empty", True): "fewer batches are empty than Poisson sampling leaves empty (drawn again?)",
    ("empty", False): "more batches are empty than Poisson sampling leaves empty",
    ("small", True): "fewer batches are small than Poisson sampling makes (drawn again?)",
    ("small", False): "more batches are small than Poisson sampling makes",
    ("large", True): "fewer batches are large than Poisson sampling makes (cut at a largest size?)",
    ("large", False): "more batches are large than Poisson sampling makes",
}

LAWS = {
    "poisson": (
        "batch sizes follow Binomial(R, q) for every client, in mean, variance, at both ends and "
        "in the number of empty ones. Records repeat between batches as in independent draws, and "
        "none is in more of them than its rate explains"
    ),
    "fixed-size": (
        "every batch has the public size. Records repeat between batches as in independent "
        "draws, and none is in more of them than its rate explains"
    ),
    "shuffled": "every batch has the size that its place in the epoch gives it, and no record was "
    "used more often than its epochs allow",
}


def rate_alpha(clients: int) -> float:
    """False alarms that the test of one client's sampling rate may raise."""
    return FALSE_ALARM * _RATE_SHARE / max(1, clients)


def empty_alpha() -> float:
    """False alarms that the test of how many batches are empty may raise."""
    return FALSE_ALARM * _EMPTY_SHARE


def end_alpha() -> float:
    """False alarms that the test of one level, at one end of the sizes, may raise."""
    return FALSE_ALARM * _ENDS_SHARE / (2 * len(LEVELS))


def record_alpha(clients: int) -> float:
    """False alarms that the test of one client's most frequent record may raise."""
    return FALSE_ALARM * _RECORDS_SHARE / max(1, clients)


def batches_of_one_record(records: int, rate: float, steps: int, clients: int) -> int | None:
    """In how many batches of a client a record must be for it to be seen; None for no number.

    Args:
        records: R of the client.
        rate: q.
        steps: batches of the client in the whole run.
        clients: that took part.
    """
    alpha = record_alpha(clients) / records
    least = max(int(stats.binom.isf(alpha, steps, rate)), int(np.ceil(steps * rate)))
    found = next(n for n in range(least, steps + 2) if stats.binom.sf(n - 1, steps, rate) < alpha)
    return found if found <= steps else None


def squares_cumulants(records: int, rate: float) -> tuple[float, float]:
    """Second and third cumulant of (X − Rq)²/(Rq(1 − q)) for X ~ Binomial(R, q), whose mean is 1.

    Args:
        records: R.
        rate: q, in (0, 1).
    """
    mean = records * rate
    spread = mean * (1.0 - rate)
    reach = 20.0 * float(np.sqrt(spread)) + 20.0
    sizes = np.arange(max(0, int(mean - reach)), min(records, int(mean + reach)) + 1)
    shares = stats.binom.pmf(sizes, records, rate)
    off = np.square(sizes - mean) / spread - 1.0
    return float(shares @ off**2), float(shares @ off**3)


def dispersion_interval(
    groups: Sequence[tuple[int, float, int]], alpha: float
) -> tuple[float, float]:
    """Two-sided interval of the mean of (X − Rq)²/(Rq(1 − q)), which correct runs leave with alpha.

    The gamma law with the exact mean and variance, and above it also one that has the third
    cumulant: squares of few small batches are more skewed.

    Args:
        groups: records R, rate q, and how many batches X ~ Binomial(R, q) there are of them.
        alpha: of both tails together.
    """
    cumulants = np.asarray([squares_cumulants(records, rate) for records, rate, _ in groups])
    counts = np.asarray([count for _, _, count in groups], dtype=np.float64)
    expected = float(counts.sum())
    variance, third = (float(one) for one in counts @ cumulants)
    low, high = chi_square_interval(2.0 * expected**2 / variance, alpha)
    return low, max(high, skewed_upper_end(expected, variance, third, alpha / 2.0) / expected)


class Batches:
    """Realised batches of every participation, gathered and then judged.

    Args:
        sampling: the ledger's word for the sampler.
    """

    def __init__(self, sampling: str) -> None:
        """Start without participations."""
        self._sampling = sampling
        self._sizes: dict[tuple[int, int, float], list[int]] = {}
        self._groups: dict[tuple[int, float], int] = {}
        self._uses: dict[tuple[int, int], tuple[Integers, dict[float, int]]] = {}
        self._pairs = 0
        self.steps = 0

    @property
    def clients(self) -> int:
        """How many clients took part."""
        return len(self._sizes)

    def add(
        self,
        where: str,
        charge: Spend,
        queries: Integers,
        inclusions: Integers,
        reasons: list[str],
        read: Integers | None = None,
    ) -> None:
        """Add one client's participation.

        Args:
            where: round and client, for messages.
            charge: what was paid for it.
            queries: realised batch size of each query; those of one step share a batch.
            inclusions: [R] in how many batches each of its records was.
            reasons: gets a sentence for everything that is wrong by itself.
            read: digest of the batch that was read for each query whose batch is not empty, [k, 8];
                None where that was not noted.
        """
        each = charge.queries_per_step
        if len(queries) % each:
            reasons.append(f"{where}: its queries are not a whole number of steps")
            return
        by_step = queries.reshape(-1, each)
        sizes = by_step[:, 0]
        if np.any(by_step != sizes[:, None]) or not _shared(read, each):
            reasons.append(f"{where}: the queries of one step do not share a batch")
        elif read is not None and len(read) != np.count_nonzero(queries):
            reasons.append(f"{where}: gradients were taken of batches that were not drawn")
        if int(sizes.sum()) != int(inclusions.sum()) or np.any(inclusions > len(sizes)):
            reasons.append(f"{where}: the records' counts do not add up to the batches")
            return
        if sizes.max(initial=0) > charge.records:
            reasons.append(f"{where}: a batch is larger than its client's records")
            return
        self.steps += len(sizes)
        stated = charge.stated_rate
        rate = min(1.0, stated or charge.expected_batch_size / charge.records)
        key = (charge.client, charge.records, rate)
        self._sizes.setdefault(key, []).extend(int(size) for size in sizes)
        group = (len(sizes), rate)
        self._groups[group] = self._groups.get(group, 0) + charge.records
        self._pairs += pairs(inclusions)
        self._count(charge, rate, len(sizes), inclusions)
        if self._sampling == "fixed-size" and np.any(sizes != charge.expected_batch_size):
            reasons.append(f"{where}: a batch does not have the public size")
        if self._sampling == "shuffled":
            self._epochs(where, charge, sizes, inclusions, reasons)

    def _count(self, charge: Spend, rate: float, steps: int, inclusions: Integers) -> None:
        """Add up in how many batches of all participations each record was."""
        counts, trials = self._uses.setdefault(
            (charge.client, charge.records), (np.zeros(charge.records, np.int64), {})
        )
        counts += inclusions
        trials[rate] = trials.get(rate, 0) + steps

    def _epochs(
        self, where: str, charge: Spend, sizes: Integers, inclusions: Integers, reasons: list[str]
    ) -> None:
        batch = int(charge.expected_batch_size)
        if np.any(sizes != epoch_sizes(batch, charge.records, len(sizes))):
            reasons.append(f"{where}: a batch does not have the size of its place in an epoch")
        whole = len(sizes) // -(-charge.records // batch)
        if np.any(inclusions < whole) or np.any(inclusions > whole + 1):
            reasons.append(f"{where}: a record was used more or less than once in an epoch")

    def judge(self, reasons: list[str]) -> dict[str, object]:
        """Judge what takes all participations together; returns private numbers."""
        private: dict[str, object] = {}
        if self._sampling == "poisson":
            private = {
                **self._rates(reasons),
                **self._spread(reasons),
                **self._extremes(reasons),
            }
        if self._sampling in ("poisson", "fixed-size"):
            p_value = repeats_p_value(self._pairs, self._group_list())
            private["repeats_p_value"] = p_value
            if p_value < FALSE_ALARM * _REPEATS_SHARE:
                reasons.append(
                    "records repeat between batches unlike independent draws (shuffled epochs?)"
                )
            private |= self._single_records(reasons)
        return private

    def power(self) -> str:
        """Whether these participations would show epochs posing as independent draws."""
        if self._sampling == "shuffled":
            return "any record used twice in an epoch"
        groups = self._group_list()
        # Epochs use records as evenly as can be.
        even = 0
        for group in groups:
            low, share = divmod(group.steps * group.rate, 1.0)
            counts = (group.records * (1.0 - share), group.records * share)
            even += int(sum(n * (low + i) * (low + i - 1) / 2 for i, n in enumerate(counts)))
        seen = repeats_p_value(even, groups) < FALSE_ALARM * _REPEATS_SHARE
        return f"shuffled epochs posing as independent draws ({'' if seen else 'not '}seen here)"

    def _group_list(self) -> list[Group]:
        return [Group(steps, rate, n) for (steps, rate), n in sorted(self._groups.items())]

    def _rates(self, reasons: list[str]) -> dict[str, object]:
        alpha = rate_alpha(len(self._sizes))
        p_values: dict[str, float] = {}
        for (client, records, rate), sizes in sorted(self._sizes.items()):
            p_values[str(client)] = binomial_p_value(sum(sizes), len(sizes) * records, rate)
            if p_values[str(client)] < alpha:
                reasons.append(
                    f"client {client}: its batches are not drawn at the rate q = {rate:.4g} that "
                    "was charged"
                )
        return {"batch_rate_p_values": p_values}

    def _single_records(self, reasons: list[str]) -> dict[str, object]:
        alpha, least = record_alpha(len(self._uses)), 1.0
        for (client, _), (counts, trials) in sorted(self._uses.items()):
            p_value = record_p_value(counts, trials)
            least = min(least, p_value)
            if p_value < alpha:
                reasons.append(
                    f"client {client}: a record is in more batches than the rate that was charged "
                    "explains"
                )
        return {"most_frequent_record_p_value": least}

    def _extremes(self, reasons: list[str]) -> dict[str, object]:
        sizes: dict[tuple[int, float], list[int]] = {}
        for (_, records, rate), found in sorted(self._sizes.items()):
            if 0.0 < rate < 1.0 and records:
                sizes.setdefault((records, rate), []).extend(found)
        arrays = {key: np.asarray(found, dtype=np.int64) for key, found in sizes.items()}
        if not arrays:
            return {}
        least = {"small": 1.0, "large": 1.0}
        empty = empty_batches(arrays)
        if empty.p_value < empty_alpha():
            reasons.append(_EXTREMES["empty", empty.too_few])
        for count in ends_of_sizes(arrays):
            least[count.kind] = min(least[count.kind], count.p_value)
            if count.p_value < end_alpha():
                reasons.append(_EXTREMES[count.kind, count.too_few])
        return {"empty_batches_p_value": empty.p_value, "batch_ends_p_values": least}

    def _spread(self, reasons: list[str]) -> dict[str, object]:
        observed, groups = 0.0, []
        for (_, records, rate), sizes in sorted(self._sizes.items()):
            spread = records * rate * (1.0 - rate)
            if spread >= _LEAST_VARIANCE:
                observed += float(np.square(np.asarray(sizes) - records * rate).sum()) / spread
                groups.append((records, rate, len(sizes)))
        if not groups:
            return {"batch_dispersion": None}
        dispersion = observed / sum(count for _, _, count in groups)
        low, high = dispersion_interval(groups, FALSE_ALARM * _SPREAD_SHARE)
        if not low <= dispersion <= high:
            side = "less" if dispersion < low else "more"
            reasons.append(f"batch sizes vary {side} than Poisson sampling allows")
        return {"batch_dispersion": dispersion}


def _shared(read: Integers | None, each: int) -> bool:
    """Whether the batches that were read are the same for all queries of a step, as far as told."""
    if read is None or len(read) % each:
        return True
    steps = read.reshape(-1, each, read.shape[1])
    return bool((steps == steps[:, :1]).all())
