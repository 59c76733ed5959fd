"""Correlations of pairs: of every pair, of either sign."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.checks import noise
from audit.statistics import noise_values
from audit.statistics.noise_values import any_repeated, largest_correlation

SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, length))


def with_correlation(row: np.ndarray, value: float, seed: int) -> np.ndarray:
    """A row as long as another, whose correlation with it is as given."""
    other = drawn(seed, 1, len(row))[0]
    other -= row * (other @ row) / (row @ row)
    other *= np.linalg.norm(row) / np.linalg.norm(other)
    return value * row + (1.0 - value**2) ** 0.5 * other


@pytest.mark.parametrize("value", [-1.0, -0.9, -0.5, 0.5, 0.9])
def test_two_queries_that_share_noise_are_told_with_either_sign(value: float) -> None:
    rows = drawn(1, 40, 400)
    rows[31] = 2.5 * with_correlation(rows[3], value, seed=2)
    assert largest_correlation(rows) == pytest.approx(abs(value), abs=1e-9)


@given(SEEDS, st.integers(2, 12), st.integers(1, 9))
def test_the_largest_is_that_of_all_pairs_whatever_their_signs_and_scales(
    seed: int, rows: int, length: int
) -> None:
    found = drawn(seed, rows, length)
    expected = max(
        abs(float(one @ other)) / float(np.linalg.norm(one) * np.linalg.norm(other))
        for index, one in enumerate(found)
        for other in found[:index]
    )
    factors = np.random.default_rng(seed + 1).choice([-3.0, -0.5, 0.25, 2.0], rows)
    for scaled in (found, found * factors[:, None]):
        assert largest_correlation(scaled) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("places", [(0, 1), (0, 6), (2, 3), (6, 5)])
def test_no_pair_is_left_out_where_rows_are_compared_in_portions(
    places: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_values, "_CHUNK", 3)
    rows = np.eye(7, 9)
    rows[places[0]] -= 2.0 * rows[places[1]]
    assert largest_correlation(rows) == pytest.approx(2.0 / 5.0**0.5)


def test_of_fewer_than_two_rows_and_of_silent_ones_there_is_no_correlation() -> None:
    assert largest_correlation(np.zeros((0, 5))) == largest_correlation(np.ones((1, 5))) == 0.0
    assert largest_correlation(np.zeros((3, 5))) == 0.0


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_noise_that_one_query_takes_from_another_or_subtracts_is_told_by_the_check(
    sign: float,
) -> None:
    rows = drawn(3, 24, 64)
    told: list[str] = []
    noise._pair_tests([("shared", rows)], rows, "repeated", told)
    assert told == []
    rows[20] = with_correlation(rows[4], 0.9 * sign, seed=4)
    threshold, largest = noise._pair_tests([("shared", rows)], rows, "repeated", told)
    assert threshold < largest == pytest.approx(0.9)
    assert "shared" in told


@pytest.mark.parametrize("factor", [-2.0, -1.0, 1.0, 0.5])
def test_one_noise_vector_used_twice_is_found_wherever_it_is(factor: float) -> None:
    rows = drawn(5, 3000, 32)
    assert not any_repeated(rows, 1e-6)
    rows[2900] = factor * rows[17]
    assert any_repeated(rows, 1e-6)
