"""What ε and δ mean for a guess, against references that are computed another way."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from scipy import optimize, stats

from reports.content import meaning


def dominating(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """The mechanism that dominates all: of each of four outputs, its probability with and without.

    Kairouz, Oh & Viswanath 2015: with probability δ the truth is told, else by randomised response.
    """
    right = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    wrong = (1 - delta) / (1 + math.exp(epsilon))
    return [(delta, 0.0), (right, wrong), (wrong, right), (0.0, delta)]


@pytest.mark.parametrize("prior", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.25, 7.09])
def test_the_bound_is_the_largest_posterior_of_the_dominating_mechanism(
    prior: float, epsilon: float
) -> None:
    delta = 1e-3
    posteriors = {
        prior * within / (prior * within + (1 - prior) * without)
        for within, without in dominating(epsilon, delta)
        if without
    }
    assert max(posteriors) == pytest.approx(meaning.posterior(prior, epsilon), rel=1e-12)
    # The outputs left out, after which nothing bounds the guess, have probability δ.
    revealing = sum(within for within, without in dominating(epsilon, delta) if not without)
    assert revealing == pytest.approx(delta)


def test_odds_of_three_turn_an_even_guess_into_three_quarters() -> None:
    epsilon = math.log(3)
    assert meaning.posterior(0.5, epsilon) == pytest.approx(float(Fraction(3, 4)), rel=1e-14)
    assert meaning.posterior(0.25, epsilon) == pytest.approx(float(Fraction(1, 2)), rel=1e-14)
    assert meaning.posterior(0.1, epsilon) == pytest.approx(float(Fraction(1, 4)), rel=1e-14)


@pytest.mark.parametrize("prior", [0.1, 0.5])
def test_no_guess_about_a_gaussian_is_right_more_often_than_the_bound_allows(prior: float) -> None:
    """The best guess after N(0, 1) or N(1, 1), by integration, against that after the dominator."""
    delta = 1e-4

    def hockey_stick(epsilon: float) -> float:
        shift = stats.norm.cdf(0.5 - epsilon) - math.exp(epsilon) * stats.norm.cdf(-0.5 - epsilon)
        return float(shift - delta)

    epsilon = optimize.brentq(hockey_stick, 0.0, 20.0)
    # Being in is guessed above the point where both cases are as likely.
    cut = 0.5 + math.log((1 - prior) / prior)
    right = prior * stats.norm.sf(cut - 1) + (1 - prior) * stats.norm.cdf(cut)
    allowed = sum(
        max(prior * within, (1 - prior) * without) for within, without in dominating(epsilon, delta)
    )
    assert right <= allowed
    surest = max(meaning.posterior(prior, epsilon), meaning.posterior(1 - prior, epsilon))
    assert allowed <= (1 - delta) * surest + delta + 1e-12


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.0, "1.0"),
        (0.5, "1.7"),
        (2.302, "10.0"),
        (4.25, "71"),
        (7.09, "1,200"),
        (7.1, "1,220"),
        (14.0, "1.3 million"),
        (30.0, "over a billion"),
        (1e6, "over a billion"),
    ],
)
def test_a_factor_is_never_rounded_down(epsilon: float, words: str) -> None:
    assert meaning.factor_in_words(epsilon) == words
    if "b" not in words:
        shown = float(words.replace(",", "").removesuffix(" million"))
        assert shown * (1e6 if "million" in words else 1) >= math.exp(epsilon)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.01, "1 %"),
        (0.5, "50 %"),
        (0.4131, "41.4 %"),
        (0.99917, "99.92 %"),
        (0.999999, "100 %"),
    ],
)
def test_a_guess_is_never_rounded_down(share: float, words: str) -> None:
    assert meaning.percent_in_words(share) == words
    assert float(words.removesuffix(" %")) >= 100 * share - 1e-9


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (1e-5, "1 in 100,000"),
        (0.0144, "1 in 69"),
        (0.3, "1 in 3"),
        (1 / 1999, "1 in 1,990"),
        (0.7, "more likely than not"),
        (1438.0, "more likely than not"),
        (1e-20, "1 in 10²⁰"),
        (5e-324, "1 in 10³⁰⁰"),
    ],
)
def test_a_chance_is_never_made_smaller(probability: float, words: str) -> None:
    assert meaning.chance_in_words(probability) == words
