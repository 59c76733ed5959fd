"""Quantiles of the noise: a verdict each, consistent with the Kolmogorov-Smirnov test."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from audit.statistics.intervals import kolmogorov_p_value
from audit.statistics.noise_values import kolmogorov_distance, quantile_verdicts

ALPHA = 1.5e-4


@pytest.mark.parametrize("count", [200, 4_999, 20_000])
def test_the_distance_is_where_the_tests_p_value_is_alpha(count):
    reach = kolmogorov_distance(count, ALPHA)
    law = stats.kstwo.sf(reach, count) if count <= 5000 else stats.kstwobign.sf(reach * count**0.5)
    assert law == pytest.approx(ALPHA, rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scale", [1.0, 1.02, 0.97, 1.5])
def test_what_the_test_accepts_is_inside_at_every_level(seed, scale):
    """Deterministic: whatever the draw, acceptance implies that all quantiles are inside."""
    values = scale * np.random.default_rng(seed).standard_normal(3_000)
    found = quantile_verdicts(values, ALPHA)
    if kolmogorov_p_value(values) >= ALPHA:
        assert set(found["verdicts"]) == {"inside"}


@pytest.mark.parametrize(
    ("change", "upper", "lower"),
    [
        (lambda x: 1.5 * x, "above", "below"),
        (lambda x: x / 1.5, "below", "above"),
        (lambda x: x + 0.3, "above", "above"),
        (lambda x: x - 0.3, "below", "below"),
    ],
)
def test_a_wrong_law_is_told_with_its_side(change, upper, lower):
    """At 20,000 values each of these faults is missed with probability below 1e-9."""
    values = change(np.random.default_rng(1).standard_normal(20_000))
    verdicts = quantile_verdicts(values, ALPHA)["verdicts"]
    assert verdicts[-1] == upper
    assert verdicts[0] == lower


def test_nothing_but_the_verdicts_depends_on_the_noise():
    """Two correct draws of one size leave the same bytes, so the noise cannot be read off."""
    draws = (np.random.default_rng(seed).standard_normal((40, 64)) for seed in (1, 2))
    first, second = (json.dumps(quantile_verdicts(draw, ALPHA)) for draw in draws)
    assert first == second


def test_few_values_leave_only_the_levels_that_can_be_judged():
    found = quantile_verdicts(np.random.default_rng(1).standard_normal(50), ALPHA)
    assert all(np.isfinite(found["low"] + found["high"]))
    assert len({len(rows) for rows in found.values()}) == 1
    assert quantile_verdicts(np.zeros(3), ALPHA)["levels"] == []
