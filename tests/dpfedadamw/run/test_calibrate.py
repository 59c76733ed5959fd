"""Calibration: the written spec keeps to its target, checked forwards by dp-accounting itself."""

from __future__ import annotations

from collections import Counter

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant

from dpfedadamw import spec as specs
from dpfedadamw.errors import PrivacyError
from dpfedadamw.experiment import divide, prepare
from dpfedadamw.run import calibrate as calibration
from dpfedadamw.run.calibrate import Solve, View, calibrate, compare_person, for_a_person
from tests.people import RECORDS, people_spec
from tests.runs import small_spec


def spent(spec) -> float:
    """ε of the client with the highest rate in every round, by dp-accounting called directly."""
    plan = prepare(spec, torch.device("cpu")).plan
    rate = max(plan.sampling_rate(client) for client in range(len(plan.records)))
    accountant = PLDAccountant()
    accountant.compose(
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(
                rate, dp_accounting.GaussianDpEvent(plan.noise_multiplier)
            ),
            plan.rounds * plan.local_steps,
        )
    )
    return float(accountant.get_epsilon(plan.delta))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("solve", "nearest"), [("noise", 0.99), ("rate", 0.99), ("rounds", 0.6), ("local-steps", 0.4)]
)
def test_the_result_keeps_to_the_target_and_comes_near_it(solve, nearest):
    # Rounds and local steps are whole numbers of a short run, so they come less near.
    found = calibrate(small_spec(rounds=6), 1.5, View.server, Solve(solve))
    # dp-accounting's default grid is coarser than ours; both exceed the truth by less than 0.5 %.
    assert 1.5 * nearest <= spent(found.spec) <= 1.5 * 1.005
    assert found.epsilon <= 1.5


@pytest.mark.parametrize(
    ("view", "solve", "kept"),
    [
        (View.server, Solve.rounds, 4.0),
        (View.server, Solve.noise, 4.0),
        # A spec's target holds against the server.
        (View.third_party, Solve.rounds, None),
    ],
)
def test_what_is_solved_for_replaces_the_specs_own_target(view, solve, kept):
    """Every run's own spec has noise and target; a higher one was met, and the lower one kept."""
    own = small_spec(rounds=6, overrides=("privacy.target_epsilon=3",))
    own = prepare(own, torch.device("cpu")).spec
    own = specs.replace_noise_multiplier(own, 1.5 * own.privacy.noise_multiplier)
    found = calibrate(own, 4.0, view, solve)
    assert found.spec.privacy.target_epsilon == kept
    plan = prepare(found.spec, torch.device("cpu")).plan
    assert found.epsilon == plan.unit.spent(plan.expected_claim(1), view) <= 4.0


def test_of_whole_clients_the_target_holds_against_a_third_party():
    own = small_spec("fed-smp", rounds=6, overrides=("privacy.target_epsilon=3",))
    own = specs.replace_noise_multiplier(own, 3.0)
    assert calibrate(own, 4.0, View.third_party, Solve.rounds).spec.privacy.target_epsilon == 4.0


def test_whole_numbers_are_the_largest_that_fit():
    found = calibrate(small_spec(rounds=12), 1.5, View.server, Solve.rounds)
    one_more = small_spec(rounds=found.spec.federation.rounds + 1)
    assert spent(one_more) > 1.5


def test_a_third_party_leaves_room_for_less_noise_than_the_server():
    spec = small_spec(rounds=12, clients_per_round=2)
    server = calibrate(spec, 1.5, View.server, Solve.noise)
    third_party = calibrate(spec, 1.5, View.third_party, Solve.noise)
    assert third_party.value < server.value


def test_a_spec_without_privacy_cannot_be_calibrated():
    with pytest.raises(PrivacyError, match="claims no privacy"):
        calibrate(small_spec("fedadamw"), 1.0, View.server, Solve.noise)


def test_an_unreachable_target_names_the_nearest():
    with pytest.raises(PrivacyError, match="nearest reachable"):
        calibrate(small_spec(), 0.001, View.server, Solve.rounds)


@pytest.mark.parametrize("noise", ["privacy.target_epsilon=0.5", "privacy.noise_multiplier=0.3"])
def test_a_limit_is_held_against_what_is_solved(noise):
    """A round under the noise that stands in, or stood there before, may cost more than it."""
    spec = small_spec(overrides=("federation.max_epsilon=0.5", noise))
    found = calibrate(spec, 0.5, View.server, Solve.noise)
    assert 0.4975 <= found.epsilon <= 0.5
    assert found.spec.federation.max_epsilon == 0.5


