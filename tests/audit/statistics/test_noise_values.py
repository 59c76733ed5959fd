"""Laws of noise: correct noise fails no oftener than stated, and what each law sees.

Correlations of every pair, of either sign; a verdict on each quantile, consistent with the
Kolmogorov-Smirnov test; and laws of single values.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from audit.checks import noise
from audit.statistics import noise_values
from audit.statistics.intervals import (
    correlation_threshold,
    kolmogorov_p_value,
    uniform_p_value,
)
from audit.statistics.noise_values import (
    any_repeated,
    coincidence_p_value,
    coordinate_p_values,
    extremes,
    halves_p_value,
    kolmogorov_distance,
    largest_correlation,
    pairs_alike,
    quantile_verdicts,
    silent_p_values,
    tail_levels,
    zeros_expected,
)
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.noise.streams import Stream

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
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    assert largest_correlation(rows) == pytest.approx(0.6)


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


ALPHA = 1.5e-4


@pytest.mark.parametrize("count", [200, 4_999, 20_000])
def test_the_distance_is_where_the_tests_p_value_is_alpha(count):
    reach = kolmogorov_distance(count, ALPHA)
    law = stats.kstwo.sf(reach, count) if count <= 5000 else stats.kstwobign.sf(reach * count**0.5)
    assert law == pytest.approx(ALPHA, rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [1.0, 1.02, 0.97, 1.5])
def test_what_the_test_accepts_is_inside_at_every_level(seed, scale):
    """Deterministic: whatever the draw, acceptance implies that all quantiles are inside."""
    values = scale * np.random.default_rng(seed).standard_normal(3_000)
    found = quantile_verdicts(values, ALPHA)
    if kolmogorov_p_value(values) >= ALPHA:
        assert set(found["verdicts"]) == {"inside"}


@pytest.mark.parametrize(
    ("change", "upper", "lower"),
    [
        (lambda x: 1.5 * x, "above", "below"),
        (lambda x: x / 1.5, "below", "above"),
        (lambda x: x + 0.3, "above", "above"),
        (lambda x: x - 0.3, "below", "below"),
    ],
)
def test_a_wrong_law_is_told_with_its_side(change, upper, lower):
    """At 20,000 values each of these faults is missed with probability below 1e-9."""
    values = change(np.random.default_rng(1).standard_normal(20_000))
    verdicts = quantile_verdicts(values, ALPHA)["verdicts"]
    assert verdicts[-1] == upper
    assert verdicts[0] == lower


def test_nothing_but_the_verdicts_depends_on_the_noise():
    """Two correct draws of one size leave the same bytes, so the noise cannot be read off."""
    draws = (np.random.default_rng(seed).standard_normal((40, 64)) for seed in (1, 2))
    first, second = (json.dumps(quantile_verdicts(draw, ALPHA)) for draw in draws)
    assert first == second
    # And the shape is nothing to them.
    wide = 1.3 * drawn(1, 40, 64)
    assert quantile_verdicts(wide, ALPHA) == quantile_verdicts(wide.ravel(), ALPHA)


def test_few_values_leave_only_the_levels_that_can_be_judged():
    found = quantile_verdicts(np.random.default_rng(1).standard_normal(50), ALPHA)
    assert all(np.isfinite(found["low"] + found["high"]))
    assert len({len(rows) for rows in found.values()}) == 1
    assert quantile_verdicts(np.zeros(3), ALPHA)["levels"] == []


@pytest.mark.parametrize("times", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_p_values_of_correct_noise_are_as_rare_as_they_say(times):
    rng, size, vectors = np.random.default_rng(1), 300, 12
    found: dict[str, list[float]] = {}
    for _ in range(times):
        noise = rng.standard_normal((vectors, size))
        largest = extremes(np.abs(noise).max(axis=1), np.full(vectors, float(size)))
        spread = coordinate_p_values(np.square(noise).sum(axis=0), np.full(size, vectors))
        rows = np.square(noise).sum(axis=1)
        together = {
            **vars(largest),
            **{f"coordinates {name}": value for name, value in vars(spread).items()},
            "halves": halves_p_value(rows, np.full(vectors, float(size))),
            "alike": coincidence_p_value(noise),
        }
        for name, value in together.items():
            found.setdefault(name, []).append(value)
    for name, values in found.items():
        for level in (0.01, 0.05):
            share = np.mean(np.asarray(values) < level)
            # Within four standard deviations of the level; fewer is right as well.
            assert share < level + 4 * (level * (1 - level) / times) ** 0.5, (name, level, share)


def test_noise_of_the_engine_does_not_repeat_itself_by_its_own_grid():
    # Where the sum without noise is 0 the noise lies on the grid itself.
    stream = Stream(bytes(range(32)))
    for total in (0.0, 40.0):
        clean = total * (np.arange(200_000) % 7 == 0)
        import torch

        sums = torch.from_numpy(clean.astype(np.float32))
        noisy = add_gaussian_noise(sums, 1.0, stream, dtype=torch.float32)
        noise = (noisy.double() - sums.double()).numpy()
        assert coincidence_p_value(noise, 2.0**-23 * total) > 1e-4


def test_zeros_that_rounding_leaves_are_no_oftener_than_expected():
    import torch

    stream, size = Stream(bytes(32)), 4_000_000
    sums = torch.full((size,), 50.0)
    noisy = add_gaussian_noise(sums, 1.0, stream, dtype=torch.float32)
    zeros = int((noisy == sums).sum())
    norm = 50.0 * size**0.5
    expected = float(zeros_expected(np.array([float(size)]), np.array([norm]))[0])
    assert 0 < zeros < expected
    assert silent_p_values(np.array([zeros]), np.array([expected]))[1] > 0.1


@pytest.mark.parametrize("side", ["first", "second"])
def test_halves_that_differ_are_seen_whichever_is_larger(side):
    squares = np.array([1.2, 1.2, 9.0, 0.8, 0.8]) * 1000
    if side == "second":
        squares = squares[::-1]
    # The middle one of an odd number belongs to neither half.
    assert halves_p_value(squares, np.full(5, 1000.0)) < 1e-9
    assert halves_p_value(np.array([5.0]), np.array([5.0])) == 1.0
    assert halves_p_value(np.zeros(4), np.full(4, 10.0)) == 1.0


def test_values_beyond_a_gaussians_reach_are_too_large_and_not_too_small():
    found = extremes(np.array([3.0, 3.2, 12.0]), np.full(3, 500.0))
    assert found.too_large < 1e-20
    assert found.too_small == pytest.approx(1.0)


def test_coordinates_that_got_noise_at_different_times_are_judged_by_their_own_number():
    rng = np.random.default_rng(8)
    degrees = rng.integers(1, 40, 5000)
    squares = rng.chisquare(degrees)
    spread = coordinate_p_values(squares, degrees)
    assert min(spread.low, spread.high, spread.shape) > 1e-3
    assert coordinate_p_values(squares, degrees + 8).shape < 1e-9


def test_pairs_alike_are_as_many_as_two_and_three_independent_values_make() -> None:
    """2w·∫φ² of two, and 4w²·∫φ³ of three that share one, less the square of the first."""
    width, mean, variance = pairs_alike(5, 0.01)
    assert width == 0.08
    chance = 0.08 / np.sqrt(np.pi)
    assert mean == pytest.approx(10 * chance)
    shared = 4 * 0.08**2 / (2 * np.pi * np.sqrt(3)) - chance**2
    # Ten pairs, each of which shares a value with six others.
    assert variance == pytest.approx(10 * chance * (1 - chance) + 10 * 6 * shared)
    assert pairs_alike(5)[0] == 2.0**-17


def test_more_noise_vanishes_where_a_sum_was_put_on_the_public_grid() -> None:
    plain, gridded = (
        zeros_expected(np.array([100.0]), np.array([3.0]), gridded=on) for on in (False, True)
    )
    assert plain == pytest.approx(100 * 2.0**-20 + 2.0**-22 * 10 * 3)
    assert gridded - plain == pytest.approx(2.0**-15 * 10 * 3)


def test_so_many_zeros_or_more_are_as_likely_as_a_poisson_law_has_it() -> None:
    each, together = silent_p_values(np.array([0, 3]), np.array([0.5, 1.0]))
    assert each.tolist() == pytest.approx([1.0, stats.poisson.sf(2, 1.0)])
    assert together == pytest.approx(stats.poisson.sf(2, 1.5))


def test_the_levels_of_quantiles_rise_and_are_alike_on_both_sides() -> None:
    levels = noise_values._LEVELS
    assert list(levels) == sorted(levels)
    assert [1.0 - level for level in reversed(levels)] == pytest.approx(list(levels))


def test_a_quantile_is_the_value_at_its_place_and_its_interval_the_reach_of_the_test() -> None:
    """A thousand values, of which the first so many are far below and all others far above."""
    count = 1000
    reach = (1.0 + 1e-4) * kolmogorov_distance(count, ALPHA)
    judged = [level for level in noise_values._LEVELS if 2 * reach < min(level, 1 - level)]
    assert 10 < len(judged) < len(noise_values._LEVELS)
    for below in range(count // 2 - 60, count // 2 + 60):
        found = quantile_verdicts(np.where(np.arange(count) < below, -9.0, 9.0), ALPHA)
        due = ["below" if round(level * count) <= below else "above" for level in judged]
        assert found["verdicts"] == due
    assert found["levels"] == [round(level, 4) for level in judged]
    assert found["expected"] == pytest.approx(stats.norm.ppf(judged))
    for end, side in (("low", -1), ("high", 1)):
        assert found[end] == pytest.approx(stats.norm.ppf(np.array(judged) + side * reach))
    edges = quantile_verdicts(np.full(count, found["high"][0]), ALPHA)
    assert edges["verdicts"][0] == "inside"
    edges = quantile_verdicts(np.full(count, found["low"][-1]), ALPHA)
    assert edges["verdicts"][-1] == "inside"


def test_the_largest_magnitudes_have_the_laws_of_maxima_of_normal_numbers() -> None:
    largest, numbers = np.array([1.0, 2.5, 3.0]), np.array([3.0, 10.0, 40.0])
    each = (2.0 * stats.norm.cdf(largest) - 1.0) ** numbers
    whole = (2.0 * stats.norm.cdf(3.0) - 1.0) ** 53
    found = extremes(largest, numbers)
    assert found.too_small == pytest.approx(whole)
    assert found.too_large == pytest.approx(1.0 - whole)
    assert found.shape == pytest.approx(uniform_p_value(each))
    # Twice minus the logarithm of their product is a χ² of two degrees each.
    assert found.lightness == pytest.approx(stats.chi2.sf(-2.0 * np.log(each.prod()), 6))


def test_sums_beyond_a_tail_are_counted_on_either_side_with_their_own_degrees() -> None:
    """Of 60 coordinates some lie at a chance of 5e-4, and all others in the middle."""
    assert tail_levels(60) == (1e-2, 1e-3, 1e-4, 1e-6, 1e-6 / 60)
    degrees = np.where(np.arange(60) % 2, 3, 8)
    for few in (1, 2, 3):
        chances = np.linspace(0.2, 0.8, 60)
        chances[:few] = 5e-4
        # Both the level of 1e-2 and that of 1e-3 hold them; of the latter they are rarer.
        due = 5 * stats.binom.sf(few - 1, 60, 1e-3)
        low = coordinate_p_values(stats.chi2.ppf(chances, degrees), degrees)
        assert (low.low, low.high) == (pytest.approx(due), 1.0)
        assert low.shape == pytest.approx(uniform_p_value(chances), rel=1e-6)
        high = coordinate_p_values(stats.chi2.isf(chances, degrees), degrees)
        assert (high.low, high.high) == (1.0, pytest.approx(due))


def test_of_very_many_coordinates_every_so_manieth_decides_the_shape(monkeypatch) -> None:
    monkeypatch.setattr(noise_values, "_MOST_COMPARED", 10)
    chances = np.linspace(0.05, 0.95, 25) ** 1.2
    degrees = np.arange(1, 26)
    found = coordinate_p_values(stats.chi2.ppf(chances, degrees), degrees)
    assert found.shape == pytest.approx(uniform_p_value(chances[::3]), rel=1e-6)


def test_halves_share_their_sums_as_a_beta_law_has_it() -> None:
    squares, degrees = np.array([3.0, 1.0, 9.0, 2.5, 5.0]), np.array([4.0, 2.0, 7.0, 2.0, 6.0])
    due = 2.0 * stats.beta.cdf(4.0 / 11.5, 3.0, 4.0)
    assert halves_p_value(squares, degrees) == pytest.approx(due)
    assert halves_p_value(squares[::-1], degrees[::-1]) == pytest.approx(due)
    # Two are enough; where one half has no numbers nothing is compared.
    two = 2.0 * stats.f.sf((8.0 / 2.0) / (1.0 / 4.0), 2, 4)
    for scale in (1.0, 1e-4):
        pair = scale * np.array([8.0, 1.0])
        assert halves_p_value(pair, np.array([2.0, 4.0])) == pytest.approx(two)
    assert halves_p_value(np.array([8.0, 1.0]), np.array([2.0, 0.0])) == 1.0


@pytest.mark.parametrize(("copies", "alike"), [(1, 0), (2, 1), (3, 3)])
def test_each_pair_of_equal_values_is_alike(copies: int, alike: int) -> None:
    """Fifty values a tenth apart, each so many times: three of a kind are three pairs."""
    values = np.repeat(np.arange(50) / 10.0, copies)
    for resolution in (0.0, 1e-3):
        _, mean, variance = pairs_alike(len(values), resolution)
        due = stats.gamma.sf(50.0 * alike, mean**2 / variance, scale=variance / mean)
        found = coincidence_p_value(values.reshape(2, -1), resolution)
        assert found == pytest.approx(due, rel=1e-9, abs=0.0)
    assert coincidence_p_value(values, 0.0) == coincidence_p_value(values)
    assert coincidence_p_value(values[:1]) == 1.0


def test_two_values_alike_are_rarer_than_two_that_are_not() -> None:
    assert coincidence_p_value(np.array([0.3, 0.3])) < 1e-4
    assert coincidence_p_value(np.array([0.3, 0.4])) == 1.0


@pytest.mark.parametrize("length", [3, 15, 16, 40])
def test_repeats_are_told_from_what_chance_makes_at_every_length(length: int) -> None:
    rows = drawn(9, 60, length)
    assert not any_repeated(rows, 1e-6)
    # Nearly the same is not the same where few coordinates are known.
    rows[50] = with_correlation(rows[3], 1.0 - 1e-4, seed=4)
    rows[50] *= rows[3][0] / rows[50][0]
    rows[50][:2] = rows[3][:2]
    assert any_repeated(rows, 1e-6) == (length >= 16)
    rows[50] = -rows[3]
    assert any_repeated(rows, 1e-6)
    # Where the first coordinate is 0, a vector and its negative are still of one direction.
    rows[[3, 50], 0] = 0.0
    assert any_repeated(rows, 1e-6)


def test_long_rows_are_repeats_from_halfway_between_chance_and_the_same_on() -> None:
    """Two rows that begin alike, so that they are neighbours, and agree as much as is chosen."""
    rows = drawn(9, 60, 40)
    far = (1.0 + correlation_threshold(40, 3 * 60, 1e-6)) / 2.0
    first = rows[3, 2:] * 10.0 / np.linalg.norm(rows[3, 2:])
    for agreement, found in ((far - 0.002, False), (far + 0.002, True)):
        share = (agreement * 102.0 - 2.0) / 100.0
        for place, rest in ((3, first), (50, with_correlation(first, share, seed=4))):
            rows[place] = np.concatenate([[1.0, 1.0], rest])
        assert any_repeated(rows, 1e-6) == found


def test_values_are_moved_by_chance_before_they_are_counted() -> None:
    """Of 200 pairs that lie as good as the tolerance apart about half are alike."""
    width = pairs_alike(400)[0]
    values = (np.arange(200)[:, None] / 10.0 + np.array([0.0, 0.999 * width])).ravel()
    _, mean, variance = pairs_alike(400)
    fewer, more = (
        stats.gamma.sf(count, mean**2 / variance, scale=variance / mean) for count in (70, 130)
    )
    assert more < coincidence_p_value(values) < fewer
