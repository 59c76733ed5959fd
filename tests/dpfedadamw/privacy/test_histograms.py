"""Histograms of columns: one record moves each by 1, and what is sent has its noise."""

from __future__ import annotations

import numpy as np
import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.histograms import ColumnQueries, counted, noised
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness

QUERIES = ColumnQueries(columns=("age", "dose"), bins=(10, 4000), noise_multiplier=5.0)


def values(*rows):
    return np.array(rows, np.float32)


def test_each_record_is_counted_once_in_each_column():
    drawn = np.random.default_rng(1).uniform(-1, 1, (500, 2)).astype(np.float32)
    counts = counted(drawn, (7, 3))
    assert counts.shape == (10,)
    assert (counts[:7].sum(), counts[7:].sum()) == (500, 500)
    expected = np.histogram(drawn[:, 0].astype(np.float64), bins=7, range=(-1, 1))[0]
    assert counts[:7].tolist() == expected.tolist()


def test_a_record_moves_each_histogram_by_one():
    drawn = np.random.default_rng(2).normal(size=(50, 2)).astype(np.float32)
    whole = counted(drawn, (5, 8))
    for row in range(50):
        moved = whole - counted(np.delete(drawn, row, axis=0), (5, 8))
        assert np.linalg.norm(moved[:5]) == 1.0
        assert np.linalg.norm(moved[5:]) == 1.0


def test_ends_and_what_lies_beyond_them_count_in_the_outermost_cells():
    counts = counted(values([-1.0], [-9.0], [1.0], [3.0], [0.0]), (4,))
    assert counts.tolist() == [2, 0, 1, 2]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_refused(wrong):
    with pytest.raises(PrivacyError, match="not finite"):
        counted(values([wrong]), (4,))


def test_nobody_has_no_records_and_empty_cells():
    assert counted(np.zeros((0, 2), np.float32), (2, 3)).tolist() == [0, 0, 0, 0, 0]


def test_they_cost_a_gaussian_query_of_all_records_for_each_column():
    assert QUERIES.event == Composition(5.0, 1.0, 2, 1, "full")
    assert QUERIES.cells == 4010


@pytest.mark.parametrize("method", ["box-muller", "four-draw", "on-device"])
def test_what_is_sent_has_noise_of_the_stated_deviation(method):
    counts = np.full(4010, 3)
    stream = ReproducibleRandomness(7).stream("columns", 0, 1)
    noise = noised(counts, QUERIES, stream, method) - counts
    # 4,010 squares of normal numbers: their mean leaves ±9 % once in 10,000 times.
    assert 0.91 < np.square(noise / 5.0).mean() < 1.09
    assert abs(noise.mean()) < 0.4


def test_clients_have_noise_of_their_own():
    source = ReproducibleRandomness(7)
    one, other = (
        noised(np.zeros(4010, int), QUERIES, source.stream("columns", 0, client), "box-muller")
        for client in (0, 1)
    )
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.08
