"""What the statistical checks can see: the smallest faults they catch, by their own formulas.

`python -m audit.power docs/detection.md` writes the tables of that page between their marks. A
fault is *caught* where the check fails in 999 of 1000 runs that have it; the *half-width* is the
deviation at which it begins to fail. Correct runs fail once in a thousand at most, all tests
together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from audit.accounting.budget import Steps, budget
from audit.accounting.comparison import understates
from audit.checks.noise import scale_alpha
from audit.statistics.batches import rate_alpha
from audit.statistics.intervals import binomial_p_value, chi_square_interval, sigma_half_width

CHANCE = 0.999
BEGIN, END = "<!-- power -->", "<!-- end of power -->"


def noise_half_width(coordinates: int, clients: int, blocks: int) -> float:
    """Deviation of the measured noise scale at which "noise-scale" begins to fail.

    Args:
        coordinates: noise values behind the test, queries times parameters.
        clients: clients that took part, each with a test of its own.
        blocks: blocks of parameters, each with a test of its own.
    """
    interval = chi_square_interval(float(coordinates), scale_alpha(1 + clients + blocks))
    return sigma_half_width(interval)


def caught_noise_scales(
    coordinates: int, clients: int, blocks: int, chance: float = CHANCE
) -> tuple[float, float]:
    """The scales nearest 1, below and above it, that the test over all queries catches.

    A scale is the noise's standard deviation over the ledger's σC. It makes no difference which of
    the two is wrong: noise that is too small, or a ledger that names too large a multiplier.
    """
    low, high = chi_square_interval(float(coordinates), scale_alpha(1 + clients + blocks))
    most = float(stats.chi2.ppf(chance, coordinates)) / coordinates
    least = float(stats.chi2.isf(chance, coordinates)) / coordinates
    return float(np.sqrt(low / most)), float(np.sqrt(high / least))


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
    true = budget([history], delta).headline

    def excess(factor: float) -> float:
        sigma = history.noise_multiplier * factor
        claimed = budget([Steps(history.sampling_rate, sigma, history.steps)], delta).headline
        return 1.0 if understates(claimed, true) else -1.0

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
    """All tables as Markdown."""
    parts = [_noise_table(), _rate_table(), _claim_table()]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _percent(value: float) -> str:
    return f"{100.0 * value:.2f} %"


def _noise_table() -> list[str]:
    lines = [
        "| noise values | clients, blocks | half-width | caught: too small by | too large by |",
        "|---|---|---|---|---|",
    ]
    for coordinates in (10**3, 10**4, 10**5, 10**6):
        for clients, blocks in ((1, 1), (50, 8)):
            half = noise_half_width(coordinates, clients, blocks)
            low, high = caught_noise_scales(coordinates, clients, blocks)
            lines.append(
                f"| {coordinates} | {clients}, {blocks} | {_percent(half)} "
                f"| {_percent(1.0 - low)} | {_percent(high - 1.0)} |"
            )
    return lines


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


def _claim_table() -> list[str]:
    lines = ["| steps | q, σ, δ | caught: claimed from a σ larger by |", "|---|---|---|"]
    for steps in (20, 200, 2000):
        factor = caught_claimed_sigma(Steps(0.016, 1.0, steps), 1e-5)
        lines.append(f"| {steps} | 0.016, 1, 1e-05 | {_percent(factor - 1.0)} |")
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
