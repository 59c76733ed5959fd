"""A person at several clients: what they spend together, by both accountants."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.accounting import budget as auditors
from audit.accounting.registry import Steps, merge
from dpfedadamw.accounting import several_clients
from dpfedadamw.accounting.registry import leading
from dpfedadamw.accounting.several_clients import in_words_of_people, together
from dpfedadamw.accounting.views import ClientSpend, mechanism_assumptions
from dpfedadamw.privacy.composition import Composition

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
@settings(max_examples=25, deadline=None)
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
    monkeypatch.setattr(several_clients, "_MOST_SETS", 2)
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
