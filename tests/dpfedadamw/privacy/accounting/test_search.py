"""Searches that invert an accountant, over functions whose answer is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting.search import largest_count, round_down, round_up, solve_number


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
