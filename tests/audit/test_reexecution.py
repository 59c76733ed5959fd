"""What is drawn is fair, anybody can repeat it, and a liar's chance is what the finding says."""

from __future__ import annotations

import hashlib
import hmac
import math
import random
import struct

import pytest
from scipy.stats import chisquare, hypergeom

from audit.checks.reexecution import passing
from audit.reexecution import (
    SEED_BYTES,
    Participation,
    draw,
    escape_probability,
    numbers,
    participations_needed,
    with_the_first_round,
)

LEDGER = "ab" * 32


def seed(number: int) -> bytes:
    return number.to_bytes(32, "big")


def of(count: int) -> list[Participation]:
    """So many participations, four in each round."""
    return [Participation(number // 4, number % 4, 1) for number in range(count)]


def test_the_same_bits_and_ledger_draw_the_same_and_others_do_not() -> None:
    items = of(500)
    drawn = draw(items, seed(1), LEDGER, 20)
    assert drawn == draw(items[::-1], seed(1), LEDGER, 20)
    assert drawn != draw(items, seed(2), LEDGER, 20)
    assert drawn != draw(items, seed(1), "cd" * 32, 20)
    assert set(draw(items, seed(1), LEDGER, 5)) < set(drawn)
    assert list(drawn) == sorted(drawn)


def test_anybody_can_repeat_a_draw_by_what_the_docs_say_of_it() -> None:
    """The smallest of HMAC-SHA256 over a label, the ledger's digest and three numbers."""
    items = of(40)

    def by_hand(one: Participation) -> bytes:
        said = b"dpfedadamw draw 1\0" + bytes.fromhex(LEDGER)
        said += struct.pack(">qqq", one.round, one.client, one.attempt)
        return hmac.new(seed(7), said, hashlib.sha256).digest()

    chosen = sorted(items, key=by_hand)[:6]
    assert draw(items, seed(7), LEDGER, 6) == tuple(sorted(chosen))


def test_an_auditors_own_seed_is_no_easier_to_guess_than_a_digest() -> None:
    assert hashlib.sha256().digest_size == SEED_BYTES


def test_nothing_is_drawn_twice_and_no_more_than_there_is() -> None:
    assert draw(of(30), seed(3), LEDGER, 99) == tuple(of(30))
    assert len(set(draw(of(1000), seed(4), LEDGER, 300))) == 300
    assert draw([], seed(5), LEDGER, 3) == ()


def test_every_participation_is_drawn_as_often_as_every_other() -> None:
    counts = dict.fromkeys(of(20), 0)
    for number in range(4000):
        for one in draw(of(20), seed(number), LEDGER, 5):
            counts[one] += 1
    # 1e-4: false alarms of a test whose seeds are fixed cannot come back.
    assert chisquare(list(counts.values())).pvalue > 1e-4


@pytest.mark.parametrize(("among", "false", "drawn"), [(200, 10, 20), (5000, 50, 300), (50, 1, 7)])
def test_a_liar_escapes_with_the_hypergeometric_probability(
    among: int, false: int, drawn: int
) -> None:
    expected = hypergeom.pmf(0, among, false, drawn)
    assert escape_probability(among, false, drawn) == pytest.approx(expected)


def test_whoever_falsified_more_than_is_left_out_is_caught() -> None:
    assert escape_probability(100, 10, 91) == 0.0
    assert escape_probability(100, 0, 50) == 1.0
    assert participations_needed(100, 1, 0.0) == 100


@pytest.mark.parametrize(("among", "false", "drawn"), [(1, 1, 1), (7, 2, 5), (40, 1, 40)])
def test_so_many_are_needed_and_one_less_is_too_few(among: int, false: int, drawn: int) -> None:
    chance = hypergeom.pmf(0, among, false, drawn) + 1e-12
    assert participations_needed(among, false, chance) == drawn
    assert hypergeom.pmf(0, among, false, drawn - 1) > chance
    assert participations_needed(among, false, 1.0) == 0


def test_numbers_enter_digests_with_eight_bytes_each_those_below_zero_too() -> None:
    assert numbers(1, -1, 258) == bytes(7) + b"\1" + b"\xff" * 8 + bytes(6) + b"\1\2"
    assert numbers() == b""


def test_three_hundred_openings_find_a_hundredth_in_ninety_five_of_a_hundred_audits() -> None:
    """With the code that draws: 5,000 participations, 50 of them false, 100 audits."""
    participations, audits = of(5000), 100
    false = set(random.Random(0).sample(participations, 50))
    drawn = (draw(participations, seed(number), LEDGER, 300) for number in range(audits))
    found = sum(bool(false.intersection(one)) for one in drawn)
    expected = 1.0 - escape_probability(5000, 50, 300)
    assert expected == pytest.approx(0.955, abs=0.001)
    # Four standard deviations of a binomial count.
    assert abs(found / audits - expected) < 4 * math.sqrt(expected * (1 - expected) / audits)
    assert participations_needed(5000, 50, 0.05) <= 300


def test_where_the_number_of_participations_is_not_told_the_chance_is_a_bound() -> None:
    for among in (40, 200, 3000):
        assert passing(None, 0.05, 20) >= passing(among, 0.05, 20)
    assert passing(None, 0.01, 300) == pytest.approx(0.99**300)


def test_the_first_round_is_always_among_what_is_computed_again() -> None:
    items = of(1000)
    first = min(one.round for one in items)
    added = 0
    for number in range(200):
        drawn = draw(items, seed(number), LEDGER, 2)
        found = with_the_first_round(drawn, items, seed(number), LEDGER)
        assert any(one.round == first for one in found)
        assert set(drawn) <= set(found)
        assert list(found) == sorted(found)
        assert (len(found) == 3) is all(one.round != first for one in drawn)
        added += len(found) == 3
        # What a larger draw has contains it.
        larger = draw(items, seed(number), LEDGER, 50)
        assert set(found) <= set(with_the_first_round(larger, items, seed(number), LEDGER))
    assert added
    assert with_the_first_round((), items, seed(1), LEDGER) == ()
    assert with_the_first_round((), (), seed(1), LEDGER) == ()
