"""Recorded noise against what was handed out: numbers without a size allow nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.replay.queries import carries, noise_faults

WRONG = [np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("bits", [None, 12])
@pytest.mark.parametrize("wrong", WRONG)
def test_no_infinite_part_makes_a_total_one_that_carries_its_noise(
    wrong: float, bits: int | None
) -> None:
    noise, clean = np.array([1.0, 2.0]), np.array([0.5, 0.25])
    assert carries(noise, clean, noise + clean, bits)
    bad = np.array([0.5, wrong])
    assert not carries(noise, bad, noise + clean, bits)
    assert not carries(bad, clean, noise + clean, bits)
    assert not carries(noise, clean, bad, bits)


def faults(clean: float = 0.5, sums: float = 1.25) -> list[str]:
    """What is said of one gradient of one coordinate, whose noise is 1 and whose sum is a half."""
    exchange: Any = SimpleNamespace(
        gradients=np.array([[1.5]]), clean_sample=np.array([[clean]]), square_sums=None
    )
    evidence: Any = SimpleNamespace(
        divisor=np.ones((1, 1)),
        noise_sample=np.ones((1, 1, 1)),
        noise_sum_squares=np.ones((1, 1, 1)),
        clean_sum_squares=np.full((1, 1, 1), 0.25),
        record_offsets=np.array([0, 1]),
        clipped_norms=np.array([0.5]),
    )
    return noise_faults(exchange, np.array([[sums]]), evidence, 0, 1.0, np.array([0]))


@pytest.mark.parametrize("wrong", WRONG)
def test_infinite_sums_do_not_fit_the_noise_that_was_recorded(wrong: float) -> None:
    assert faults() == []
    assert faults(clean=wrong) == ["the gradients used do not carry the noise recorded for them"]
    assert faults(sums=wrong) == ["the size of the gradients used does not fit the noise recorded"]


@pytest.mark.parametrize(
    ("sums", "fits"),
    # Of noise of size 1 and a gradient of size 0.5 the sum has a size of 0.5 to 1.5.
    [(0.5**2, True), (0.4999**2, False), (1.5**2, True), (1.5001**2, False), (1.0, True)],
)
def test_a_gradient_is_no_longer_and_no_shorter_than_its_two_parts_allow(
    sums: float, fits: bool
) -> None:
    said = [] if fits else ["the size of the gradients used does not fit the noise recorded"]
    assert faults(sums=sums) == said
