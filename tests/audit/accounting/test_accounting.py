"""The auditor's own accounting, against dp-accounting, quadrature and exact closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import integrate, stats

from audit.accounting import pld
from audit.accounting.budget import (
    Steps,
    ThirdParty,
    budget,
    closed_forms,
    effective_noise_multiplier,
    epsilon_curve,
    privacy_profile,
    server_delta,
    together,
)
from audit.accounting.comparison import understates
from audit.accounting.pld import Composer, single_step
from audit.accounting.rdp import epsilon_improved, rdp_of_step, whole_orders
from audit.errors import UnverifiedError


def oracle(q: float, sigma: float, steps: int, delta: float) -> float:
    """dp-accounting's PLD on a grid finer than its default where ε is small."""
    rough = budget([Steps(q, sigma, steps)], delta).headline
    interval = min(1e-4, max(rough, 1e-2) / 2e4)
    single = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=interval
    )
    return float(single.self_compose(steps).get_epsilon_for_delta(delta))


def test_reference_point_of_two_thousand_steps() -> None:
    spent = budget([Steps(0.02, 1.0, 2000)], 1e-5)
    # The reference values are printed to three decimals.
    assert spent.epsilon["pld"] == pytest.approx(5.616, abs=1e-3)
    assert spent.epsilon["rdp"] == pytest.approx(6.151, abs=2e-3)
    assert spent.epsilon["rdp-classic"] == pytest.approx(6.864, abs=3e-3)
    assert spent.by_accountant["rdp"].least <= spent.by_accountant["rdp"].most


def test_reference_points_of_the_papers_setting() -> None:
    assert budget([Steps(0.016, 1.0, 200)], 1e-5).headline == pytest.approx(1.476, abs=1e-3)
    assert budget([Steps(0.016, 1.0, 2000)], 1e-5).headline == pytest.approx(4.363, abs=1e-3)
    # The literal reading of the noise, sigma C for sigma, with C = 0.1.
    assert budget([Steps(0.016, 0.1, 20)], 1e-5).headline == pytest.approx(227.4, abs=0.5)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed > 5 else []) for seed in range(20)]
)
def test_loss_distributions_agree_with_dp_accounting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours = np.inf
    while ours > 40.0:  # beyond every useful budget, and slow for the oracle
        q = float(np.exp(rng.uniform(np.log(0.003), 0.0)))
        sigma = float(np.exp(rng.uniform(np.log(0.6), np.log(6.0))))
        steps = int(np.exp(rng.uniform(0.0, np.log(2000))))
        delta = float(10 ** rng.uniform(-8, -4))
        ours = budget([Steps(q, sigma, steps)], delta).headline
    theirs = oracle(q, sigma, steps, delta)
    # Both are upper bounds; ours aims at 0.02 % and both are coarse for tiny ε.
    assert ours == pytest.approx(theirs, rel=5e-3, abs=2e-4)


def test_one_gaussian_query_agrees_with_the_exact_curve() -> None:
    sigma, delta = 2.0, 1e-6
    epsilon = budget([Steps(1.0, sigma, 1)], delta).headline
    mu = 1.0 / sigma
    # Balle & Wang 2018: the exact privacy curve of the Gaussian mechanism.
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(
        -mu / 2 - epsilon / mu
    )
    # Slope of log δ in ε is about −10 here, so 0.1 % of ε is 2 % of δ; δ may not exceed its bound.
    assert 0.96 * delta <= exact <= delta * (1 + 1e-6)


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.7), (0.2, 1.3), (0.7, 2.0)])
def test_renyi_divergence_agrees_with_quadrature(q: float, sigma: float) -> None:
    orders = (1.05, 1.5, 2.0, 2.75, 6.35, 12.0)
    for order, value in zip(orders, rdp_of_step(q, sigma, orders), strict=True):

        def integrand(x: float, order: float = order) -> float:
            loss = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * sigma**2))
            return float(np.exp(order * loss + stats.norm.logpdf(x, scale=sigma)))

        moment = integrate.quad(integrand, -12 * sigma, 12 * sigma + order, limit=400)[0]
        # The quadrature's own accuracy; the orders near 1 divide by α − 1 = 0.05.
        assert value == pytest.approx(np.log(moment) / (order - 1), rel=1e-5, abs=1e-8)


def test_improved_conversion_agrees_with_dp_accounting() -> None:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    orders = whole_orders()
    for q, sigma, steps in ((0.02, 1.0, 2000), (0.3, 2.5, 100), (0.05, 0.6, 40)):
        accountant = RdpAccountant(orders)
        accountant.compose(
            SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), steps)
        )
        theirs = accountant.get_epsilon(1e-5)
        ours = epsilon_improved(steps * rdp_of_step(q, sigma, orders), orders, 1e-5)[0]
        # The same formula on the same whole orders: agreement to rounding.
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_different_steps_compose_as_one_history() -> None:
    mixed = budget([Steps(0.05, 1.0, 100), Steps(0.1, 2.0, 50)], 1e-5).headline
    first = privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.05)
    second = privacy_loss_distribution.from_gaussian_mechanism(2.0, sampling_prob=0.1)
    both = first.self_compose(100).compose(second.self_compose(50))
    assert mixed == pytest.approx(both.get_epsilon_for_delta(1e-5), rel=2e-3)


