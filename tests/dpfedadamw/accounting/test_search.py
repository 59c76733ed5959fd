"""Searches that invert an accountant, over functions whose answer is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedadamw.accounting.search import largest_count, round_down, round_up, solve_number
from dpfedadamw.errors import PrivacyError


def counted(function):
    """The function, and how often each argument was asked."""
    asked: list[float] = []

    def ask(value):
        asked.append(value)
        return function(value)

    return ask, asked


@given(st.integers(1, 5_000), st.one_of(st.none(), st.integers(1, 6_000)))
def test_the_largest_count_is_found_in_few_questions(answer, most):
    ask, asked = counted(float)
    found = largest_count(ask, float(answer), "round", most)
    assert found == (answer if most is None else min(answer, most))
    assert len(asked) <= 2 * 14 + 2
    assert most is None or max(asked) <= max(1, most)


def test_a_count_that_spends_the_target_itself_fits():
    assert largest_count(float, 1.0, "round") == 1
    assert largest_count(float, 1.0, "round", 1) == 1
    assert largest_count(float, 8.0, "round", 8) == 8
    with pytest.raises(PrivacyError, match="even with a single round; the nearest reachable is 1"):
        largest_count(float, 0.999, "round")


def test_more_than_a_million_is_more_than_is_looked_for():
    assert largest_count(lambda n: n / 1e6, 0.999999, "step") == 999_999
    with pytest.raises(PrivacyError, match="leaves room for more than 1000000 steps"):
        largest_count(lambda n: n / 1e6, 1.0, "step")


def solved(spent, target, start=1.0, limits=(0.01, 100.0), factor=2.0, safely=round_up):
    return solve_number(spent, start, factor, limits, target, safely, "noise multiplier")


@given(st.floats(0.05, 50.0), st.floats(0.02, 90.0), st.floats(0.5, 3.0))
def test_a_number_spends_nearly_the_target_and_no_more(answer, start, power):
    """ε = (answer/σ)^power is 1 at σ = answer."""
    found = solved(lambda sigma: (answer / sigma) ** power, 1.0, start=start)
    assert 0.995 <= (answer / found) ** power <= 1.0


def test_a_number_that_spends_more_as_it_grows_is_found_too():
    found = solved(lambda rate: rate**2, 0.25, factor=0.5, limits=(100.0, 0.01), safely=round_down)
    assert 0.995 * 0.25 <= found**2 <= 0.25


def test_few_questions_find_a_number_by_logarithms():
    ask, asked = counted(lambda sigma: 3.0 / sigma)
    solved(ask, 1.0)
    assert len(asked) <= 8


def test_what_lies_beyond_the_limits_is_refused_with_the_nearest():
    with pytest.raises(PrivacyError, match=r"0\.01 cannot be reached even at noise multiplier 100"):
        solved(lambda sigma: 3.0 / sigma, 0.01)
    with pytest.raises(PrivacyError, match=r"the nearest reachable is 300"):
        solved(lambda sigma: 3.0 / sigma, 1000.0)
    # The limits themselves may be the answer.
    assert solved(lambda sigma: 100.0 / sigma, 1.0) == pytest.approx(100.0, rel=5e-3)


def test_a_function_that_jumps_over_the_target_has_no_number():
    with pytest.raises(PrivacyError, match=r"no value spends 99\.5 % to 100 % of a target"):
        solved(lambda sigma: 3.0 if sigma < 2.0 else 0.1, 1.0)


@given(st.floats(1e-6, 1e6))
def test_six_digits_lie_on_the_side_that_is_asked_for(value):
    low, high = round_down(value), round_up(value)
    assert low <= value * (1 + 1e-15)
    assert value * (1 - 1e-15) <= high
    assert high - low <= 1.0001e-5 * value
    assert float(f"{low:.6g}") == low


def test_a_search_asks_by_factors_then_the_middle_then_where_a_line_of_logarithms_hits():
    """ε = 3/σ is 1 - 0.005/3 where the line is aimed, and six digits above it are the answer."""
    ask, asked = counted(lambda sigma: 3.0 / sigma)
    aimed = 3.0 / (1.0 - 0.005 / 3.0)
    found = solved(ask, 1.0)
    assert found == round_up(aimed) == pytest.approx(aimed, rel=1e-5)
    assert asked == pytest.approx([1.0, 2.0, 4.0, 4.0, 8.0**0.5, 4.0, aimed, found], rel=1e-12)


def test_a_search_from_a_value_that_spends_too_little_goes_the_other_way():
    ask, asked = counted(lambda sigma: 3.0 / sigma)
    solved(ask, 1.0, start=16.0, factor=4.0)
    assert asked[:3] == [16.0, 4.0, 1.0]
    # The target itself fits, and so does a first value that spends it.
    ask, asked = counted(lambda sigma: 4.0 / sigma)
    assert solved(ask, 1.0, start=4.0) == 4.0
    assert asked == [4.0, 2.0, 4.0]


def test_a_search_stays_within_its_limits_and_asks_for_them_once():
    for limits, ends in (((0.5, 3.0), 3.0), ((2.0, 0.3), 0.3)):
        factor = 2.0 if limits[1] > limits[0] else 0.5
        ask, asked = counted(lambda value: 9.0)
        with pytest.raises(PrivacyError, match=f"even at noise multiplier {ends:g}; .*is 9"):
            solved(ask, 1.0, limits=limits, factor=factor)
        assert asked == [1.0, factor, ends]
        ask, asked = counted(lambda value: 0.2)
        with pytest.raises(PrivacyError, match=f"even at noise multiplier {limits[0]:g}; .*is 0.2"):
            solved(ask, 1.0, limits=limits, factor=factor)
        assert asked == [1.0, limits[0]]


def test_where_logarithms_lead_nowhere_a_search_halves_and_gives_up_after_sixty_turns():
    # Nothing is spent from 2 on, so no line can be drawn: σ goes on by the geometric mean alone.
    ask, asked = counted(lambda sigma: 4.0 if sigma < 2.0 else 0.0)
    with pytest.raises(PrivacyError, match=r"a target epsilon of 1$"):
        solved(ask, 1.0, start=1.0, factor=16.0)
    assert asked[:2] == [1.0, 16.0]
    # A turn asks for the value that fits, rounded, and for a new one.
    assert len(asked) == 2 + 2 * 60
    assert asked[3::2][:4] == pytest.approx([4.0, 2.0, 2.0**0.5, 2.0**0.75])


def test_a_line_of_logarithms_never_leaves_the_bracket_and_every_third_turn_halves():
    # Steps of a staircase, on which a line from its ends leads astray.
    steps = ((1.5, 64.0), (2.5, 40.0), (3.5, 1.5), (5.0, 0.999), (9.0, 0.2), (1e9, 0.01))
    ask, asked = counted(lambda sigma: next(spent for ends, spent in steps if sigma < ends))
    found = solved(ask, 1.0, factor=16.0)
    assert 3.5 <= found < 5.0
    assert all(1.0 <= value <= 16.0 for value in asked)
    news = asked[3::2]
    assert news[0] == pytest.approx(4.0)
    assert found == 4.0


def test_answers_at_both_ends_of_what_is_near_enough_are_taken():
    for spent in (1.0, 0.995):
        assert solved(lambda sigma, spent=spent: 9.0 if sigma < 2.0 else spent, 1.0) == 2.0
    with pytest.raises(PrivacyError, match="no value spends"):
        solved(lambda sigma: 9.0 if sigma < 2.0 else 0.99499, 1.0)


@pytest.mark.parametrize(
    ("value", "below", "above"),
    [
        (1.0, 1.0, 1.0),
        (9.9999951, 9.99999, 10.0),
        (123456.7, 123456.0, 123457.0),
        (1234567.8, 1234560.0, 1234570.0),
        (0.0001234567, 0.000123456, 0.000123457),
    ],
)
def test_numbers_are_rounded_to_six_digits(value, below, above):
    assert (round_down(value), round_up(value)) == (below, above)


def test_a_count_is_looked_for_by_doubling_and_then_by_halves():
    ask, asked = counted(float)
    assert largest_count(ask, 11.0, "round") == 11
    assert asked == [1, 2, 4, 8, 16, 12, 10, 11]
    ask, asked = counted(float)
    assert largest_count(ask, 11.0, "round", 13) == 11
    assert asked == [1, 2, 4, 8, 13, 10, 11, 12]
    ask, asked = counted(float)
    assert largest_count(ask, 20.0, "round", 13) == 13
    assert asked == [1, 2, 4, 8, 13]


def test_every_third_turn_takes_the_middle_and_no_turn_leaves_the_bracket():
    ask, asked = counted(lambda sigma: 9.0 if sigma < 3.0 else 0.001)
    with pytest.raises(PrivacyError, match="no value spends"):
        solved(ask, 1.0)
    assert asked[:3] == [1.0, 2.0, 4.0]
    loose, tight = 2.0, 4.0
    for turn, value in enumerate(asked[4::2][:12]):
        assert loose <= value <= tight
        middle = (loose * tight) ** 0.5
        # By logarithms, ln 9 of the way from ln 9 to ln 1/1000 is a quarter of it, and not a half.
        aimed = loose * (tight / loose) ** (math.log(9 / (1 - 0.005 / 3)) / math.log(9000))
        assert value == pytest.approx(aimed if turn % 3 else middle, rel=1e-12)
        loose, tight = (value, tight) if value < 3.0 else (loose, value)


def test_a_value_that_spends_the_target_itself_is_taken_between_the_first_two_as_well():
    found = solved(lambda sigma: 9.0 if sigma < 2.5 else 1.0 if sigma < 3.9 else 0.5, 1.0)
    assert found == round_up(8.0**0.5)


def test_a_line_that_aims_behind_what_fits_asks_for_what_fits():
    """Rounded, what fits spends too little, so that it is asked for until the turns are over."""
    ask, asked = counted(lambda sigma: 9.0 if sigma < 3.0 else 0.999 if sigma < 3.9 else 0.5)
    with pytest.raises(PrivacyError, match="no value spends"):
        solved(ask, 1.0, safely=lambda value: float(math.ceil(value)))
    aimed = 8.0**0.5 * 2.0 ** (0.5 * math.log(9 / (1 - 0.005 / 3)) / math.log(18))
    assert [asked[6], asked[8]] == pytest.approx([aimed, aimed], rel=1e-12)
