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

from dpfedadamw.accounting import pld
from dpfedadamw.accounting.losses import TILTS
from dpfedadamw.accounting.pld import (
    _Steps,
    delta_pld,
    epsilon_pld,
    mixture_epsilon_pld,
    privacy_profile,
)
from dpfedadamw.accounting.rdp import epsilon_rdp
from dpfedadamw.accounting.registry import ACCOUNTANTS
from dpfedadamw.accounting.step_losses import poisson_range
from dpfedadamw.errors import PrivacyError
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(5)
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


@pytest.mark.thorough
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
    with pytest.raises(PrivacyError, match="delta must be in"):
        epsilon_pld(Composition(1.0, 0.02, 10), delta)


def test_what_the_tight_accountant_does_not_cover_is_refused() -> None:
    with pytest.raises(PrivacyError, match="participation"):
        mixture_epsilon_pld([(Composition(1.0, 0.02, 10), 5)], 0.0, 1e-5)
    with pytest.raises(PrivacyError, match="epsilon must be at least 0"):
        delta_pld(Composition(1.0, 0.02, 10), -0.1)
    with pytest.raises(PrivacyError, match="nothing to account"):
        epsilon_pld([], 1e-5)


def test_steps_without_subsampling_are_one_gaussian_and_others_stay_as_many() -> None:
    steps = pld._steps_of
    full = Composition(6.0, 1.0, 9, 4, "full")
    assert steps(full, 7) == _Steps(1.0, 1.0, False, 1, 7)
    assert steps(Composition(6.0, 1.0, 9, 4), 7) == steps(full, 7)
    # Where a record is replaced, a sum moves twice as far.
    for sampling in ("shuffled", "fixed-size"):
        part = Composition(6.0, 1.0, 9, 4, sampling)
        assert steps(part, 7) == _Steps(0.5, 1.0, False, 1, 7)
    assert steps(Composition(6.0, 0.5, 9, 4), 7) == _Steps(3.0, 0.5, False, 9, 7)
    fixed = Composition(6.0, 0.5, 9, 4, "fixed-size")
    assert steps(fixed, 7) == _Steps(1.5, 0.5, True, 9, 7)
    assert steps(fixed, 7).count == 63


def test_gaussians_of_any_noise_add_up_to_one() -> None:
    one, other = _Steps(3.0, 1.0, False, 1, 4), _Steps(2.0, 1.0, False, 1, 5)
    drawn = [_Steps(1.0, 0.5, False, 3, 2), _Steps(2.0, 0.4, True, 3, 2)]
    for parts in ([], [one], drawn, [drawn[0], one, drawn[1]]):
        assert pld._one_gaussian(parts) == parts
    *left, merged = pld._one_gaussian([one, drawn[0], other, drawn[1]])
    assert left == drawn
    assert merged == _Steps(pytest.approx((4 / 9 + 5 / 4) ** -0.5), 1.0, False, 1, 1)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (30.0, 0.9), (0.2, 0.01)])
def test_the_grid_of_a_step_follows_from_how_far_its_losses_spread(noise, rate) -> None:
    least, greatest = poisson_range(noise, rate)
    plain, fixed = (_Steps(noise, rate, which, 3, 2) for which in (False, True))
    assert plain.spread == greatest - least
    # With a fixed size the losses of both neighbours are each other's, with the other sign.
    assert fixed.spread == 2.0 * greatest
    for part in (plain, fixed):
        coarse = part.coarse.remove.interval
        assert part.spread / 2048 < coarse <= part.spread / 1024
        assert math.log2(coarse) == round(math.log2(coarse))
        assert pld._finest(part) == part.spread / 2**18
        assert part.losses(coarse).remove.interval == coarse
        assert part.losses(coarse / 8).remove.interval == coarse / 8
    assert plain.losses(coarse).add is not plain.losses(coarse).remove
    assert fixed.losses(coarse).add is fixed.losses(coarse).remove


def test_no_grid_is_finer_than_rounding_allows() -> None:
    # So much noise that a step's losses would fill 2^18 cells of less than a billionth.
    part = _Steps(1e6, 0.5, False, 1, 1)
    assert part.spread / 2**18 < 1e-9
    assert pld._finest(part) == 1e-9


