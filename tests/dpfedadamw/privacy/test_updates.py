"""Client level: one client moves the sum by at most C, and the noise on it is σC in every case."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.grid import Grid
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.privacy.updates import (
    clip_update,
    contribute,
    largest_coordinates,
    noise_upload,
    release,
    release_mean,
    spread,
    sum_of_updates,
)
from dpfedadamw.vectors.sparsification import Sparsification
from tests.dpfedadamw.privacy.test_plan import CLIENTS, Clients

CPU = torch.device("cpu")
EXTREMES = st.sampled_from([0.0, 1.0, -1.0, 1e30, -1e30, 1e-30, math.inf, -math.inf, math.nan])
UPDATES = st.lists(st.floats(-1e6, 1e6, width=32) | EXTREMES, min_size=7, max_size=7)


@given(others=st.lists(UPDATES, max_size=5), adversary=UPDATES, norm=st.floats(1e-3, 1e3))
@settings(max_examples=200)
def test_one_client_moves_the_sum_by_at_most_the_clipping_norm(others, adversary, norm):
    def total(updates):
        clipped = [clip_update(torch.tensor(u, dtype=torch.float32), norm).update for u in updates]
        return sum_of_updates(clipped, 7, CPU)

    moved = (total([*others, adversary]) - total(others)).norm()
    # Sums are float64, so what is left is their rounding.
    assert float(moved) <= norm * (1 + 1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_contributes_exactly_nothing(value):
    clipped = clip_update(torch.tensor([1.0, value, 3.0]), 1.0)
    assert (clipped.update == 0).all()
    assert clipped.clipped_norm == 0.0
    assert not math.isfinite(clipped.raw_norm)


def test_clipping_keeps_the_direction_and_is_over_the_whole_vector():
    update = torch.randn(1000)
    clipped = clip_update(update, 0.5)
    torch.testing.assert_close(clipped.update / clipped.update.norm(), update / update.norm())
    assert clipped.clipped_norm == pytest.approx(0.5, rel=1e-5)
    assert clip_update(update, 1e6).update is update


@pytest.mark.parametrize("participants", [1, 4, 25])
def test_the_clients_shares_of_noise_add_up_to_the_servers(participants):
    size, deviation = 40_000, 3.0
    randomness = ReproducibleRandomness(participants)
    nothing = clip_update(torch.zeros(size), 1.0)
    uploads = [
        noise_upload(nothing, deviation, participants, randomness.stream("u", 0, i), "box-muller")
        for i in range(participants)
    ]
    total, mean = release_mean(
        sum_of_updates(uploads, size, CPU), deviation, 10.0, None, "box-muller"
    )
    # Standard deviation of the ratio: sqrt(1/(2·40000)) = 0.35 %; five of them.
    assert float(total.std()) == pytest.approx(deviation, rel=0.018)
    single = deviation / math.sqrt(participants)
    assert float(uploads[0].std()) == pytest.approx(single, rel=0.018)
    torch.testing.assert_close(mean, total / 10.0)


def test_an_empty_round_releases_noise_all_the_same():
    stream = ReproducibleRandomness(1).stream("r", 0, -1)
    total, _ = release_mean(sum_of_updates([], 40_000, CPU), 2.0, 5.0, stream, "box-muller")
    assert float(total.std()) == pytest.approx(2.0, rel=0.018)


SPARSE = [
    Sparsification(kind, 7, kept, 0)
    for kind in ("random", "released-top", "local-top")
    for kept in (3, 1, 7)
]


# Of each kind the first in every test run, with three of seven coordinates.
@pytest.mark.sampled(3)
@pytest.mark.parametrize("sparse", SPARSE)
@given(
    others=st.lists(UPDATES, max_size=4),
    adversary=UPDATES,
    norm=st.floats(1e-3, 1e3),
    index=st.integers(0, 50),
)
@settings(max_examples=35)
def test_one_sparse_client_moves_the_sum_by_at_most_the_clipping_norm(
    sparse, others, adversary, norm, index
):
    kept = torch.from_numpy(sparse.draw(index)) if sparse.public else None
    size = len(kept) if kept is not None else 7

    def total(updates):
        clipped = [
            contribute(torch.tensor(u, dtype=torch.float32), norm, sparse, kept).update
            for u in updates
        ]
        return spread(sum_of_updates(clipped, size, CPU), kept, 7)

    whole, without = total([*others, adversary]), total(others)
    # Sums are float64, so what is left is their rounding.
    assert float((whole - without).norm()) <= norm * (1 + 1e-6)
    if kept is not None:
        outside = whole.clone()
        outside[kept] = 0.0
        assert not outside.any(), "off public coordinates nothing is released"


def test_scaling_comes_before_clipping():
    sparse = Sparsification("random", 4, 2, 0)
    kept = torch.tensor([1, 3])
    clipped = contribute(torch.tensor([9.0, 3.0, 9.0, 4.0]), 1.0, sparse, kept)
    assert clipped.raw_norm == pytest.approx(10.0), "d/k = 2 times the norm 5 of what is kept"
    assert clipped.clipped_norm <= 1.0
    torch.testing.assert_close(clipped.update, torch.tensor([0.6, 0.8]))
    short = contribute(torch.tensor([9.0, 0.03, 9.0, 0.04]), 1.0, sparse, kept)
    torch.testing.assert_close(short.update, torch.tensor([0.06, 0.08]))


@pytest.mark.parametrize("kind", ["random", "released-top", "local-top"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 1])
def test_a_sparse_update_that_is_not_finite_anywhere_contributes_exactly_nothing(kind, value, at):
    sparse = Sparsification(kind, 3, 1, 0)
    update = torch.tensor([1.0, 2.0, 3.0])
    update[at] = value
    kept = torch.tensor([1]) if sparse.public else None
    clipped = contribute(update, 1.0, sparse, kept)
    assert (clipped.update == 0).all()
    assert not math.isfinite(clipped.raw_norm)


def test_the_largest_coordinates_are_in_order_and_ties_go_to_the_lower():
    assert largest_coordinates(torch.tensor([1.0, -5.0, 2.0, 5.0]), 2).tolist() == [1, 3]
    assert largest_coordinates(torch.tensor([1.0, 1.0, 1.0]), 2).tolist() == [0, 1]


def test_what_is_clipped_ends_four_steps_of_float32_below_the_norm():
    """Rounding a vector to float32 adds a 2^-24th to its norm at most; the margin is 2^-22."""
    clipped = clip_update(torch.tensor([4.0]), 1.0)
    assert clipped.update.tolist() == [1.0 - 2.0**-22]
    assert (clipped.raw_norm, clipped.clipped_norm) == (4.0, 1.0 - 2.0**-22)
    assert clipped.update.dtype == torch.float32


def test_a_norm_that_is_the_clipping_norm_is_left_as_it_is():
    update = torch.tensor([3.0, 4.0])
    clipped = clip_update(update, 5.0)
    assert clipped.update is update
    assert (clipped.raw_norm, clipped.clipped_norm) == (5.0, 5.0)
    above = clip_update(update, math.nextafter(5.0, 0.0))
    assert above.update is not update
    assert above.clipped_norm < 5.0


def test_norms_are_taken_in_float64():
    """To float32 the norm of (1, 2^-13) is 1, and an update above C would pass unclipped."""
    update = torch.tensor([1.0, 2.0**-13])
    clipped = clip_update(update, 1.0)
    assert clipped.raw_norm == math.sqrt(1.0 + 2.0**-26)
    assert clipped.update is not update
    exact = math.hypot(*clipped.update.tolist())
    assert clipped.clipped_norm == pytest.approx(exact, rel=1e-15)
    assert clipped.clipped_norm != float(torch.tensor(exact, dtype=torch.float32))
    # Squares that float32 does not hold are no reason to drop an update.
    large = clip_update(torch.tensor([3e30, 4e30]), 1.0)
    torch.testing.assert_close(large.update, torch.tensor([0.6, 0.8]))


def test_updates_are_added_up_in_float64_where_they_lie():
    updates = [torch.tensor([1.0, 2.0]), torch.tensor([2.0**-30, -5.0])]
    total = sum_of_updates(updates, 2, CPU)
    assert total.dtype == torch.float64
    assert total.tolist() == [1.0 + 2.0**-30, -3.0]
    nothing = sum_of_updates([], 3, torch.device("meta"))
    assert (nothing.device.type, nothing.dtype, len(nothing)) == ("meta", torch.float64, 3)


def test_infinity_is_larger_than_the_largest_number_and_so_is_what_is_none():
    most = torch.finfo(torch.float32).max
    for worst in (math.inf, -math.inf, math.nan):
        assert largest_coordinates(torch.tensor([most, worst]), 1).tolist() == [1]
    assert largest_coordinates(torch.tensor([0.0, -3.0, 2.0]), 2).tolist() == [1, 2]
    assert largest_coordinates(torch.tensor([1.0]), 0).tolist() == []


def test_private_coordinates_are_the_largest_and_the_rest_is_zero():
    sparse = Sparsification("local-top", 4, 2, 0)
    clipped = contribute(torch.tensor([0.1, -3.0, 0.2, 4.0]), 10.0, sparse)
    assert clipped.update.tolist() == [0.0, -3.0, 0.0, 4.0]
    assert clipped.raw_norm == 5.0
    whole = contribute(torch.tensor([0.3, 0.4]), 10.0)
    assert whole.update.tolist() == torch.tensor([0.3, 0.4]).tolist()


def test_public_coordinates_of_the_largest_are_not_scaled():
    kept = torch.tensor([0, 3])
    clipped = contribute(
        torch.tensor([3.0, 9.0, 9.0, 4.0]), 10.0, Sparsification("released-top", 4, 2, 0), kept
    )
    assert clipped.update.tolist() == [3.0, 4.0]


def test_a_sum_is_spread_over_its_coordinates():
    values = torch.tensor([5.0, 6.0], dtype=torch.float64)
    assert spread(values, None, 2) is values
    whole = spread(values, torch.tensor([3, 1]), 4)
    assert whole.tolist() == [0.0, 6.0, 0.0, 5.0]
    assert whole.dtype == torch.float64


@pytest.mark.parametrize("method", ["box-muller", "four-draw", "on-device"])
@pytest.mark.parametrize("participants", [1, 4, 9])
def test_a_share_of_noise_is_that_of_the_clients_stream_and_number(method, participants):
    clipped = clip_update(torch.tensor([0.5, -0.25, 0.1]), 1.0)
    found = noise_upload(clipped, 6.0, participants, Stream(bytes(32)), method)
    share = {1: 6.0, 4: 3.0, 9: 2.0}[participants]
    expected = add_gaussian_noise(clipped.update, share, Stream(bytes(32)), method)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("method", ["box-muller", "four-draw", "on-device"])
def test_the_servers_mean_is_its_noised_sum_over_the_expected_clients(method):
    total = torch.tensor([0.5, -0.25, 0.1], dtype=torch.float64)
    expected = add_gaussian_noise(total, 3.0, Stream(bytes(32)), method)
    noised, mean = release_mean(total, 3.0, 8.0, Stream(bytes(32)), method)
    assert torch.equal(noised, expected)
    assert torch.equal(mean, expected / 8.0)
    same, mean = release_mean(total, 3.0, 8.0, None, method)
    assert same is total
    assert torch.equal(mean, total / 8.0)


class OnGrid(Clients):
    grid = Grid(update=14)


@pytest.mark.parametrize("adds", ["server", "clients"])
def test_a_round_is_not_released_without_the_noise_that_its_plan_has(adds):
    plan = replace(CLIENTS, unit=OnGrid(), noise_added_by=adds)
    with pytest.raises(PrivacyError, match="the noise of a round is missing"):
        release(plan, [torch.ones(7)], torch.zeros(7), None)


def test_a_plan_without_noise_needs_none():
    plan = replace(CLIENTS, unit=OnGrid(), noise_added_by="server", noise_multiplier=0.0)
    found = release(plan, [torch.ones(7)], torch.zeros(7), None)
    assert found.mean.tolist() == [0.5] * 7
    little = replace(plan, noise_multiplier=1e-9)
    with pytest.raises(PrivacyError, match="the noise of a round is missing"):
        release(little, [torch.ones(7)], torch.zeros(7), None)


def test_a_release_is_the_noised_sum_over_the_public_number_of_clients_on_the_grid():
    plan = replace(CLIENTS, unit=OnGrid(), noise_added_by="server")
    uploads = [torch.full((7,), 0.1), torch.full((7,), 0.2), torch.full((7,), 0.4)]
    found = release(plan, uploads, torch.zeros(7), ReproducibleRandomness(4).stream("n", 0, 0))
    clean = torch.stack(uploads).double().sum(0)
    source = ReproducibleRandomness(4).stream("n", 0, 0)
    noisy = add_gaussian_noise(clean, 1.5, source, plan.gaussian_sampler)
    torch.testing.assert_close(found.noisy.double(), noisy.double(), rtol=1e-6, atol=1e-6)
    # By two clients, as the plan says, although three came; 14 significant bits are left.
    torch.testing.assert_close(found.mean.double(), noisy.double() / 2, rtol=2.0**-13, atol=0)
    assert torch.equal(found.mean.view(torch.int32) & 1023, torch.zeros(7, dtype=torch.int32))
    assert found.by_server


def test_where_clients_add_the_noise_the_server_adds_it_to_an_empty_round_alone():
    plan = replace(CLIENTS, unit=OnGrid(), noise_added_by="clients")
    noise = ReproducibleRandomness(4).stream("n", 0, 0)
    some = release(plan, [torch.ones(7)], torch.zeros(7), noise)
    assert (some.by_server, some.mean.tolist()) == (False, [0.5] * 7)
    none = release(plan, [], torch.zeros(7), noise)
    assert none.by_server
    assert (none.mean != 0).all()
