"""Noise drawn on the device: the cipher by its published vectors, the numbers by their law."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.overrides import TorchFunctionMode

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise import on_device
from dpfedadamw.privacy.noise.noise import (
    NoiseAhead,
    add_gaussian_noise,
    grid_spacing,
    normal_numbers,
)
from dpfedadamw.privacy.noise.rounded_alike import minus_log
from dpfedadamw.privacy.noise.streams import Stream

CPU = torch.device("cpu")
KEY = bytes(range(32))
# RFC 8439, section 2.3.2: key 00 01 … 1f, nonce 00 00 00 09 00 00 00 4a 00 00 00 00, counter 1.
NONCE = bytes.fromhex("000000090000004a00000000")
BLOCK = "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3"
BLOCK += " 466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2"
# Appendix A.1, test vector 1: key, nonce and counter 0.
ZEROS = "ade0b876 903df1a0 e56a5d40 28bd8653 b819d2bd 1aed8da0 ccef36a8 c70d778b"


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    return torch.device(request.param)


def unsigned(words: torch.Tensor) -> str:
    return " ".join(f"{int(word) & 0xFFFFFFFF:08x}" for word in words.flatten())


@pytest.mark.parametrize("make", [on_device.by_torch, on_device.key_stream])
def test_the_key_stream_is_that_of_rfc_8439(make, device):
    assert unsigned(make(KEY, NONCE, 1, 1, device)) == BLOCK
    assert unsigned(make(bytes(32), bytes(12), 0, 1, device)).startswith(ZEROS)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=12, max_size=12), st.data())
def test_torch_and_openssl_make_the_same_words_for_every_key_nonce_and_counter(key, nonce, data):
    blocks = data.draw(st.integers(1, 5))
    start = data.draw(st.integers(0, 2**32 - blocks))
    by_torch = on_device.by_torch(key, nonce, start, blocks, CPU)
    assert torch.equal(by_torch, on_device.key_stream(key, nonce, start, blocks, CPU))


def as_it_is(function, **_options):
    """Stands for `torch.compile`."""
    return function


def wrong(function, **_options):
    return lambda words: function(words) ^ 1


def missing(_function, **_options):
    raise ImportError("no compiler")


@pytest.fixture
def compiled_by(monkeypatch):
    """Has double rounds compiled by a stand-in."""

    def by(compiler):
        monkeypatch.setattr(torch, "compile", compiler)
        on_device._fused.cache_clear()
        return on_device._fused(CPU)

    yield by
    on_device._fused.cache_clear()


def test_a_compiled_double_round_makes_the_words_of_openssl(compiled_by):
    double_round = compiled_by(as_it_is)
    assert double_round is not None
    for start, blocks in ((0, 1), (2**31 - 2, 5), (2**32 - 3, 3)):
        found = on_device.by_torch(KEY, NONCE, start, blocks, CPU, double_round)
        assert torch.equal(found, on_device._by_openssl(KEY, NONCE, start, blocks))


@pytest.mark.parametrize("compiler", [wrong, missing])
def test_a_compiler_that_fails_or_errs_is_not_used(compiler, compiled_by):
    assert compiled_by(compiler) is None


@pytest.mark.slow
def test_torchs_compiler_makes_the_words_of_openssl():
    on_device._fused.cache_clear()
    double_round = on_device._fused(CPU)
    assert double_round is not None
    assert double_round is not on_device._of_words
    for start, blocks in ((0, 1), (2**31 - 2, 5), (2**32 - 1000, 1000)):
        found = on_device.by_torch(KEY, NONCE, start, blocks, CPU, double_round)
        assert torch.equal(found, on_device._by_openssl(KEY, NONCE, start, blocks))


@pytest.mark.parametrize(
    ("device", "blocks", "fused"),
    [("cuda", 2**17, True), ("cuda", 2**17 - 1, False), ("meta", 2**17, False)],
)
def test_long_draws_on_cuda_are_compiled(device, blocks, fused, monkeypatch):
    used = []
    monkeypatch.setattr(on_device, "_fused", lambda _: "compiled")
    monkeypatch.setattr(on_device, "by_torch", lambda *given: used.append(given[5]))
    on_device.key_stream(KEY, NONCE, 0, blocks, torch.device(device))
    assert used == ["compiled" if fused else None]


def test_words_are_made_where_they_are_wanted():
    meta = torch.device("meta")
    words = on_device.key_stream(bytes(32), bytes(12), 0, 5, meta)
    assert (words.device, words.shape, words.dtype) == (meta, (5, 16), torch.int32)


def test_a_draw_that_would_use_a_counter_twice_is_refused():
    with pytest.raises(PrivacyError, match="4,294,967,296 blocks of 64 bytes at most"):
        on_device.key_stream(KEY, NONCE, 2**32 - 1, 2, CPU)
    assert len(on_device.key_stream(KEY, NONCE, 2**32 - 1, 1, CPU)) == 1
    with pytest.raises(PrivacyError, match="at most"):
        on_device.key_stream(KEY, NONCE, -1, 1, CPU)


def test_each_draw_of_a_stream_has_words_of_its_own(monkeypatch):
    """Whatever was drawn before, no key, nonce and counter is used twice."""
    used: set[tuple[bytes, bytes, int]] = set()
    real = on_device.key_stream

    def noted(key, nonce, start, blocks, device):
        asked = {(key, nonce, start + one) for one in range(blocks)}
        assert not used & asked
        used.update(asked)
        return real(key, nonce, start, blocks, device)

    monkeypatch.setattr(on_device, "key_stream", noted)
    monkeypatch.setattr(on_device, "_piece", lambda _: 3)
    stream, other = Stream(KEY), Stream(bytes(32))
    for count in (1, 8, 9, 100, 1):
        stream.normal_on(CPU, count)
        other.normal_on(CPU, count)
    assert len(used) == 2 * (1 + 1 + 2 + 13 + 1)


def test_the_cipher_has_a_key_that_aes_never_meets():
    assert on_device.stream_key(KEY) != KEY
    stream = Stream(KEY)
    assert not np.isin(stream.normal(1000), stream.normal_on(CPU, 1000).numpy()).any()


def test_the_numbers_do_not_depend_on_how_they_are_divided(monkeypatch, device):
    whole = on_device.normals(KEY, 3, 1001, device)
    monkeypatch.setattr(on_device, "_piece", lambda _: 7)
    assert torch.equal(on_device.normals(KEY, 3, 1001, device), whole)
    assert torch.equal(on_device.normals(KEY, 3, 17, device), whole[:17])


def test_the_numbers_are_box_and_muller_of_the_words():
    """Against the formula in Python's own arithmetic, word by word."""
    made = on_device.key_stream(KEY, bytes(12), 0, 2, CPU)
    words = [int(text, 16) for text in unsigned(made).split()]
    expected = []
    for low, high, low2, high2 in zip(*(words[k::4] for k in range(4)), strict=True):
        u, v = ((one | other << 32) >> 11 for one, other in ((low, high), (low2, high2)))
        radius = (-2.0 * np.log(max(u, 0.5) * 2.0**-53)) ** 0.5
        angle = 2.0 * np.pi * (v * 2.0**-53)
        expected += [radius * np.cos(angle), radius * np.sin(angle)]
    found = on_device.normals(KEY, 0, 16, CPU).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)


