"""Sums over all coordinates, as adaptive rules upload them or divide by them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.replay.adaptive import DECAYS, FALLS, SLOPE, _mean_square, _total, count_falls
from audit.replay.base import GLOBAL_UPDATE, UPDATE, ServerValues
from audit.replay.rounding import Rounded, exact

COORDINATES = 200_000


def in_float32(vector: np.ndarray) -> float:
    """The sum of squares, added one after another with a rounding each time."""
    return float(np.cumsum(vector.astype(np.float32) ** 2, dtype=np.float32)[-1])


@pytest.mark.parametrize(
    ("summed", "parts"),
    [(_mean_square, COORDINATES), (lambda vector: _total(vector.square()), 1)],
)
def test_a_long_sum_in_float32_lies_within_its_bound_and_the_bound_is_small(
    summed: Callable[[Rounded], Rounded], parts: int
) -> None:
    vector = np.random.default_rng(3).normal(size=COORDINATES).astype(np.float32)
    exactly = vector.astype(np.float64)
    due = float(exactly @ exactly) / parts
    found = summed(exact(exactly))
    assert found.value == pytest.approx(due, rel=1e-12)
    off = abs(in_float32(vector) / parts - due)
    # Enough for this to be a test of the sum's own rounding, and not of the squares'.
    assert 4 * 2.0**-22 * due < off < found.bound.max()
    # A rounding of each square, and those of the sum, which grow with the root of their number.
    assert found.bound == pytest.approx((1 + COORDINATES**0.5) * 2.0**-22 * due, rel=1e-6)


def test_a_sum_is_off_by_what_its_terms_are_off_by() -> None:
    terms = Rounded(np.array([3.0, -4.0]), np.array([0.5, 0.25]))
    total = _total(terms)
    assert total.value.tolist() == [-1.0]
    # Roundings are a share of the sizes that are added, whatever they come to.
    assert total.bound == pytest.approx([0.75 + 2.0**-22 * 2**0.5 * 7.0])
    mean = _mean_square(terms)
    assert mean.value.tolist() == [12.5, 12.5]
    # (3.5² − 3² + 4.25² − 4²) / 2
    assert mean.bound == pytest.approx([2.65625] * 2, rel=1e-5)


@pytest.mark.parametrize(
    ("counted", "slope", "off", "falls", "decays", "unsure"),
    [
        # Rounds in a row with a positive mean slope are counted; three of them are a decay.
        (0.0, 1.0, 0.25, 1.0, 4.0, 0.125),
        (1.0, 1.0, 0.25, 2.0, 4.0, 0.125),
        (2.0, 1.0, 0.25, 0.0, 5.0, 0.125),
        (2.0, -1.0, 0.25, 0.0, 4.0, 0.125),
        (2.0, 0.0, 0.0, 0.0, 4.0, np.inf),
        # Where roundings hide the slope's sign, any count may be right.
        (2.0, 1.0, 1.0, 0.0, 5.0, np.inf),
        (2.0, -1.0, 1.5, 0.0, 4.0, np.inf),
    ],
)
def test_falls_in_a_row_are_counted_and_nothing_is_known_of_them_where_roundings_hide_the_sign(
    counted: float, slope: float, off: float, falls: float, decays: float, unsure: float
) -> None:
    setting: Any = SimpleNamespace(
        algorithm={"noise_decay": {"patience": 3}}, learning_rate=0.25, steps=2
    )
    state = {
        FALLS: exact(np.array([counted])), DECAYS: Rounded(np.array([4.0]), np.array([0.125])),
    }  # fmt: skip
    uploads = [
        {UPDATE: exact(np.array([update])), SLOPE: Rounded(np.array([one]), np.array([off]))}
        for update, one in ((0.5, slope - 2.0), (2.5, slope + 2.0))
    ]
    found = count_falls(setting, ServerValues(exact(np.array([10.0])), state), uploads)
    assert found.parameters.value.tolist() == [11.5]
    assert {name: kept.value.tolist() for name, kept in found.state.items()} == {
        GLOBAL_UPDATE: [-3.0], SLOPE: [slope], FALLS: [falls], DECAYS: [decays],
    }  # fmt: skip
    assert found.state[FALLS].bound.tolist() == found.state[DECAYS].bound.tolist() == [unsure]
