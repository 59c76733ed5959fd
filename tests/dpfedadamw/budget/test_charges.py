"""What a run costs a record: never less than what any record of it can have met."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw import spec as specs
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.registry import accountants
from dpfedadamw.accounting.worst_case import Adaptation
from dpfedadamw.budget.charges import (
    charged,
    composed,
    dearest,
    epsilon_of,
    from_plain,
    reserved,
    to_plain,
)
from dpfedadamw.errors import PrivacyError
from dpfedadamw.experiment import foresee, prepare
from dpfedadamw.privacy.composition import Composition, merge
from tests.runs import small_spec, train

DELTA = 1e-5
# Each composition is rounded up by itself, by about a ten-thousandth.
ROUNDED = 1.0 + 1e-3


def client(noise, rate, steps):
    return (Composition(noise, rate, steps),)


CLIENTS = st.builds(
    client, st.sampled_from([2.0, 4.0]), st.sampled_from([0.05, 0.1, 0.3]), st.integers(1, 40)
)
RUNS = st.lists(st.lists(CLIENTS, min_size=1, max_size=3), min_size=1, max_size=3)


@settings(max_examples=25)
@given(RUNS)
def test_runs_cost_at_least_what_they_cost_a_record_of_any_client_of_each(runs):
    counted = epsilon_of([dearest(clients) for clients in runs], DELTA)
    for chosen in product(*runs):
        direct = epsilon_pld([part for own in chosen for part in own], DELTA)
        assert direct <= counted * ROUNDED


@settings(max_examples=25)
@given(st.lists(CLIENTS, min_size=1, max_size=4))
def test_runs_of_one_client_cost_their_events_and_not_the_sum_of_their_epsilons(runs):
    whole = epsilon_of([dearest([own]) for own in runs], DELTA)
    assert whole == epsilon_pld([part for own in runs for part in own], DELTA)
    assert whole <= sum(epsilon_pld(own, DELTA) for own in runs) * ROUNDED
    if len(runs) > 2:
        assert whole < 0.99 * sum(epsilon_pld(own, DELTA) for own in runs)


def test_the_client_that_costs_most_alone_need_not_cost_most_beside_other_runs():
    often, seldom = client(2.0, 0.05, 300), client(2.0, 0.3, 12)
    worst = dearest([often, seldom])
    assert worst == (Composition(2.0, 0.3, 300),)
    assert dearest([often]) == often


def test_every_accountant_states_the_composition():
    found = composed([client(2.0, 0.1, 20), client(4.0, 0.1, 20)], DELTA)
    assert set(found) == {one.name for one in accountants()}
    assert found["pld"] < found["rdp"]
    assert composed([], DELTA) == {"pld": 0.0}


def test_a_cost_survives_being_written_down():
    cost = (Composition(2.0, 0.3, 300), Composition(1.5, 1.0, 4, 2, "shuffled"))
    assert from_plain(to_plain(cost)) == cost


CASES = {
    "fixed cohort": ("dp-fedavg", ()),
    "two queries": ("dp-fedsam", ()),
    "iterations": ("ali-dpfl", ()),
    "decay": ("adap-dpfl", ()),
    "shuffled": (
        "dp-fedavg",
        (
            "privacy.sampling={kind: shuffled, batch_size: 24}",
            "privacy.adjacency=replace-one",
        ),
    ),
    "client": ("fed-smp", ()),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_what_is_reserved_covers_what_is_charged_and_every_client_alone(case, tmp_path):
    algorithm, overrides = CASES[case]
    training, outcome = train(small_spec(algorithm, overrides=overrides), tmp_path)
    plan, entries = training.experiment.plan, training.ledger.entries
    most, spent = reserved(plan), charged(entries)
    claim = outcome.claim
    view = claim["server"] if claim["view_headline"] == "server" else claim["third_party"]
    assert view["epsilon"]["pld"] <= epsilon_of([spent], plan.claimed_delta) * ROUNDED
    assert epsilon_of([spent], plan.claimed_delta) <= epsilon_of([most], plan.claimed_delta)
    # A run that goes on from its middle needs what it spent and what is left, here all rounds.
    again = reserved(plan, entries, completed=2)
    assert epsilon_of([spent], plan.claimed_delta) <= epsilon_of([again], plan.claimed_delta)
    assert reserved(plan, entries, completed=plan.rounds) == spent


def test_a_run_with_everybody_in_every_round_is_reserved_at_its_expected_claim():
    spec = small_spec("dp-fedavg", clients_per_round=5)
    plan = prepare(spec, torch.device("cpu")).plan
    expected = plan.expected_claim()["server"]["epsilon"]["pld"]
    assert epsilon_of([reserved(plan)], plan.claimed_delta) == expected


def test_the_dearest_cost_has_the_largest_rate_and_the_most_steps_of_each_noise():
    first = [Composition(1.0, 0.1, 5), Composition(1.0, 0.2, 7), Composition(3.0, 0.5, 1)]
    second = [Composition(1.0, 0.3, 6), Composition(2.0, 0.1, 4)]
    expected = (Composition(1.0, 0.3, 12), Composition(2.0, 0.1, 4), Composition(3.0, 0.5, 1))
    assert dearest([first, second]) == expected
    assert dearest([second, first]) == expected
    # More steps of the one, and a larger rate of the other, the other way round.
    assert dearest([[Composition(1.0, 0.1, 20)], second])[0] == Composition(1.0, 0.3, 20)
    assert dearest([second, [Composition(1.0, 0.4, 2)]])[0] == Composition(1.0, 0.4, 6)


def test_noise_counts_as_that_on_a_step_and_kinds_of_batches_are_kept_apart():
    # Two queries on one batch under twice the noise over √2 are a step of σ.
    two = Composition(2.0**0.5, 0.1, 3, 2)
    assert dearest([[two], [Composition(1.0, 0.2, 2)]])[0].steps == 3
    mixed = [[Composition(1.0, 0.2, 2)], [Composition(1.0, 1.0, 3, 1, "full")]]
    assert len(dearest(mixed)) == 2
    assert dearest([]) == ()


def test_no_charge_costs_nothing():
    assert charged([{"kind": "header", "unit": "record"}, {"kind": "round", "round": 0}]) == ()


PLAIN = {"noise_multiplier": 2, "sampling_rate": 0.1, "steps": 3}


@pytest.mark.parametrize(
    "plain",
    [
        7, [7], [{"noise": 1.0}], [{}], None,
        [{**PLAIN, "steps": 1.5}], [{**PLAIN, "steps": True}], [{**PLAIN, "noise_multiplier": "2"}],
        [{**PLAIN, "queries_per_step": 2.0}],
        [{**PLAIN, "sampling_rate": None}], [PLAIN, {**PLAIN, "noise_multiplier": True}],
    ],
)  # fmt: skip
def test_what_is_no_list_of_compositions_is_refused(plain):
    with pytest.raises(PrivacyError, match="is no list of compositions"):
        from_plain(plain)


@pytest.mark.parametrize("limit", [None, 7, 1000])
def test_steps_that_adapt_are_reserved_up_to_their_limit(limit):
    plan = prepare(small_spec("dp-fedavg"), torch.device("cpu")).plan
    whole = reserved(plan)
    adapted = replace(plan, adaptation=Adaptation(plan.local_steps, limit, True, None))
    (found,) = reserved(adapted)
    steps = plan.rounds * plan.local_steps
    assert whole[0].steps == steps
    assert found.steps == (steps if limit is None else min(steps, limit))


def test_the_limit_on_steps_is_each_clients_and_a_person_is_at_several():
    """A budget that reserved one client's steps was overspent when the run was settled."""
    adaptive = (
        "algorithm={name: ali-dpfl, learning_rate: 1.0, local_iterations: {maximum: 8}}",
        "privacy.target_epsilon=4",
    )
    plan = foresee(specs.load("visits-people", adaptive))
    assert plan.clients_per_person > 1
    assert plan.adaptation is not None
    most = plan.spending_bound.of_person(plan.composition(plan.smallest_client))
    assert plan.adaptation.step_limit < plan.rounds * plan.spending_bound.most_local_steps
    assert reserved(plan) == merge(most)


def test_what_is_left_is_what_the_rounds_that_are_not_over_cost():
    plan = prepare(small_spec("dp-fedavg"), torch.device("cpu")).plan
    (whole,) = reserved(plan)
    for completed in range(plan.rounds):
        (left,) = reserved(plan, (), completed)
        assert left == replace(whole, steps=whole.steps * (plan.rounds - completed) // plan.rounds)
    assert reserved(plan, (), plan.rounds) == ()
    of_clients = prepare(small_spec("fed-smp"), torch.device("cpu")).plan
    for completed in range(of_clients.rounds):
        (left,) = reserved(of_clients, (), completed)
        assert left.steps == of_clients.rounds - completed
        assert left.sampling_rate == of_clients.participation
        assert left.noise_multiplier == of_clients.noise_multiplier
    assert reserved(of_clients, (), of_clients.rounds) == ()


def test_a_round_in_which_every_client_takes_part_is_no_sample():
    some = prepare(small_spec("fed-smp"), torch.device("cpu")).plan
    every = prepare(small_spec("fed-smp", clients_per_round=5), torch.device("cpu")).plan
    kinds = [part.sampling for plan in (some, every) for part in reserved(plan)]
    assert kinds == ["poisson", "full"]
