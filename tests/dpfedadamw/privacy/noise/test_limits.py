"""Where noise ends to hide a sum, how blocks of numbers are cut, and which library draws them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise import streams
from dpfedadamw.privacy.noise.noise import NoiseAhead, add_gaussian_noise, grid_spacing
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.privacy.noise.streams import Stream

# 2^32 standard deviations: beyond, a float64 sum has no bits left below the grid.
DEVIATION = 0.5
LIMIT = 2.0**31


def stream() -> Stream:
    return ReproducibleRandomness(6).stream("limits", 0, 0)


def at_once(total: torch.Tensor) -> torch.Tensor:
    return add_gaussian_noise(total, DEVIATION, stream())


def ahead(total: torch.Tensor) -> torch.Tensor:
    return NoiseAhead(len(total), stream()).add(total, DEVIATION)


@pytest.mark.parametrize("add", [at_once, ahead])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sum_that_noise_can_hide_is_exact(add, sign):
    total = torch.zeros(5, dtype=torch.float64)
    total[2] = sign * np.nextafter(LIMIT, 0.0)
    assert torch.isfinite(add(total)).all()
    total[2] = sign * LIMIT
    with pytest.raises(PrivacyError, match="nothing is released"):
        add(total)


def test_the_grid_is_a_power_of_two_just_below_a_millionth_of_the_deviation():
    assert grid_spacing(1.0) == 2.0**-20
    assert grid_spacing(np.nextafter(1.0, 0.0)) == 2.0**-21
    assert grid_spacing(3.0) == 2.0**-19
    for accepted in (1e-100, 1e100):
        assert 2.0**-21 * accepted < grid_spacing(accepted) <= 2.0**-20 * accepted
    for refused in (np.nextafter(1e-100, 0.0), np.nextafter(1e100, np.inf)):
        with pytest.raises(PrivacyError, match="standard deviation"):
            grid_spacing(refused)


@pytest.mark.parametrize("rest", [1, 2, 9])
def test_a_last_block_that_is_not_full_uses_as_many_words_as_it_needs(rest):
    """Two words make two numbers, half a block apart; an odd last one uses up its pair."""
    whole = 2 * streams._PAIRS
    drawn = Stream(bytes(32)).normal(whole + rest)
    source = Stream(bytes(32))
    assert np.array_equal(drawn[:whole], source.normal(whole))
    pairs = (rest + 1) // 2
    words = source.words(2 * pairs)
    space = streams._Workspace(pairs)
    space.raw[: 16 * pairs] = words.astype("<u8").tobytes()
    out = np.empty(2 * pairs)
    space.box_muller(pairs, out)
    assert np.array_equal(drawn[whole:], out[:rest])


@pytest.mark.parametrize(
    ("platform", "found", "vectors"),
    [
        ("linux", ["SSE2", "AVX512_SKX"], True),
        ("linux", ["X86_V4"], True),
        ("linux", ["AVX2"], False),
        ("darwin", ["AVX512_SKX"], False),
    ],
)
def test_numpys_tangent_is_taken_where_it_is_the_fast_one(platform, found, vectors, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(np, "show_config", lambda mode: {"SIMD Extensions": {"found": found}})
    assert streams._numpy_has_vectors() is vectors
    monkeypatch.setattr(np, "show_config", lambda mode: {})
    assert streams._numpy_has_vectors() is False
