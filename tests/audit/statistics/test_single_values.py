"""Laws of single values: correct noise fails no oftener than stated, and what each sees."""

from __future__ import annotations

import numpy as np
import pytest

from audit.statistics.noise_values import (
    coincidence_p_value,
    coordinate_p_values,
    extremes,
    halves_p_value,
    silent_p_values,
    zeros_expected,
)
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.noise.streams import Stream


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
