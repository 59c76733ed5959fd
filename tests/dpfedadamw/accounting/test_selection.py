"""What a private selection costs, against dp-accounting and a reference of its own, and its law."""

from __future__ import annotations

import dataclasses
import hashlib
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy import optimize, stats

from audit.accounting.budget import Law, selection_cost
from audit.accounting.registry import Steps
from dpfedadamw.accounting import selection
from dpfedadamw.accounting.client_level import client_level_claim
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.selection import (
    Trials,
    candidate,
    epsilon_of_selection,
)
from dpfedadamw.errors import PrivacyError
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


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(3)
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


# The law and the claim, number by number.


def masses(mean, shape, most=2000):
    """P(K = k) of Definition 1 of Papernot & Steinke, with γ found by bisection."""
    numbers = np.arange(1.0, most)

    def law(stopping):
        # Successive terms have the ratio (1 - γ)(k + η)/(k + 1).
        terms = np.cumprod([1.0, *((1.0 - stopping) * (numbers + shape) / (numbers + 1.0))])
        return terms / terms.sum()

    low, high = 1e-3, 1.0
    for _ in range(50):
        middle = (low + high) / 2.0
        if (law(middle) * np.arange(1, most + 1)).sum() > mean:
            low = middle
        else:
            high = middle
    return middle, law(middle).tolist()


@pytest.mark.parametrize(("mean", "shape"), [(3.0, 0.0), (5.0, 1.0), (4.0, 2.5), (2.0, 0.3)])
def test_the_law_is_that_of_the_definition(mean, shape):
    stopping, expected = masses(mean, shape)
    trials = Trials(mean, shape)
    assert trials.stopping == pytest.approx(stopping, rel=1e-9)
    below = 0.0
    for k, mass in enumerate(expected[:12], 1):
        assert trials.quantile(below + 1e-12) == k
        assert trials.quantile(below + mass * 0.999) == k
        below += mass
    assert trials.quantile(0.0) == 1


def test_no_share_draws_more_than_ten_million_trials(monkeypatch):
    monkeypatch.setattr(selection, "_MOST_TRIALS", 7)
    assert Trials(1000.0, 1.0).quantile(0.999999) == 7
    assert Trials(1000.0, 1.0).quantile(0.0005) == 1


def test_a_secret_draws_what_its_digest_says():
    secret = bytes(range(32))
    first = hashlib.sha256(b"number of trials" + secret).digest()[:8]
    share = (int.from_bytes(first, "big") >> 11) / 2.0**53
    assert 0.0 < share < 1.0
    for law in (Trials(4.0, 1.0), Trials(30.0, 0.0)):
        assert law.drawn(secret) == law.quantile(share)
    each = hashlib.sha256(b"candidate" + secret + bytes([0, 0, 0, 0, 0, 0, 0, 3])).digest()
    assert candidate(secret, 3, 1000) == int.from_bytes(each, "big") % 1000
    assert selection.commitment(secret) == hashlib.sha256(b"commitment" + secret).hexdigest()
    assert selection.SECRET_BYTES == 32


def test_the_ledger_s_header_says_how_many_trials_there_are():
    assert selection.trials_drawn([]) is None
    assert selection.trials_drawn([{"kind": "header"}]) is None
    assert selection.trials_drawn([{"tuning": {"trials": 7}}, {"tuning": {"trials": 8}}]) == 7


def test_the_divergence_of_the_best_is_theorem_2_of_papernot_and_steinke():
    orders, divergences = [1.5, 2.0, 8.0, 32.0], [0.1, 0.2, 0.3, 4.0]
    law = Trials(6.0, 1.0)
    repeated = 2.0 * min(
        (1.0 - 1.0 / order) * one + math.log(1.0 / law.stopping) / order
        for order, one in zip(orders, divergences, strict=True)
    )
    expected = [
        one + repeated + math.log(6.0) / (order - 1.0)
        for order, one in zip(orders, divergences, strict=True)
    ]
    # That of order 2 is bounded by that of order 8, which is less, and so is that of order 1.5.
    assert expected[0] > expected[1] > expected[2] < expected[3]
    found = selection.selected_divergences(orders, divergences, law)
    assert found == pytest.approx([expected[2], expected[2], expected[2], expected[3]], rel=1e-9)


