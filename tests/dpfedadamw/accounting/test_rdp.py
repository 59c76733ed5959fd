"""Rényi differential privacy: reference points, Opacus as oracle, and its place above the PLD."""

from __future__ import annotations

import logging
import math
import random

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import RDPAccountant
from scipy import stats

from audit.accounting.budget import Steps, budget
from dpfedadamw.accounting import rdp
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.rdp import (
    ORDERS,
    epsilon_rdp,
    improved_epsilon,
    poisson_divergence,
)
from dpfedadamw.accounting.registry import ACCOUNTANTS
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, mu_gdp

REFERENCE = Composition(1.0, 0.02, 2000)


def test_reference_points() -> None:
    # Values have three decimals.
    assert epsilon_rdp(REFERENCE, 1e-5) == pytest.approx(6.151, abs=1e-3)
    assert epsilon_rdp(REFERENCE, 1e-5, "classic") == pytest.approx(6.864, abs=1e-3)
    fixed = Composition(1.0, 0.02, 2000, sampling="fixed-size")
    assert epsilon_rdp(fixed, 1e-5) == pytest.approx(95.6, abs=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_the_accountants_keep_their_order(seed: int) -> None:
    draw = random.Random(100 + seed)
    composition = Composition(
        draw.uniform(0.6, 4.0), draw.uniform(0.001, 0.5), draw.randint(1, 300), draw.randint(1, 2)
    )
    delta = 10 ** draw.uniform(-7, -4)
    tight, improved = epsilon_pld(composition, delta), epsilon_rdp(composition, delta)
    # 1e-3 is ten times what the discretisation of the PLD may add.
    assert tight <= improved * (1 + 1e-3)
    assert improved <= epsilon_rdp(composition, delta, "classic")


@pytest.mark.parametrize("seed", range(4))
def test_agreement_with_the_accountant_of_opacus(seed: int) -> None:
    draw = random.Random(seed)
    rate, noise, steps = draw.uniform(0.005, 0.2), draw.uniform(0.8, 3.0), draw.randint(10, 2000)
    oracle = RDPAccountant()
    oracle.history = [(noise, rate, steps)]
    # Both minimise over orders, Opacus over slightly fewer above 63.
    expected = oracle.get_epsilon(1e-5)
    assert epsilon_rdp(Composition(noise, rate, steps), 1e-5) == pytest.approx(expected, rel=2e-3)


def test_the_classic_conversion_of_plain_gaussians_is_the_printed_formula() -> None:
    # ε(α) = αn/(2σ²); the best real order gives n/(2σ²) + √(2n·log(1/δ))/σ (Mironov 2017).
    full = Composition(8.0, 1.0, 16, sampling="full")
    variance = 16 / 8.0**2
    expected = variance / 2 + math.sqrt(2 * variance * math.log(1e5))
    # Orders are on a grid: never below the best one, and within 1 % of it.
    value = epsilon_rdp(full, 1e-5, "classic")
    assert expected <= value <= 1.01 * expected


def test_two_queries_on_one_batch_are_one_query_of_less_noise() -> None:
    twice = epsilon_rdp(Composition(1.0, 0.02, 100, queries_per_step=2), 1e-5)
    assert twice == pytest.approx(
        epsilon_rdp(Composition(1 / math.sqrt(2), 0.02, 100), 1e-5), rel=1e-12
    )
    assert twice > epsilon_rdp(Composition(1.0, 0.02, 200), 1e-5)


@pytest.mark.thorough
def test_the_two_conventions_of_dp_accounting_for_replace_one() -> None:
    # Under replace-one a clipped sum moves by up to 2C. The library's RDP takes noise over
    # SENSITIVITY and knows nothing of the 2; its PLD takes noise over C and doubles by itself.
    relation = dp_accounting.NeighboringRelation
    gaussian = dp_accounting.GaussianDpEvent(2.0)

    def rdp(neighbours: object) -> float:
        return float(
            RdpAccountant(neighboring_relation=neighbours).compose(gaussian).get_epsilon(1e-5)
        )

    def pld(event: object, neighbours: object) -> float:
        return float(PLDAccountant(neighbours).compose(event).get_epsilon(1e-5))

    assert rdp(relation.REPLACE_ONE) == rdp(relation.ADD_OR_REMOVE_ONE)
    halved = dp_accounting.GaussianDpEvent(1.0)
    assert pld(gaussian, relation.REPLACE_ONE) == pytest.approx(
        pld(halved, relation.ADD_OR_REMOVE_ONE), rel=1e-6
    )
    # So a full batch drawn "fixed-size" costs what a Gaussian of half the multiplier costs.
    fixed = Composition(2.0, 1.0, 1, sampling="fixed-size")
    assert epsilon_rdp(fixed, 1e-5) == epsilon_rdp(Composition(1.0, 1.0, 1), 1e-5)


def test_left_out_orders_are_not_reported_to_the_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="absl"):
        epsilon_rdp(Composition(0.7003, 0.5, 500), 1e-5)
    assert not caplog.records


