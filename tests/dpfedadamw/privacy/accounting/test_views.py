"""Views: to whom a number speaks, and what it assumes."""

from __future__ import annotations

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting import views
from dpfedadamw.privacy.accounting.pld import epsilon_pld
from dpfedadamw.privacy.accounting.registry import epsilons
from dpfedadamw.privacy.accounting.views import (
    ClientSpend,
    Epsilon,
    server_view,
    server_worst_case,
    third_party_view,
)
from dpfedadamw.privacy.accounting.worst_case import SpendingBound
from dpfedadamw.privacy.composition import Composition, Compositions

DELTA = 1e-5
COURSE = SpendingBound(20, 5, 1.0)
ROUND = Composition(1.0, 0.05, 5)
COHORTS = ("fixed-size", "poisson")


def spend(client: int, rate: float, participations: int) -> ClientSpend:
    steps = Composition(1.0, rate, 5 * participations)
    return ClientSpend(client, round(16 / rate), participations, (steps,))


def test_the_servers_headline_is_the_largest_client() -> None:
    view = server_view([spend(0, 0.02, 4), spend(3, 0.08, 2), spend(7, 0.01, 10)], DELTA)
    assert [entry.client for entry in view.clients] == [0, 3, 7]
    for entry in view.clients:
        assert entry.epsilon["pld"] == epsilon_pld(
            Composition(1.0, entry.sampling_rate, entry.steps), DELTA
        )
        assert entry.epsilon["pld"] < entry.epsilon["rdp"] < entry.epsilon["rdp-classic"]
        assert entry.delta_records == DELTA * entry.records
    assert view.epsilon.value == max(entry.epsilon["pld"] for entry in view.clients)
    assert view.epsilon.value == view.clients[1].epsilon["pld"]


def test_clients_that_were_charged_alike_are_accounted_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def counted(parts: Compositions, delta: float, most: Compositions | None) -> dict[str, float]:
        asked.append(parts)
        return epsilons(parts, delta, most)

    monkeypatch.setattr(views, "epsilons", counted)
    rounds = (1, 2, 1, 3)
    view = server_view([spend(client, 0.05, rounds[client % 4]) for client in range(2_000)], DELTA)
    assert len(asked) == 3
    alone = [server_view([spend(0, 0.05, n)], DELTA).epsilon.value for n in rounds]
    assert [one.epsilon["pld"] for one in view.clients] == alone * 500
    assert [one.client for one in view.clients] == list(range(2_000))


def test_the_worst_case_bounds_every_participation() -> None:
    worst = server_worst_case(COURSE, ROUND, DELTA)
    realised = [server_view([spend(0, 0.05, n)], DELTA).epsilon.value for n in (1, 10, 19, 20)]
    assert realised == sorted(realised)
    assert realised[-1] == worst.value


@pytest.mark.parametrize("participation", [0.1, 0.5, 0.9])
def test_a_third_party_learns_less_than_the_server_in_the_worst_case(participation: float) -> None:
    view = third_party_view(COURSE, ROUND, participation, DELTA)
    assert 0 < view.epsilon.value < server_worst_case(COURSE, ROUND, DELTA).value
    assert view.participation == participation


def test_a_third_party_equals_the_worst_case_when_all_take_part() -> None:
    twice = Composition(1.0, 0.05, 5, 2)
    view = third_party_view(COURSE, twice, 1.0, DELTA)
    assert view.epsilon.value == server_worst_case(COURSE, twice, DELTA).value


def test_what_holds_for_a_third_party_does_not_depend_on_how_clients_are_drawn() -> None:
    fixed, poisson = (third_party_view(COURSE, ROUND, 0.5, DELTA, how) for how in COHORTS)
    assert fixed.epsilon.value == poisson.epsilon.value
    assert fixed.epsilon.assumptions != poisson.epsilon.assumptions


@pytest.mark.parametrize("sampling", ["fixed-size", "shuffled"])
def test_samplers_under_replace_one_say_so(sampling: str) -> None:
    rate = 1.0 if sampling == "shuffled" else 0.05
    epsilon = server_worst_case(COURSE, Composition(1.0, rate, 5, 1, sampling), DELTA)
    assert epsilon.adjacency == "replace-one"
    assert any("twice the clipping norm" in sentence for sentence in epsilon.assumptions)
    assert not any("Poisson" in sentence for sentence in epsilon.assumptions)


def test_every_number_carries_what_it_assumes() -> None:
    server = server_worst_case(COURSE, ROUND, DELTA)
    third = third_party_view(COURSE, ROUND, 0.5, DELTA).epsilon
    for epsilon, towards in ((server, "server"), (third, "third-party")):
        assert isinstance(epsilon, Epsilon)
        assert (epsilon.towards, epsilon.adjacency) == (towards, "add-remove")
        assert (epsilon.by_accountant, epsilon.delta) == ({"pld": epsilon.value}, DELTA)
        assert any("Poisson" in sentence for sentence in epsilon.assumptions)
    assert any("sees every upload" in sentence for sentence in server.assumptions)
    assert any("only broadcast models" in sentence for sentence in third.assumptions)
    assert not any("sees every upload" in sentence for sentence in third.assumptions)


def test_a_view_of_nothing_is_refused() -> None:
    with pytest.raises(PrivacyError, match="no client was charged"):
        server_view([], DELTA)