@pytest.mark.parametrize("steps", [1, 3, 4, 15, 16, 1000, 10**6])
def test_a_steps_grid_is_halved_once_for_every_factor_of_four_that_is_affordable(steps) -> None:
    part = _Steps(1.0, 0.1, False, steps, 1)
    finest = pld._finest(part)
    wanted = math.floor(math.log(steps * 1.0001, 4))
    assert pld._halvings(part, finest * 2.0**40) == wanted
    for affordable in (0, 1, 3):
        # One more than would keep the width above the finest.
        found = pld._halvings(part, finest * 2.0**affordable * 1.01)
        assert found == min(wanted, affordable + 1)
    assert pld._halvings(part, finest / 16) == 0


def chosen(parts: list[_Steps], participation: float, delta: float) -> float:
    """The width that the formula of the module gives, of the moments on the coarse grids."""
    rising, falling = pld._moments(parts, participation)
    bounds = (rising - math.log(delta)) / TILTS
    order = 1.0 + TILTS[bounds.argmin()]
    epsilon = max(bounds.min(), 0.01)
    window = sum(((one - math.log(1e-14)) / TILTS).min() for one in (rising, falling))
    added = 0.0
    for part in parts:
        halved = math.floor(math.log(part.each * part.rounds * 1.0001, 4))
        added += part.each * part.rounds / 4**halved * (halved + 1)
    share = 2e-4 * min(5, len(parts))
    finest = [max(1e-9, part.spread / 2**18) for part in parts]
    width = max(math.sqrt(8 * share * epsilon / (order * added)), window / 2**20, *finest)
    return 2.0 ** math.floor(math.log2(width))


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_the_width_of_the_grid_adds_its_share_of_epsilon(participation, delta) -> None:
    found = []
    for noise in (0.05, 0.6, 1.0, 1.7, 5.0, 11.0, 3000.0):
        for rate, each, rounds in ((0.02, 5, 40), (0.5, 1, 3), (1.0, 1, 17)):
            parts = [_Steps(noise, rate, False, each, rounds)]
            found.append(pld._interval(parts, participation, delta))
            assert found[-1] == chosen(parts, participation, delta)
    many = [_Steps(1.0 + n / 7, 0.1, n % 2 == 0, 4, 30 + n) for n in range(7)]
    for count in (2, 4, 5, 6, 7):
        found.append(pld._interval(many[:count], participation, delta))
        assert found[-1] == chosen(many[:count], participation, delta)
    assert len(set(found)) > 5


def test_moments_of_a_gaussian_are_their_closed_form() -> None:
    # The loss of N(0, σ²) against N(1, σ²) is N(1/2σ², 1/σ²), for either neighbour.
    part = _Steps(2.0, 1.0, False, 1, 3)
    rising, falling = pld._moments([part], 1.0)
    near = (TILTS >= 0.25) & (TILTS <= 16.0)
    for found, sign in ((rising, 1.0), (falling, -1.0)):
        expected = 3 * (TILTS**2 + sign * TILTS) / (2 * 2.0**2)
        assert found[near] == pytest.approx(expected[near], rel=1e-3, abs=1e-3)


def test_moments_are_those_of_rounds_that_happen_with_a_probability() -> None:
    part = _Steps(2.0, 0.3, False, 4, 5)
    pair = part.coarse
    one = np.maximum(pair.remove.rising, pair.add.rising)
    other = np.maximum(pair.remove.falling, pair.add.falling)
    assert not np.array_equal(one, pair.remove.rising) or not np.array_equal(
        other, pair.remove.falling
    )
    near = TILTS <= 8.0
    for share in (0.3, 1.0):
        found = pld._moments([part], share)
        for moments, step in zip(found, (one, other), strict=True):
            expected = 5 * np.log(1.0 - share + share * np.exp(4 * step[near]))
            assert moments[near] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        twice = pld._moments([part, part], share)
        assert twice[0][near] == pytest.approx(2.0 * found[0][near], rel=1e-12)
        assert twice[1][near] == pytest.approx(2.0 * found[1][near], rel=1e-12)


