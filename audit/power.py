"""What the statistical checks can see: the smallest faults they catch, by their own formulas.

`python -m audit.power docs/detection.md` writes the tables of that page between their marks. A
fault is *caught* where the check fails in 999 of 1000 runs that have it; the *half-width* is the
deviation at which it begins to fail. Correct runs fail once in a thousand at most, all tests
together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from audit.accounting.budget import Steps, budget
from audit.accounting.comparison import understates
from audit.checks.noise import (
    coordinate_alpha,
    drift_alpha,
    grain_alpha,
    scale_alpha,
    silent_alpha,
    tail_alpha,
)
from audit.checks.record.columns import caught_scales
from audit.statistics.batches import (
    batches_of_one_record,
    batches_to_see_a_cut,
    batches_to_see_none,
    empty_alpha,
    end_alpha,
    rate_alpha,
)
from audit.statistics.intervals import binomial_p_value, chi_square_interval, sigma_half_width
from audit.statistics.noise_values import pairs_alike, tail_levels, zeros_expected

CHANCE = 0.999
BEGIN, END = "<!-- power -->", "<!-- end of power -->"


@dataclass(frozen=True)
class Parts:
    """The parts of a run with their own test of the noise's scale, in addition to the whole.

    Attributes:
        clients: clients that took part.
        blocks: blocks of parameters.
        rounds: rounds.
        steps: local steps of a participation.
    """

    clients: int = 1
    blocks: int = 1
    rounds: int = 1
    steps: int = 1

    @property
    def alpha(self) -> float:
        """False alarms that each of these tests may raise."""
        of_time = sum(number for number in (self.rounds, self.steps) if number > 1)
        return scale_alpha(1 + self.clients + self.blocks + of_time)


def noise_half_width(coordinates: int, parts: Parts) -> float:
    """Deviation of the measured noise scale at which "noise-scale" begins to fail.

    Args:
        coordinates: noise values behind the test, queries times parameters.
        parts: what has a test of its own.
    """
    interval = chi_square_interval(float(coordinates), parts.alpha)
    return sigma_half_width(interval)


def caught_noise_scales(
    coordinates: int, parts: Parts, chance: float = CHANCE
) -> tuple[float, float]:
    """The scales nearest 1, below and above it, that the test over all queries catches.

    A scale is the noise's standard deviation over the ledger's σC. It makes no difference which of
    the two is wrong: noise that is too small, or a ledger that names too large a multiplier.
    """
    low, high = chi_square_interval(float(coordinates), parts.alpha)
    most = float(stats.chi2.ppf(chance, coordinates)) / coordinates
    least = float(stats.chi2.isf(chance, coordinates)) / coordinates
    return float(np.sqrt(low / most)), float(np.sqrt(high / least))


def caught_silence(parameters: int, queries: int) -> int:
    """How many coordinates without noise in one query alone are caught for certain.

    Args:
        parameters: d.
        queries: noised vectors of the run, each with a test of its own.
    """
    # A clean sum ten times as long as the noise's standard deviation is much.
    chance = float(zeros_expected(np.array([parameters]), np.array([10.0]))[0])
    found = 1
    while float(stats.poisson.sf(found - 1, chance)) >= silent_alpha() / queries:
        found += 1
    return found


def caught_coordinates(
    parameters: int, queries: int, weak: int, chance: float = CHANCE
) -> float | None:
    """The largest scale of noise on a few coordinates that is caught, in all queries of a run.

    Args:
        parameters: d.
        queries: noised vectors n, of which each coordinate's squares are added up.
        weak: on how many coordinates the noise is too small.
        chance: with what probability.

    Returns:
        The scale, below 1; None where even silence would not be caught.
    """
    levels = tail_levels(parameters)
    best = 0.0
    for level in levels:
        needed = 1
        while len(levels) * stats.binom.sf(needed - 1, parameters, level) >= coordinate_alpha():
            needed += 1
        if needed > weak:
            continue
        # At least `needed` of the weak ones must be below the quantile.
        low = stats.chi2.ppf(level, queries)

        def fails(scale: float, low: float = low, needed: int = needed) -> float:
            each = stats.chi2.cdf(low / scale**2, queries)
            return float(stats.binom.sf(needed - 1, weak, each)) - chance

        best = max(best, _root(fails, 1e-6, 1.0))
    return best if best > 0.0 else None


def caught_drift(values: int, chance: float = CHANCE) -> float:
    """The least ratio of the noise's scales in two halves of a run that is caught.

    Args:
        values: noise values of the whole run.
        chance: with what probability.
    """
    half = values / 2.0
    threshold = float(stats.beta.isf(drift_alpha() / 2.0, half / 2.0, half / 2.0))

    def fails(ratio: float) -> float:
        # x = r²·u/(r²·u + (1 − u)) for the share u of equal scales.
        share = threshold / (threshold + ratio**2 * (1.0 - threshold))
        return float(stats.beta.sf(share, half / 2.0, half / 2.0)) - chance

    return _root(fails, 1.0, 100.0)


def values_for_a_cut(deviations: float) -> int:
    """From how many noise values on a cut-off at so many standard deviations is always caught."""
    beyond = 2.0 * float(stats.norm.sf(deviations))
    return int(np.ceil(np.log(tail_alpha()) / np.log1p(-beyond)))


def caught_table(samples: int, chance: float = CHANCE) -> int:
    """The largest table of numbers, read at random, whose repetitions are caught.

    Args:
        samples: noise values that are sampled in the run, at most 400,000.
        chance: with what probability.
    """
    _, mean, variance = pairs_alike(samples)
    most = float(stats.gamma.isf(grain_alpha(), mean**2 / variance, scale=variance / mean))
    pairs = samples * (samples - 1.0) / 2.0

    def fails(logarithm: float) -> float:
        repeated = pairs / np.exp(logarithm)
        spread = np.sqrt(variance + repeated)
        return float(stats.norm.sf((most - mean - repeated) / spread)) - chance

    return int(np.exp(_root(fails, 0.0, 60.0)))


def caught_rates(
    records: int, rate: float, steps: int, clients: int, chance: float = CHANCE
) -> tuple[float, float]:
    """The true sampling rates nearest the ledger's, below and above, that "sensitivity" catches.

    Args:
        records: R of the client.
        rate: q in the ledger.
        steps: local steps that the client made in the whole run.
        clients: clients that took part, each with a test of its own.
        chance: with what probability.

    Returns:
        Two rates; 0 and 1 where the test cannot tell any.
    """
    alpha, trials = rate_alpha(clients), steps * records
    mean = trials * rate

    def fails(successes: int) -> bool:
        return binomial_p_value(successes, trials, rate) < alpha

    above = _first(lambda count: fails(count), int(mean) + 1, trials)
    below = _first(lambda gap: fails(int(mean) - gap), 0, int(mean))
    high = 1.0
    if above is not None:
        threshold = above - 1
        high = _root(lambda q: float(stats.binom.sf(threshold, trials, q)) - chance, rate, 1.0)
    low = 0.0
    if below is not None:
        count = int(mean) - below
        low = _root(lambda q: chance - float(stats.binom.cdf(count, trials, q)), 0.0, rate)
    return low, high


def caught_claimed_sigma(history: Steps, delta: float) -> float:
    """The least noise multiplier, over the true one, whose ε "accounting" calls understated."""
    true = budget([history], delta)

    def excess(factor: float) -> float:
        sigma = history.noise_multiplier * factor
        claimed = budget([Steps(history.sampling_rate, sigma, history.steps)], delta).headline
        return 1.0 if understates(claimed, true.at) else -1.0

    low, high = 1.0, 1.5
    while high - low > 1e-4:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if excess(middle) > 0.0 else (middle, high)
    return high


def _first(test: Callable[[int], bool], low: int, high: int) -> int | None:
    """The least number in [low, high] that passes a test which no larger one then fails."""
    if low > high or not test(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if test(middle) else (middle + 1, high)
    return low


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    if function(low) * function(high) > 0.0:
        return low if abs(function(low)) < abs(function(high)) else high
    return float(optimize.brentq(function, low, high, xtol=1e-9))


def tables() -> str:
    """All tables as Markdown, each below what it is of."""
    parts = {
        "`noise-scale`, all noise: the wrong size, or a ledger that misreports σ by as much. Noise "
        "values are queries times parameters.": _noise_table(),
        "`noise-scale`, by coordinate: how many coordinates of one noised vector have a noise of "
        "exactly 0, and how much noise each got over the run (`evidence/coordinates.npz`).": (
            _coordinate_table()
        ),
        "`noise-scale`, by round: each round alone, and the first half of the rounds against the "
        "second.": _drift_table(),
        "`noise-scale`, by tail: the largest value of each noised vector follows a known law, "
        "unless nothing lies beyond some multiple of σC.": _tail_table(),
        "`noise-scale`, by repeated values: noise of few levels, of float16 or from a table has "
        "too many equal pairs. Sampled are 256 values of a vector, 400,000 in all at most.": (
            _grain_table()
        ),
        "`sensitivity`, the sampling rate: one client's steps in the whole run.": _rate_table(),
        "`sensitivity`, one record: of all batches of a client, in how many a record must "
        "be to fail. In fewer it is not seen.": _record_table(),
        "`sensitivity`, the ends of the law of batch sizes (Poisson binomial): empty batches, and "
        "those beyond each of twelve levels at either end, of all clients and rounds together. "
        "Here clients have 150 records. An engine that draws empty batches again, or cuts large "
        "ones, fails in each run from that many batches on.": _extremes_table(),
        "`accounting`: ε claimed from a larger σ than the ledger's charges have (tolerance 0.01 % "
        "of ε).": _claim_table(),
        "`columns`: noise of the histograms that bounds of columns come from. Counts are clients "
        "times cells.": _histogram_table(),
    }
    return "\n\n".join("\n".join([name, "", *lines]) for name, lines in parts.items())


def _percent(value: float) -> str:
    return f"{100.0 * value:.2f} %"


def _noise_table() -> list[str]:
    lines = [
        "| noise values | clients, blocks, rounds, steps | half-width | caught: too small by "
        "| too large by |",
        "|---|---|---|---|---|",
    ]
    for coordinates in (10**3, 10**4, 10**5, 10**6):
        for parts in (Parts(), Parts(50, 8, 100, 5)):
            half = noise_half_width(coordinates, parts)
            low, high = caught_noise_scales(coordinates, parts)
            lines.append(
                f"| {coordinates} | {', '.join(map(str, vars(parts).values()))} | {_percent(half)} "
                f"| {_percent(1.0 - low)} | {_percent(high - 1.0)} |"
            )
    return lines


def _coordinate_table() -> list[str]:
    lines = [
        "| parameters | noised vectors | without noise in one of them: caught from | too small on "
        "one coordinate: caught from | on ten |",
        "|---|---|---|---|---|",
    ]
    for parameters in (650, 19_210, 100_000):
        for vectors in (30, 240, 5000):
            scales = [caught_coordinates(parameters, vectors, weak) for weak in (1, 10)]
            scales_shown = ["no scale" if one is None else f"{one:.2f} σC" for one in scales]
            silent = caught_silence(parameters, vectors)
            some = f"{silent} coordinate{'s' if silent > 1 else ''}"
            lines.append(f"| {parameters} | {vectors} | {some} | {' | '.join(scales_shown)} |")
    return lines


def _drift_table() -> list[str]:
    lines = [
        "| noise values | rounds | scale of the first half of rounds over the second's: caught "
        "from | one round alone: too small by | too large by |",
        "|---|---|---|---|---|",
    ]
    for values, rounds in ((10**4, 10), (10**5, 30), (10**6, 100), (10**7, 100)):
        low, high = caught_noise_scales(values // rounds, Parts(50, 8, rounds, 5))
        lines.append(
            f"| {values} | {rounds} | {caught_drift(values):.3f} | {_percent(1.0 - low)} "
            f"| {_percent(high - 1.0)} |"
        )
    return lines


def _tail_table() -> list[str]:
    cuts = (3.0, 3.5, 4.0, 4.5, 5.0)
    return [
        "| nothing beyond | " + " | ".join(f"{cut:g} σC" for cut in cuts) + " |",
        "|---" * (1 + len(cuts)) + "|",
        "| caught from so many noise values on | "
        + " | ".join(str(values_for_a_cut(cut)) for cut in cuts)
        + " |",
    ]


def _grain_table() -> list[str]:
    counts = (3_000, 12_288, 50_000, 400_000)
    return [
        "| sampled noise values | " + " | ".join(map(str, counts)) + " |",
        "|---" * (1 + len(counts)) + "|",
        "| caught: a table, or levels, of at most | "
        + " | ".join(f"{caught_table(count):.2g}" for count in counts)
        + " numbers |",
    ]


def _rate_table() -> list[str]:
    lines = [
        "| steps of a client | R, q | clients | caught: rate lower by | higher by |",
        "|---|---|---|---|---|",
    ]
    for steps in (20, 200, 2000):
        for records, rate in ((1000, 0.016), (100, 0.16)):
            low, high = caught_rates(records, rate, steps, 50)
            lines.append(
                f"| {steps} | {records}, {rate:g} | 50 | {_percent(1.0 - low / rate)} "
                f"| {_percent(high / rate - 1.0)} |"
            )
    return lines


def _record_table() -> list[str]:
    lines = [
        "| batches of a client | R, q | clients | a record's batches on the average | caught: in "
        "so many batches |",
        "|---|---|---|---|---|",
    ]
    for steps in (20, 200, 2000):
        for records, rate in ((1000, 0.016), (100, 0.16)):
            found = batches_of_one_record(records, rate, steps, 50)
            shown = "no number" if found is None else str(found)
            lines.append(f"| {steps} | {records}, {rate:g} | 50 | {steps * rate:.3g} | {shown} |")
    return lines


def caught_redraws(records: int, rate: float) -> int:
    """From how many batches on it is always caught that empty ones are drawn again.

    There are none then, so that nothing is left to chance.

    Args:
        records: R of the clients.
        rate: q in the ledger.
    """
    return batches_to_see_none((1.0 - rate) ** records, empty_alpha())


def caught_cut(records: int, rate: float, share: float) -> int | None:
    """From how many batches on it is always caught that none is larger than a multiple of B.

    Args:
        records: R of the clients.
        rate: q in the ledger.
        share: the multiple, such as 1.5.
    """
    return batches_to_see_a_cut(records, rate, int(share * records * rate), end_alpha())


def _extremes_table() -> list[str]:
    lines = [
        "| B | empty of 1000 batches, on the average | caught: empty batches drawn again, from so "
        "many batches on | cut at 1.5 B, from so many on | cut at 2 B, from so many on |",
        "|---|---|---|---|---|",
    ]
    for batch in (2, 3, 4, 5, 8, 16, 32):
        rate = batch / 150.0
        cuts = [caught_cut(150, rate, share) for share in (1.5, 2.0)]
        cuts_shown = ["no number" if one is None else str(one) for one in cuts]
        redrawn = caught_redraws(150, rate)
        seen = str(redrawn) if redrawn < 10**6 else "more than a million"
        empty = 1000.0 * (1.0 - rate) ** 150
        lines.append(f"| {batch} | {empty:.2g} | {seen} | {' | '.join(cuts_shown)} |")
    return lines


def _claim_table() -> list[str]:
    lines = ["| steps | q, σ, δ | caught: claimed from a σ larger by |", "|---|---|---|"]
    for steps in (20, 200, 2000):
        factor = caught_claimed_sigma(Steps(0.016, 1.0, steps), 1e-5)
        lines.append(f"| {steps} | 0.016, 1, 1e-05 | {_percent(factor - 1.0)} |")
    return lines


def _histogram_table() -> list[str]:
    lines = [
        "| counts in histograms | columns | half-width | caught: too small by | too large by |",
        "|---|---|---|---|---|",
    ]
    for counts, columns in ((32, 1), (128, 1), (640, 2), (6400, 10)):
        half, low, high = caught_scales(counts, columns)
        lines.append(
            f"| {counts} | {columns} | {_percent(half)} | {_percent(1.0 - low)} "
            f"| {_percent(high - 1.0)} |"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    """Rewrite the tables of the page that is named."""
    path = Path(arguments[0])
    before, rest = path.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