def test_third_party_agrees_with_summing_over_participations() -> None:
    q, sigma, steps, rounds, share, delta = 0.05, 1.0, 5, 12, 0.3, 1e-5
    epsilon = ThirdParty([(Steps(q, sigma, steps), rounds)], share, delta).epsilon([rounds])
    counts = np.arange(rounds + 1)
    weights = stats.binom.pmf(counts, rounds, share)
    single = privacy_loss_distribution.from_gaussian_mechanism(sigma, sampling_prob=q)
    total = sum(
        weight * single.self_compose(int(count) * steps).get_delta_for_epsilon(epsilon)
        for count, weight in zip(counts[1:], weights[1:], strict=True)
    )
    # Two discretisations, each an upper bound; the slope of log δ in ε is about −6.
    assert total == pytest.approx(delta, rel=0.01)


def test_third_party_who_knows_all_take_part_is_the_server() -> None:
    worst = budget([Steps(0.05, 1.0, 60)], 1e-5).headline
    assert ThirdParty([(Steps(0.05, 1.0, 5), 12)], 1.0, 1e-5).epsilon([12]) == pytest.approx(
        worst, rel=1e-9
    )
    assert ThirdParty([(Steps(0.05, 1.0, 5), 12)], 0.5, 1e-5).epsilon([12]) < worst


def test_curve_grows_and_ends_at_the_budget() -> None:
    history = [Steps(0.05, 1.0, 60)]
    curve = epsilon_curve(history, [(0,), (20,), (40,), (60,)], 1e-5)
    assert curve[0] == 0.0
    assert curve == sorted(curve)
    assert curve[-1] == pytest.approx(budget(history, 1e-5).headline, rel=1e-12)


