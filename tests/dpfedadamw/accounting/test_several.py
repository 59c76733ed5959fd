"""What a record-level run costs a person with several records, against a composition of our own."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from audit.accounting import budget as auditors
from audit.accounting.registry import Steps, merge
from dpfedadamw.accounting import several
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.registry import leading
from dpfedadamw.accounting.several import (
    MOST_RECORDS,
    epsilon_of_records,
    in_words_of_people,
    together,
)
from dpfedadamw.accounting.views import ClientSpend, mechanism_assumptions
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition

QUICKSTART = Composition(2.8, 0.4, 100)
DELTA = 1e-5


def by_convolution(records, sigma, rate, steps, delta, width=2e-3):
    """ε by summing losses on a grid of their own in float64, as long as the whole composition.

    The loss of removal is ln(mixture/Gaussian) at x from the mixture, of addition its negative at x
    from the Gaussian; outputs are cut into cells of equal width, losses rounded to the nearest.
    """
    law = stats.binom(records, rate).pmf(np.arange(records + 1))
    x = np.linspace(-10 * sigma, records + 10 * sigma, 100_001)
    middle = (x[1:] + x[:-1]) / 2
    parts = np.array([np.diff(stats.norm.cdf(x, j, sigma)) for j in range(records + 1)])
    exponents = np.array([(2 * j * middle - j * j) / (2 * sigma**2) for j in range(records + 1)])
    loss = np.log((law[:, None] * np.exp(exponents)).sum(0))
    found = []
    for values, masses in ((loss, law @ parts), (-loss, parts[0])):
        places = np.rint(values / width).astype(int)
        one = np.bincount(places - places.min(), masses)
        cells = 1 << (steps * len(one)).bit_length()
        composed = np.fft.irfft(np.fft.rfft(one, cells) ** steps, cells)
        losses = (np.arange(cells) + steps * places.min()) * width

        def excess(epsilon, losses=losses, composed=composed):
            over = slice(np.searchsorted(losses, epsilon, side="right"), None)
            return float(-composed[over] @ np.expm1(epsilon - losses[over]))

        low, high = 0.0, 200.0
        for _ in range(40):
            half = (low + high) / 2
            low, high = (half, high) if excess(half) > delta else (low, half)
        found.append(high)
    return max(found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("records", [2, 1, 3])
def test_it_is_that_of_an_independent_convolution(records):
    ours = epsilon_of_records((QUICKSTART,), records, DELTA)
    assert ours == pytest.approx(by_convolution(records, 2.8, 0.4, 100, DELTA), rel=1e-3)


@pytest.mark.thorough
def test_one_record_costs_what_the_accountant_of_records_says():
    ours = epsilon_of_records((QUICKSTART,), 1, DELTA)
    assert ours == pytest.approx(epsilon_pld((QUICKSTART,), DELTA), rel=1e-3)


@pytest.mark.thorough
def test_two_records_cost_more_than_twice_one():
    one, two = (epsilon_of_records((QUICKSTART,), count, DELTA) for count in (1, 2))
    assert two > 2.2 * one


@pytest.mark.parametrize(
    ("part", "records", "times", "exact", "by_lemma"),
    [
        (QUICKSTART, 2, 14.16, 16.77, 20.49),
        # The smallest client of the 20,000 made-up visits, of docs/people.md.
        (Composition(18.1962, 273.6 / 1895, 80), 10, 2.37, 2.99, 3.07),
    ],
)
def test_several_records_lie_between_a_multiple_and_the_lemma_of_group_privacy(
    part, records, times, exact, by_lemma
):
    """(ε, δ′) for one is (kε, δ′·(e^kε − 1)/(e^ε − 1)) for k (Vadhan 2017, Lemma 2.2)."""

    def lemma(small):
        one = epsilon_pld((part,), small)
        return records * one, small * np.expm1(records * one) / np.expm1(one)

    low, high = 1e-10, DELTA
    for _ in range(40):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if lemma(middle)[1] <= DELTA else (low, middle)
    assert records * epsilon_pld((part,), DELTA) == pytest.approx(times, abs=0.01)
    assert epsilon_of_records((part,), records, DELTA) == pytest.approx(exact, abs=0.01)
    assert lemma(low)[0] == pytest.approx(by_lemma, abs=0.01)


def test_where_every_record_is_in_every_batch_it_is_one_gaussian_moved_further():
    ours = epsilon_of_records((Composition(9.0, 1.0, 4, 1, "full"),), 3, DELTA)
    assert ours == pytest.approx(
        epsilon_pld((Composition(3.0, 1.0, 4, 1, "full"),), DELTA), rel=1e-3
    )


@pytest.mark.slow
def test_queries_on_one_batch_and_rounds_at_another_noise_are_counted():
    twice = Composition(2.8, 0.4, 50, 2)
    ours = epsilon_of_records((twice, Composition(2.8, 0.4, 50)), 2, DELTA)
    alone = Composition(2.8 / np.sqrt(2), 0.4, 50)
    assert ours == pytest.approx(
        epsilon_of_records((alone, Composition(2.8, 0.4, 50)), 2, DELTA), rel=1e-9
    )
    assert ours > epsilon_of_records((QUICKSTART,), 2, DELTA)


@pytest.mark.parametrize("count", [0, MOST_RECORDS + 1])
def test_numbers_that_are_none_are_refused(count):
    with pytest.raises(PrivacyError, match="must be from 1 to 1,000"):
        epsilon_of_records((QUICKSTART,), count, DELTA)


def test_batches_that_no_accountant_covers_are_refused():
    with pytest.raises(PrivacyError, match=r"use privacy\.sampling\.kind: poisson"):
        epsilon_of_records((Composition(2.8, 0.4, 100, 1, "fixed-size"),), 2, DELTA)


DELTA = 1e-5


def spend(client: int, *parts: tuple[float, float, int]) -> ClientSpend:
    """What a client was charged: noise multiplier, rate, steps."""
    return ClientSpend(client, 100, 1, tuple(Composition(*part) for part in parts))


def epsilon(*parts: tuple[float, float, int]) -> float:
    return leading()[0].epsilon(tuple(Composition(*part) for part in parts), DELTA)


def test_two_equal_clients_are_twice_the_steps():
    spends = [spend(client, (2.8, 0.4, 100)) for client in range(4)]
    both = together(spends, 2, DELTA)
    assert both.epsilon == epsilon((2.8, 0.4, 200))
    assert both.epsilon > 1.4 * together(spends, 1, DELTA).epsilon
    # Of fewer clients than a person may be at, all count.
    assert together(spends[:1], 3, DELTA).epsilon == epsilon((2.8, 0.4, 100))


@given(
    clients=st.lists(
        st.tuples(st.sampled_from([1.5, 2.0]), st.sampled_from([0.1, 0.2, 0.3]),
                  st.sampled_from([20, 50, 90])),
        min_size=1, max_size=5,
    ),
    most=st.integers(1, 3),
)  # fmt: skip
@settings(max_examples=25)
def test_no_set_of_clients_costs_more_and_the_auditor_finds_the_same(clients, most):
    spends = [spend(client, parts) for client, parts in enumerate(clients)]
    found = together(spends, most, DELTA)
    sets = combinations(clients, min(most, len(clients)))
    assert found.epsilon == max(epsilon(*chosen) for chosen in sets)
    own = auditors.together(
        [(Steps(rate, noise, steps),) for noise, rate, steps in clients], most, DELTA
    )
    parts = [(part.noise_multiplier, part.sampling_rate, part.steps) for part in found.parts]
    assert epsilon(*((s.noise_multiplier, s.sampling_rate, s.steps) for s in own)) == epsilon(
        *parts
    )


def test_where_sets_are_too_many_what_covers_each_is_counted(monkeypatch):
    monkeypatch.setattr(several, "_MOST_SETS", 2)
    monkeypatch.setattr(auditors, "_MOST_SETS", 2)
    parts = [(2.0, 0.1, 90), (2.0, 0.2, 50), (2.0, 0.3, 20)]
    spends = [spend(client, one) for client, one in enumerate(parts)]
    assert together(spends, 2, DELTA).epsilon == epsilon((2.0, 0.3, 180))
    own = auditors.together([(Steps(q, noise, n),) for noise, q, n in parts], 2, DELTA)
    assert own == merge([Steps(0.3, 2.0, 180)])


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled"])
def test_no_assumption_speaks_of_one_record_where_people_are_protected(sampling):
    said = in_words_of_people(mechanism_assumptions(sampling), 2)
    assert "at more than 2 clients" in said[0]
    assert not any("one record" in one or "record's gradient" in one for one in said)
