"""What ε and δ mean for a guess, against references that are computed another way."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from scipy import optimize, stats

from reports import formatting
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


def places(words: str) -> int:
    return len(words.partition(".")[2])


def test_a_loss_below_zero_that_a_file_states_makes_nobody_less_sure() -> None:
    assert meaning.factor_in_words(-100.0) == meaning.factor_in_words(0.0) == "1"


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.0, "1"),
        (0.5, "1.65"),
        (2.302, "10.1"),
        (4.25, "70.11"),
        (7.0817, "1,200"),
        (7.1, "1,212"),
        (14.0, "1.203 million"),
        (30.0, "over a billion"),
        (1e6, "over a billion"),
    ],
)
def test_who_takes_e_to_the_power_of_the_printed_epsilon_finds_the_printed_odds(
    epsilon: float, words: str
) -> None:
    """And finds no less than the exact ε gives."""
    assert meaning.factor_in_words(epsilon) == words
    if "b" in words:
        return
    found = math.exp(float(formatting.epsilon(epsilon)))
    if "million" in words:
        found, words = found / 1e6, words.removesuffix(" million")
        epsilon -= math.log(1e6)
    shown = float(words.replace(",", ""))
    # As many digits as are printed; a whole number has three, and its zeros are of the rounding.
    unit = 10 ** -places(words) if "." in words or shown < 1000 else 10 ** (len(words) - 4)
    assert abs(shown - found) <= unit / 2 * (1 + 1e-9)
    assert shown >= math.exp(epsilon) - 1e-9


@pytest.mark.parametrize(
    ("prior", "epsilon", "words"),
    [
        (0.5, 0.0, "50 %"),
        (0.01, 0.5, "1.64 %"),
        (0.1, 3.5379, "79.3 %"),
        (0.5, 4.25, "98.6 %"),
        (0.5, 4.6, "99.005 %"),
        (0.5, 4.8, "99.2 %"),
        (0.5, 7.0817, "99.92 %"),
        (0.5, 14.0, "100 %"),
    ],
)
def test_a_guess_is_that_of_the_printed_epsilon_and_never_less_than_of_the_exact_one(
    prior: float, epsilon: float, words: str
) -> None:
    assert meaning.guess_in_words(prior, epsilon) == words
    shown = float(words.removesuffix(" %"))
    found = 100 * meaning.posterior(prior, float(formatting.epsilon(epsilon)))
    assert abs(shown - found) <= 10 ** -max(1, places(words.removesuffix(" %"))) / 2
    assert shown >= 100 * meaning.posterior(prior, epsilon) - 1e-9


@pytest.mark.parametrize(
    ("epsilon", "band", "weak", "nothing"),
    [
        (0.0, "strong", False, False),
        (1.0, "strong", False, False),
        (1.01, "reasonable", False, False),
        # Odds of 99 to 1 are one of 99 %, where the odds were even.
        (4.59, "reasonable", False, False),
        (4.6, "reasonable", True, False),
        (10.0, "reasonable", True, False),
        (10.01, "weak", True, False),
        # Odds of 999 to 1 are one of 99.9 %, where they were 1 to 99.
        (11.5, "weak", True, False),
        (11.51, "weak", True, True),
    ],
)
def test_an_epsilon_has_the_band_and_the_warnings_of_its_size(
    epsilon: float, band: str, weak: bool, nothing: bool
) -> None:
    found = meaning.on_scale(epsilon, "record")
    assert (found.band, found.weak) == (band, weak)
    assert meaning.excludes_nothing(epsilon) == nothing
    assert formatting.epsilon(epsilon) in found.statement
    assert ("it is weak" in found.statement) == weak


def test_without_a_finite_epsilon_there_is_no_place_on_the_scale() -> None:
    found = meaning.on_scale(None, "record")
    assert (found.band, found.weak) == ("none", True)
    assert "nothing is promised" in found.statement


def test_published_uses_stand_on_the_scale_where_their_own_words_say() -> None:
    found = meaning.on_scale(2.0, "record")
    assert len(found.deployments) == 2
    for use in found.deployments:
        numbers = re.findall(r"\d+(?:\.\d+)?", use.name.rpartition(":")[2])
        assert [use.low, use.high] == [float(numbers[0]), float(numbers[-1])]
        assert all(number in found.sources for number in numbers)


@pytest.mark.parametrize(
    ("unit", "ours"),
    [("record", "one record"), ("person", "one person with all"), ("client", "one client with")],
)
def test_the_scale_says_what_this_runs_epsilon_is_of(unit: str, ours: str) -> None:
    assert f"This run’s ε is for {ours}" in meaning.on_scale(2.0, unit).sources


@pytest.mark.parametrize(
    ("epsilon", "place"),
    [(0.0, 0.0), (0.05, 0.0), (0.1, 0.0), (1.0, 1 / 3), (10.0, 2 / 3), (100.0, 1.0), (1e9, 1.0)],
)
def test_a_power_of_ten_is_a_third_of_the_drawn_scale(epsilon: float, place: float) -> None:
    assert meaning.drawn_place(epsilon) == pytest.approx(place, abs=1e-12)


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
