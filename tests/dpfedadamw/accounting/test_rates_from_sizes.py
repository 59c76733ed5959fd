"""Why the sampling rate is stated in the spec: q = B/R of a client's own R is not one constant.

Data sets that differ by one record are drawn from at B/R and at B/(R+1). Where the other records'
gradients point against the new one's, both differences add up, which the analysis of one constant
rate does not count. ERRATA.md, entry 41, prints these numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.privacy.composition import Composition

RECORDS, BATCH, NOISE, STEPS, DELTA = 1000, 20.0, 5.0, 2000, 1e-5
RATE = BATCH / RECORDS


def least_epsilon(rate_with_one_more: float) -> float:
    """The ε that a threshold on the sum of all answers shows to be spent; C = 1.

    All R records have the gradient -1, and the one that is added or not has +1. How often records
    are drawn is binomial and the noise Gaussian, so both sides' chances beyond a threshold are
    known exactly, and under (ε, δ)-DP the one is at most e^ε times the other, plus δ.
    """
    centre = int(RATE * RECORDS * STEPS)
    drawn, own = np.arange(centre - 2500, centre + 2500), np.arange(150)
    without = stats.binom.pmf(drawn, RECORDS * STEPS, RATE)
    others = stats.binom.pmf(drawn, RECORDS * STEPS, rate_with_one_more)
    with_one = np.convolve(others, stats.binom.pmf(own, STEPS, rate_with_one_more)[::-1])
    assert without.sum() == pytest.approx(1.0) == with_one.sum()
    sums_with = -(drawn[0] - own[-1] + np.arange(len(with_one)))
    spread = NOISE * np.sqrt(STEPS)
    thresholds = np.linspace(-centre, -centre + 1500, 300)[:, None]
    beyond = stats.norm.sf((thresholds - sums_with) / spread) @ with_one - DELTA
    beyond_without = stats.norm.sf((thresholds + drawn) / spread) @ without
    shown = beyond > 0.0
    return float(np.log(beyond[shown] / beyond_without[shown]).max())


def test_a_rate_that_follows_from_the_size_costs_more_than_one_constant_rate_says():
    claimed = epsilon_pld([Composition(NOISE, RATE, STEPS)], DELTA)
    assert claimed == pytest.approx(0.655, abs=1e-3)
    assert least_epsilon(BATCH / (RECORDS + 1)) == pytest.approx(1.00, abs=0.01)


def test_at_a_stated_rate_the_same_records_show_less_than_is_claimed():
    assert least_epsilon(RATE) < 0.655
