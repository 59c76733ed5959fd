"""Streams: the right cipher, no bit used twice, exact distributions, nothing due to threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise import streams
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.privacy.noise.streams import Stream, _uniform

# Streams below have fixed seeds, so a test that passes always passes; the limits are those a
# stream with another seed would exceed with the probability given.
UNLIKELY = 1e-6


def stream(name: str) -> Stream:
    return ReproducibleRandomness(20).stream(name, 0, 0)


def test_the_key_stream_is_aes_256_in_counter_mode() -> None:
    # Under the zero key, counters 0, 1 and 2 encrypt to H, E(K, Y0) and the ciphertext of the zero
    # block in test cases 13 and 14 of the GCM specification (McGrew & Viega 2005).
    expected = (
        "dc95c078a2408989ad48a21492842087"
        "530f8afbc74536b9a963b4f1c4cb738b"
        "cea7403d4d606b6e074ec5d3baf39d18"
    )
    assert Stream(bytes(32)).bytes(48).hex() == expected


def test_calls_consume_fresh_counters() -> None:
    whole = Stream(bytes(32)).bytes(64)
    piecewise = Stream(bytes(32))
    assert b"".join(piecewise.bytes(16) for _ in range(4)) == whole
    # An odd length uses up its last block rather than share it with the next call.
    ragged = Stream(bytes(32))
    assert ragged.bytes(3) + ragged.bytes(16) == whole[:3] + whole[16:32]


def test_normals_and_what_follows_them_share_no_counter() -> None:
    one, two = Stream(bytes(32)), Stream(bytes(32))
    one.normal(40_000)
    skipped = one.bytes(16)
    # One counter a pair of normals, in whole blocks of 16384 pairs.
    used = two.bytes(16 * 2 * 16_384)
    assert skipped not in used
    assert skipped == two.bytes(16)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(PrivacyError, match="32 bytes, not 16"):
        Stream(bytes(16))


def test_a_stream_does_not_show_its_key() -> None:
    key = bytes(range(32))
    assert key.hex() not in repr(Stream(key))
    assert str(key) not in repr(Stream(key))


def test_uniforms_fill_the_open_interval_evenly() -> None:
    numbers = _uniform(stream("uniform").words(100_000), np.empty(100_000))
    assert numbers.dtype == np.float64
    assert numbers.min() > 0.0
    assert numbers.max() < 1.0
    assert stats.kstest(numbers, "uniform").pvalue > UNLIKELY
    assert np.all(numbers * 2.0**53 == np.rint(numbers * 2.0**53))
    # The last of the 53 bits is a fair coin: binomial, 5 standard deviations.
    odd = int(np.sum((numbers * 2.0**53).astype(np.int64) & 1))
    assert abs(odd - 50_000) < 5 * np.sqrt(25_000)


@pytest.mark.parametrize("draws", [1, 4])
def test_normals_are_standard_normal(draws: int) -> None:
    numbers = stream("normal").normal(200_000, draws=draws)
    assert stats.kstest(numbers, "norm").pvalue > UNLIKELY
    assert stats.kstest(numbers * 1.03, "norm").pvalue < UNLIKELY  # the test can tell 3 %
    # Fourth moment of a normal is 3; its estimate has standard deviation sqrt(96/n) = 0.022.
    assert np.mean(numbers**4) == pytest.approx(3.0, abs=5 * 0.022)


def test_the_two_halves_of_a_box_muller_pair_are_independent() -> None:
    block = stream("pairs").normal(32_768)
    cosine, sine = block[:16_384], block[16_384:]
    for one, two in ((cosine, sine), (cosine**2, sine**2)):
        # A correlation of n independent pairs has standard deviation 1/sqrt(n).
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(16_384)


@pytest.mark.parametrize("in_numpy", [True, False])
def test_normals_are_box_and_mullers_of_their_words(
    in_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_NUMPY_HAS_VECTORS", in_numpy)
    pairs = 2_000
    words = Stream(bytes(32)).words(2 * pairs).copy()
    # Angles of 0, π/2, π and 3π/2 exactly, and their neighbours; a radius from the smallest word.
    quarters = (np.arange(4, dtype=np.uint64) << np.uint64(62)).repeat(3)
    steps = np.array([-1, 0, 1] * 4).astype(np.uint64) << np.uint64(11)
    words[pairs : pairs + 12] = quarters + steps
    words[0] = 0
    space = streams._Workspace(pairs)
    space.raw[: 16 * pairs] = words.astype("<u8").tobytes()
    out = np.empty(2 * pairs)
    space.box_muller(pairs, out)
    for index in range(pairs):
        uniform = max(int(words[index] >> np.uint64(11)), 0.5) * 2.0**-53
        turn = 2.0 * math.pi * (int(words[pairs + index] >> np.uint64(11)) * 2.0**-53)
        radius = math.sqrt(-2.0 * math.log(uniform))
        # A few roundings of numbers up to the largest radius, 8.65, whose last bit is 2^-49.
        assert out[index] == pytest.approx(radius * math.cos(turn), abs=2.0**-47)
        assert out[pairs + index] == pytest.approx(radius * math.sin(turn), abs=2.0**-47)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 32_767, 32_768, 32_769, 100_001])
def test_normals_do_not_depend_on_the_number_of_threads(count: int) -> None:
    alone = stream("threads").normal(count)
    assert alone.size == count
    for threads in (2, 5):
        assert np.array_equal(alone, stream("threads").normal(count, threads=threads))
    four = stream("threads").normal(count, draws=4)
    assert np.array_equal(four, stream("threads").normal(count, draws=4, threads=3))


@pytest.mark.parametrize("count", [1, 2, 3, 650, 9_363, 21_845, 32_767, 32_769, 65_537])
@pytest.mark.parametrize("times", [0, 1, 2, 7, 200])
def test_numbers_that_are_expected_are_those_of_single_draws(count: int, times: int) -> None:
    alone, expecting = stream("together"), stream("together")
    expecting.expect(count, times)
    drawn = min(times, 9) + 2
    for _ in range(drawn):
        assert np.array_equal(alone.normal(count), expecting.normal(count))
    assert repr(alone) == repr(expecting)
    assert alone.bytes(32) == expecting.bytes(32)


def test_whoever_draws_something_else_than_is_expected_gets_what_he_would_have_got() -> None:
    alone, expecting = stream("otherwise"), stream("otherwise")
    expecting.expect(10, 6)
    both = []
    for one in (alone, expecting):
        drawn = [
            one.normal(10),
            one.normal(11),
            one.normal(10, draws=4),
            one.normal(10),
            one.words(3),
            one.normal(10),
            one.integers(5, 4),
            one.normal(10),
            one.normal(10),
            one.normal(10),
        ]
        both.append(drawn)
    assert all(map(np.array_equal, *both))
    assert repr(alone) == repr(expecting)


def test_numbers_that_are_expected_are_drawn_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    transforms: list[int] = []
    plain = streams._Workspace.box_muller_rows

    def counted(space: streams._Workspace, pairs: int, out: np.ndarray) -> None:
        transforms.append(len(out))
        plain(space, pairs, out)

    monkeypatch.setattr(streams._Workspace, "box_muller_rows", counted)
    one = stream("few")
    one.expect(650, 5)
    for _ in range(6):
        one.normal(650)
    # The sixth was not expected.
    assert transforms == [5, 1]
    # No more than half a megabyte of them at once.
    one.expect(30_000, 5)
    for _ in range(5):
        one.normal(30_000)
    assert transforms[2:] == [2, 2, 1]


def test_a_row_that_its_reader_writes_into_changes_no_other() -> None:
    alone, expecting = stream("rows"), stream("rows")
    expecting.expect(5, 3)

    def spoil(_offset: int, block: np.ndarray) -> None:
        block[...] = np.nan

    expecting.normal_blocks(5, spoil)
    alone.normal(5)
    assert np.array_equal(alone.normal(5), expecting.normal(5))
    assert np.array_equal(alone.normal(5), expecting.normal(5))


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    def fail(offset: int, block: object) -> None:
        raise PrivacyError("stop")

    for threads in (1, 3):
        with pytest.raises(PrivacyError, match="stop"):
            stream("error").normal_blocks(100_000, fail, threads=threads)


def test_integers_have_no_modulo_bias() -> None:
    # 2^64 = 2.67 · (3·2^61): without rejection the lower 2/3 of the range would come up half as
    # often again as the upper third.
    high = 3 * 2**61
    numbers = stream("integers").integers(high, 20_000)
    assert numbers.min() >= 0
    assert numbers.max() < high
    counts = np.bincount((numbers // 2**61).astype(np.int64), minlength=3)
    assert stats.chisquare(counts).pvalue > UNLIKELY
    biased = np.array([3, 3, 2]) * 20_000 / 8
    assert stats.chisquare(counts, biased).pvalue < UNLIKELY


def test_small_integers_are_uniform() -> None:
    counts = np.bincount(stream("dice").integers(6, 60_000), minlength=6)
    assert counts.size == 6
    assert stats.chisquare(counts).pvalue > UNLIKELY
    assert np.array_equal(stream("one").integers(1, 5), np.zeros(5))


@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.02, 0.5, 0.97, 1.0])
def test_bernoulli_has_its_rate(rate: float) -> None:
    trials = 200_000
    successes = int(stream("bernoulli").bernoulli(rate, trials).sum())
    if rate in (0.0, 1.0):
        assert successes == rate * trials
    else:
        assert stats.binomtest(successes, trials, rate).pvalue > UNLIKELY


def test_all_permutations_come_up_equally_often() -> None:
    source = stream("permutation")
    orders = [tuple(source.permutation(4)) for _ in range(12_000)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders[:100])
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert counts.size == 24
    assert stats.chisquare(counts).pvalue > UNLIKELY


def test_choice_takes_distinct_members_evenly() -> None:
    source = stream("choice")
    draws = [source.choice(10, 3) for _ in range(10_000)]
    assert all(len(set(draw)) == 3 for draw in draws)
    counts = np.bincount(np.concatenate(draws), minlength=10)
    # Each of 10 members is in a draw with probability 0.3: binomial, 5 standard deviations.
    assert np.all(np.abs(counts - 3000) < 5 * np.sqrt(10_000 * 0.3 * 0.7))


def test_impossible_draws_are_refused() -> None:
    source = stream("refusals")
    for call in (
        lambda: source.choice(3, 4),
        lambda: source.integers(0, 1),
        lambda: source.bernoulli(1.1, 1),
        lambda: source.bernoulli(float("nan"), 1),
        lambda: source.words(-1),
        lambda: source.normal(-1),
        lambda: source.normal(5, draws=2),
    ):
        with pytest.raises(PrivacyError):
            call()
