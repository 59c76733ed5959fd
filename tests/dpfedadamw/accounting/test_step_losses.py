"""Losses of a step: of fixed-size batches, as three accountants have them, and of Poisson ones."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy import stats
from scipy.stats import norm

from audit.accounting.budget import Steps, ThirdParty, budget
from dpfedadamw.accounting.pld import epsilon_pld, mixture_epsilon_pld
from dpfedadamw.accounting.rdp import epsilon_rdp
from dpfedadamw.accounting.step_losses import (
    fixed_size_losses,
    fixed_size_profile,
    poisson_losses,
    poisson_range,
)
from dpfedadamw.privacy.composition import Composition

DELTA = 1e-5
REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE
# Two discretisations and two grids of orders, each within 0.2 % of the truth where ε matters.
RELATIVE, ABSOLUTE = 3e-3, 1e-3
SETTINGS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 3 else []) for seed in range(50)]


def clipped_sums(records: tuple[float, ...], size: int) -> list[float]:
    return [sum(chosen) for chosen in itertools.combinations(records, size)]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("sigma", [0.6, 2.0])
@pytest.mark.parametrize(
    "others", [(0.0,) * 4, (1.0, 1.0, -1.0, -1.0), (1.0,) * 4, (0.3, -0.9, 1.0, 0.0)]
)
def test_no_replaced_record_exceeds_the_profile(
    size: int, sigma: float, others: tuple[float, ...]
) -> None:
    # Every batch of 5 records in one dimension, the replaced one as far away as clipping allows.
    outputs = np.linspace(-16.0, 16.0, 40_001)

    def density(record: float) -> np.ndarray:
        means = clipped_sums((*others, record), size)
        return np.mean([stats.norm.pdf(outputs, mean, sigma) for mean in means], axis=0)

    before, after = density(1.0), density(-1.0)
    epsilons = np.array([-3.0, -1.0, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
    bounds = fixed_size_profile(sigma / 2.0, size / 5, epsilons)
    for epsilon, bound in zip(epsilons, bounds, strict=True):
        for one, other in ((before, after), (after, before)):
            truth = np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * 8e-4
            # The sum over a grid of 8e-4 is exact to far below this.
            assert truth <= bound + 1e-6


def test_the_profile_is_reached_where_the_others_are_zero_and_batches_hold_one_record() -> None:
    # With B = 1 and zeros beside it, P1 and P0 are C apart, not 2C: the bound is close, not equal.
    epsilons = np.array([0.05, 0.2])
    full = fixed_size_profile(0.5, 1.0, epsilons)
    gaussian = stats.norm.cdf(1.0 - epsilons / 2) - np.exp(epsilons) * stats.norm.cdf(
        -1.0 - epsilons / 2
    )
    # All records in every batch: the Gaussian mechanism of sensitivity 2C, exactly.
    np.testing.assert_allclose(full, gaussian, rtol=1e-12)


def test_the_profile_is_a_profile() -> None:
    alphas = np.linspace(0.01, 6.0, 4001)
    for rate, sigma in ((0.02, 0.5), (0.4, 1.4), (0.999, 3.0)):
        values = fixed_size_profile(sigma, rate, np.log(alphas))
        assert np.all(np.diff(values) <= 1e-12)
        # Convex in e^ε, so there is a pair of distributions of which it is the profile.
        assert np.all(np.diff(values, 2) >= -1e-12)
        assert np.all(values >= np.maximum(0.0, 1.0 - alphas) - 1e-12)


def test_a_finer_grid_changes_little_and_only_downwards() -> None:
    coarse, fine = (fixed_size_losses(0.5, 0.1, width) for width in (2e-3, 5e-4))
    epsilons = [one.repeated(50, 0, 1e-15).epsilon(DELTA) for one in (coarse, fine)]
    assert epsilons[1] <= epsilons[0] <= epsilons[1] * 1.001


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rate", [0.016, 0.5])
def test_with_hardly_any_noise_each_step_that_draws_the_record_costs_a_gaussian_s_loss(
    rate: float,
) -> None:
    # Cells of the grid are so wide that e to their width is beyond all numbers.
    cost = epsilon_pld(Composition(1e-3, rate, 20, sampling="fixed-size"), DELTA)
    # More steps draw the record with a probability below δ; its mean moves by 2/σ in each.
    drawn = stats.binom.isf(DELTA, 20, rate)
    assert cost == pytest.approx(drawn * (2.0 / 1e-3) ** 2 / 2.0, rel=0.01)


@pytest.mark.thorough
def test_the_reference_point() -> None:
    # B = 200 of R = 10000, σ = 1, 2000 steps, δ = 1e-5: RDP is far from tight here.
    composition = Composition(1.0, 0.02, 2000, sampling="fixed-size")
    assert epsilon_rdp(composition, DELTA) == pytest.approx(95.6, abs=0.05)
    assert epsilon_pld(composition, DELTA) == pytest.approx(42.1, abs=0.05)
    audited = budget([Steps(0.02, 0.5, 2000, True)], DELTA)
    assert audited.epsilon["rdp"] == pytest.approx(95.6, abs=0.05)
    assert audited.headline == pytest.approx(42.1, abs=0.05)


def close(one: float, other: float) -> bool:
    return abs(one - other) <= RELATIVE * max(one, other) + ABSOLUTE


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SETTINGS)
def test_engine_dp_accounting_and_auditor_agree_on_fixed_sizes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    records = int(rng.integers(50, 5000))
    batch = int(rng.integers(1, records))
    sigma, steps = float(rng.uniform(0.8, 12.0)), int(rng.integers(1, 600))
    composition = Composition(sigma, batch / records, steps, sampling="fixed-size")
    gaussian = dp_accounting.GaussianDpEvent(sigma / 2.0)
    event = dp_accounting.SampledWithoutReplacementDpEvent(records, batch, gaussian)
    direct = RdpAccountant(neighboring_relation=REPLACE).compose(event, steps)
    ours = budget([Steps(batch / records, sigma / 2.0, steps, True)], DELTA)
    rdp = epsilon_rdp(composition, DELTA)
    assert rdp == pytest.approx(direct.get_epsilon(DELTA), rel=1e-9)
    # The auditor's finer grid of orders lies below, its whole orders at or above.
    theirs_rdp = ours.by_accountant["rdp"]
    assert theirs_rdp.least * (1 - 1e-6) <= rdp <= theirs_rdp.most * (1 + 1e-6)
    assert close(epsilon_pld(composition, DELTA), ours.headline)
    assert epsilon_pld(composition, DELTA) <= rdp


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SETTINGS)
def test_engine_dp_accounting_and_auditor_agree_on_shuffled_epochs(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    sigma, uses = float(rng.uniform(0.8, 40.0)), int(rng.integers(1, 200))
    composition = Composition(sigma, 1.0, uses, sampling="shuffled")
    tight = PLDAccountant(REPLACE).compose(dp_accounting.GaussianDpEvent(sigma), uses)
    half = dp_accounting.GaussianDpEvent(sigma / 2.0)
    renyi = RdpAccountant(neighboring_relation=REPLACE).compose(half, uses)
    ours = budget([Steps(1.0, sigma / 2.0, uses)], DELTA)
    pld, rdp = epsilon_pld(composition, DELTA), epsilon_rdp(composition, DELTA)
    assert close(pld, ours.headline)
    # Given σ, not σ/2: under replace-one its PLD doubles the sensitivity by itself.
    assert close(pld, tight.get_epsilon(DELTA))
    assert rdp == pytest.approx(renyi.get_epsilon(DELTA), rel=1e-9)
    theirs_rdp = ours.by_accountant["rdp"]
    assert theirs_rdp.least * (1 - 1e-6) <= rdp <= theirs_rdp.most * (1 + 1e-6)


@pytest.mark.parametrize("seed", SETTINGS)
def test_engine_and_auditor_agree_on_hidden_participation(seed: int) -> None:
    # dp-accounting has no such mixture; its own distributions are mixed term by term instead.
    rng = np.random.default_rng(200 + seed)
    kind = ("poisson", "fixed-size", "shuffled")[seed % 3]
    rate = 1.0 if kind == "shuffled" else float(rng.uniform(0.01, 0.4))
    sigma, steps = float(rng.uniform(1.0, 8.0)), int(rng.integers(1, 8))
    rounds, share = int(rng.integers(2, 12)), float(rng.uniform(0.1, 0.9))
    one = Composition(sigma, rate, steps, sampling=kind)
    mixed = mixture_epsilon_pld([(one, rounds)], share, DELTA)
    effective = sigma if kind == "poisson" else sigma / 2.0
    per_round = Steps(rate, effective, steps, kind == "fixed-size")
    theirs = ThirdParty([(per_round, rounds)], share, DELTA)
    assert close(mixed, theirs.epsilon([rounds]))
    if kind == "poisson":
        chances = stats.binom.pmf(np.arange(rounds + 1), rounds, share)
        spent = [
            PLDAccountant().compose(
                dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)),
                n * steps,
            )
            for n in range(1, rounds + 1)
        ]
        delta = sum(
            chance * one.get_delta(mixed) for chance, one in zip(chances[1:], spent, strict=True)
        )
        assert delta == pytest.approx(DELTA, rel=0.05)


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.2), (2.0, 0.05), (1.0, 1.0)])
def test_what_lies_above_the_grid_is_an_infinite_loss_of_the_profile_at_its_end(noise, rate):
    losses = fixed_size_losses(noise, rate, 2.0**-3).remove
    top = -losses.first * 2.0**-3
    at_its_end, before = fixed_size_profile(noise, rate, np.array([top, top - 2.0**-3]))
    assert losses.infinite == at_its_end < before
    assert losses.masses.sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)


# P(Z > reach) = 1e-27 for a standard normal Z.
REACH = -norm.ppf(1e-27)


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("rate", [1e-3, 0.2, 1.0])
def test_the_range_is_that_of_outputs_up_to_the_reach_of_either_law(noise, rate):
    """The loss at x is log(1 - q + q·exp((2x - 1)/2σ²)); x is N(0, σ²) or N(1, σ²)."""
    with mpmath.workdps(40):

        def loss(output):
            weight = rate * mpmath.exp((2 * mpmath.mpf(output) - 1) / (2 * noise**2))
            return float(mpmath.log(1 - mpmath.mpf(rate) + weight))

        expected = loss(-REACH * noise), loss(1 + REACH * noise)
    assert poisson_range(noise, rate) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.2), (0.7, 1.0), (4.0, 0.01)])
def test_what_lies_beyond_the_range_is_an_infinite_loss(noise, rate):
    pair = poisson_losses(noise, rate, 2.0**-8)
    for losses in (pair.remove, pair.add):
        assert 0.0 <= losses.infinite < 3e-27
        assert losses.masses.sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)
    least, greatest = poisson_range(noise, rate)
    cells = (math.ceil(greatest * 256) - math.floor(least * 256)) + 1
    assert abs(len(pair.remove.masses) - cells) <= 1
