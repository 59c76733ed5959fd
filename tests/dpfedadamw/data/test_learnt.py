"""Bounds that are read off noised histograms, and what they make of records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dpfedadamw.data.learnt import Bounds, Learnable, bounds_of, from_plain, learnable, to_plain
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import ImagePreprocessing
from tests.tables import learning_spec

AGE = Learnable("age", 0, 0.0, 100.0, False, 10, (0.1, 0.9))


def edges(counts, column=AGE, sigma=1e-6):
    found = bounds_of([column], np.array(counts, np.float64), sigma)
    return found.first[0], found.last[0]


def test_columns_stand_where_their_numbers_do():
    age, income = learnable(learning_spec().data)
    assert (age.name, age.place, age.bins, age.log) == ("age", 0, 200, False)
    # Three numbers of the categories lie between.
    assert (income.name, income.place, income.quantiles) == ("income", 4, (0.02, 0.98))
    assert (income.edge(0), income.edge(64)) == (0.0, 1e6)
    middle = math.expm1(0.5 * math.log1p(1e6))
    assert income.edge(32) == pytest.approx(middle, rel=1e-12)


def test_columns_that_declare_their_bounds_are_not_learnt():
    plain = learning_spec().data
    columns = tuple(
        one.replace(learn_quantiles=()) if one.kind == "number" else one for one in plain.columns
    )
    assert learnable(plain.replace(columns=columns)) == ()


def test_bounds_are_the_edges_around_the_quantiles():
    assert edges([[0, 0, 5, 40, 40, 40, 5, 0, 0, 0]]) == (3, 6)
    assert edges([[0, 0, 20, 40, 40, 40, 20, 0, 0, 0]]) == (2, 7)
    # Exactly the share below: the edge is the later one.
    assert edges([[10, 80, 10, 0, 0, 0, 0, 0, 0, 0]]) == (1, 2)
    assert edges([[0, 0, 0, 0, 0, 0, 0, 0, 0, 7]]) == (9, 10)


def test_clients_are_added_up_and_the_order_of_them_is_no_matter():
    parts = [[0, 3, 9, 9, 1, 0, 0, 0, 0, 0], [0, 0, 0, 9, 9, 9, 2, 0, 0, 0]]
    assert edges(parts) == edges(parts[::-1]) == edges([np.sum(parts, axis=0)])


def test_noise_far_from_all_records_is_no_tail():
    noise = np.random.default_rng(4).normal(0, 10, (5, 200))
    column = Learnable("age", 0, -1000.0, 1000.0, False, 200, (0.02, 0.98))
    noise[:, 98:106] += 500
    assert edges(noise, column, 10.0) == (98, 106)


def test_where_nothing_stands_out_the_declared_bounds_stay():
    assert edges([[1, 2, 0, 1, 2, 1, 0, 0, 1, 2]], sigma=50.0) == (0, 10)


def test_records_are_held_to_the_bounds_and_scaled():
    bounds = Bounds((1,), (10,), (2,), (6,))
    raw = np.linspace(0, 100, 21)
    stored = np.stack([raw, raw / 50 - 1], axis=1).astype(np.float32)
    found = StoredRecords(stored, None, ImagePreprocessing(), bounds=bounds)[:]
    assert torch.equal(found[:, 0], torch.from_numpy(stored[:, 0]))
    expected = np.clip((raw - 20) / 40, 0, 1) * 2 - 1
    assert np.abs(found[:, 1].numpy() - expected).max() < 1e-6
    # What is stored, and committed to, is as it was.
    assert stored[0, 1] == -1.0


def test_what_is_said_of_them_is_read_again():
    columns = learnable(learning_spec().data)
    bounds = Bounds((0, 4), (200, 64), (101, 40), (108, 50))
    said = to_plain(columns, bounds)
    assert [one["column"] for one in said] == ["age", "income"]
    assert (said[0]["low"], said[0]["high"]) == (10.0, 80.0)
    assert from_plain(said, (6,)) == bounds
    assert from_plain(None, (6,)) is None


@pytest.mark.parametrize(
    "change",
    [{"place": 6}, {"place": -1}, {"first": 108}, {"last": 201}, {"first": 1.5}, {"bins": True}],
)
def test_bounds_that_no_run_writes_are_refused(change):
    said = [{"place": 0, "bins": 200, "first": 101, "last": 108} | change]
    with pytest.raises(DataError, match="learnt"):
        from_plain(said, (6,))


@pytest.mark.parametrize("wrong", ["bounds", [1], [{}], 3, []])
def test_what_is_no_list_of_bounds_is_refused(wrong):
    with pytest.raises(DataError, match="learnt"):
        from_plain(wrong, (6,))
