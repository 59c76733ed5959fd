"""Views: to whom a number speaks, and what it assumes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpfedadamw.accounting import views
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.registry import epsilons
from dpfedadamw.accounting.views import (
    ClientSpend,
    Epsilon,
    server_view,
    server_worst_case,
    third_party_view,
)
from dpfedadamw.accounting.worst_case import Adaptation, SpendingBound
from dpfedadamw.errors import PrivacyError
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


def test_what_one_client_was_charged_is_added_up_and_its_rate_is_the_largest() -> None:
    parts = (Composition(1.0, 0.1, 7), Composition(2.0, 0.3, 5), Composition(3.0, 0.2, 1))
    spent = ClientSpend(4, 100, 3, parts)
    assert (spent.steps, spent.sampling_rate) == (13, 0.3)


def test_each_entry_says_of_its_client_what_was_charged() -> None:
    parts = (Composition(8.0, 1.0, 2, 1, "full"), Composition(9.0, 1.0, 1, 1, "full"))
    (entry,) = server_view([ClientSpend(4, 250, 3, parts)], 1e-4).clients
    assert (entry.client, entry.records, entry.sampling_rate) == (4, 250, 1.0)
    assert (entry.participations, entry.steps) == (3, 3)
    assert entry.delta_records == pytest.approx(0.025, rel=1e-12)
    assert entry.epsilon == epsilons(parts, 1e-4)


@pytest.mark.parametrize(
    ("sampling", "rate", "adjacency", "own"),
    [
        ("poisson", 0.1, "add-remove", ("independent Poisson draws", "sampling rate q = B/R")),
        ("full", 1.0, "add-remove", ("every batch holds all records",)),
        ("fixed-size", 0.1, "replace-one", ("twice the clipping norm", "without replacement")),
        ("shuffled", 1.0, "replace-one", ("twice the clipping norm", "no amplification")),
    ],
)
def test_each_sampler_has_assumptions_of_its_own(
    sampling: str, rate: float, adjacency: str, own: tuple[str, ...]
) -> None:
    stated = views.mechanism_assumptions(sampling)
    assert stated[0].startswith("each record belongs to one client")
    assert stated[-1] == views.NOT_TUNED
    assert len(stated) == 3 + len(own) + 1
    for sentence, words in zip(stated[3:-1], own, strict=True):
        assert words in sentence
    parts = (Composition(9.0, rate, 2, 1, sampling),)
    server = server_view([ClientSpend(0, 100, 1, parts)], DELTA).epsilon
    worst = server_worst_case(COURSE, parts[0], DELTA)
    third = third_party_view(COURSE, parts[0], 0.5, DELTA).epsilon
    for epsilon in (server, worst, third):
        assert (epsilon.adjacency, epsilon.delta) == (adjacency, DELTA)
        assert epsilon.assumptions[: len(stated)] == stated
    # What is added says who reads, and of the worst case that it is one.
    assert [len(one.assumptions) - len(stated) for one in (server, worst, third)] == [1, 2, 3]
    assert "takes part in every round" in worst.assumptions[-1]
    assert server.assumptions[-1] == worst.assumptions[-2]
    assert (server.towards, worst.towards, third.towards) == ("server", "server", "third-party")


def test_what_holds_for_a_third_party_names_how_clients_are_drawn() -> None:
    fixed, poisson = (third_party_view(COURSE, ROUND, 0.5, DELTA, how) for how in COHORTS)
    assert "same number of clients" in fixed.epsilon.assumptions[-1]
    assert "independently of the others" in poisson.epsilon.assumptions[-1]
    assert third_party_view(COURSE, ROUND, 0.5, DELTA) == fixed
    assert (fixed.rounds, fixed.participation) == (20, 0.5)


class Fake:
    """An accountant whose ε is what is told, and what it was asked."""

    def __init__(self, epsilon: float, mixture: float = 0.0) -> None:
        self.asked: list[object] = []
        self._epsilon, self._mixture = epsilon, mixture
        self.name = "pld"

    def epsilon(self, composition: Compositions, delta: float) -> float:
        self.asked.append((composition, delta))
        return self._epsilon

    def mixture(self, kinds: object, participation: float, delta: float) -> float:
        self.asked.append((kinds, participation, delta))
        return self._mixture


def leads(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> Fake:
    monkeypatch.setattr(views, "leading", lambda: (fake, fake))
    return fake


def test_a_limit_on_all_steps_bounds_what_a_third_party_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = SpendingBound(20, 5, 1.0, Adaptation(5, 30, False, None))
    for epsilon, mixture, expected in ((2.0, 3.0, 2.0), (3.0, 2.0, 2.0)):
        fake = leads(monkeypatch, Fake(epsilon, mixture))
        assert third_party_view(limited, ROUND, 0.5, DELTA).epsilon.value == expected
        assert fake.asked == [(((ROUND, 20),), 0.5, DELTA), ((replace(ROUND, steps=30),), DELTA)]
    # Without one only the mixture is asked for.
    unlimited = SpendingBound(20, 5, 1.0, Adaptation(5, None, False, None))
    for bound in (COURSE, unlimited):
        fake = leads(monkeypatch, Fake(2.0, 3.0))
        assert third_party_view(bound, ROUND, 0.5, DELTA).epsilon.value == 3.0
        assert len(fake.asked) == 1


def test_no_finite_epsilon_is_refused_towards_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    leads(monkeypatch, Fake(math.inf, math.inf))
    with pytest.raises(PrivacyError, match="no finite epsilon holds at delta 1e-05"):
        server_worst_case(COURSE, ROUND, DELTA)
    with pytest.raises(PrivacyError, match="no finite epsilon holds at delta 1e-05"):
        third_party_view(COURSE, ROUND, 0.5, DELTA)
    # A client's must be finite by every accountant, not only by the one that is promised.
    for found in ({"pld": math.inf, "rdp": 1.0}, {"pld": 1.0, "rdp": math.inf}):
        monkeypatch.setattr(views, "epsilons", lambda *_, found=found: found)
        with pytest.raises(PrivacyError, match="client 7 has no finite epsilon at delta 1e-05"):
            server_view([spend(7, 0.5, 1)], DELTA)


def test_what_was_foreseen_is_handed_to_the_accountants(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def noted(parts: object, delta: float, most: object) -> dict[str, float]:
        asked.append((parts, delta, most))
        return {"pld": 1.0}

    monkeypatch.setattr(views, "epsilons", noted)
    one = spend(0, 0.5, 1)
    server_view([one], DELTA, [ROUND])
    server_view([one], DELTA)
    assert asked == [(one.compositions, DELTA, [ROUND]), (one.compositions, DELTA, None)]
