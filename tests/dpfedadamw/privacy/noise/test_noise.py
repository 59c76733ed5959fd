"""The noise: of the right scale, new each time, on the grid, in both modes."""

from __future__ import annotations

import math
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise.noise import (
    Method,
    NoiseAhead,
    add_gaussian_noise,
    grid_spacing,
    normal_numbers,
)
from dpfedadamw.privacy.noise.randomness import (
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.profiling import profiled

COORDINATES = 100_000
# False alarms: release noise differs in every run of this file, so each check may alarm on right
# noise with this probability. At 10^5 coordinates the interval is then ±1.1 % of the scale.
FALSE_ALARM = 1e-6

METHODS: list[Method] = ["box-muller", "four-draw", "on-device"]


def sources() -> list[RandomSource]:
    return [ReleaseRandomness(), ReproducibleRandomness(5)]


def scale_is_accepted(noise: NDArray[np.float64], scale: float) -> bool:
    """Two-sided chi-square test of N(0, scale²) with the false alarm rate above."""
    total = float(np.sum((noise / scale) ** 2))
    tail = float(stats.chi2.cdf(total, noise.size))
    return FALSE_ALARM / 2 <= tail <= 1 - FALSE_ALARM / 2


def looks_reused(one: NDArray[np.float64], two: NDArray[np.float64]) -> bool:
    """Correlation beyond what independent noise shows with the false alarm rate above."""
    limit = stats.norm.ppf(1 - FALSE_ALARM / 2) / math.sqrt(one.size)
    return bool(abs(np.corrcoef(one, two)[0, 1]) > limit)


def noise_of(source: RandomSource, scale: float, method: Method = "box-muller") -> object:
    zeros = torch.zeros(COORDINATES)
    return add_gaussian_noise(zeros, scale, source.stream("noise", 0, 0), method).numpy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", [0, 1], ids=["release", "reproducible"])
def test_the_scale_is_accepted_and_two_thirds_or_three_halves_of_it_are_not(
    mode: int, method: Method
) -> None:
    scale = 0.37
    for factor, accepted in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        noise = np.asarray(noise_of(sources()[mode], factor * scale, method))
        assert scale_is_accepted(noise, scale) is accepted


@pytest.mark.parametrize("mode", [0, 1], ids=["release", "reproducible"])
def test_the_noise_is_gaussian_around_the_sum(mode: int) -> None:
    total = torch.linspace(-3, 3, COORDINATES)
    noisy = add_gaussian_noise(total, 2.0, sources()[mode].stream("noise", 0, 0))
    noise = (noisy - total.double()).numpy() / 2.0
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM
    assert abs(noise.mean()) < 5 / math.sqrt(COORDINATES)
    assert not looks_reused(noise, total.numpy().astype(np.float64))


@pytest.mark.parametrize("mode", [0, 1], ids=["release", "reproducible"])
def test_noise_is_not_reused_across_steps_rounds_or_clients(mode: int) -> None:
    source = sources()[mode]
    zeros = torch.zeros(20_000)
    drawn = []
    for round in range(2):
        for client in range(3):
            stream = source.stream("noise", round, client)
            drawn += [add_gaussian_noise(zeros, 1.0, stream).numpy() for _ in range(2)]
    pairs = [(i, j) for i in range(len(drawn)) for j in range(i)]
    assert not any(looks_reused(drawn[i], drawn[j]) for i, j in pairs)
    # The same check finds noise that shares a tenth of its variance with another.
    tainted = math.sqrt(0.9) * drawn[0] + math.sqrt(0.1) * drawn[1]
    assert looks_reused(tainted, drawn[1])


def test_reproducible_noise_repeats_bit_for_bit_and_release_noise_never() -> None:
    one, two = (noise_of(ReproducibleRandomness(9), 1.0) for _ in range(2))
    assert np.array_equal(np.asarray(one), np.asarray(two))
    one, two = (noise_of(ReleaseRandomness(), 1.0) for _ in range(2))
    assert not looks_reused(np.asarray(one), np.asarray(two))


@pytest.mark.parametrize("scale", [1e-8, 0.001, 0.3, 1.0, 1.5, 2.0, 700.0])
def test_every_released_value_is_a_multiple_of_the_grid(scale: float) -> None:
    spacing = grid_spacing(scale)
    assert math.frexp(spacing)[0] == 0.5  # a power of two …
    assert scale * 2.0**-21 < spacing <= scale * 2.0**-20  # … at or below 2^-20 of the scale
    total = torch.randn(50_000, generator=torch.Generator().manual_seed(1)) * 10 * scale
    noisy = add_gaussian_noise(total, scale, ReproducibleRandomness(1).stream("noise", 0, 0))
    steps = noisy.numpy() / spacing
    assert np.array_equal(steps, np.rint(steps))
    # All low bits of the step count are in use: the grid is not coarser than it says.
    assert 0.48 < np.mean(steps.astype(np.int64) & 1) < 0.52


def test_rounding_hides_which_float_the_sum_was() -> None:
    # Without the grid the low bits of a float64 sum tell 1 + noise from 0 + noise, because the sum
    # inherits the coarser precision of its larger term (Mironov 2012). On the grid both are alike.
    spacing = grid_spacing(1.0)
    for total in (0.0, 1.0, 1.0 + 2**-23, 1e-30, 1000.1):
        vector = torch.full((2_000,), total)
        noisy = add_gaussian_noise(vector, 1.0, ReproducibleRandomness(2).stream("noise", 0, 0))
        remainders = np.unique(np.remainder(noisy.numpy(), spacing))
        assert np.array_equal(remainders, [0.0])


def test_casting_to_float32_changes_nothing_within_eight_standard_deviations() -> None:
    # 2^24 grid points of at least 2^-21 standard deviations reach to 8 of them, and float32 has 24
    # bits: below that the cast is exact.
    noisy = np.asarray(noise_of(ReproducibleRandomness(4), 1.99))
    assert np.abs(noisy).max() < 8 * 1.99
    assert np.array_equal(noisy.astype(np.float32).astype(np.float64), noisy)
    # Further out it is post-processing of a grid value and off by less than one part in 2^24.
    far = add_gaussian_noise(
        torch.full((1000,), 5000.0), 1.99, ReproducibleRandomness(4).stream("noise", 0, 0)
    ).numpy()
    assert np.allclose(far.astype(np.float32), far, rtol=2.0**-24, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_the_result_does_not_depend_on_threads(method: Method) -> None:
    total = torch.ones(100_001)
    results = [
        add_gaussian_noise(
            total, 1.0, ReproducibleRandomness(3).stream("noise", 0, 0), method, threads=threads
        )
        for threads in (1, 2, 7)
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_the_sum_is_left_alone_and_the_result_is_float64() -> None:
    total = torch.ones(5)
    noisy = add_gaussian_noise(total, 1.0, ReproducibleRandomness(3).stream("noise", 0, 0))
    assert noisy.dtype == torch.float64
    assert noisy.shape == total.shape
    assert torch.equal(total, torch.ones(5))
    empty = add_gaussian_noise(torch.zeros(0), 1.0, ReproducibleRandomness(3).stream("noise", 0, 0))
    assert empty.shape == (0,)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("place", [0, 70_000])
def test_a_sum_that_noise_cannot_hide_is_refused(bad: float, place: int) -> None:
    total = torch.zeros(COORDINATES)
    total[place] = bad
    with pytest.raises(PrivacyError, match="nothing is released"):
        add_gaussian_noise(total, 1.0, ReproducibleRandomness(3).stream("noise", 0, 0))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-300])
def test_an_impossible_scale_is_refused(scale: float) -> None:
    with pytest.raises(PrivacyError, match="standard deviation"):
        add_gaussian_noise(torch.zeros(3), scale, ReproducibleRandomness(3).stream("n", 0, 0))


def test_a_matrix_or_an_unknown_method_is_refused() -> None:
    stream = ReproducibleRandomness(3).stream("n", 0, 0)
    with pytest.raises(PrivacyError, match="flat vector"):
        add_gaussian_noise(torch.zeros(3, 2), 1.0, stream)
    with pytest.raises(PrivacyError, match="unknown noise method"):
        add_gaussian_noise(torch.zeros(3), 1.0, stream, "ziggurat")


@pytest.mark.parametrize("method", ["box-muller", "four-draw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_drawn_ahead_is_the_same_to_the_last_bit(method: Method, dtype: torch.dtype) -> None:
    total = torch.randn(70_001, generator=torch.Generator().manual_seed(1))
    source = ReproducibleRandomness(5)
    one, two = source.stream("noise", 0, 0), source.stream("noise", 0, 0)
    for _ in range(3):
        expected = add_gaussian_noise(total, 0.37, one, method, dtype=dtype)
        found = NoiseAhead(len(total), two, method).add(total, 0.37, dtype)
        assert found.dtype == dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_noise_drawn_ahead_refuses_a_sum_that_it_could_not_hide(value: float) -> None:
    total = torch.zeros(100)
    total[3] = value
    ahead = NoiseAhead(100, ReleaseRandomness().stream("noise", 0, 0))
    with pytest.raises(PrivacyError, match="nothing is released"):
        ahead.add(total, 0.37)


KEY = bytes(range(32))


@pytest.mark.parametrize("method", METHODS)
def test_the_numbers_of_a_method_are_one_or_four_draws_or_the_devices(method: Method) -> None:
    source = Stream(KEY)
    expected = {
        "box-muller": lambda: source.normal(9, 1),
        "four-draw": lambda: source.normal(9, 4),
        "on-device": lambda: source.normal_on(torch.device("cpu"), 9).numpy(),
    }[method]()
    assert np.array_equal(normal_numbers(Stream(KEY), 9, method), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [*METHODS, "ahead"])
def test_a_released_value_is_the_nearest_point_of_the_grid_to_sum_and_noise(method, dtype) -> None:
    """In exact arithmetic of rationals: nothing else is rounded that could be seen."""
    deviation, spacing = 0.37, 2.0**-22
    total = torch.linspace(-2.0, 3.0, 40)
    if method == "ahead":
        found = NoiseAhead(40, Stream(KEY)).add(total, deviation, dtype)
    else:
        found = add_gaussian_noise(total, deviation, Stream(KEY), method, dtype=dtype)
    drawn = normal_numbers(Stream(KEY), 40, "box-muller" if method == "ahead" else method)
    assert found.dtype == dtype
    for noisy, clean, number in zip(found.tolist(), total.tolist(), drawn.tolist(), strict=True):
        exact = Fraction(number) * Fraction(deviation) + Fraction(clean)
        steps = round(exact / Fraction(spacing))
        assert noisy == steps * spacing


def test_noise_without_a_word_on_it_is_float64_of_one_draw() -> None:
    total = torch.ones(5)
    plain = add_gaussian_noise(total, 1.0, Stream(KEY))
    assert plain.dtype == torch.float64
    assert torch.equal(plain, add_gaussian_noise(total, 1.0, Stream(KEY), "box-muller"))
    ahead = NoiseAhead(5, Stream(KEY)).add(total, 1.0)
    assert ahead.dtype == torch.float64
    assert torch.equal(ahead, plain)


@pytest.mark.parametrize(("threads", "workers"), [(None, 6), (1, 1), (3, 3)])
def test_workers_are_as_many_as_asked_for_or_torchs(threads, workers, monkeypatch) -> None:
    asked: list[tuple[int, int]] = []

    def blocks(_, n, visit, draws=1, threads=1):
        asked.append((draws, threads))
        visit(0, np.zeros(n))

    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(Stream, "normal_blocks", blocks)
    add_gaussian_noise(torch.ones(3), 1.0, Stream(KEY), "four-draw", threads)
    assert asked == [(4, workers)]


@pytest.mark.parametrize("method", METHODS)
def test_every_sum_that_is_refused_is_refused_by_every_method_in_every_block(method) -> None:
    for place in (0, 65_535, 65_536, 70_000):
        total = torch.zeros(70_001)
        total[place] = 2.0**32
        with pytest.raises(PrivacyError, match="nothing is released"):
            add_gaussian_noise(total, 1.0, Stream(KEY), method)


def test_noise_is_drawn_ahead_while_its_caller_goes_on_and_its_thread_ends() -> None:
    goes_on, waited = threading.Event(), []

    class Slow(Stream):
        def normal(self, n, draws=1, threads=1):
            waited.append((draws, goes_on.wait(5.0)))
            return super().normal(n, draws, threads)

    ahead = NoiseAhead(3, Slow(KEY), "four-draw")
    goes_on.set()
    noisy = ahead.add(torch.zeros(3), 1.0)
    assert waited == [(4, True)]
    assert torch.equal(noisy, add_gaussian_noise(torch.zeros(3), 1.0, Stream(KEY), "four-draw"))
    for thread in ahead._pool._threads:
        thread.join(5.0)
        assert not thread.is_alive()


def test_what_is_out_of_range_is_refused_before_anything_is_drawn() -> None:
    for method, told in (("philox", "unknown noise method 'philox'"), ("on-device", "not drawn")):
        with pytest.raises(PrivacyError, match=told):
            NoiseAhead(3, Stream(KEY), method)
    source = Stream(KEY)
    for total, deviation in ((torch.zeros(()), 1.0), (torch.zeros(1, 1), 1.0), (torch.ones(1), 0)):
        for method in METHODS:
            with pytest.raises(PrivacyError, match=r"one flat vector|standard deviation"):
                add_gaussian_noise(total, deviation, source, method)
        with pytest.raises(PrivacyError, match=r"one flat vector|standard deviation"):
            NoiseAhead(1, Stream(KEY)).add(total, deviation)
    assert repr(source) == "Stream(blocks_drawn=0)"
    assert source._draws_on_device == 0


def test_time_that_noise_takes_is_told_under_its_name() -> None:
    with profiled() as profile:
        add_gaussian_noise(torch.zeros(3), 1.0, Stream(KEY))
    assert set(profile.seconds) == {"other", "noise"}