def test_mu_gdp_is_information_that_can_lie_below_the_truth() -> None:
    composition = Composition(0.7, 0.01, 100)
    mu = mu_gdp(composition)
    assert mu == pytest.approx(0.01 * math.sqrt(100 * math.expm1(0.7**-2)))
    equivalent = Composition(1 / mu, 1.0, 1, sampling="full")
    assert epsilon_pld(equivalent, 1e-5) < epsilon_pld(composition, 1e-5)
    assert mu_gdp(Composition(0.01, 0.5, 1)) == math.inf


@pytest.mark.parametrize(
    "fields",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.1},
        {"steps": 0},
        {"queries_per_step": 0},
        {"sampling": "shuffled"},
        {"sampling": "full"},
    ],
)
def test_what_describes_no_mechanism_is_refused(fields: dict[str, float]) -> None:
    good: dict[str, object] = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 1}
    with pytest.raises(PrivacyError):
        Composition(**{**good, **fields})


def test_other_conversions_and_mixed_adjacencies_are_refused() -> None:
    with pytest.raises(PrivacyError, match="'improved' or 'classic'"):
        epsilon_rdp(REFERENCE, 1e-5, "best")
    with pytest.raises(PrivacyError, match="different adjacencies"):
        epsilon_rdp([REFERENCE, Composition(1.0, 0.1, 1, sampling="fixed-size")], 1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_the_least_over_all_orders(seed: int) -> None:
    draw = random.Random(seed)
    composition = Composition(
        10 ** draw.uniform(-0.5, 1.0), 10 ** draw.uniform(-4, -0.1), 10 ** draw.randint(0, 5)
    )
    event = dp_accounting.PoissonSampledDpEvent(
        composition.sampling_rate, dp_accounting.GaussianDpEvent(composition.noise_multiplier)
    )
    # The direct call looks at every order, and does not search.
    direct = RdpAccountant().compose(event, composition.steps)
    for delta in (1e-3, 1e-8):
        assert epsilon_rdp(composition, delta) == pytest.approx(direct.get_epsilon(delta), rel=1e-9)


def test_where_next_to_nothing_is_drawn_engine_and_auditor_know_that_it_costs_nothing() -> None:
    # Total variation is at most √(1 - e^-KL) (Bretagnolle & Huber 1979), here below δ.
    for rate in (1e-5, 1e-4):
        ours = epsilon_rdp(Composition(1.0, rate, 9), 1e-3)
        theirs = budget([Steps(rate, 1.0, 9)], 1e-3).by_accountant["rdp"]
        assert ours == theirs.least == 0.0
    # At a smaller δ the same composition costs something, by both.
    assert epsilon_rdp(Composition(1.0, 1e-4, 9), 1e-6) > 0.01
    assert budget([Steps(1e-4, 1.0, 9)], 1e-6).by_accountant["rdp"].least > 0.01


@pytest.mark.filterwarnings("error")
def test_overflow_at_a_high_order_is_not_told_on_the_terminal() -> None:
    assert epsilon_rdp(Composition(1.0, 0.5, 10_000), 1e-5) > 1000.0
    assert epsilon_pld(Composition(0.01, 0.5, 10_000), 1e-5) > 1000.0


@pytest.mark.parametrize("sampling", ["poisson", "full"])
@pytest.mark.parametrize("noise", [0.3, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("rate", [1e-5, 1e-2, 0.4, 0.99])
def test_no_divergence_is_less_than_its_bound_from_below(noise, rate, sampling):
    part = Composition(noise, 1.0 if sampling == "full" else rate, 100_000, 2, sampling)
    bound = rdp._least_rdp([part])
    for order in (1.1, 2.0, 64.0):
        assert bound <= part.steps * rdp._step_rdp(part.key, order)


@pytest.mark.parametrize("conversion", ["improved", "classic"])
@pytest.mark.parametrize(
    "parts",
    [
        # Nothing, next to nothing, and ever more.
        [Composition(1000.0, 1e-5, 1)],
        [Composition(50.0, 1e-4, 100)],
        [Composition(1.0, 0.01, 1000)],
        [Composition(4.0 + level, 0.3, 200) for level in range(9)],
        [Composition(0.5, 0.9, 1000), Composition(1.0, 0.5, 10)],
    ],
)
def test_leaving_out_the_least_order_changes_no_epsilon(parts, conversion, monkeypatch):
    found = epsilon_rdp(parts, 1e-5, conversion)
    rdp._epsilon_rdp.cache_clear()
    monkeypatch.setattr(rdp, "_least_rdp", lambda parts: -math.inf)
    assert epsilon_rdp(parts, 1e-5, conversion) == found


@pytest.mark.parametrize("seed", range(4))
def test_divergences_of_poisson_batches_are_those_of_dp_accounting(seed: int) -> None:
    draw = random.Random(seed)
    noise, rate = 10 ** draw.uniform(-0.7, 2.0), 10 ** draw.uniform(-5.0, -0.001)
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    with np.errstate(all="ignore"):
        theirs = RdpAccountant().compose(event)
    assert tuple(theirs.orders) == rdp.ORDERS
    ours = [rdp.poisson_divergence(noise, rate, order) for order in rdp.ORDERS]
    # Both sum in float64; what is infinite is left out by both.
    assert ours == pytest.approx(theirs.rdp.tolist(), rel=1e-9, abs=1e-12)


def test_a_divergence_grows_with_the_rate_and_falls_with_the_noise() -> None:
    at = rdp.poisson_divergence
    assert at(1.0, 0.1, 4.0) < at(1.0, 0.11, 4.0) < at(1.0, 1.0, 4.0) == 2.0
    assert at(1.1, 0.1, 4.5) < at(1.0, 0.1, 4.5)


@pytest.mark.parametrize("order", [1.5, 2.0, 32.0])
def test_a_replaced_record_moves_a_sum_twice_as_far_as_one_that_is_taken_out(order: float) -> None:
    # A Gaussian moved by s has the divergence α·s²/(2σ²): s is 1, or 2 where one is replaced.
    taken, replaced = order / (2 * 3.0**2), 4 * order / (2 * 3.0**2)
    full = Composition(3.0, 1.0, 5, sampling="full")
    assert rdp.divergence((full,), order) == pytest.approx(5 * taken, rel=1e-12)
    for sampling in ("shuffled", "fixed-size"):
        part = Composition(3.0, 1.0, 5, sampling=sampling)
        assert rdp.divergence((part,), order) == pytest.approx(5 * replaced, rel=1e-9)
    # Two queries on a batch are one of 1/√2 of the noise, and unlike steps add up.
    twice = Composition(3.0, 1.0, 5, 2, "full")
    assert rdp.divergence((twice, full), order) == pytest.approx(15 * taken, rel=1e-12)


def test_the_divergence_of_order_two_is_its_closed_form() -> None:
    part = Composition(1.3, 0.2, 7)
    expected = 7 * math.log1p(0.2**2 * math.expm1(1.3**-2))
    assert rdp.divergence((part,), 2.0) == pytest.approx(expected, rel=1e-12)


def test_a_batch_of_fixed_size_is_that_of_wang_and_others_at_half_the_noise() -> None:
    # Theorem 9, whose bound at α = 2 is log(1 + q²·min(4(e^D - 1), 2e^D)), with D = 1/(σ/2)².
    for noise, rate in ((2.0, 0.1), (6.0, 0.3)):
        part = Composition(noise, rate, 3, sampling="fixed-size")
        divergence = (noise / 2.0) ** -2
        least = min(4.0 * math.expm1(divergence), 2.0 * math.exp(divergence))
        expected = 3 * math.log1p(rate**2 * least)
        assert rdp.divergence((part,), 2.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.filterwarnings("error")
def test_overflow_of_batches_of_fixed_size_is_not_told_either() -> None:
    part = Composition(0.02, 0.5, 10, sampling="fixed-size")
    assert epsilon_rdp(part, 1e-5) > 1000.0


@pytest.mark.parametrize("sampling", ["poisson", "full"])
def test_the_bound_from_below_is_twice_the_square_of_the_total_variation(sampling: str) -> None:
    for noise, rate, steps, queries in ((1.0, 0.3, 5, 1), (4.0, 0.9, 100, 2)):
        part = Composition(noise, 1.0 if sampling == "full" else rate, steps, queries, sampling)
        sigma = noise / math.sqrt(queries)
        variation = part.sampling_rate * (2.0 * stats.norm.cdf(1.0 / (2.0 * sigma)) - 1.0)
        expected = 2.0 * steps * variation**2
        assert rdp._least_rdp([part]) == pytest.approx(expected, rel=1e-12)
        assert rdp._least_rdp([part, part]) == pytest.approx(2.0 * expected, rel=1e-12)


def test_the_bound_from_below_knows_nothing_of_other_batches_and_of_rounding() -> None:
    fixed = Composition(0.5, 0.5, 100, sampling="fixed-size")
    shuffled = Composition(0.5, 1.0, 100, sampling="shuffled")
    assert rdp._least_rdp([fixed]) == rdp._least_rdp([shuffled]) == 0.0
    plain = Composition(1.0, 0.5, 1)
    assert rdp._least_rdp([plain, fixed]) == rdp._least_rdp([plain])
    # 2·(q·(2Φ(1/2) - 1))², on either side of a millionth.
    unit = 2.0 * stats.norm.cdf(0.5) - 1.0
    edge = math.sqrt(0.5e-6) / unit
    assert rdp._least_rdp([Composition(1.0, 1.01 * edge, 1)]) == pytest.approx(1e-6, rel=0.03)
    assert rdp._least_rdp([Composition(1.0, 0.99 * edge, 1)]) == 0.0


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_the_least_value_is_found_wherever_it_lies(count: int) -> None:
    orders = [1.5 * index for index in range(count)]
    for least in range(count):
        assert rdp._valley(lambda x, least=least: abs(x - 1.5 * least), orders) == least
    # Of equal ones the first.
    assert rdp._valley(lambda x: 0.0, orders) == 0


def gaussians(*noises: float) -> list[Composition]:
    return [Composition(noise, 1.0, 1, sampling="full") for noise in noises]


@pytest.mark.parametrize("conversion", ["classic", "improved"])
@pytest.mark.parametrize(
    "noises", [(1.0,), (0.3,), (9.0,), (1.5, 2.0, 2.5, 3.0), (1.5, 1.9, 2.2, 2.5, 3.0)]
)
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_gaussians_cost_the_least_of_the_printed_formula(noises, delta, conversion) -> None:
    half = sum(1.0 / noise**2 for noise in noises) / 2.0

    def converted(order: float) -> float:
        plain = order * half
        if conversion == "classic":
            return plain + math.log(1.0 / delta) / (order - 1.0)
        return plain + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)

    # Orders between the whole ones for up to four kinds of steps.
    orders = [1.0 + one / 10.0 for one in range(1, 100)] if len(noises) <= 4 else []
    whole = [*map(float, range(2, 64)), 128.0, 256.0, 512.0, 1024.0]
    expected = min(map(converted, [*orders, *whole]))
    found = epsilon_rdp(gaussians(*noises), delta, conversion)
    assert found == pytest.approx(expected, rel=1e-12)


def test_orders_between_are_asked_for_beside_the_best_whole_one_alone(monkeypatch) -> None:
    asked: set[float] = set()

    def noted(parts: object, order: float) -> float:
        asked.add(order)
        return order

    monkeypatch.setattr(rdp, "divergence", noted)
    rdp._epsilon_rdp.cache_clear()
    # α + log(1/δ)/(α - 1) is least at α = 1 + √log(1/δ) = 4.39.
    found = epsilon_rdp(gaussians(1.2345), 1e-5, "classic")
    rdp._epsilon_rdp.cache_clear()
    assert found == pytest.approx(4.4 + math.log(1e5) / 3.4, rel=1e-12)
    between = sorted(round(order, 1) for order in asked if order != round(order))
    assert between == [3 + n / 10 for n in range(1, 10)] + [4 + n / 10 for n in range(1, 10)]


@pytest.mark.parametrize("delta", [0.0, 1e-11, 1.0])
def test_no_epsilon_by_divergences_at_a_delta_out_of_range(delta: float) -> None:
    with pytest.raises(PrivacyError, match="delta must be in"):
        epsilon_rdp(REFERENCE, delta)


def test_both_conversions_are_registered_and_cover_every_sampler() -> None:
    part = Composition(2.0, 1.0, 4, sampling="full")
    improved, classic = ACCOUNTANTS["rdp"], ACCOUNTANTS["rdp-classic"]
    assert (improved.label, classic.label) == ("RDP", "RDP, classic")
    assert improved.epsilon(part, 1e-5) == epsilon_rdp(part, 1e-5, "improved")
    assert classic.epsilon(part, 1e-5) == epsilon_rdp(part, 1e-5, "classic")
    for one in (improved, classic):
        assert one.samplings == {"poisson", "full", "fixed-size", "shuffled"}
        assert one.leads is None


def by_integral(noise: float, rate: float, order: float) -> float:
    """log E[(dP/dQ)^α]/(α-1) with P = (1-q)·N(0, σ²) + q·N(1, σ²) and Q = N(0, σ²)."""
    x = np.linspace(-14.0 * noise, order + 14.0 * noise, 400_001)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2.0 * x - 1.0) / (2.0 * noise**2))
    logarithms = order * ratio - x * x / (2.0 * noise**2)
    largest = logarithms.max()
    # Smooth, and nothing at either end: the sum of equal steps is exact to rounding.
    total = np.exp(logarithms - largest).sum() * (x[1] - x[0]) / (noise * math.sqrt(2.0 * math.pi))
    return (largest + math.log(total)) / (order - 1.0)


CASES = [(1.0, 0.02), (0.7, 0.3), (3.0, 0.9), (2.0, 0.001)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", [2.0, 3.0, 11.0, 32.0, 63.0])
@pytest.mark.parametrize(("noise", "rate"), CASES)
def test_a_divergence_is_its_integral(noise: float, rate: float, order: float) -> None:
    expected = by_integral(noise, rate, order)
    assert poisson_divergence(noise, rate, order) == pytest.approx(expected, rel=1e-7, abs=1e-11)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", [1.1, 1.5, 2.3, 4.7, 9.9])
@pytest.mark.parametrize(("noise", "rate"), CASES)
def test_between_whole_orders_it_is_at_least_its_integral_and_what_dp_accounting_says(
    noise: float, rate: float, order: float
) -> None:
    found = poisson_divergence(noise, rate, order)
    # Signs of the series beyond its order are left out, which can only add; its end is e^-30 of it.
    assert found >= by_integral(noise, rate, order) * (1.0 - 1e-7) - 1e-11
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = RdpAccountant([order])
    accountant.compose(event)
    theirs = float(accountant.rdp[0])
    assert found == pytest.approx(theirs, rel=1e-9) or found == theirs == math.inf


def test_without_subsampling_it_is_that_of_a_gaussian() -> None:
    for noise, order in ((1.0, 1.5), (2.0, 8.0), (0.5, 1024.0)):
        assert poisson_divergence(noise, 1.0, order) == order / (2.0 * noise**2)


def test_orders_are_those_of_dp_accounting() -> None:
    tenths = [1.0 + one / 10.0 for one in range(1, 100)]
    assert list(ORDERS) == [*tenths, *range(11, 64), 128, 256, 512, 1024]


@pytest.mark.parametrize("order", [7, 256, 1024])
def test_whole_orders_are_the_binomial_sum(order: int) -> None:
    noise, rate = 4.0, 0.05
    with mpmath.workdps(60):
        total = mpmath.fsum(
            mpmath.binomial(order, k)
            * mpmath.mpf(rate) ** k
            * (1 - mpmath.mpf(rate)) ** (order - k)
            * mpmath.exp(mpmath.mpf(k * k - k) / (2 * mpmath.mpf(noise) ** 2))
            for k in range(order + 1)
        )
        expected = float(mpmath.log(total)) / (order - 1)
    assert poisson_divergence(noise, rate, order) == pytest.approx(expected, rel=1e-9)


def test_a_sum_that_overflows_is_infinite_and_not_an_error() -> None:
    with np.errstate(all="raise"):
        assert poisson_divergence(1e-160, 0.5, 1024.0) == math.inf


def test_a_series_that_converges_too_slowly_counts_as_infinite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert math.isfinite(poisson_divergence(1.0, 0.02, 1.5))
    monkeypatch.setattr(rdp, "_SMALL", 1e9)
    assert poisson_divergence(1.0, 0.02, 1.5) == math.inf


def test_more_terms_are_taken_where_few_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    plain = rdp._binomials

    def noted(order: float, terms: int) -> object:
        taken.append(terms)
        return plain(order, terms)

    monkeypatch.setattr(rdp, "_binomials", noted)
    found = poisson_divergence(1.0, 0.02, 1.5)
    assert taken[0] == 64
    assert set(taken) <= {64, 1000}
    monkeypatch.setattr(rdp, "_FIRST_TERMS", 1000)
    assert poisson_divergence(1.0, 0.02, 1.5) == pytest.approx(found, rel=1e-12)
    taken.clear()
    assert poisson_divergence(0.7, 0.3, 1.5) == math.inf
    assert taken == [1000, 1000]


@pytest.mark.parametrize(
    ("order", "divergence", "delta"), [(2.0, 1.0, 1e-5), (1.5, 0.3, 1e-3), (64.0, 7.0, 1e-9)]
)
def test_the_improved_conversion_is_the_printed_formula(
    order: float, divergence: float, delta: float
) -> None:
    expected = divergence + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)
    assert expected > 0.0
    assert improved_epsilon(order, divergence, delta) == pytest.approx(expected, rel=1e-14)


def test_the_improved_conversion_at_its_ends() -> None:
    # δ² = 1 - e^-D: above, total variation is below δ and ε is 0 at any order, also next to 1.
    edge = -math.log1p(-(0.1**2))
    for order in (1.001, 2.0, 64.0):
        assert improved_epsilon(order, edge * 0.999, 0.1) == 0.0
    assert improved_epsilon(1.001, edge * 1.001, 0.1) == math.inf
    assert improved_epsilon(1.01, 1.0, 0.1) == math.inf
    assert math.isfinite(improved_epsilon(1.0101, 1.0, 0.1))
    # Never below 0.
    assert improved_epsilon(2.0, 0.02, 0.5) == 0.0