# The σ of 1 that stands in costs more than the limit in one round.
@pytest.mark.parametrize("limit", [(), ("federation.max_epsilon=1.5",)])
def test_people_and_records_are_compared_at_as_many_records_a_step(monkeypatch, limit):
    """The accountant of several records takes half a minute; what it is asked is checked here."""
    asked = []

    def solved(plan, records, target_epsilon, first):
        asked.append((plan, records, target_epsilon, first))
        return 6.0, 1.25

    monkeypatch.setattr(calibration, "_noise_for_a_person", solved)
    spec = people_spec(overrides=limit)
    privacy, expected = spec.privacy, spec.privacy.sampling.expected_batch_size
    people, records = compare_person(spec, 1.5)
    dataset, owner = divide(spec)
    held = Counter(zip(dataset.people_of_train.tolist(), owner.tolist(), strict=True))
    mean = sum(min(count, privacy.records_per_person) for count in held.values()) / len(held)
    assert (people.sampled, people.batch) == ("people", expected)
    assert people.noise == pytest.approx(people.noise_multiplier * privacy.clipping_norm / expected)
    assert 1.4925 <= people.epsilon <= 1.5
    assert (records.sampled, records.noise_multiplier, records.epsilon) == ("records", 6.0, 1.25)
    assert records.batch == pytest.approx(expected * mean)
    assert records.noise == pytest.approx(6.0 * privacy.clipping_norm / records.batch)
    ((plan, most, target, first),) = asked
    # The person with most records, all clients together, is kept to the target.
    assert most == max(Counter(dataset.people_of_train.tolist()).values())
    assert (target, first) == (1.5, 2.0 * people.noise_multiplier)
    assert (plan.unit.name, plan.clipping_norm, plan.delta) == (
        "record",
        privacy.clipping_norm,
        privacy.delta,
    )
    assert plan.sampling.expected_batch_size == records.batch
    assert plan.clients_per_person == 1


@pytest.mark.parametrize("name", ["quickstart", "digits-fixed-size"])
def test_only_a_spec_that_protects_people_compares_ways_to(name):
    with pytest.raises(PrivacyError, match="spec needs privacy\\.unit person"):
        compare_person(specs.load(name), 1.5)


@pytest.mark.parametrize(
    ("noise", "stands_in"),
    [("privacy.noise_multiplier=2.5", 2.5), ("privacy.target_epsilon=3", 1.0)],
)
def test_noise_for_a_person_is_solved_for_as_many_records_as_the_spec_keeps(
    noise, stands_in, monkeypatch
):
    asked = []

    def solved(*given):
        asked.append(given)
        return 7.5, 1.25

    monkeypatch.setattr(calibration, "foresee", lambda spec: spec)
    monkeypatch.setattr(calibration, "_noise_for_a_person", solved)
    kept = "data.most_records_per_person=3"
    spec = people_spec(unit=RECORDS, overrides=(kept, noise))
    found = for_a_person(spec, 1.5)
    # The spec's own target is the ε of one record, and is left out.
    alone = specs.loads(
        specs.dump(specs.replace_noise_multiplier(spec, stands_in)),
        source=spec.name,
        overrides=("privacy.target_epsilon=null",),
    )
    assert asked == [(alone, 3, 1.5, 3.0)]
    assert (found.key, found.value, found.epsilon) == ("privacy.noise_multiplier", 7.5, 1.25)
    assert found.spec == specs.replace_noise_multiplier(alone, 7.5)


def test_a_limit_is_held_against_the_noise_that_is_solved_for_a_person(monkeypatch):
    solved = {"sigma": 30.0}
    monkeypatch.setattr(calibration, "_noise_for_a_person", lambda *_: (solved["sigma"], 1.25))
    overrides = ("data.most_records_per_person=3", "federation.max_epsilon=0.5")
    spec = people_spec(unit=RECORDS, overrides=(*overrides, "privacy.noise_multiplier=0.5"))
    found = for_a_person(spec, 1.5)
    assert (found.value, found.spec.federation.max_epsilon) == (30.0, 0.5)
    solved["sigma"] = 0.5
    with pytest.raises(PrivacyError, match="a single round already costs more than"):
        for_a_person(spec, 1.5)


@pytest.mark.parametrize("target", [0.0, -1.0, float("nan"), float("inf")])
def test_a_target_for_a_person_is_a_positive_number(target):
    """The search for the noise of 0 ended in a RecursionError, and that of others did not end."""
    spec = people_spec(unit=RECORDS, overrides=("data.most_records_per_person=3",))
    with pytest.raises(PrivacyError, match="a target epsilon is a positive number, not"):
        for_a_person(spec, target)


@pytest.mark.parametrize("unit", [None, RECORDS])
def test_noise_for_a_person_needs_single_records_and_a_bound_on_those_of_a_person(unit):
    spec = people_spec() if unit is None else people_spec(unit=unit)
    with pytest.raises(PrivacyError, match=r"needs privacy\.unit record, data\.person and data\."):
        for_a_person(spec, 1.5)
