"""What guesses on canaries say of a claim: lower bounds on ε, their ceilings, and a contradiction.

Two lower bounds, because they assume different things:

* *of any mechanism*: no (ε, δ)-DP mechanism whatever makes so many right guesses likely. The better
  of `one_run_p_value` and `is_excluded`: both bound the same probability, so that the smaller
  holds.
* *of these steps*: no mechanism that takes the ledger's steps with so much noise does. It is
  larger, because it uses the whole profile δ(ε), and it blames the noise alone.

A claim is contradicted where the claimed mechanism's own profile does not allow the guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from audit.accounting.budget import Steps
from audit.accounting.registry import LossPair
from audit.canaries.guessing import (
    Guesses,
    TradeOff,
    approximate_dp,
    is_excluded,
    largest_excluded,
    of_losses,
    one_run_p_value,
    perfect,
)
from audit.statistics.intervals import FALSE_ALARM

# Of the lower bounds that are printed. A contradiction asks for more: `FALSE_ALARM`.
CONFIDENCE = 0.95
_LEAST_NOISE, _MOST_NOISE = 1 / 32, 32.0
_RELATIVE_PRECISION = 0.01

Shares = Sequence[tuple[float, LossPair]]
"""Shares of the canaries, with the privacy losses that these meet: clients differ."""

Mechanism = Callable[[float], Shares]
"""From a factor on the noise to the privacy losses of the claimed steps under it."""


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε.

    Attributes:
        any_mechanism: that holds whatever the mechanism is.
        these_steps: that holds if the steps are the ledger's and the noise alone is in question.
        noise_share: the noise, over the ledger's, at which `these_steps` was computed: more than
            that is excluded.
    """

    any_mechanism: float
    these_steps: float
    noise_share: float


@dataclass(frozen=True)
class Outcome:
    """What the canaries of one view say.

    Attributes:
        guesses: one for each number of guesses that was tried.
        contradicted: whether the claimed profile is excluded at `FALSE_ALARM`.
        can_contradict: whether any outcome could have excluded it: so many canaries have to be
            guessed right by chance seldom enough.
        bound: at `CONFIDENCE`.
        ceiling: what perfect guesses would have given.
    """

    guesses: tuple[Guesses, ...]
    contradicted: bool
    can_contradict: bool
    bound: Bound
    ceiling: Bound


def judge(
    guesses: Sequence[Guesses], mechanism: Mechanism, delta: float, views: float = 1
) -> Outcome:
    """Judge the guesses on one view's canaries.

    Args:
        guesses: by several numbers of guesses, which share the level.
        mechanism: the claimed steps.
        delta: δ at which ε is bounded.
        views: how many views share the level of a contradiction; larger by a share of it that is
            spent elsewhere.
    """
    allowed = cache(lambda factor: of_losses(mechanism(factor)))
    claimed, flawless = allowed(1.0), perfect(guesses[0].canaries)
    level = FALSE_ALARM / len(guesses) / views
    return Outcome(
        tuple(guesses),
        any(_excluded(one, level, claimed) for one in guesses),
        any(_excluded(one, level, claimed) for one in flawless),
        lower_bound(guesses, mechanism, delta, allowed),
        lower_bound(flawless, mechanism, delta, allowed),
    )


def canaries_needed(mechanism: Mechanism, views: float = 1) -> int | None:
    """How many canaries could contradict the claimed steps at all, within a factor of 1.05.

    Args:
        mechanism: the claimed steps.
        views: how many views share the level.

    Returns:
        None where not even a hundred thousand could.
    """
    claimed, canaries = of_losses(mechanism(1.0)), 8
    while canaries < 100_000:
        flawless = perfect(canaries)
        level = FALSE_ALARM / len(flawless) / views
        if any(_excluded(one, level, claimed) for one in flawless):
            return canaries
        canaries = int(canaries * 1.05) + 1
    return None


def lower_bound(
    guesses: Sequence[Guesses],
    mechanism: Mechanism,
    delta: float,
    allowed: Callable[[float], TradeOff] | None = None,
) -> Bound:
    """Both lower bounds at `CONFIDENCE`, all numbers of guesses together.

    Args:
        guesses: by several numbers of guesses, which share the level.
        mechanism: the claimed steps.
        delta: δ at which ε is bounded.
        allowed: the mechanism's envelopes, where they are computed already.
    """
    level = (1.0 - CONFIDENCE) / len(guesses)
    envelopes = allowed or cache(lambda factor: of_losses(mechanism(factor)))
    share = _noise_share(guesses, envelopes, level)
    return Bound(
        max(any_mechanism(one, delta, level) for one in guesses),
        epsilon(mechanism(share), delta) if share is not None else 0.0,
        share if share is not None else float("inf"),
    )


def any_mechanism(guesses: Guesses, delta: float, level: float) -> float:
    """The largest ε at which no (ε, δ)-DP mechanism makes so many right guesses likely."""
    numbers = (guesses.canaries, guesses.made, guesses.correct)

    def excluded(epsilon: float) -> bool:
        return one_run_p_value(*numbers, epsilon, delta) < level or is_excluded(
            *numbers, level, approximate_dp(epsilon, delta)
        )

    return largest_excluded(excluded)


def _excluded(guesses: Guesses, level: float, allowed: TradeOff) -> bool:
    return is_excluded(guesses.canaries, guesses.made, guesses.correct, level, allowed)


def _noise_share(
    guesses: Sequence[Guesses], allowed: Callable[[float], TradeOff], level: float
) -> float | None:
    """The least factor on the noise that is excluded, rounded up; None where none is."""

    def excluded(factor: float) -> bool:
        return any(_excluded(one, level, allowed(factor)) for one in guesses)

    # By powers of two from the claim itself, then by halving: steps that different guesses share.
    high = 1.0
    if excluded(high):
        while high > _LEAST_NOISE and excluded(high / 2.0):
            high /= 2.0
        if high <= _LEAST_NOISE:
            return high
    else:
        while not excluded(high):
            high *= 2.0
            if high > _MOST_NOISE:
                return None
    low = high / 2.0
    while high / low > 1.0 + _RELATIVE_PRECISION:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if excluded(middle) else (middle, high)
    return high


def epsilon(shares: Shares, delta: float) -> float:
    """The largest ε at δ of some privacy losses."""
    return max(pair.epsilon(delta) for _, pair in shares)


def scaled(history: Sequence[Steps], share: float) -> tuple[Steps, ...]:
    """The same steps with another noise."""
    return tuple(
        Steps(item.sampling_rate, item.noise_multiplier * share, item.steps, item.fixed_size)
        for item in history
    )
