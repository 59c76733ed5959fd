"""The tight accountant, against reference points, other libraries and itself."""

from __future__ import annotations

import math
import random

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from opacus.accountants import PRVAccountant
from scipy import stats

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting.pld import (
    delta_pld,
    epsilon_pld,
    mixture_epsilon_pld,
    privacy_profile,
)
from dpfedadamw.privacy.accounting.rdp import epsilon_rdp
from dpfedadamw.privacy.composition import Composition


@pytest.mark.parametrize(
    ("composition", "epsilon"),
    [
        (Composition(1.0, 0.02, 2000), 5.616),
        # The setting of DP-FedAdamW, Table 15: one client taking part in 10 rounds, and in all.
        (Composition(1.0, 0.016, 200), 1.476),
        (Composition(1.0, 0.016, 2000), 4.363),
    ],
)
def test_reference_points(composition: Composition, epsilon: float) -> None:
    # Values have three decimals.
    assert epsilon_pld(composition, 1e-5) == pytest.approx(epsilon, abs=1e-3)


def test_noise_that_has_the_clipping_norm_in_twice_protects_nobody() -> None:
    # DP-FedAdamW eq. (3) read literally with C = 0.1 has a true multiplier of 0.1.
    assert epsilon_pld(Composition(0.1, 0.016, 20), 1e-5) == pytest.approx(227.4, abs=0.5)


@pytest.mark.parametrize("seed", range(4))
def test_agreement_with_dp_accounting_called_directly(seed: int) -> None:
    draw = random.Random(seed)
    rate, noise, steps = draw.uniform(0.005, 0.3), draw.uniform(0.8, 3.0), draw.randint(2, 400)
    accountant = PLDAccountant()
    gaussian = dp_accounting.GaussianDpEvent(noise)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), steps)
    expected = accountant.get_epsilon(1e-5)
    # Ours may be coarser by 1e-4 of ε, upwards; the direct call's own grid allows for 1e-4.
    assert expected - 1e-4 <= epsilon_pld(Composition(noise, rate, steps), 1e-5)
    assert epsilon_pld(Composition(noise, rate, steps), 1e-5) <= expected * (1 + 2e-4) + 1e-4


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.02, 1.0, 300), (0.1, 2.0, 100), (0.3, 1.2, 20)]
)
def test_agreement_with_the_accountant_of_opacus(rate: float, noise: float, steps: int) -> None:
    oracle = PRVAccountant()
    oracle.history = [(noise, rate, steps)]
    # Opacus returns an upper bound within its error of 0.01 in ε.
    expected = oracle.get_epsilon(1e-5, eps_error=0.01)
    assert epsilon_pld(Composition(noise, rate, steps), 1e-5) == pytest.approx(expected, abs=0.02)
    assert epsilon_pld(Composition(noise, rate, steps), 1e-5) <= expected + 1e-4


def test_agreement_with_the_closed_form_of_the_gaussian_mechanism() -> None:
    # δ(ε) of one Gaussian of multiplier σ/√n (Balle & Wang 2018), exact.
    sigma = 5.0 / math.sqrt(30)
    for epsilon in (0.1, 1.0, 3.0):
        upper, lower = stats.norm.cdf(np.array([0.5, -0.5]) / sigma - epsilon * sigma)
        exact = upper - math.exp(epsilon) * lower
        full = Composition(5.0, 1.0, 30, sampling="full")
        # δ is rounded up by a relative 1e-3 at most where ε is off by 1e-4; 1e-12 is float64's.
        assert exact * (1 - 1e-12) <= delta_pld(full, epsilon) <= exact * (1 + 1e-3)


def test_epsilon_and_delta_are_inverse() -> None:
    composition = Composition(1.3, 0.05, 120, 2)
    for delta in (1e-3, 1e-5, 1e-7):
        again = delta_pld(composition, epsilon_pld(composition, delta))
        # Both ends round on grids of their own, each worth 1e-4 of ε.
        assert again == pytest.approx(delta, rel=0.01)


