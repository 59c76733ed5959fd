"""Rényi divergences of a subsampled Gaussian against the integral that defines them."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dpfedadamw.accounting import divergences
from dpfedadamw.accounting.divergences import (
    ORDERS,
    improved_epsilon,
    poisson_divergence,
)


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


@pytest.mark.parametrize("order", [2.0, 3.0, 11.0, 32.0, 63.0])
@pytest.mark.parametrize(("noise", "rate"), CASES)
def test_a_divergence_is_its_integral(noise: float, rate: float, order: float) -> None:
    expected = by_integral(noise, rate, order)
    assert poisson_divergence(noise, rate, order) == pytest.approx(expected, rel=1e-7, abs=1e-11)


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
    monkeypatch.setattr(divergences, "_SMALL", 1e9)
    assert poisson_divergence(1.0, 0.02, 1.5) == math.inf


def test_more_terms_are_taken_where_few_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    plain = divergences._binomials

    def noted(order: float, terms: int) -> object:
        taken.append(terms)
        return plain(order, terms)

    monkeypatch.setattr(divergences, "_binomials", noted)
    found = poisson_divergence(1.0, 0.02, 1.5)
    assert taken[0] == 64
    assert set(taken) <= {64, 1000}
    monkeypatch.setattr(divergences, "_FEW", 1000)
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
