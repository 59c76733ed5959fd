"""How the clients of a round are drawn: in range, and by chance as stated."""

from __future__ import annotations

import numpy as np
import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.cohorts import FixedClients, PoissonClients
from dpfedadamw.privacy.noise.streams import Stream


def stream() -> Stream:
    return Stream(bytes(range(32)))


@pytest.mark.parametrize(("size", "clients"), [(1, 1), (1, 9), (9, 9), (4, 9)])
def test_a_cohort_of_a_fixed_size_has_it_and_no_client_twice(size, clients):
    cohort = FixedClients(size)
    assert cohort.rate(clients) == size / clients
    drawn = cohort.draw(clients, stream())
    assert len(drawn) == len(set(drawn.tolist())) == size
    assert np.array_equal(drawn, np.sort(drawn))
    assert set(drawn.tolist()) <= set(range(clients))


@pytest.mark.parametrize(("size", "clients"), [(0, 9), (10, 9)])
def test_a_cohort_that_cannot_be_drawn_is_refused(size, clients):
    with pytest.raises(PrivacyError, match=f"{size} clients per round cannot be drawn from 9"):
        FixedClients(size).draw(clients, stream())
    expected = f"{size} expected clients per round cannot be drawn from 9"
    with pytest.raises(PrivacyError, match=expected):
        PoissonClients(size).draw(clients, stream())


def test_every_client_is_in_a_fixed_cohort_equally_often():
    """Of 2,000 rounds; five standard deviations of a binomial count."""
    source, cohort = stream(), FixedClients(3)
    found = np.bincount(np.concatenate([cohort.draw(10, source) for _ in range(2000)]))
    assert np.abs(found - 600).max() < 5 * np.sqrt(2000 * 0.3 * 0.7)


def test_clients_by_chance_are_drawn_each_for_itself():
    source, cohort = stream(), PoissonClients(0.5)
    assert cohort.rate(10) == 0.05
    rounds = [cohort.draw(10, source) for _ in range(2000)]
    sizes = np.array([len(one) for one in rounds])
    assert all(np.array_equal(one, np.sort(one)) for one in rounds)
    assert abs(sizes.mean() - 0.5) < 5 * np.sqrt(0.475 / 2000)
    # Rounds without anybody: 0.95^10 of them.
    assert abs((sizes == 0).mean() - 0.95**10) < 5 * np.sqrt(0.6 * 0.4 / 2000)
    assert PoissonClients(10).draw(10, source).tolist() == list(range(10))
