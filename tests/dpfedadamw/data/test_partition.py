"""Partitions: each record in exactly one client, once; sizes never below the minimum."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw.data.datasets import DataError
from dpfedadamw.data.partition import partition
from dpfedadamw.spec import DataSpec, PartitionSpec


def data_spec(clients=10, kind="dirichlet", alpha=0.6, minimum=1, seed=0) -> DataSpec:
    alpha = alpha if kind == "dirichlet" else None
    return DataSpec("digits", None, clients, PartitionSpec(kind, alpha, minimum), 0.2, seed)


@given(
    clients=st.integers(1, 12),
    kind=st.sampled_from(["dirichlet", "iid"]),
    alpha=st.floats(0.05, 10),
    classes=st.integers(1, 10),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=100, deadline=None)
def test_each_record_has_exactly_one_owner(clients, kind, alpha, classes, seed):
    labels = np.random.default_rng(seed).integers(0, classes, 300)
    spec = data_spec(clients, kind, alpha, 0, seed)
    owner = partition(spec, labels)
    assert owner.shape == labels.shape
    assert owner.min() >= 0
    assert owner.max() < clients
    assert np.bincount(owner, minlength=clients).sum() == 300


def test_no_client_falls_below_the_minimum():
    labels = np.arange(1000) % 10
    owner = partition(data_spec(minimum=40, alpha=0.3), labels)
    assert np.bincount(owner, minlength=10).min() >= 40


def test_a_smaller_alpha_makes_clients_differ_more():
    labels = np.arange(5000) % 10

    def largest_share(alpha):
        owner = partition(data_spec(alpha=alpha), labels)
        counts = [np.bincount(labels[owner == c], minlength=10) for c in range(10)]
        return np.mean([c.max() / max(1, c.sum()) for c in counts])

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)


def test_the_same_seed_gives_the_same_division_and_another_another():
    labels = np.arange(500) % 10
    assert (partition(data_spec(), labels) == partition(data_spec(), labels)).all()
    assert (partition(data_spec(), labels) != partition(data_spec(seed=1), labels)).any()


def test_an_impossible_minimum_says_what_would_be_possible():
    with pytest.raises(DataError, match="use at most 50"):
        partition(data_spec(minimum=51), np.arange(500) % 10)


def test_an_unlikely_minimum_gives_up_with_advice():
    spec = dataclasses.replace(data_spec(minimum=50, alpha=0.05))
    with pytest.raises(DataError, match="lower the minimum, raise alpha"):
        partition(spec, np.arange(500) % 10)


def test_iid_clients_are_of_even_size():
    owner = partition(data_spec(kind="iid", clients=7), np.zeros(500, dtype=np.int64))
    sizes = np.bincount(owner)
    assert sizes.max() - sizes.min() <= 1