def test_profile_falls_and_meets_the_budget() -> None:
    history = [Steps(0.1, 1.2, 80)]
    pair = privacy_profile(history, 1e-5)
    epsilon = budget(history, 1e-5).headline
    assert pair.delta(epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert pair.delta(0.5 * epsilon) > 1e-5 > pair.delta(1.1 * epsilon)


def test_two_queries_of_one_batch_are_one_with_less_noise() -> None:
    assert effective_noise_multiplier(2.0, 1) == 2.0
    assert effective_noise_multiplier(2.0, 2) == pytest.approx(2.0 / np.sqrt(2.0))


def test_closed_forms_are_those_of_the_papers() -> None:
    forms = closed_forms(0.016, 1.0, 20, 100, 50, 0.1, 1e-5)
    server = 0.016 * np.sqrt(2000 * np.log(2e5) * np.log(2e7))
    assert forms["server_noble"] == pytest.approx(server, rel=1e-12)
    assert forms["equation_13"] == forms["server_noble"]
    ratio = np.sqrt(500.0)
    assert forms["equation_14"] / forms["equation_13"] == pytest.approx(ratio, rel=1e-12)
    assert forms["server_noble"] / forms["third_party_noble"] == pytest.approx(ratio, rel=1e-12)
    assert forms["delta_server"] == server_delta(1e-5, 0.1) == pytest.approx(5.5e-5)


def test_absurd_budgets_stay_bounded_in_memory_and_pessimistic() -> None:
    composer = Composer([Steps(1e-4, 0.01, 100_000)], 1e-5)
    assert composer.distribution().epsilon(1e-5) > 100.0
    assert budget([], 1e-5).headline == 0.0


def test_a_history_of_very_many_kinds_is_not_composed() -> None:
    """Each takes time, and a few hundred bytes of a ledger may name any number of them."""
    kinds = [Steps(0.1, 5.0 + place / 1000, 1) for place in range(4097)]
    with pytest.raises(UnverifiedError, match="of more than 4,096 kinds"):
        budget(kinds, 1e-5)
    with pytest.raises(UnverifiedError, match="of more than 4,096 kinds"):
        ThirdParty([(kind, 1) for kind in kinds], 0.5, 1e-5)


def test_a_person_with_more_records_than_any_claim_is_about_is_not_composed() -> None:
    for rate in (0.001, 1.0):
        Composer([Steps(rate, 500.0, 1, records=1000)], 1e-5)
        with pytest.raises(UnverifiedError, match="what 1,000,000,000,000 records of one person"):
            Composer([Steps(rate, 500.0, 1, records=10**12)], 1e-5)


def test_the_more_kinds_there_are_the_fewer_cells_each_has(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [Steps(0.1, 1.0 + place / 100, 10) for place in range(8)]
    fine = Composer(kinds, 1e-5)
    most = int(fine.cells / 1.5)
    monkeypatch.setattr(pld, "_MOST_CELLS", most)
    coarse = Composer(kinds, 1e-5)
    # Lengths are rounded up to one that is quickly transformed.
    assert coarse.cells < 1.1 * most < fine.cells
    epsilon = fine.distribution().epsilon(1e-5)
    assert epsilon < coarse.distribution().epsilon(1e-5) < 1.1 * epsilon
    # A finer one would not fit: it is exactly this one, which nobody takes for settled.
    assert Composer(kinds, 1e-5, 1).distribution().epsilon(1e-5) == coarse.distribution().epsilon(
        1e-5
    )
    assert not understates(epsilon, lambda n: Composer(kinds, 1e-5, n).distribution().epsilon(1e-5))
    monkeypatch.setattr(pld, "_MOST_CELLS", most // 4)
    with pytest.raises(UnverifiedError, match="8 kinds of noise and sampling rate, too many to"):
        Composer(kinds, 1e-5)


def test_composers_are_kept_while_they_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[Any, Composer] = {}
    monkeypatch.setattr(pld, "_kept", kept)
    histories = [(Steps(0.1, 1.0 + place, 10),) for place in range(4)]
    first, *others = (pld.composer(one, 1e-5) for one in histories)
    assert pld.composer(histories[0], 1e-5) is first
    assert [*kept.values()] == [*others, first]
    monkeypatch.setattr(pld, "_MOST_CELLS", others[2].cells + first.cells)
    assert pld.composer(histories[3], 1e-5) is others[2]
    assert [*kept.values()] == [first, others[2]]
    monkeypatch.setattr(pld, "_MOST_CELLS", first.cells * 2 // 3)
    # The last one is kept whatever its size: a curve asks for it again and again.
    again = pld.composer(histories[1], 1e-5)
    assert [*kept.values()] == [again]
    monkeypatch.setattr(pld, "_MOST_CELLS", 1 << 26)
    monkeypatch.setattr(pld, "_MOST_KEPT", 2)
    for one in histories:
        pld.composer(one, 1e-5)
    assert len(kept) == 2


def test_of_many_clients_of_one_rate_those_of_the_most_steps_cost_most_together() -> None:
    # Each costs less than the next, so that of 4,060 sets of three one alone is composed.
    histories = [(Steps(0.2, 2.0, steps),) for steps in range(1, 31)]
    assert together(histories, 3, 1e-5) == (Steps(0.2, 2.0, 28 + 29 + 30),)
    # A client at a smaller rate takes no part in it, however it is placed.
    assert together([(Steps(0.1, 2.0, 30),), *histories], 3, 1e-5) == (Steps(0.2, 2.0, 87),)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "records"),
    [
        (0.4, 2.8, 100, 3),
        pytest.param(0.05, 1.2, 60, 5, marks=pytest.mark.slow),
        (1.0, 9, 20, 2),
    ],
)
def test_several_records_of_a_person_cost_what_dp_accounting_says(rate, sigma, steps, records):
    """Two independent compositions of the same mixtures: to 1e-3, and never k times one's."""
    delta = 1e-5
    one, several = (
        Composer((Steps(rate, sigma, steps, records=count),), delta).distribution().epsilon(delta)
        for count in (1, records)
    )
    drawn = stats.binom(records, rate).pmf(np.arange(records + 1)).tolist()
    step = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, list(range(records + 1)), drawn, value_discretization_interval=2e-3
    )
    reference = step.self_compose(steps).get_epsilon_for_delta(delta)
    assert several == pytest.approx(reference, rel=1e-3)
    assert several > records * one


def test_several_records_in_every_batch_cost_what_one_with_so_much_less_noise_costs() -> None:
    several, one = (
        Composer([Steps(1.0, sigma, 4, records=records)], 1e-5)
        for sigma, records in ((9.0, 3), (3.0, 1))
    )
    # On the same grid, which is no coarser and no finer than the claim needs.
    assert several.interval == one.interval
    cost = one.distribution().epsilon(1e-5)
    assert several.distribution().epsilon(1e-5) == pytest.approx(cost, rel=1e-9)


def test_no_loss_is_known_of_several_records_in_a_sample_of_fixed_size() -> None:
    with pytest.raises(UnverifiedError, match="several records of one person"):
        single_step(0.25, 2.0, 0.01, "add", 1e-8, fixed_size=True, records=2)
    assert single_step(0.25, 2.0, 0.01, "add", 1e-8, fixed_size=True).infinite < 1e-7
    # Where all records are in every batch, nothing is drawn.
    assert single_step(1.0, 2.0, 0.01, "add", 1e-8, fixed_size=True, records=2).infinite < 1e-7
