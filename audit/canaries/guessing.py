"""From scores to guesses: the highest are guessed "in", perhaps the lowest "out", others are not.

How many coins are guessed, and whether any are guessed "out", is fixed before a score is seen,
because the bounds of `one_run` and `f_dp` hold for a fixed number. Which plan is best depends on
the mechanism: where a record is seldom drawn, a release can tell that it was there and hardly ever
that it was not. So a few plans are tried and the level is shared out among them (Bonferroni). Not
even the largest guesses all coins: about half of them are "in", and a fifth is left open for the
case that not exactly half are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Shares of the canaries that are guessed "in", and "out".
PLANS = ((0.4, 0.4), (0.15, 0.15), (0.05, 0.05), (0.4, 0.0), (0.15, 0.0), (0.05, 0.0))


@dataclass(frozen=True)
class Guesses:
    """The outcome of guessing some of the coins.

    Attributes:
        canaries: m, all of them.
        made: r, those that were guessed.
        correct: how many of the guesses were right.
    """

    canaries: int
    made: int
    correct: int


def plans(canaries: int) -> tuple[tuple[int, int], ...]:
    """How many of m canaries each plan guesses "in" and "out"; at least one in all."""
    numbers = (
        (max(1, int(canaries * inside)), int(canaries * outside)) for inside, outside in PLANS
    )
    return tuple(dict.fromkeys(numbers))


def guess(scores: NDArray[np.float64], included: NDArray[np.bool_]) -> tuple[Guesses, ...]:
    """Guess coins by the order of their scores, once for each plan.

    By order and not by value: where the mechanism is not what it claims to be, the values are not
    what they should be either. Equal scores are told apart by their place, which knows nothing of
    the coins.

    Args:
        scores: [m], at least one; the larger, the more it speaks for "in"; what is not a number
            counts as 0.
        included: [m], the coins.
    """
    order = np.argsort(-np.nan_to_num(scores, nan=0.0), kind="stable")
    found = []
    for inside, outside in plans(len(scores)):
        right = int(np.sum(included[order[:inside]]))
        right += int(np.sum(~included[order[len(order) - outside :]]))
        found.append(Guesses(len(scores), inside + outside, right))
    return tuple(found)


def perfect(canaries: int) -> tuple[Guesses, ...]:
    """Guesses that are all right: what the ceiling of a bound is computed from."""
    made = (inside + outside for inside, outside in plans(canaries))
    return tuple(Guesses(canaries, one, one) for one in made)