def test_the_largest_number_is_that_of_53_bits():
    """A word of zeros stands for half the smallest uniform, and gives 8.65."""
    least, most = on_device._bits(
        *(torch.tensor([0, -1], dtype=torch.int32).long() for _ in range(2))
    ).tolist()
    assert (least, most) == (0, 2**53 - 1)
    radius = float(minus_log(torch.tensor([least])).mul(2.0).sqrt())
    assert radius == pytest.approx((2 * 54 * np.log(2.0)) ** 0.5, rel=1e-15)


def test_a_device_without_double_precision_is_refused():
    with pytest.raises(PrivacyError, match="'mps' does not have"):
        on_device.normals(KEY, 0, 3, torch.device("mps"))


def test_the_numbers_on_a_device_are_those_of_the_cpu_to_the_last_bit(device):
    found = on_device.normals(KEY, 2, 100_003, device)
    assert found.device.type == device.type
    assert torch.equal(found.cpu(), on_device.normals(KEY, 2, 100_003, CPU))
    assert not torch.equal(found.cpu(), on_device.normals(KEY, 3, 100_003, CPU))


@pytest.mark.parametrize("scale", [1.0, 0.98, 1.02])
def test_the_law_is_the_standard_normal_and_no_other_scale(scale):
    """Kolmogorov and Smirnov on 200,000 numbers of a fixed key: p > 0.001, and below at 2 % off."""
    found = scale * on_device.normals(KEY, 1, 200_000, CPU).numpy()
    p_value = stats.kstest(found, "norm").pvalue
    assert (p_value > 1e-3) == (scale == 1.0)
    assert (abs(found.std() - 1.0) < 5 / np.sqrt(2 * 200_000)) == (scale == 1.0)