def test_two_queries_on_one_batch_are_one_query_of_less_noise() -> None:
    twice = epsilon_pld(Composition(1.0, 0.02, 100, queries_per_step=2), 1e-5)
    assert twice == epsilon_pld(Composition(1 / math.sqrt(2), 0.02, 100), 1e-5)
    # Counting them as independent batches would understate the cost.
    assert twice > 1.05 * epsilon_pld(Composition(1.0, 0.02, 200), 1e-5)


def test_parts_compose_in_any_order_and_grouping() -> None:
    one, two = Composition(1.0, 0.02, 100), Composition(1.5, 0.05, 40)
    both = epsilon_pld([one, two], 1e-5)
    assert both == epsilon_pld([two, one], 1e-5)
    split = [Composition(1.0, 0.02, 60), two, Composition(1.0, 0.02, 40)]
    assert both == epsilon_pld(split, 1e-5)
    assert both > max(epsilon_pld(one, 1e-5), epsilon_pld(two, 1e-5))
    # An oracle that shares no code with ours beyond single steps.
    accountant = PLDAccountant()
    for part in (one, two):
        gaussian = dp_accounting.GaussianDpEvent(part.noise_multiplier)
        event = dp_accounting.PoissonSampledDpEvent(part.sampling_rate, gaussian)
        accountant.compose(event, part.steps)
    assert both == pytest.approx(accountant.get_epsilon(1e-5), rel=3e-4)


def test_more_steps_more_rate_and_less_noise_cost_more() -> None:
    base = epsilon_pld(Composition(1.2, 0.05, 100), 1e-5)
    assert epsilon_pld(Composition(1.2, 0.05, 101), 1e-5) > base
    assert epsilon_pld(Composition(1.2, 0.051, 100), 1e-5) > base
    assert epsilon_pld(Composition(1.19, 0.05, 100), 1e-5) > base
    assert epsilon_pld(Composition(1.2, 0.05, 100), 2e-5) < base


@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [
        (0.02, 0.016, 20),
        (0.1, 0.016, 20),
        (20.0, 0.016, 20),
        (1000.0, 0.016, 20),
        (0.3, 1e-5, 50_000),
        (1.0, 0.3, 300_000),
    ],
)
def test_extremes_neither_fail_nor_take_the_memory(noise: float, rate: float, steps: int) -> None:
    composition = Composition(noise, rate, steps)
    assert 0 < epsilon_pld(composition, 1e-5) <= epsilon_rdp(composition, 1e-5) * (1 + 1e-3)


def test_the_profile_falls_and_holds_the_headline() -> None:
    composition = Composition(1.0, 0.02, 300)
    profile = privacy_profile(composition)
    epsilons, deltas = np.array(profile).T
    assert len(profile) == 40
    assert np.all(np.diff(epsilons) > 0)
    assert np.all(np.diff(deltas) < 0)
    assert deltas[0] < 1
    assert deltas[-1] == pytest.approx(1e-10, rel=0.1)
    headline = epsilon_pld(composition, 1e-5)
    # Linear interpolation of log δ over 40 points is good to a few percent of δ.
    interpolated = np.interp(headline, epsilons, np.log(deltas))
    assert interpolated == pytest.approx(math.log(1e-5), abs=0.1)


def participation_sum(
    per_round: Composition, rounds: int, participation: float, epsilon: float
) -> float:
    """E_n[δ_n(ε)] term by term, for each direction, from dp-accounting alone."""
    one = privacy_loss_distribution.from_gaussian_mechanism(
        per_round.step_noise_multiplier, sampling_prob=per_round.sampling_rate
    )
    total = 0.0
    for count in range(1, rounds + 1):
        delta = one.self_compose(count * per_round.steps).get_delta_for_epsilon(epsilon)
        total += float(stats.binom.pmf(count, rounds, participation)) * float(delta)
    return total