@pytest.mark.parametrize("kinds", [1, 2, 3, 4, 5, 6])
def test_any_number_of_kinds_is_composed_whole_and_nothing_is_lost_in_windows(kinds: int) -> None:
    # Rates just below 1, so that none is merged with another; together one Gaussian.
    parts = [Composition(12.0 + n, 1 - 1e-12, 10) for n in range(kinds)]
    sigma = sum(10 / part.noise_multiplier**2 for part in parts) ** -0.5
    exact = epsilon_pld(Composition(sigma, 1.0, 1, sampling="full"), 1e-5)
    assert exact * (1 - 1e-4) <= epsilon_pld(parts, 1e-5) <= exact * (1 + 1e-3)
    pair = pld._composed(tuple((part, 1) for part in parts), 1.0, 1e-5)
    for losses in (pair.remove, pair.add):
        # A record in every batch loses no infinite amount but what windows move there.
        assert losses.infinite < 1e-13
        assert losses.masses.sum() + losses.infinite == pytest.approx(1.0, abs=1e-9)


def test_the_profile_has_as_many_points_as_asked_over_an_equal_grid() -> None:
    part = Composition(3.0, 1.0, 1, sampling="full")
    profile = privacy_profile(part, 5)
    last = epsilon_pld(part, 1e-10)
    assert [epsilon for epsilon, _ in profile] == pytest.approx(
        [last * n / 4 for n in range(5)], rel=1e-3
    )
    assert profile[2][1] == pytest.approx(delta_pld(part, profile[2][0]))
    # Next to no loss: the grid still ends at a thousandth.
    almost = privacy_profile(Composition(1e6, 1.0, 1, sampling="full"), 3)
    assert [epsilon for epsilon, _ in almost] == [0.0, 0.0005, 0.001]


def test_what_has_no_finite_epsilon_has_no_profile_and_no_grid(monkeypatch) -> None:
    class Endless:
        def epsilon(self, delta: float) -> float:
            return math.inf

    part = Composition(3.0, 1.0, 1, sampling="full")
    infinite = np.full(len(TILTS), math.inf)
    with monkeypatch.context() as patch:
        patch.setattr(pld, "_moments", lambda *_: (infinite, infinite))
        with pytest.raises(PrivacyError, match="the noise multiplier is too small"):
            delta_pld(part, 1.0)
    monkeypatch.setattr(pld, "_composed", lambda *_: Endless())
    with pytest.raises(PrivacyError, match="no finite epsilon and so no profile"):
        privacy_profile(part)


@pytest.mark.parametrize("share", [-0.1, 0.0, 1.0001, math.nan])
def test_a_participation_lies_above_0_and_at_most_at_1(share: float) -> None:
    part = Composition(9.0, 1.0, 1, sampling="full")
    with pytest.raises(PrivacyError, match=r"a participation probability must be in \(0, 1\]"):
        mixture_epsilon_pld([(part, 2)], share, 1e-5)
    with pytest.raises(PrivacyError, match="delta must be in"):
        mixture_epsilon_pld([(part, 2)], 0.5, 1e-11)
    # At 1, a grid's rounding of its own; next to 0 hardly anything.
    certain = mixture_epsilon_pld([(part, 2)], 1.0, 1e-5)
    assert certain == epsilon_pld(Composition(9.0, 1.0, 2, sampling="full"), 1e-5)
    assert 0.0 <= mixture_epsilon_pld([(part, 2)], 1e-6, 1e-5) < certain / 2


def test_a_negative_epsilon_has_no_delta_and_zero_has() -> None:
    part = Composition(3.0, 1.0, 1, sampling="full")
    for wrong in (-1e-9, math.nan):
        with pytest.raises(PrivacyError, match="epsilon must be at least 0"):
            delta_pld(part, wrong)
    # δ(0) is the total variation, 2Φ(1/2σ) - 1.
    assert delta_pld(part, 0) == pytest.approx(2 * stats.norm.cdf(1 / 6) - 1, rel=1e-3)


def test_the_tight_accountant_leads_the_claims_of_every_sampler() -> None:
    one = ACCOUNTANTS["pld"]
    assert one.label == "PLD"
    assert one.samplings == {"poisson", "full", "fixed-size", "shuffled"}
    assert one.epsilon is epsilon_pld
    assert one.leads is not None
    assert (one.leads.mixture, one.leads.profile) == (mixture_epsilon_pld, privacy_profile)


def test_a_window_from_nothing_to_very_much_has_a_million_cells() -> None:
    # One round of which nobody knows whether it was: no loss, or that of so many steps.
    parts = [_Steps(0.1, 0.5, False, 10**8, 1)]
    found = pld._interval(parts, 0.3, 1e-5)
    assert found == chosen(parts, 0.3, 1e-5) > 1000.0
