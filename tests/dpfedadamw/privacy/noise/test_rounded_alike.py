"""The transform that every device rounds alike: right to float64, and made of IEEE 754 alone."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from dpfedadamw.privacy.noise import on_device, rounded_alike
from dpfedadamw.privacy.noise.rounded_alike import cosine_and_sine, minus_log

PI = Decimal("3.14159265358979323846264338327950288419716939937510582")
# What the series have always given; IEEE 754 makes it the same on every machine.
KNOWN = "0084c33bf318ce16ef113488609780f6837cf79b06550b08f571d62f5f6f0107"
WORDS = st.integers(0, 2**53 - 1)
# Where the reductions change hands: roots of two, eighths of a turn, both ends.
EDGES = [
    0,
    1,
    2,
    2**53 - 1,
    2**52,
    2**52 - 1,
    *(k * 2**50 + off for k in range(8) for off in (0, 1)),
]
EDGES += [math.isqrt(2 ** (2 * e - 1)) + off for e in (53, 52, 40, 3) for off in (-1, 0, 1, 2)]

# Integers, comparisons, choices and copies are exact; the rest IEEE 754 rounds correctly.
EXACT = {
    "__get__", "__getitem__", "__gt__", "__len__", "__rshift__", "__setitem__", "__xor__", "add",
    "add_", "arange", "bitwise_and", "bitwise_and_", "bitwise_left_shift", "bitwise_left_shift_",
    "bitwise_or", "bitwise_or_", "bitwise_right_shift_", "bool", "cat", "clamp_", "contiguous",
    "copy_",
    "device", "dim", "div_", "double", "empty", "fill_", "frombuffer", "gt", "long", "mul", "mul_",
    "neg_", "sqrt_", "stack", "sub", "sub_",
    "t", "to", "unbind", "view", "where",
}  # fmt: skip


class Operations(TorchFunctionMode):
    """Notes each operation by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def forty_digits():
    with localcontext() as context:
        context.prec = 40
        yield


def exact_log(word: int) -> Decimal:
    """-ln of a word's uniform, to 40 digits."""
    return -((Decimal(word) if word else Decimal("0.5")) / 2**53).ln()


def exact_turn(word: int) -> tuple[Decimal, Decimal]:
    """Cosine and sine of a word's angle by their series, to 35 digits."""
    angle = 2 * PI * word / 2**53
    cosine = sine = Decimal(0)
    term = Decimal(1)
    for k in range(80):
        if k % 2:
            sine += term * (-1) ** (k // 2)
        else:
            cosine += term * (-1) ** (k // 2)
        term *= angle / (k + 1)
    return cosine, sine


def one(word: int) -> torch.Tensor:
    return torch.tensor([word])


def close_log(word: int) -> bool:
    exact = exact_log(word)
    return abs(Decimal(float(minus_log(one(word)))) - exact) <= exact / 2**51


def close_angle(word: int) -> bool:
    found = (Decimal(float(value)) for value in cosine_and_sine(one(word)))
    limit = Decimal(1) / 2**52
    return all(abs(a - b) <= limit for a, b in zip(found, exact_turn(word), strict=True))


def test_the_numbers_of_old_runs_are_drawn_again_to_the_last_bit():
    """A series with one term more or less is as good, and its runs could not be computed again."""
    bits = (torch.arange(40_000) * 6_364_136_223_846_793_005).bitwise_and(2**53 - 1)
    numbers = torch.stack((minus_log(bits), *cosine_and_sine(bits)))
    assert hashlib.sha256(numbers.numpy().astype("<f8").tobytes()).hexdigest() == KNOWN


@given(WORDS)
def test_any_word_has_its_logarithm_and_its_angle(word):
    assert close_log(word)
    assert close_angle(word)


@pytest.mark.parametrize("word", EDGES)
def test_so_has_each_word_where_a_reduction_changes_hands(word):
    assert close_log(word)
    assert close_angle(word)


def test_a_quarter_of_a_turn_is_taken_off_to_the_nearest_so_that_the_series_ends_in_time(
    monkeypatch,
):
    """What twenty terms leave out is smaller than rounding up to an eighth of a turn."""
    taken: list[float] = []
    inner = rounded_alike._polynomial

    def noted(coefficients, at):
        taken.append(float(at.max()))
        return inner(coefficients, at)

    monkeypatch.setattr(rounded_alike, "_polynomial", noted)
    cosine_and_sine(torch.arange(0, 2**53, 2**46 + 12345))
    # (π/4)², met at its end.
    assert max(taken) == pytest.approx((math.pi / 4) ** 2, rel=1e-2)


def test_the_limits_would_notice_one_digit_less(monkeypatch):
    monkeypatch.setattr(rounded_alike, "_LOGARITHM", rounded_alike._LOGARITHM[:8])
    monkeypatch.setattr(rounded_alike, "_SINE", rounded_alike._SINE[:6])
    assert not close_log(math.isqrt(2**105))
    assert not close_angle(2**50)


def test_numbers_are_drawn_by_operations_that_every_device_rounds_alike():
    with Operations() as seen:
        on_device.by_torch(bytes(32), bytes(12), 0, 3, torch.device("cpu"))
        on_device.normals(bytes(32), 0, 100, torch.device("cpu"))
    assert {"sqrt_", "div_", "mul_"} <= seen.names
    assert seen.names <= EXACT


@pytest.mark.parametrize("function", ["log", "cos", "sin", "tan", "exp", "addcmul"])
def test_a_function_of_a_librarys_own_is_noticed(function):
    values = [torch.ones(3)] * (3 if function == "addcmul" else 1)
    with Operations() as seen:
        getattr(torch, function)(*values)
    assert not seen.names <= EXACT


def test_the_same_bits_give_the_same_numbers_wherever_they_lie_in_a_tensor():
    """A library's vector and scalar code may round differently; these operations may not."""
    bits = torch.from_numpy(np.random.default_rng(0).integers(0, 2**53, 67))
    whole = torch.stack((minus_log(bits), *cosine_and_sine(bits)))
    single = torch.stack(
        [torch.stack((minus_log(word), *cosine_and_sine(word))) for word in bits.split(1)], dim=1
    )
    assert torch.equal(whole, single.squeeze(-1))
