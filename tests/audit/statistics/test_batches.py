"""How far sizes of Poisson batches may scatter: exact moments, and the level in both directions."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.statistics.batches import Batches, dispersion_interval, squares_cumulants


@pytest.mark.parametrize(("records", "rate"), [(10, Fraction(1, 4)), (60, Fraction(3, 100))])
def test_the_cumulants_are_those_of_the_binomial_law(records: int, rate: Fraction) -> None:
    """Against sums in exact fractions."""
    mean, spread = records * rate, records * rate * (1 - rate)
    shares = [comb(records, k) * rate**k * (1 - rate) ** (records - k) for k in range(records + 1)]
    off = [(k - mean) ** 2 / spread - 1 for k in range(records + 1)]
    assert sum(p * x for p, x in zip(shares, off, strict=True)) == 0
    second, third = (
        float(sum(p * x**power for p, x in zip(shares, off, strict=True))) for power in (2, 3)
    )
    assert squares_cumulants(records, float(rate)) == pytest.approx((second, third), rel=1e-12)


@pytest.mark.parametrize(
    ("records", "rate", "count"),
    [(290, 32 / 290, 50), (60, 0.03, 20), (80, 0.05, 50), (1000, 0.05, 10)],
)
def test_correct_batches_leave_the_interval_about_as_often_as_stated(
    records: int, rate: float, count: int
) -> None:
    """At alpha = 2 %, of 20,000 draws with a fixed seed, 200 are expected on either side.

    197 to 225 lie above; of (60, 0.03) 274 did by the law of two moments alone.
    """
    alpha, trials = 0.02, 20_000
    sizes = np.random.default_rng(7).binomial(records, rate, size=(trials, count))
    spread = records * rate * (1.0 - rate)
    found = np.square(sizes - records * rate).mean(axis=1) / spread
    low, high = dispersion_interval([(records, rate, count)], alpha)
    above, below = int((found > high).sum()), int((found < low).sum())
    assert 150 <= above <= 250, (above, below)
    assert below <= 250, (above, below)


def test_batches_of_one_size_and_of_twice_the_scatter_lie_outside() -> None:
    low, high = dispersion_interval([(290, 32 / 290, 50)], 3e-4)
    assert 0.0 < low < 1.0 < high < 2.0


def test_clients_of_different_sizes_are_taken_together() -> None:
    """Half of each, the interval lies between those of either alone."""
    one, other = (60, 0.03, 40), (1000, 0.05, 40)
    ends = [dispersion_interval(groups, 3e-4)[1] for groups in ([one], [other])]
    together = dispersion_interval([(60, 0.03, 20), (1000, 0.05, 20)], 3e-4)[1]
    assert min(ends) < together < max(ends)


def told(read: list[int] | None, queries: tuple[int, ...] = (3, 3, 0, 0, 2, 2)) -> list[str]:
    """What is said of three steps of two queries, by the batch that each gradient was taken of."""
    charge: Any = SimpleNamespace(
        queries_per_step=2, records=8, stated_rate=None, expected_batch_size=2.0, client=1
    )
    sizes = np.array(queries)
    uses = np.array([1] * int(sizes[::2].sum()) + [0] * 3)
    digests = None if read is None else np.repeat(np.array(read, int), 8).reshape(-1, 8)
    reasons: list[str] = []
    Batches("poisson").add("round 0, client 1", charge, sizes, uses, reasons, digests)
    return reasons


SHARED = "round 0, client 1: the queries of one step do not share a batch"
DRAWN = "round 0, client 1: gradients were taken of batches that were not drawn"


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (None, []),
        # Of an empty batch nothing is read.
        ([5, 5, 7, 7], []),
        ([5, 5, 5, 5], []),
        ([5, 6, 7, 7], [SHARED]),
        ([5, 5, 7, 8], [SHARED]),
        ([5, 5, 7], [DRAWN]),
        ([5, 5], [DRAWN]),
        ([5, 5, 6, 6, 7, 7], [DRAWN]),
        ([], [DRAWN]),
    ],
)
def test_the_queries_of_a_step_are_answered_on_the_batch_that_was_drawn(
    read: list[int] | None, said: list[str]
) -> None:
    assert told(read) == said
