"""The test that tells two specs apart, against SciPy's own and Holm's definition."""

from __future__ import annotations

import pytest
from scipy import stats

from reports import paired


def test_chance_and_interval_are_those_of_the_paired_t_test():
    one, other = [0.61, 0.64, 0.66, 0.7], [0.6, 0.65, 0.63, 0.66]
    each = paired.differences(dict(enumerate(one)), dict(enumerate(other)))
    reference = stats.ttest_rel(one, other)
    assert paired.chance(each) == pytest.approx(reference.pvalue, rel=1e-12)
    expected = tuple(reference.confidence_interval(0.95))
    assert paired.interval(each) == pytest.approx(expected, rel=1e-12)


def test_only_common_seeds_count_and_one_alone_says_nothing():
    each = paired.differences({1: 0.5, 2: 0.9}, {2: 0.8, 3: 0.1})
    assert each == [pytest.approx(0.1)]
    assert (paired.chance(each), paired.interval(each)) == (1.0, None)
    assert paired.chance([]) == paired.chance([0.0, 0.0]) == 1.0


def test_holms_correction_falls_where_the_reference_says():
    # Holm (1979): the k-th smallest of m against 0.05 / (m - k + 1), and nothing after the first
    # that stands.
    chances = {"a": 0.001, "b": 0.02, "c": 0.04, "d": 0.0126}
    assert paired.holm(chances) == {"a", "b", "c", "d"}
    chances["b"] = 0.026
    assert paired.holm(chances) == {"a", "d"}