def test_neighbours_pairs_and_draws_are_uncorrelated():
    numbers = on_device.normals(KEY, 5, 100_000, CPU).numpy()
    other = on_device.normals(KEY, 6, 100_000, CPU).numpy()
    for one, two in ((numbers[::2], numbers[1::2]), (numbers[:-2], numbers[2:]), (numbers, other)):
        # Five standard deviations of the correlation of independent vectors.
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(len(one))


def test_noise_is_added_on_the_device_and_lies_on_the_grid(device):
    total = torch.linspace(-1.0, 1.0, 10_007, device=device)
    noisy = add_gaussian_noise(total, 0.37, Stream(KEY), method="on-device")
    assert noisy.device.type == device.type
    steps = noisy.cpu().numpy() / grid_spacing(0.37)
    assert np.array_equal(steps, np.rint(steps))
    drawn = normal_numbers(Stream(KEY), len(total), "on-device") * 0.37
    off = noisy.cpu().numpy() - (drawn + total.double().cpu().numpy())
    # Half a step of the grid, and float64's own rounding.
    assert np.abs(off).max() <= grid_spacing(0.37) * (0.5 + 2.0**-20)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_sum_that_would_show_through_is_refused(bad):
    with pytest.raises(PrivacyError, match="nothing is released"):
        add_gaussian_noise(torch.tensor([0.0, bad]), 1.0, Stream(KEY), method="on-device")


def test_an_unknown_method_is_named():
    with pytest.raises(PrivacyError, match="'box-muller', 'four-draw' or 'on-device'"):
        normal_numbers(Stream(KEY), 3, "philox")
    with pytest.raises(PrivacyError, match="at least 0"):
        Stream(KEY).normal_on(CPU, -1)


def test_what_the_device_draws_is_not_drawn_ahead():
    with pytest.raises(PrivacyError, match="not drawn ahead"):
        NoiseAhead(3, Stream(KEY), "on-device")


def test_the_ciphers_key_is_a_digest_of_the_streams_behind_a_name():
    expected = hmac.new(KEY, b"dpfedadamw chacha20 1\0", hashlib.sha256).digest()
    assert on_device.stream_key(KEY) == expected