@pytest.mark.parametrize("participation", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(("one", "order"), [(0.0, 2.0), (0.3, 1.5), (5.0, 8.0), (900.0, 3.0)])
def test_a_round_that_may_not_happen_mixes_its_moments(participation, one, order):
    found = selection._taken_part(one, order, participation)
    with mpmath.workdps(40):
        moment = 1 - participation + participation * mpmath.exp((order - 1) * mpmath.mpf(one))
        expected = float(mpmath.log(moment) / (order - 1))
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_the_claim_of_a_selection_says_what_one_trial_and_all_of_them_cost():
    rounds = of_one_client(2.0, 0.1, 50)
    law = Trials(4.0, 1.0)
    third, tuning = selection.claim_of_selection(rounds, 0.5, 1e-5, law, 1.25, 9.5)
    chosen = epsilon_of_selection(rounds, 0.5, 1e-5, law)
    assert third == {"epsilon": {"rdp": chosen}, "accountant": "rdp"}
    assert tuning == {
        "one_trial": {"epsilon": {"pld": 1.25}, "accountant": "pld"},
        "server_all_trials": {"epsilon": {"pld": 9.5}, "accountant": "pld"},
    }
    _, tuning = selection.claim_of_selection(rounds, 0.5, 1e-5, law, 1.25, None)
    assert list(tuning) == ["one_trial"]
    # What is promised is the selection's, and more than one trial at the same participation.
    assert chosen > epsilon_pld([part for part, _ in of_one_client(2.0, 0.1, 1)], 1e-5)


def test_all_trials_cost_what_they_cost_together_and_no_less_than_what_was_spent():
    everything = [Composition(2.0, 0.1, 30, 1, "poisson"), Composition(3.0, 1.0, 2, 1, "full")]
    together = [Composition(2.0, 0.1, 120, 1, "poisson"), Composition(3.0, 1.0, 8, 1, "full")]
    expected = epsilon_pld(together, 1e-5)
    assert selection.epsilon_of_all_trials(everything, 1e-5, 4, 0.0) == expected
    assert selection.epsilon_of_all_trials(everything, 1e-5, 4, 2 * expected) == 2 * expected
    # A winner within the plan changes nothing; one that was charged more takes a trial's place.
    assert selection.epsilon_of_all_trials(everything, 1e-5, 4, 0.0, everything) == expected
    winner = [dataclasses.replace(everything[0], steps=45), everything[1]]
    more = [dataclasses.replace(together[0], steps=3 * 30 + 45), together[1]]
    found = selection.epsilon_of_all_trials(everything, 1e-5, 4, 0.0, winner)
    assert found == pytest.approx(epsilon_pld(more, 1e-5), rel=1e-9)
    assert found > 1.02 * expected
    assert selection.epsilon_of_all_trials(everything, 1e-5, 1, 0.0, winner) == epsilon_pld(
        winner, 1e-5
    )


def test_a_selection_is_told_from_a_public_and_an_unaccounted_one():
    assert set(selection.TUNED) == {"private", "public", "unaccounted"}


def test_a_quantile_has_more_mass_up_to_it_than_its_share_and_not_as_much():
    law = Trials(4.0, 1.0)
    one = selection._mass_of_one(law.stopping, 1.0)
    assert one == pytest.approx(0.25)
    assert [law.quantile(share) for share in (math.nextafter(one, 0.0), one)] == [1, 2]


@pytest.mark.parametrize("delta", [0.0, 1e-11, 1.0])
def test_a_selection_has_no_cost_for_a_delta_that_means_nothing(delta):
    with pytest.raises(PrivacyError, match="delta must be in"):
        epsilon_of_selection(of_one_client(2.0, 0.1, 5), 1.0, delta, Trials(4.0, 1.0))


def test_rounds_of_several_kinds_add_up_each_as_often_as_it_is():
    law = Trials(4.0, 1.0)
    one, other = Composition(3.0, 0.2, 4), Composition(2.0, 1.0, 1, 1, "full")
    twice = epsilon_of_selection([(one, 2), (other, 3)], 0.5, 1e-5, law)
    apart = epsilon_of_selection([(one, 1), (other, 3), (one, 1)], 0.5, 1e-5, law)
    assert twice == pytest.approx(apart, rel=1e-12)
    audited = selection_cost(
        [(Steps(0.2, 3.0, 4), 2), (Steps(1.0, 2.0, 1), 3)], 0.5, 1e-5, Law(4.0, 1.0)
    )
    assert audited.least == pytest.approx(twice, rel=0.02)
