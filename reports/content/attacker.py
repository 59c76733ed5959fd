"""What (ε, δ) means for somebody who guesses: odds, the most that a guess can become, a chance.

Pure arithmetic over published theorems; `meaning` puts it into words for a run. All of it is
rounded against the run: factors and guesses up, the N of "1 in N" down.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from reports import formatting

# What somebody may give it beforehand that a record was used: a hunch, a suspicion, a coin.
PRIORS = (0.01, 0.1, 0.5)
_BEYOND_WORDS = 1e9


def odds(epsilon: float) -> float:
    """Return e^ε, the most by which the odds of being in the data can be multiplied or divided.

    For neighbouring data sets x and y, (ε, 0)-differential privacy says Pr[M(x) = o] ≤
    e^ε·Pr[M(y) = o] for every output o; by Bayes' rule the odds of x against y after o are those
    before times at most e^ε, and at least e^−ε.

    Args:
        epsilon: ε ≥ 0.

    Returns:
        e^ε, or infinity where a float cannot hold it.
    """
    try:
        return math.exp(epsilon)
    except OverflowError:
        return math.inf


def posterior(prior: float, epsilon: float) -> float:
    """Return how sure a guess can become at most, from how sure it was before.

    With prior p the odds are p/(1 − p), and e^ε times these afterwards, so that the guess is at
    most p·e^ε / (1 − p + p·e^ε).

    With δ > 0 this bounds the guess of an attacker who is told everything with probability δ, and
    otherwise one answer of a randomised response with odds e^ε. Whatever can be found out under
    (ε, δ)-differential privacy is found out at least as well from that: it dominates every
    (ε, δ)-private mechanism (Kairouz, Oh & Viswanath 2015, The Composition Theorem for Differential
    Privacy). So the bound goes with the words "except with a chance of δ".

    Args:
        prior: p in (0, 1).
        epsilon: ε ≥ 0.

    Returns:
        The bound in [p, 1].
    """
    return 1.0 / (1.0 + (1.0 - prior) / prior * math.exp(-epsilon))


def factor_in_words(epsilon: float) -> str:
    """Return e^ε for a reader, rounded up: "1.7", "71", "1,210", "2.1 million", "over a billion".

    Args:
        epsilon: ε ≥ 0.
    """
    factor = odds(epsilon)
    if factor >= _BEYOND_WORDS:
        return "over a billion"
    if factor >= 1e6:
        return f"{_up(factor / 1e6, 1)} million"
    if factor >= 1_000:
        return f"{_three_digits(factor, ROUND_CEILING):,}"
    return _up(factor, 1 if factor < 10 else 0)


def percent_in_words(share: float) -> str:
    """Return a share as a percentage, rounded up; more digits where it would be a whole 100.

    Args:
        share: In [0, 1].
    """
    exact = Decimal(repr(share)) * 100
    for places in (1, 2):
        shown = exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING)
        if shown < 100:
            return f"{shown.normalize():f} %"
    return "100 %"


def chance_in_words(probability: float) -> str:
    """Return a probability as "1 in N", with N of three digits rounded down.

    Args:
        probability: Greater than 0.

    Returns:
        "1 in N"; where it is above one half, that it is to be expected.
    """
    if probability > 0.5:
        return "more likely than not"
    # What is 99,999.99999999999 in binary was written down as 10⁻⁵.
    times = _three_digits(min(1.0 / probability, 1e300) * (1 + 1e-12), ROUND_FLOOR)
    return f"1 in {times:,}" if times < 1e15 else f"1 in {formatting.power(float(times))}"


def _up(value: float, places: int) -> str:
    rounded = Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING)
    return f"{rounded:f}"


def _three_digits(value: float, rounding: str) -> int:
    exact = Decimal(repr(value))
    unit = Decimal(1).scaleb(max(0, exact.adjusted() - 2))
    return int((exact / unit).to_integral_value(rounding=rounding) * unit)
