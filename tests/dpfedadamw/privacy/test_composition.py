"""What a composition is, when one covers another, and what describes no mechanism."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, check_delta, covers, merge, mu_gdp

ONE = Composition(sampling_rate=0.1, noise_multiplier=2.0, steps=10, sampling="poisson")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"noise_multiplier": 0.0}, "the noise multiplier must be a positive number, not 0.0"),
        ({"noise_multiplier": math.inf}, "must be a positive number, not inf"),
        ({"sampling_rate": 0.0}, r"a sampling rate must be in \(0, 1\], not 0.0"),
        ({"sampling_rate": 1.0000001}, r"a sampling rate must be in \(0, 1\]"),
        ({"steps": 0}, "at least one step and one query per step, not 0 and 1"),
        ({"queries_per_step": 0}, "not 10 and 0"),
        ({"sampling": "cyclic"}, "no accountant covers sampling 'cyclic'; it is one of '"),
        ({"sampling": "full"}, "full batches have the sampling rate 1: nothing is amplified"),
        ({"sampling": "shuffled"}, "shuffled batches have the sampling rate 1"),
    ],
)
def test_what_describes_no_mechanism_is_refused(changes, why):
    with pytest.raises(PrivacyError, match=why):
        replace(ONE, **changes)


def test_bounds_themselves_are_mechanisms():
    replace(ONE, sampling_rate=1.0, steps=1, queries_per_step=1)
    assert replace(ONE, sampling="full", sampling_rate=1.0).sampling_rate == 1.0


def test_queries_of_a_step_amount_to_one_of_less_noise_and_a_replaced_record_counts_twice():
    assert replace(ONE, queries_per_step=4).step_noise_multiplier == 1.0
    assert ONE.sensitivity == 1.0
    assert ONE.noise_over_sensitivity == 2.0
    fixed = replace(ONE, sampling="fixed-size")
    assert fixed.adjacency == "replace-one"
    assert fixed.sensitivity == 2.0
    assert fixed.noise_over_sensitivity == 1.0


def test_like_steps_are_added_up_in_one_order():
    quiet, loud = replace(ONE, noise_multiplier=3.0), replace(ONE, steps=5)
    assert merge([quiet, ONE, loud]) == (replace(ONE, steps=15), quiet)
    assert merge(ONE) == (ONE,)
    # Four queries at twice the noise are one query at the noise.
    assert merge([replace(ONE, noise_multiplier=4.0, queries_per_step=4), ONE])[0].steps == 20
    with pytest.raises(PrivacyError, match="there is nothing to account: no step was taken"):
        merge([])
    with pytest.raises(PrivacyError, match="under different adjacencies cannot be added up"):
        merge([ONE, replace(ONE, sampling="fixed-size")])


@pytest.mark.parametrize(
    ("most", "own", "does"),
    [
        (ONE, ONE, True),
        (ONE, replace(ONE, steps=9), True),
        (ONE, replace(ONE, steps=11), False),
        (ONE, replace(ONE, noise_multiplier=2.1), True),
        (ONE, replace(ONE, noise_multiplier=1.9), False),
        (ONE, replace(ONE, sampling_rate=0.09), True),
        (ONE, replace(ONE, sampling_rate=0.11), False),
        # A step under much noise is covered by one under less, not the other way round.
        ((ONE, replace(ONE, noise_multiplier=1.0)), replace(ONE, steps=20), True),
        ((ONE, replace(ONE, noise_multiplier=1.0)), replace(ONE, steps=21), False),
        (
            (ONE, replace(ONE, noise_multiplier=1.0)),
            (replace(ONE, noise_multiplier=1.0), replace(ONE, noise_multiplier=1.5)),
            False,
        ),
        # The least rate of the whole must be no less than any of the parts.
        ((ONE, replace(ONE, sampling_rate=0.2)), replace(ONE, sampling_rate=0.2), False),
    ],
)
def test_one_composition_covers_another_step_by_step(most, own, does):
    assert covers(most, own) is does


def test_samplers_of_one_adjacency_do_not_cover_each_other():
    whole = replace(ONE, sampling="full", sampling_rate=1.0)
    assert not covers(whole, replace(whole, sampling="poisson"))


def test_each_sampler_is_covered_by_its_own_steps_or_none_is():
    full = replace(ONE, sampling="full", sampling_rate=1.0)
    most = [ONE, full]
    assert covers(most, [replace(ONE, steps=9), full])
    assert covers(most, full)
    assert not covers(most, [replace(ONE, steps=11), full])
    assert not covers(most, [ONE, replace(full, steps=11)])


def test_the_central_limits_mu_is_that_of_bu_and_others():
    """q·√(T·(e^{1/σ²} − 1)) (Bu, Dong, Long & Su 2020)."""
    assert mu_gdp(ONE) == pytest.approx(0.1 * math.sqrt(10 * (math.exp(1 / 4) - 1)), rel=1e-14)
    assert mu_gdp(replace(ONE, noise_multiplier=0.04)) < math.inf
    assert mu_gdp(replace(ONE, noise_multiplier=0.03)) == math.inf


@pytest.mark.parametrize(
    ("delta", "fine"), [(1e-10, True), (9.9e-11, False), (0.999, True), (1.0, False)]
)
def test_a_delta_lies_in_its_range(delta, fine):
    if fine:
        check_delta(delta)
        return
    with pytest.raises(PrivacyError, match=r"delta must be in \[1e-10, 1\)"):
        check_delta(delta)


def test_no_step_may_draw_at_a_larger_rate_than_the_least_that_covers_it():
    most = [Composition(1.0, 0.2, 50)]
    assert covers(most, [Composition(1.0, 0.2, 5), Composition(1.5, 0.1, 5)])
    assert not covers(most, [Composition(1.0, 0.3, 5), Composition(1.5, 0.1, 5)])
    assert not covers([*most, Composition(2.0, 0.1, 50)], [Composition(2.0, 0.2, 5)])
