"""What a private selection costs, against dp-accounting and a reference of its own, and its law."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import optimize, stats

from audit.accounting.selection import Law, selection_cost
from audit.accounting.steps import Steps
from dpfedadamw.privacy.accounting.client_level import client_level_claim
from dpfedadamw.privacy.accounting.pld import epsilon_pld
from dpfedadamw.privacy.accounting.selection import (
    Trials,
    candidate,
    epsilon_of_selection,
)
from dpfedadamw.privacy.composition import Composition

# Noise multiplier, sampling rate, steps, mean and shape of the law, δ, and ε.
GOLDEN = [
    (2.5, 0.2, 100, 10.0, 1.0, 1e-5, 7.502013),
    (2.5, 0.2, 100, 10.0, 0.0, 1e-5, 6.487237),
    (1.1, 0.01, 1000, 30.0, 0.5, 1e-6, 3.849297),
    (4.0, 1.0, 50, 5.0, 2.0, 1e-5, 13.538029),
]
SECRETS = [number.to_bytes(32, "big") for number in range(400)]


def of_one_client(noise, rate, steps):
    kind = "full" if rate == 1.0 else "poisson"
    return [(Composition(noise, rate, 1, 1, kind), steps)]


@pytest.mark.parametrize(("noise", "rate", "steps", "mean", "shape", "delta", "epsilon"), GOLDEN)
def test_it_is_what_dp_accounting_and_the_auditor_say(
    noise, rate, steps, mean, shape, delta, epsilon
):
    found = epsilon_of_selection(of_one_client(noise, rate, steps), 1.0, delta, Trials(mean, shape))
    assert found == pytest.approx(epsilon, abs=1e-6)
    gaussian = dp_accounting.GaussianDpEvent(noise)
    step = gaussian if rate == 1.0 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    trial = dp_accounting.SelfComposedDpEvent(step, steps)
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(RepeatAndSelectDpEvent(trial, mean, shape))
    assert found == pytest.approx(accountant.get_epsilon(delta), rel=1e-8)
    audited = selection_cost([(Steps(rate, noise, 1), steps)], 1.0, delta, Law(mean, shape))
    assert audited.least * 0.999 <= found <= audited.most * 1.001
    assert audited.least == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("by", ["server", "clients"])
@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "mean", "shape", "epsilon"),
    [(2.0, 0.5, 8, 3.0, 1.0, 4.709812), (3.0, 0.1, 100, 10.0, 0.0, 2.191489)],
)
def test_of_whole_clients_it_is_that_of_the_rounds_as_queries_on_clients(
    noise, rate, rounds, mean, shape, epsilon, by
):
    spend = {
        "noise_multiplier": noise,
        "sampling_rate": rate,
        "noise_added_by": by,
        "clients": [0, 1],
        "upload_noise_multiplier": noise / 2**0.5,
    }
    # With ten clients the most of a round is every one of them, at σ/√10 each.
    most = (Composition(noise / 10**0.5, 1.0, rounds, 1, "full"),)
    law = Trials(mean, shape)
    claim = client_level_claim([spend] * rounds, 10, 1e-3, 1, most, "private", law, 7)
    party, tuning = claim["third_party"], claim["tuning"]
    assert party["epsilon"] == {"rdp": pytest.approx(epsilon, abs=1e-6)}
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = dp_accounting.rdp.RdpAccountant()
    trial = dp_accounting.SelfComposedDpEvent(step, rounds)
    accountant.compose(RepeatAndSelectDpEvent(trial, mean, shape))
    assert party["epsilon"]["rdp"] == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-8)
    audited = selection_cost([(Steps(rate, noise, rounds), 1)], 1.0, 1e-3, Law(mean, shape))
    assert audited.least * 0.999 <= party["epsilon"]["rdp"] <= audited.most * 1.001
    alone = epsilon_pld([Composition(noise, rate, rounds, 1, "poisson")], 1e-3)
    assert tuning["one_trial"]["epsilon"] == {"pld": pytest.approx(alone, rel=1e-6)}
    # Towards a server that adds the noise nothing holds; else seven trials are one Gaussian.
    if by == "server":
        assert "server_all_trials" not in tuning
    else:
        every = epsilon_pld([Composition(noise / (70 * rounds) ** 0.5, 1.0, 1, 1, "full")], 1e-3)
        found = tuning["server_all_trials"]["epsilon"]
        assert found == {"pld": pytest.approx(every, rel=1e-3)}


def reference(rho: float, mean: float, delta: float) -> float:
    """Theorem 2 and Proposition 12 of Canonne et al. for Gaussians and the geometric law.

    In float64, over all real orders: ε_α = ρ·α.
    """
    repeated = optimize.minimize_scalar(
        lambda order: (1 - 1 / order) * rho * order + math.log(mean) / order,
        bounds=(1.0 + 1e-9, 1e4),
        method="bounded",
        options={"xatol": 1e-10},
    ).fun

    def epsilon(order):
        divergence = rho * order + 2 * repeated + math.log(mean) / (order - 1)
        return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    return optimize.minimize_scalar(epsilon, bounds=(1.01, 1e4), method="bounded").fun


@pytest.mark.parametrize(("noise", "mean"), [(4.0, 5.0), (10.0, 20.0), (30.0, 3.0)])
def test_it_lies_at_most_two_percent_above_the_best_of_all_real_orders(noise, mean):
    least = reference(1 / (2 * noise**2), mean, 1e-5)
    found = epsilon_of_selection(of_one_client(noise, 1.0, 1), 1.0, 1e-5, Trials(mean, 1.0))
    assert least - 1e-9 <= found <= least * 1.02


def exact_delta(noise: float, mean: float, epsilon: float) -> float:
    """δ of the best of geometrically many Gaussians, each scored by its own value.

    The best has the density f·G'(F), with the generating function G(s) = γs / (1 - (1 - γ)s). Both
    directions, by sums on a fine grid.
    """
    outputs, width = np.linspace(-14 * noise, 1 + 14 * noise, 400_001, retstep=True)
    gamma = 1 / mean

    def density(centre):
        left = (1 - gamma) * stats.norm.cdf(outputs, centre, noise)
        return stats.norm.pdf(outputs, centre, noise) * gamma / (1 - left) ** 2

    one, other = density(1.0), density(0.0)
    return max(
        float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * width)
        for a, b in ((one, other), (other, one))
    )


@pytest.mark.parametrize(("noise", "mean"), [(1.0, 3.0), (2.0, 10.0), (5.0, 100.0)])
def test_the_exact_loss_of_a_selection_lies_below_the_claim_and_above_that_of_one_trial(
    noise, mean
):
    part = of_one_client(noise, 1.0, 1)
    claimed = epsilon_of_selection(part, 1.0, 1e-5, Trials(mean, 1.0))
    assert exact_delta(noise, mean, claimed) <= 1e-5
    # The sums are right: of a single Gaussian they give the δ of its tight ε.
    alone = epsilon_pld([one for one, _ in part], 1e-5)
    assert exact_delta(noise, 1.0, alone) == pytest.approx(1e-5, rel=0.02)
    # So a claim that leaves the selection out understates what was spent.
    assert exact_delta(noise, mean, alone) > 1.5e-5


def test_who_does_not_know_who_took_part_learns_less():
    rounds, law = [(Composition(3.0, 0.1, 5), 20)], Trials(10.0, 1.0)
    every, half = (epsilon_of_selection(rounds, share, 1e-5, law) for share in (1.0, 0.5))
    assert 0.6 * every < half < 0.9 * every
    audited = selection_cost([(Steps(0.1, 3.0, 5), 20)], 0.5, 1e-5, Law(10.0, 1.0))
    assert audited.least == pytest.approx(half, rel=0.005)


@pytest.mark.parametrize(("mean", "shape"), [(3.0, 1.0), (10.0, 0.0), (6.0, 2.5)])
def test_the_law_has_its_mean_and_its_quantiles_are_those_of_definition_1(mean, shape):
    law = Trials(mean, shape)
    gamma, numbers = law.stopping, np.arange(1, 5000)
    ways = [
        math.lgamma(k + shape) - math.lgamma(k + 1) - math.lgamma(shape) if shape else -math.log(k)
        for k in numbers
    ]
    weights = np.exp(numbers * math.log1p(-gamma) + ways)
    masses = weights / weights.sum()
    assert (masses * numbers).sum() == pytest.approx(mean, rel=1e-9)
    below = np.cumsum(masses)
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        assert law.quantile(share) == 1 + int((below <= share).sum())


@pytest.mark.parametrize(("mean", "shape"), [(3.0, 1.0), (10.0, 0.0)])
def test_the_auditor_draws_the_number_of_trials_again_and_no_other(mean, shape):
    law, again = Trials(mean, shape), Law(mean, shape)
    drawn = [law.drawn(secret) for secret in SECRETS]
    # Five standard errors of 400 draws; the deviation is below 1.6 times the mean in both laws.
    assert abs(np.mean(drawn) - mean) < 5 * 1.6 * mean / math.sqrt(len(SECRETS))
    assert all(again.draws(secret, many) for secret, many in zip(SECRETS, drawn, strict=True))
    assert not any(
        again.draws(secret, many + step)
        for secret, many in zip(SECRETS, drawn, strict=True)
        for step in (-1, 1)
    )


def test_every_candidate_is_drawn_as_often_and_trials_are_drawn_apart():
    found = [candidate(secret, trial, 3) for secret in SECRETS for trial in (1, 2)]
    counted = np.bincount(found, minlength=3)
    assert (abs(counted - 800 / 3) < 5 * math.sqrt(800 * 2 / 9)).all()
    same = sum(a == b for a, b in zip(found[::2], found[1::2], strict=True))
    assert abs(same - 400 / 3) < 5 * math.sqrt(400 * 2 / 9)


def test_more_trials_and_a_larger_shape_cost_more():
    part = of_one_client(3.0, 0.1, 50)

    def cost(mean, shape):
        return epsilon_of_selection(part, 1.0, 1e-5, Trials(mean, shape))

    assert cost(2.0, 1.0) < cost(10.0, 1.0) < cost(100.0, 1.0)
    assert cost(10.0, 0.0) < cost(10.0, 1.0) < cost(10.0, 3.0)
