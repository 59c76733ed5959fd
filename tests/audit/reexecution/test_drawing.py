"""What is drawn is fair, anybody can repeat it, and a liar's chance is what the finding says."""

from __future__ import annotations

import math
import random

import pytest
from scipy.stats import chisquare, hypergeom

from audit.checks.reexecution import passing
from audit.reexecution.drawing import draw, escape_probability, participations_needed


def seed(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_the_same_bits_draw_the_same_and_others_do_not() -> None:
    items = list(range(500))
    assert draw(items, 20, seed(1)) == draw(items, 20, seed(1))
    assert draw(items, 20, seed(1)) != draw(items, 20, seed(2))
    assert draw(items, 5, seed(1)) == draw(items, 20, seed(1))[:5]


def test_nothing_is_drawn_twice_and_no_more_than_there_is() -> None:
    assert sorted(draw(list(range(30)), 99, seed(3))) == list(range(30))
    assert len(set(draw(list(range(1000)), 300, seed(4)))) == 300
    assert draw([], 3, seed(5)) == ()


def test_every_item_is_drawn_as_often_as_every_other() -> None:
    counts = [0] * 20
    for number in range(4000):
        for item in draw(list(range(20)), 5, seed(number)):
            counts[item] += 1
    # 1e-4: false alarms of a test whose seeds are fixed cannot come back.
    assert chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("of", "false", "drawn"), [(200, 10, 20), (5000, 50, 300), (50, 1, 7)])
def test_a_liar_escapes_with_the_hypergeometric_probability(
    of: int, false: int, drawn: int
) -> None:
    assert escape_probability(of, false, drawn) == pytest.approx(hypergeom.pmf(0, of, false, drawn))


def test_whoever_falsified_more_than_is_left_out_is_caught() -> None:
    assert escape_probability(100, 10, 91) == 0.0
    assert escape_probability(100, 0, 50) == 1.0
    assert participations_needed(100, 1, 0.0) == 100


def test_three_hundred_openings_find_a_hundredth_in_ninety_five_of_a_hundred_audits() -> None:
    """With the code that draws: 5,000 participations, 50 of them false, 400 audits."""
    participations, audits = list(range(5000)), 400
    false = set(random.Random(0).sample(participations, 50))
    found = sum(bool(false.intersection(draw(participations, 300, seed(n)))) for n in range(audits))
    expected = 1.0 - escape_probability(5000, 50, 300)
    assert expected == pytest.approx(0.955, abs=0.001)
    # Four standard deviations of a binomial count.
    assert abs(found / audits - expected) < 4 * math.sqrt(expected * (1 - expected) / audits)
    assert participations_needed(5000, 50, 0.05) <= 300


def test_where_the_number_of_participations_is_not_told_the_chance_is_a_bound() -> None:
    for of in (40, 200, 3000):
        assert passing(None, 0.05, 20) >= passing(of, 0.05, 20)
    assert passing(None, 0.01, 300) == pytest.approx(0.99**300)
