"""What a client's owner is told: ε after the spec's rounds, and the most that it can become."""

from __future__ import annotations

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.accounting.registry import claimed
from dpfedadamw.errors import PrivacyError
from dpfedadamw.experiment import foresee
from dpfedadamw.extensions.deployment import promise
from dpfedadamw.extensions.deployment.promise import Promise, promises, sentences
from dpfedadamw.extensions.deployment.site import reserve
from dpfedadamw.privacy.charges import charges_of_records
from dpfedadamw.run.headline import with_people
from tests.people import BY_HOSPITAL, RECORDS, people_spec
from tests.runs import small_spec

CLIENTS = ("data.clients=3", "federation.client_sampling=poisson")


def test_the_quickstart_is_7_09_and_at_most_7_87_with_its_reserve():
    plan = foresee(specs.load("quickstart", []))
    most = plan.rounds + reserve(plan.rounds)
    (line,) = sentences(plan, most, reproducible=False)
    assert "epsilon = 7.09 against the server, after the spec's 20 rounds. At most 7.87" in line
    assert "all 24 participations" in line
    assert "(delta = 1e-05, protects one record, add-remove neighbours)" in line


def test_no_number_that_an_owner_agrees_to_is_rounded_down(monkeypatch):
    exact = Promise(against="the server", planned=1.2301, most=2.3401)
    monkeypatch.setattr(promise, "promises", lambda *_: (exact,))
    (line,) = sentences(foresee(small_spec(rounds=3)), 5, reproducible=False)
    assert "epsilon = 1.24 against" in line
    assert "At most 2.35 if" in line


def test_the_most_is_what_the_accountant_says_of_so_many_rounds():
    spec = small_spec(rounds=3)
    more = foresee(spec.replace(federation=spec.federation.replace(rounds=9)))
    (found,) = promises(foresee(spec), 9)
    assert found.most == claimed(more.expected_claim(1)["server_worst_case"])
    assert found.most > found.planned


def test_the_most_is_told_where_it_is_beyond_the_specs_target():
    plan = foresee(small_spec(rounds=3, overrides=("privacy.target_epsilon=2",)))
    (found,) = promises(plan, 9)
    assert found.planned <= 2.0 < found.most


def test_late_rounds_asked_for_again_at_falling_noise_cost_no_more_than_the_most():
    rounds, more = 20, reserve(20)
    plan = foresee(small_spec("adap-dpfl", rounds, 5))
    # As many participations as a client pays for: of each late round all that it allows.
    asked = [max(0, rounds - 1 - place // (1 + more)) for place in range(rounds + more)]
    lied = [
        {"kind": "spend", **charge}
        for place, index in enumerate(sorted(asked))
        for charge in charges_of_records(plan, index, 1 + place, [plan.smallest_client])
    ]
    (found,) = promises(plan, rounds + more)
    reached = claimed(plan.unit.realised_claim(plan, lied)["server"])
    assert found.planned < reached <= found.most


@pytest.mark.parametrize(
    ("rounds", "more"), [(1, 2), (2, 2), (10, 2), (11, 3), (20, 4), (50, 10), (5000, 10)]
)
def test_the_reserve_is_a_fifth_of_the_rounds_and_ten_at_most(rounds, more):
    assert reserve(rounds) == more


def test_a_server_that_sees_clean_updates_is_promised_nothing():
    changes = (*CLIENTS, "privacy.noise_added_by=server")
    plan = foresee(small_spec("blur", 3, 2, overrides=changes))
    first, *others = sentences(plan, 5, reproducible=True)
    assert (
        "anyone who sees the published models alone, if the server draws the clients and adds"
        in (first)
    )
    assert "no epsilon holds against the server: it sees clipped updates without noise" in others
    assert any("anyone who knows the run's seed" in line for line in others)


def test_where_clients_add_the_noise_the_servers_view_comes_first_and_is_the_dearer_one():
    changes = (*CLIENTS, "privacy.noise_added_by=clients")
    plan = foresee(small_spec("blur", 3, 2, overrides=changes))
    server, third = promises(plan, 5)
    assert server.against == "the server"
    assert server.planned > third.planned
    assert server.most > server.planned


def test_where_a_limit_on_steps_bounds_a_client_no_reserve_adds_to_it():
    plan = foresee(small_spec("ali-dpfl", 4, 5))
    (found,) = promises(plan, 4 + reserve(4))
    assert found.most == found.planned
    lines = sentences(plan, 4 + reserve(4), reproducible=False)
    assert any("at most" in line and "local steps in all" in line for line in lines)


def test_what_no_epsilon_bounds_is_refused():
    with pytest.raises(PrivacyError, match="1000000000 participations: "):
        sentences(foresee(small_spec(rounds=3)), 10**9, reproducible=False)


def test_an_owner_reads_that_people_are_protected_and_at_how_many_clients():
    (line,) = sentences(foresee(people_spec(partition=BY_HOSPITAL, clients=8, s=3)), 6, False)
    assert "protects one person with all their records at up to 3 clients, add-remove" in line
    (line,) = sentences(foresee(people_spec()), 6, False)
    assert "protects one person with all their records at one client, add-remove" in line


def test_an_owner_whose_records_are_protected_reads_the_epsilon_of_a_person_with_most_of_them():
    plan = foresee(people_spec(unit=RECORDS, overrides=("data.most_records_per_person=3",)))
    (found,) = promises(plan, 6)
    claim = plan.expected_claim(1)
    assert found.of_person is not None
    assert found.of_person[0] == with_people(plan, claim)["person"]["epsilon"] > found.planned
    assert found.of_person[1] > found.of_person[0]
    _, line = sentences(plan, 6, reproducible=False)
    assert line.startswith("for a person with 3 records, and nobody has more, these are ")


def test_an_owner_reads_that_no_accountant_covers_a_person_with_several_records():
    fixed = "{kind: fixed, batch_size: 24}"
    changes = ("data.most_records_per_person=3", f"privacy.sampling={fixed}")
    changes += ("privacy.adjacency=replace-one",)
    _, line = sentences(foresee(people_spec(unit=RECORDS, overrides=changes)), 6, False)
    assert line == "a person with 3 records is protected less; no accountant says how much"


def test_a_limit_on_epsilon_that_an_honest_server_keeps_to_binds_no_other():
    limited = foresee(small_spec(rounds=3, overrides=("federation.max_epsilon=1",)))
    (found,), (free,) = promises(limited, 9), promises(foresee(small_spec(rounds=3)), 9)
    assert found.most == free.most


def test_who_allows_no_participation_is_told_no_less_than_what_the_spec_costs():
    (found,) = promises(foresee(small_spec(rounds=3)), 0)
    assert found.most == found.planned > 0.0
