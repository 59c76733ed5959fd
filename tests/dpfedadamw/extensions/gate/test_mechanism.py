"""One shard's reply moves the sum by at most 2C whatever it is, and the noise has its scale."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpfedadamw.extensions.gate import mechanism
from dpfedadamw.extensions.gate.settings import Form
from tests.dpfedadamw.extensions.gate.replies import has_scale

MODEL = {"a": Form((2, 2), "float32"), "b": Form((1,), "float64")}
CLIP = 0.7
SIZE = 5
# All bit patterns: infinities, NaN, subnormal numbers, the largest ones.
FLAT = arrays(np.float64, SIZE, elements=st.floats(width=64))
WHOLE = st.fixed_dictionaries(
    {
        "a": arrays(np.float32, (2, 2), elements=st.floats(width=32)),
        "b": arrays(np.float64, 1, elements=st.floats(width=64)),
    }
)
REPLY = st.one_of(
    WHOLE,
    st.none(),
    st.just({}),
    st.just({"a": np.zeros((2, 2), "f4")}),
    st.just({"a": np.zeros((2, 2), "f8"), "b": np.ones(1)}),
    st.just({"a": np.zeros((4,), "f4"), "b": np.ones(1)}),
    st.just({"a": np.zeros((2, 2), "f4"), "b": np.ones(1), "c": np.ones(1)}),
    st.just({"a": [[0.0, 0.0], [0.0, 0.0]], "b": np.ones(1)}),
    st.just("a"),
)


def square(vector):
    """The exact square of a vector's norm."""
    return sum(Fraction(float(value)) ** 2 for value in vector)


def test_a_flat_vector_gets_its_arrays_back_each_from_its_own_place():
    model = MODEL | {"c": Form((2,), "float64")}
    sent = {"a": np.float32([[1, 2], [3, 4]]), "b": np.array([5.0]), "c": np.array([6.0, 7.0])}
    back = mechanism.shaped(mechanism.flat(sent, model), model)
    assert list(back) == list(sent)
    for name, array in sent.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


@given(FLAT)
@settings(max_examples=300)
def test_a_clipped_update_is_finite_and_never_longer_than_c(update):
    found = mechanism.clipped(update, CLIP)
    assert np.isfinite(found).all()
    assert square(found) <= Fraction(CLIP) ** 2


@given(WHOLE, st.lists(REPLY, min_size=4, max_size=4), REPLY, st.integers(0, 3))
@settings(max_examples=300)
def test_any_other_reply_of_one_shard_moves_the_sum_by_at_most_2c(sent, replies, other, changed):
    broadcast = mechanism.flat(sent, MODEL)
    neighbours = [other if place == changed else one for place, one in enumerate(replies)]
    one = mechanism.clipped_sum(broadcast, replies, MODEL, CLIP)
    two = mechanism.clipped_sum(broadcast, neighbours, MODEL, CLIP)
    moved = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(one, two, strict=True)]
    assert sum(value**2 for value in moved) <= (2 * Fraction(CLIP)) ** 2


def test_two_opposite_replies_do_move_it_by_nearly_2c():
    far = {"a": np.full((2, 2), 1e6, "f4"), "b": np.full(1, 1e6)}
    back = {name: -value for name, value in far.items()}
    zero = np.zeros(SIZE)
    one = mechanism.clipped_sum(zero, [far, None], MODEL, CLIP)
    two = mechanism.clipped_sum(zero, [back, None], MODEL, CLIP)
    assert np.linalg.norm(one - two) == pytest.approx(2 * CLIP, rel=1e-8)


def test_a_sum_takes_as_much_work_whatever_the_shards_answer(monkeypatch):
    zero = np.zeros(SIZE)
    good = {"a": np.ones((2, 2), "f4"), "b": np.ones(1)}
    bad = [None, {}, {**good, "b": np.array([np.nan])}, {**good, "b": np.array([np.inf])}]
    bad += [{"a": np.zeros((2, 2), "f4"), "b": np.zeros(1)}]
    worked = []
    real = mechanism.clipped
    monkeypatch.setattr(mechanism, "clipped", lambda *given: worked.append(given) or real(*given))
    for replies in ([good] * len(bad), bad):
        worked.clear()
        total = mechanism.clipped_sum(zero, replies, MODEL, CLIP)
        # None is zero or infinite, of which it makes short work.
        assert all(np.isfinite(update).all() and update.any() for update, _ in worked)
        assert len(worked) == len(bad)
    assert not total.any()


def test_the_sum_does_not_depend_on_the_order_of_shards():
    draw = np.random.default_rng(1)
    replies = [
        {"a": draw.normal(size=(2, 2)).astype("f4"), "b": draw.normal(size=1)} for _ in range(4096)
    ]
    zero = np.zeros(SIZE)
    one = mechanism.clipped_sum(zero, replies, MODEL, CLIP)
    assert np.array_equal(one, mechanism.clipped_sum(zero, replies[::-1], MODEL, CLIP))


def test_a_short_update_arrives_as_it_is_to_the_grid():
    update = np.array([0.1, -0.2, 0.0, 0.3, 0.05])
    assert np.abs(mechanism.clipped(update, CLIP) - update).max() <= CLIP * 2.0**-39


class Evil(np.ndarray):
    """An array that would run code of its own."""

    def reshape(self, *_shape):
        """Never called."""
        raise AssertionError("code of a reply was run")


def test_a_subclass_of_an_array_is_not_in_the_form():
    evil = np.zeros((2, 2), "f4").view(Evil)
    assert mechanism.flat({"a": evil, "b": np.zeros(1)}, MODEL) is None


def test_noise_on_the_sum_has_the_deviation_2c_sigma_and_no_other():
    shards, sigma, size = 50, 1.7, 20_000
    deviation = mechanism.SENSITIVITY * CLIP * sigma
    moved = mechanism.noised_mean(np.zeros(size), np.zeros(size), shards, deviation, bytes(32))
    noise = moved * shards
    assert has_scale(noise, 2 * CLIP * sigma)
    assert not has_scale(noise, 2 * CLIP * sigma * 2 / 3)
    assert not has_scale(noise, 2 * CLIP * sigma * 3 / 2)


def test_the_noised_sum_lies_on_a_grid():
    total = np.random.default_rng(2).normal(size=1000)
    moved = mechanism.noised_mean(np.zeros(1000), total, 1, 1.0, bytes(32))
    assert np.array_equal(moved, np.rint(moved * 2**20) / 2**20)


def test_no_two_releases_have_the_same_noise():
    zero = np.zeros(100)
    one, two = (mechanism.noised_mean(zero, zero, 1, 1.0, bytes(32)) for _ in range(2))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.6
