"""Public coordinates: the same for everyone, found again by the auditor, and never frozen."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.reading import ledger_lines as auditor
from dpfedadamw.vectors import sparsification as sparsification_module
from dpfedadamw.vectors.sparsification import Sparsification, sparsification

SIZES = st.integers(1, 300)


@given(size=SIZES, fraction=st.floats(1e-3, 1.0), seed=st.integers(0, 2**53), index=st.integers(0))
@settings(max_examples=80)
def test_a_draw_has_k_different_coordinates_in_order(size, fraction, seed, index):
    sparse = sparsification("random", fraction, size, seed)
    drawn = sparse.draw(index)
    assert len(drawn) == sparse.kept == max(1, round(fraction * size))
    assert (np.diff(drawn) > 0).all()
    assert 0 <= drawn[0] <= drawn[-1] < size


@given(
    size=SIZES,
    fraction=st.floats(1e-3, 1.0),
    seed=st.integers(0, 2**53),
    kind=st.sampled_from(["random", "released-top"]),
    flat=st.booleans(),
)
@settings(max_examples=80)
def test_the_auditor_finds_every_rounds_coordinates_again(size, fraction, seed, kind, flat):
    """Two implementations that share no code; equal moves (`flat`) are ties."""
    sparse = sparsification(kind, fraction, size, seed)
    random = np.random.default_rng(seed)
    chosen, releases = [sparse.draw(0)], []
    for index in range(1, 5):
        moved = np.zeros(sparse.kept) if flat else random.normal(size=sparse.kept)
        releases.append(moved.astype(np.float32))
        renewed = (
            sparse.draw(index)
            if kind == "random"
            else sparse.renew(index, chosen[-1], releases[-1])
        )
        chosen.append(renewed)
    claimed = auditor.Sparsification(kind, size, sparse.kept, seed)
    found = list(auditor.public_choices(claimed, iter([*map(np.float64, releases), None])))
    assert [one.tolist() for one in found] == [one.tolist() for one in chosen]
    content = chosen[-1].astype("<i8").tobytes()
    assert auditor.digest(found[-1]) == hashlib.sha256(content).digest()


def test_every_coordinate_is_drawn_as_often_as_any_other():
    sparse = Sparsification("random", 40, 10, 7)
    counts = np.bincount(np.concatenate([sparse.draw(t) for t in range(2000)]), minlength=40)
    # Each count is binomial (2000, 1/4): standard deviation 19.4; five of them.
    assert np.abs(counts - 500).max() < 97


def test_rounds_and_seeds_draw_differently():
    sparse, other = Sparsification("random", 200, 100, 0), Sparsification("random", 200, 100, 1)
    draws = {tuple(one.draw(t)) for one in (sparse, other) for t in range(20)}
    assert len(draws) == 40
    # Known values: whoever changes the draw changes what old runs are audited against.
    assert Sparsification("random", 12, 5, 3).draw(4).tolist() == [0, 3, 4, 5, 9]


def test_the_largest_half_stays_and_the_rest_is_drawn_from_all_others():
    sparse = Sparsification("released-top", 1000, 6, 1)
    before = np.array([5, 80, 300, 400, 500, 999])
    released = np.array([0.1, -3.0, 0.2, 2.0, -0.3, 1.0], dtype=np.float32)
    after = sparse.renew(9, before, released)
    assert {80, 400, 999} <= set(after.tolist())
    assert len(set(after.tolist())) == 6
    assert set(after.tolist()) != set(before.tolist())


def test_renewal_reaches_every_coordinate():
    """The top k of the last release alone would keep the first k for ever."""
    sparse, seen = Sparsification("released-top", 30, 10, 2), set()
    kept = sparse.draw(0)
    for index in range(1, 40):
        seen |= set(kept.tolist())
        kept = sparse.renew(index, kept, np.ones(10, dtype=np.float32))
    assert seen == set(range(30))


@pytest.mark.parametrize(("fraction", "kept"), [(1.0, 10), (0.4, 4), (0.01, 1), (0.25, 2)])
def test_a_fraction_is_rounded_and_never_to_nothing(fraction, kept):
    assert sparsification("random", fraction, 10, 0).kept == kept
    assert auditor.promised(
        {
            "algorithm": {"sparsification": {"kind": "random", "fraction": fraction}},
            "data": {"seed": 0},
        },
        10,
    ) == auditor.Sparsification("random", 10, kept, 0)


def test_only_random_coordinates_are_scaled_and_only_private_ones_need_noise_everywhere():
    one = {kind: Sparsification(kind, 10, 4, 0) for kind in auditor.KINDS}
    assert [one[kind].scale for kind in one] == [2.5, 1.0, 1.0]
    assert [one[kind].released for kind in one] == [4, 4, 10]


def test_equal_tickets_go_to_the_lower_positions_and_no_more_than_are_wanted():
    tickets = np.array([5, 1, 3, 3, 3, 9], np.uint64)
    for count, kept in ((1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4])):
        assert sparsification_module._smallest(tickets, count).tolist() == kept
