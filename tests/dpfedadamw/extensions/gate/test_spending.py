"""ε of releases is dp-accounting's, and the noise that a budget needs is the smallest."""

from __future__ import annotations

import dp_accounting
import pytest

from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.spending import epsilon_of, noise_for, releases_left


@pytest.mark.parametrize(
    ("spent", "delta"), [([4.0] * 3, 1e-5), ([12.0] * 30 + [5.0], 1e-6), ([0.8], 1e-5)]
)
def test_epsilon_of_unlike_releases_is_that_of_dp_accounting_to_a_thousandth(spent, delta):
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3
    )
    for sigma in spent:
        accountant.compose(dp_accounting.GaussianDpEvent(sigma))
    assert epsilon_of(spent, delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


def test_nothing_released_costs_nothing():
    assert epsilon_of([], 1e-5) == 0.0


@pytest.mark.parametrize("releases", [1, 7, 100])
def test_the_noise_of_a_budget_allows_its_releases_and_no_more(releases):
    sigma = noise_for(releases, 2.0, 1e-5)
    assert epsilon_of([sigma] * releases, 1e-5) <= 2.0 < epsilon_of([sigma * 0.99] * releases, 1e-5)
    assert releases_left([], sigma, 2.0, 1e-5) == releases
    assert releases_left([sigma] * releases, sigma, 2.0, 1e-5) == 0


def test_a_budget_that_no_noise_keeps_is_refused():
    with pytest.raises(GateError, match="do not fit into"):
        noise_for(100_000, 1e-6, 1e-10)
