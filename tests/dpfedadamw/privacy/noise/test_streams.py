"""Streams: the right cipher, no bit used twice, exact distributions, nothing due to threads."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
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


KEY = bytes(range(32))


def key_stream(counter: int, count: int) -> NDArray[np.uint64]:
    """64-bit words of AES-256 in counter mode from a counter on, little end first."""
    mode = modes.CTR(counter.to_bytes(16, "big"))
    drawn = Cipher(algorithms.AES(KEY), mode).encryptor().update(bytes(8 * count))
    return np.array(struct.unpack(f"<{count}Q", drawn), dtype=np.uint64)


def box_muller(counter: int, pairs: int) -> NDArray[np.float64]:
    """Cosines and then sines of as many pairs: words of radii first, words of angles behind."""
    words = key_stream(counter, 2 * pairs) >> np.uint64(11)
    uniform, turn = words.reshape(2, pairs).astype(np.float64) / 2.0**53
    radius, angle = np.sqrt(-2.0 * np.log(uniform)), 2.0 * np.pi * turn
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


@pytest.mark.parametrize("draws", [1, 4])
@pytest.mark.parametrize("n", [1, 7, 65_535, 65_536, 65_537, 131_079])
def test_numbers_are_those_of_the_cipher_at_counters_written_down_here(draws: int, n: int) -> None:
    drawing, before = Stream(KEY), 3
    drawing.bytes(16 * before)
    found = drawing.normal(n, draws)
    expected = []
    for block, offset in enumerate(range(0, n, 65_536)):
        pairs = min(32_768, (n - offset + 1) // 2)
        counters = [before + 32_768 * (draws * block + draw) for draw in range(draws)]
        total = sum(box_muller(counter, pairs) for counter in counters)
        expected.append(total / (2.0 if draws == 4 else 1.0))
    np.testing.assert_allclose(found, np.concatenate(expected)[:n], rtol=1e-9, atol=1e-12)
    # What follows begins behind the last whole block of numbers.
    used = before + 32_768 * draws * len(expected)
    assert repr(drawing) == f"Stream(blocks_drawn={used})"
    assert np.array_equal(drawing.words(2), key_stream(used, 2))


def test_words_have_their_low_byte_first_and_any_number_of_bytes_is_a_prefix() -> None:
    assert np.array_equal(Stream(KEY).words(5), key_stream(0, 5))
    assert Stream(KEY).words(0).size == 0
    whole = Stream(KEY).bytes(64)
    for count in (0, 1, 15, 16, 17, 63):
        drawing = Stream(KEY)
        assert drawing.bytes(count) == whole[:count]
        assert repr(drawing) == f"Stream(blocks_drawn={(count + 15) // 16})"


def given_words(monkeypatch: pytest.MonkeyPatch, *rounds: list[int]) -> Stream:
    """A stream whose next words are these; asked for another number of them it fails."""
    left = list(rounds)

    def words(_: Stream, count: int) -> NDArray[np.uint64]:
        given = left.pop(0)
        assert len(given) == count
        return np.array(given, dtype=np.uint64)

    monkeypatch.setattr(Stream, "words", words)
    return Stream(KEY)


def test_words_above_the_last_whole_multiple_are_drawn_again(monkeypatch) -> None:
    high = 10
    limit = 2**64 // high * high
    drawing = given_words(
        monkeypatch, [limit, 23, limit - 1, 2**64 - 1], [limit + 1, 5], [limit - 10]
    )
    assert drawing.integers(high, 4).tolist() == [3, 9, 5, 0]


@pytest.mark.parametrize("high", [1, 2, 2**62, 2**63])
def test_no_word_is_drawn_again_where_all_fit(high, monkeypatch) -> None:
    words = [0, 1, 2**63, 2**64 - 1]
    found = given_words(monkeypatch, words).integers(high, 4)
    assert found.dtype == np.int64
    assert found.tolist() == [word % high for word in words]


@pytest.mark.parametrize("rate", [2.0**-64, 2.0**-11, 0.1, 0.5, 0.75, 1.0 - 2.0**-53])
def test_a_trial_succeeds_below_its_rate_of_the_words_and_not_at_it(rate, monkeypatch) -> None:
    threshold = int(rate * 2**64)
    words = [0, threshold - 1, threshold, threshold + 1, 2**64 - 1]
    expected = [word < threshold for word in words]
    assert given_words(monkeypatch, words).bernoulli(rate, 5).tolist() == expected
    for sure, always in ((0.0, False), (1.0, True)):
        found = given_words(monkeypatch, words).bernoulli(sure, 5)
        assert found.dtype == np.bool_
        assert found.tolist() == [always] * 5


def test_words_that_tie_are_thrown_away_as_a_whole(monkeypatch) -> None:
    drawing = given_words(monkeypatch, [5, 5, 1, 2], [4, 1, 3, 4], [9, 2**63, 0, 7])
    assert drawing.permutation(4).tolist() == [2, 3, 0, 1]
    order = given_words(monkeypatch, [30, 10, 20]).choice(3, 2)
    assert order.tolist() == [1, 2]
    assert order.dtype == np.int64
    assert order.base is None


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda one: one.words(-1), "cannot draw -1 numbers"),
        (lambda one: one.normal(-1), "cannot draw -1 numbers"),
        *((lambda one, d=d: one.normal(1, d), f"1 or 4 draws, not {d}") for d in (0, 2, 3, 5)),
        (lambda one: one.integers(0, 1), "below 0: the bound"),
        (lambda one: one.integers(2**63 + 1, 1), "the bound must be in 1"),
        (lambda one: one.bernoulli(-1e-300, 1), "a rate lies in"),
        (lambda one: one.bernoulli(np.nextafter(1.0, 2.0), 1), "a rate lies in"),
        (lambda one: one.choice(3, 4), "cannot choose 4 of 3"),
        (lambda one: one.choice(3, -1), "cannot choose -1 of 3"),
    ],
)
def test_a_draw_out_of_range_is_named_and_draws_nothing(call, told) -> None:
    drawing = Stream(KEY)
    with pytest.raises(PrivacyError, match=told):
        call(drawing)
    assert repr(drawing) == "Stream(blocks_drawn=0)"


def test_draws_at_the_ends_of_their_ranges_are_none_or_all() -> None:
    assert Stream(KEY).normal(0).size == 0
    assert Stream(KEY).integers(5, 0).size == 0
    assert Stream(KEY).choice(3, 0).size == 0
    assert sorted(Stream(KEY).choice(3, 3)) == [0, 1, 2]
    assert Stream(KEY).permutation(0).size == 0
    assert _uniform(np.empty(0, np.uint64), np.empty(0)).size == 0
    for size in (0, 31, 33):
        with pytest.raises(PrivacyError, match=f"32 bytes, not {size}"):
            Stream(bytes(size))


def test_the_smallest_word_stands_for_half_of_the_next() -> None:
    words = np.array([0, 2**11 - 1, 2**11, 2**64 - 1], dtype=np.uint64)
    half, above = 2.0**-54, 1.0 - 2.0**-53
    assert _uniform(words, np.empty(4)).tolist() == [half, half, 2.0**-53, above]
    # Whoever gives memory for what is shifted gets it used: none is mapped anew.
    shifted = np.empty(2, dtype=np.uint64)
    assert _uniform(words[2:], np.empty(2), shifted).tolist() == [2.0**-53, above]
    assert shifted.tolist() == [1, 2**53 - 1]


def test_workers_are_those_that_were_asked_for_and_map_no_more_than_they_fill(monkeypatch) -> None:
    asked: list[tuple[int, int]] = []
    rooms: list[int] = []
    plain = streams._Workspace

    def share_out(blocks, work, threads):
        asked.append((blocks, threads))
        work(range(blocks))

    def noted(pairs):
        rooms.append(pairs)
        return plain(pairs)

    monkeypatch.setattr(streams, "share_out", share_out)
    monkeypatch.setattr(streams, "_Workspace", noted)
    Stream(KEY).normal(7, threads=3)
    Stream(KEY).normal(65_536)
    Stream(KEY).normal_blocks(65_537, lambda *_: None, threads=5)
    Stream(KEY).normal_blocks(3, lambda *_: None)
    assert asked == [(1, 3), (1, 1), (2, 5), (1, 1)]
    assert rooms == [4, 32_768, 32_768, 2]
    room = plain(10)
    # Two words a pair, and what the cipher wants behind them.
    assert len(room.raw) == 10 * 2 * 8 + 16
    assert [room.total.size, room.spare.size, room._shifted.size] == [20, 20, 10]
    assert [room._radius.size, room._angle.size] == [10, 10]


@pytest.mark.parametrize(
    ("n", "times", "together"),
    [
        (10, 0, []),
        (10, 1, []),
        (10, 2, [2]),
        (10, 3, [3]),
        (32_768, 3, [2]),
        (32_769, 3, []),
        (65_536, 3, []),
        (21_845, 4, [3]),
        (1, 70_000, [65_536]),
    ],
)
def test_half_a_megabyte_is_drawn_together_at_most_and_single_vectors_alone(
    n, times, together, monkeypatch
) -> None:
    asked: list[int] = []

    def several(_, start, size, rows):
        assert (start, size) == (0, n)
        asked.append(rows)
        return {start: np.zeros(n)}

    monkeypatch.setattr(Stream, "_several", several)
    drawing = Stream(KEY)
    drawing.expect(n, times)
    drawing.normal(n)
    assert asked == together
    assert drawing._expected.times == times - sum(together)


def test_a_stream_expects_nothing_until_it_is_told() -> None:
    nothing = Stream(KEY)._expected
    assert (nothing.n, nothing.times, nothing.rows) == (0, 0, {})


@pytest.mark.parametrize("in_numpy", [True, False])
def test_a_tangent_takes_the_place_of_its_angle(in_numpy: bool, monkeypatch) -> None:
    monkeypatch.setattr(streams, "_NUMPY_HAS_VECTORS", in_numpy)
    angle = np.array([[0.0, 0.5], [1.0, 3.0]])
    expected = [[math.tan(one) for one in row] for row in angle]
    plain, called = np.tan, []
    monkeypatch.setattr(
        np, "tan", lambda *given, **named: called.append(1) or plain(*given, **named)
    )
    assert streams._tangent(angle) is angle
    assert len(called) == in_numpy
    np.testing.assert_allclose(angle, expected, rtol=1e-15)


def test_each_draw_on_a_device_is_one_of_its_own(monkeypatch) -> None:
    drawn: list[tuple[bytes, int, int]] = []
    monkeypatch.setattr(
        streams.on_device, "normals", lambda key, draw, n, _: drawn.append((key, draw, n))
    )
    drawing = Stream(KEY)
    for n in (3, 4, 3):
        drawing.normal_on(None, n)
    key = streams.on_device.stream_key(KEY)
    assert drawn == [(key, 0, 3), (key, 1, 4), (key, 2, 3)]
