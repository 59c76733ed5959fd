"""The running error analysis: what float32 cannot hold is known no more, from there on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from audit.replay.participation import Tally
from audit.replay.rounding import OVERFLOW, Rounded, exact, known, mean_of

HUGE = exact(np.array([1.0, 0.6 * OVERFLOW]))


def test_half_of_the_largest_float32_is_where_a_result_may_be_infinite() -> None:
    assert 2.0 * float(np.finfo(np.float32).max) > 2.0 * OVERFLOW > np.finfo(np.float32).max
    assert np.isfinite((HUGE * 1.6).value).all()
    assert np.isnan((HUGE * 1.7).value).tolist() == [False, True]


@pytest.mark.parametrize(
    "further",
    [
        lambda found: found * 0.0,
        lambda found: found / HUGE,
        lambda found: exact(1.0) / found,
        lambda found: found.square().root(),
        lambda found: found.at_least(0.0),
        lambda found: found.signs(),
        lambda found: mean_of([found, HUGE]),
        lambda found: found - found,
    ],
)
def test_what_is_made_of_it_is_not_known_either_and_nothing_else_is_touched(further) -> None:
    found = further(HUGE + HUGE)
    assert np.isnan(found.value).tolist() == [False, True]


def test_a_tally_compares_what_it_can_and_says_from_where_on_it_could_not() -> None:
    tally = Tally()
    tally.compare("round 0, the upload", HUGE.value, HUGE)
    assert (tally.diverged, tally.reasons) == ((), [])
    tally.compare("round 1, the upload,", np.array([2.0, np.inf]), HUGE + HUGE)
    tally.compare("round 2, the upload", np.array([2.0, 7.0]), HUGE + HUGE)
    assert tally.reasons == []
    assert "training diverged: round 1, the upload is out of float32's range" in tally.diverged[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3.0])
def test_numbers_that_are_none_where_there_should_be_some_fail(bad: float) -> None:
    tally = Tally()
    tally.compare("round 1, the upload,", np.array([bad, np.inf]), HUGE + HUGE)
    assert tally.reasons == [
        "round 1, the upload, is not what follows from the released values, at 1 of 2 coordinates"
    ]


SEED = 11
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda one, other: one + other,
    "difference": lambda one, other: one - other,
    "product": lambda one, other: one * other,
    "quotient": lambda one, other: one / other,
}


def off_by_up_to(share: float, drawn: np.random.Generator) -> Rounded:
    """Numbers of either sign, each of which may be off by up to a share of itself."""
    values = drawn.uniform(0.5, 4.0, 400) * drawn.choice([-1.0, 1.0], 400)
    return Rounded(values, share * drawn.uniform(0.5, 1.0, 400) * np.abs(values))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("share", [0.0, 1e-6, 0.9])
def test_a_result_is_off_by_its_bound_where_its_operands_are_and_never_by_more(
    name: str, share: float
) -> None:
    drawn = np.random.default_rng(SEED)
    one, other = off_by_up_to(share, drawn), off_by_up_to(share, drawn)
    found = OPERATIONS[name](one, other)
    due = OPERATIONS[name](one.value, other.value)
    assert np.array_equal(found.value, due)
    # All four are monotonous in either operand, so that the furthest results lie at the ends.
    ends = [
        np.abs(OPERATIONS[name](one.value + up * one.bound, other.value + far * other.bound) - due)
        for up in (-1.0, 1.0)
        for far in (-1.0, 1.0)
    ]
    furthest = np.max(ends, axis=0)
    # Four roundings of float32, and what differs in the sixteenth digit.
    rounding = 2.0**-22 * np.abs(due) + 2.0**-126
    assert found.bound == pytest.approx(furthest + rounding, rel=1e-9, abs=1e-14)


def test_what_float32_cannot_tell_from_zero_is_off_by_its_least_normal_number() -> None:
    nothing = exact(np.zeros(1)) * exact(np.ones(1))
    assert nothing.bound.tolist() == [float(np.finfo(np.float32).tiny)]
    assert mean_of([exact(np.zeros(1))]).bound.tolist() == [float(np.finfo(np.float32).tiny)]
    assert np.isnan((exact(np.array([OVERFLOW])) * 1.0).value).all()


@pytest.mark.parametrize("share", [1e-6, 0.9])
def test_a_square_and_its_root_lie_within_their_bounds(share: float) -> None:
    one = off_by_up_to(share, np.random.default_rng(SEED))
    square = one.square()
    size = np.abs(one.value)
    assert square.bound == pytest.approx(
        (size + one.bound) ** 2 - size**2 + 2.0**-22 * size**2, rel=1e-9
    )
    root = Rounded(size, one.bound).root()
    for end in (size - one.bound, size + one.bound):
        assert (np.abs(np.sqrt(end) - np.sqrt(size)) <= root.bound).all()
    # No more than twice what it is off by where that is little.
    if share < 0.1:
        off = np.sqrt(size + one.bound) - np.sqrt(size)
        assert (root.bound - 2.0**-22 * root.value <= 2.1 * off).all()


def test_the_root_of_what_may_be_zero_is_off_by_no_more_than_the_root_of_its_bound() -> None:
    root = Rounded(np.array([0.0, -1e-8, 1e-8]), np.array([4e-8, 4e-8, 0.0])).root()
    assert root.value == pytest.approx([0.0, 0.0, 1e-4])
    assert root.bound == pytest.approx([2e-4, 2e-4, 2.0**-22 * 1e-4])


def test_a_quotient_by_what_may_be_zero_may_be_anything() -> None:
    divisor = Rounded(np.array([1.0, 1.0, -1.0, 2.0]), np.array([1.0, 1.5, 1.0, 1.0]))
    found = exact(np.ones(4)) / divisor
    assert np.isinf(found.bound).tolist() == [True, True, True, False]


def test_of_a_greater_of_two_a_sign_and_a_place_the_bounds_go_along() -> None:
    one = Rounded(np.array([1.0, -2.0, 0.0, 3.0]), np.array([0.5, 2.0, 0.0, 3.5]))
    greater = one.at_least(Rounded(np.array([1.5]), np.array([0.75])))
    assert greater.value.tolist() == [1.5, 1.5, 1.5, 3.0]
    assert greater.bound.tolist() == [0.75, 2.0, 0.75, 3.5]
    signs = one.signs()
    assert (signs.value.tolist(), signs.bound.tolist()) == ([1, -1, 0, 1], [0, 2, 0, 2])
    picked = one.at(np.array([3, 1, 1]))
    assert (picked.value.tolist(), picked.bound.tolist()) == ([3, -2, -2], [3.5, 2, 2])


def test_a_mean_is_off_by_the_mean_bound_and_a_rounding_for_each_part() -> None:
    parts = [
        Rounded(np.array([3.0, -1.0]), np.array([0.5, 0.0])),
        Rounded(np.array([-1.0, -2.0]), np.array([0.25, 0.0])),
        Rounded(np.array([1.0, 6.0]), np.array([0.0, 0.0])),
    ]
    found = mean_of(parts)
    assert found.value == pytest.approx([1.0, 1.0])
    roundings = 3 * 2.0**-22
    assert found.bound == pytest.approx([0.25 + roundings * 5 / 3, roundings * 3])
    assert known(np.array([-4.0, 2.0]), 0.25).bound.tolist() == [1.0, 0.5]


def test_a_mean_is_not_known_where_float32_cannot_hold_the_sum_of_its_parts() -> None:
    parts = np.full((10, 2), [1.0, 0.25 * OVERFLOW], dtype=np.float32)
    with np.errstate(over="ignore"):
        assert np.isinf(parts.mean(0)).tolist() == [False, True]
    due = mean_of([exact(part.astype(np.float64)) for part in parts])
    assert np.isnan(due.value).tolist() == [False, True]
    tally = Tally()
    tally.compare("round 3, the model,", np.array([1.0, np.inf]), due)
    assert tally.reasons == []
    assert "training diverged: round 3, the model is out of float32's" in tally.diverged[0]


def root(found: Any) -> Any:
    return found.root() if isinstance(found, Rounded) else np.sqrt(found)


@pytest.mark.parametrize(
    "moved",
    [
        lambda one, other: one * other + one,
        lambda one, other: one / (other * other) - other,
        lambda one, other: root(one * one + other * other) * other,
        lambda one, other: (one - other) * (one + other),
    ],
)
def test_what_float32_computes_lies_within_the_bound_of_its_replay(
    moved: Callable[[Any, Any], Any],
) -> None:
    one, other = np.random.default_rng(SEED).normal(size=(2, 20_000)).astype(np.float32)
    computed = moved(one, other)
    assert computed.dtype == np.float32
    found = moved(exact(one.astype(np.float64)), exact(other.astype(np.float64)))
    assert (np.abs(computed - found.value) <= found.bound).all()