def test_a_draws_number_is_its_nonce_little_end_first():
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        real = on_device.key_stream
        patch.setattr(
            on_device, "key_stream", lambda *given: asked.append(given[:4]) or real(*given)
        )
        for draw in (0, 1, 258, 2**95):
            on_device.normals(KEY, draw, 17, CPU)
    nonces = [draw.to_bytes(12, "little") for draw in (0, 1, 258, 2**95)]
    assert asked == [(KEY, nonce, 0, 3) for nonce in nonces]


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 16, 17])
def test_any_number_of_them_is_the_beginning_of_more(n):
    whole = on_device.normals(KEY, 4, 24, CPU)
    found = on_device.normals(KEY, 4, n, CPU)
    assert found.dtype == torch.float64
    assert torch.equal(found, whole[:n])


def test_a_count_below_zero_is_refused_and_all_blocks_of_a_draw_are_not():
    with pytest.raises(PrivacyError, match="cannot draw -1 numbers"):
        on_device.normals(KEY, 0, -1, CPU)
    assert len(on_device.key_stream(KEY, NONCE, 2**32 - 3, 3, CPU)) == 3
    for start, blocks in ((2**32 - 3, 4), (2**32, 1), (-1, 1)):
        with pytest.raises(PrivacyError, match="blocks of 64 bytes at most"):
            on_device.key_stream(KEY, NONCE, start, blocks, CPU)


def test_a_pass_fills_a_cores_cache_or_takes_a_sixteenth_of_a_device(monkeypatch):
    """In bytes of key stream: half a MiB, and 256 MiB or more."""
    assert 64 * on_device._piece(CPU) == 2**19
    for gibibytes, blocks in ((0, 2**22), (16, 2**22), (40, 8_285_044), (80, 16_570_089)):
        monkeypatch.setattr(on_device, "_memory", lambda device, of=gibibytes: of * 2**30)
        assert on_device._piece(torch.device("cuda")) == blocks


class Made(TorchFunctionMode):
    """Notes where tensors are made, by the function that makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[str, object]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.empty, torch.arange, torch.frombuffer, torch.zeros, torch.tensor):
            self.places.append((func.__name__, (kwargs or {}).get("device")))
        return func(*args, **(kwargs or {}))


def test_all_that_is_made_is_made_where_the_numbers_are_wanted():
    """What is made elsewhere and carried over waits for all that the device has to do."""
    with Made() as made:
        on_device.by_torch(KEY, NONCE, 0, 3, CPU)
        on_device.normals(KEY, 0, 20, CPU)
    # OpenSSL's words lie in this machine's memory.
    places = [place for place in made.places if place[0] != "frombuffer"]
    assert sorted(places, key=str) == [("arange", CPU), ("empty", CPU), ("empty", CPU)]


@pytest.mark.parametrize("start", [0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 3])
def test_counters_are_read_as_unsigned(start):
    """Where the counter's word turns negative in two's complement, and at its end."""
    expected = on_device._by_openssl(KEY, NONCE, start, 3)
    assert torch.equal(on_device.by_torch(KEY, NONCE, start, 3, CPU), expected)


@pytest.mark.parametrize("word", [0, 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_words_in_twos_complement_keep_their_bits(word):
    signed = on_device._signed(word)
    assert -(2**31) <= signed < 2**31
    assert signed % 2**32 == word


@pytest.mark.parametrize("by", [7, 8, 12, 16])
def test_a_rotation_carries_the_upper_bits_round(by):
    words = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 0x80000001, 0x12345678]
    given = torch.tensor([on_device._signed(word) for word in words], dtype=torch.int32)
    expected = [((word << by) | (word >> (32 - by))) % 2**32 for word in words]
    assert [int(word) % 2**32 for word in on_device._rotated(given, by)] == expected


def test_of_64_bits_the_upper_53_count():
    pairs = [(0, 0), (2**11 - 1, 0), (2**11, 0), (2**32 - 1, 0), (0, 1), (5 << 11, 2**31), (0, 7)]
    low, high = (
        torch.tensor([on_device._signed(pair[half]) for pair in pairs], dtype=torch.int32).long()
        for half in (0, 1)
    )
    expected = [(low | high << 32) >> 11 for low, high in pairs]
    assert on_device._bits(low, high).tolist() == expected