@pytest.mark.parametrize("participation", [0.1, 0.6])
def test_the_mixture_over_participation_is_the_binomial_sum(participation: float) -> None:
    per_round = Composition(1.0, 0.05, 4)
    epsilon = mixture_epsilon_pld([(per_round, 8)], participation, 1e-5)
    expected = participation_sum(per_round, 8, participation, epsilon)
    # Taking the worse direction term by term can only exceed the mixture; for these it does not,
    # and both roundings of ε are worth less than a percent of δ.
    assert expected == pytest.approx(1e-5, rel=0.02)


def test_the_mixture_grows_with_participation_up_to_the_worst_case() -> None:
    per_round = Composition(1.0, 0.02, 10)
    shares = [0.05, 0.1, 0.3, 0.7, 0.99, 1.0]
    values = [mixture_epsilon_pld([(per_round, 30)], share, 1e-5) for share in shares]
    assert values == sorted(values)
    worst = epsilon_pld(Composition(1.0, 0.02, 300), 1e-5)
    assert values[-1] == worst
    assert values[-2] < worst
    assert values[-2] == pytest.approx(worst, rel=0.02)
    # Hidden participation costs more than the average number of participations.
    assert values[1] > epsilon_pld(Composition(1.0, 0.02, 30), 1e-5)


def test_rounds_of_several_kinds_mix_as_the_sum_over_both_counts() -> None:
    kinds = [(Composition(1.0, 0.05, 4), 3), (Composition(0.8, 0.05, 4), 2)]
    epsilon = mixture_epsilon_pld(kinds, 0.6, 1e-5)
    total = 0.0
    for first in range(4):
        for second in range(3):
            weight = stats.binom.pmf(first, 3, 0.6) * stats.binom.pmf(second, 2, 0.6)
            parts = [
                Composition(part.noise_multiplier, 0.05, 4 * count)
                for (part, _), count in zip(kinds, (first, second), strict=True)
                if count
            ]
            total += float(weight) * (delta_pld(parts, epsilon) if parts else 0.0)
    # As above: both roundings of ε are worth less than a percent of δ.
    assert total == pytest.approx(1e-5, rel=0.02)
    assert mixture_epsilon_pld(kinds[::-1], 0.6, 1e-5) == pytest.approx(epsilon, rel=1e-3)


def test_the_mixture_of_full_batches_is_as_accurate() -> None:
    # Nearly full participation at rate 1 is nearly the exact Gaussian of all steps.
    per_round = Composition(20.0, 1.0, 5, sampling="full")
    mixed = mixture_epsilon_pld([(per_round, 200)], 1 - 1e-9, 1e-5)
    assert mixed == pytest.approx(
        epsilon_pld(Composition(20.0, 1.0, 1000, sampling="full"), 1e-5), rel=3e-4
    )


def test_a_small_delta_is_not_lost_in_rounding() -> None:
    # A rate just below 1 takes the path of subsampled steps, by Fourier transforms; the plain
    # Gaussian is exact. Both round ε up by up to 1e-4 of it.
    for delta in (1e-5, 1e-8, 1e-10):
        exact = epsilon_pld(Composition(10.0, 1.0, 300, sampling="full"), delta)
        assert epsilon_pld(Composition(10.0, 1 - 1e-12, 300), delta) == pytest.approx(
            exact, rel=3e-4
        )


@pytest.mark.parametrize("delta", [0.0, 1e-12, 1.0, math.nan])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(PrivacyError, match="delta must lie"):
        epsilon_pld(Composition(1.0, 0.02, 10), delta)


def test_what_the_tight_accountant_does_not_cover_is_refused() -> None:
    with pytest.raises(PrivacyError, match="participation"):
        mixture_epsilon_pld([(Composition(1.0, 0.02, 10), 5)], 0.0, 1e-5)
    with pytest.raises(PrivacyError, match="epsilon is at least 0"):
        delta_pld(Composition(1.0, 0.02, 10), -0.1)
    with pytest.raises(PrivacyError, match="nothing to account"):
        epsilon_pld([], 1e-5)
