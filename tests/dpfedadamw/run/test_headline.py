"""What a claim's headline is the ε of: the plan's most, and no more than the headline tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpfedadamw.accounting.registry import claimed, headline
from dpfedadamw.accounting.selection import Trials
from dpfedadamw.accounting.several import epsilon_of_records
from dpfedadamw.run.headline import (
    MOST_RECORDS_KEPT,
    MOST_RECORDS_PUBLIC,
    composed,
    with_dp_accounting,
    with_people,
)
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.registry import make_plan
from tests.runs import small_spec

RECORDS = (60, 60, 75, 90)
FIXED = ("privacy.adjacency=replace-one", "privacy.sampling={kind: fixed, batch_size: 24}")
SHUFFLED = ("privacy.adjacency=replace-one", "privacy.sampling={kind: shuffled, batch_size: 24}")
TRIALS = "tune={selection: private, mean_trials: 5}"
SCORED = "data.validation={fraction: 0.2, public: true}"


def plan_of(algorithm: str = "dp-fedadamw", *changes: str, rounds: int = 4) -> RunPlan:
    spec = small_spec(algorithm, rounds=rounds, overrides=("data.clients=4", *changes))
    return make_plan(spec, RECORDS, 1)


def charge(plan: RunPlan, client: int, index: int, attempt: int = 0) -> dict[str, Any]:
    return {
        "kind": "spend",
        "round": index,
        "attempt": attempt,
        "client": client,
        "noise_multiplier": plan.noise_multiplier,
        "sampling_rate": plan.sampling_rate(client),
        "sampling": plan.sampling.event_kind,
        "expected_batch_size": plan.divisor(client),
        "records": plan.records[client],
        "steps": plan.local_steps,
        "queries_per_step": plan.queries_per_step,
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("dp-fedadamw", ()),
        ("dp-fedadamw", ("federation.clients_per_round=2",)),
        ("dp-fedadamw", SHUFFLED),
        ("adap-dpfl", ()),
        ("ali-dpfl", ()),
        ("fed-smp", ("privacy.delta=0.01", "federation.clients_per_round=2")),
        ("fed-smp", ("privacy.delta=0.01", "privacy.noise_added_by=clients")),
        ("fed-smp", ("privacy.delta=0.01", "federation.max_epsilon=1.5")),
        ("fed-smp", ("privacy.delta=0.01", TRIALS, SCORED)),
        ("dp-fedadamw", (TRIALS, SCORED)),
    ],
)
def test_dp_accounting_agrees_with_what_every_kind_of_run_claims_first(
    algorithm: str, changes: tuple[str, ...]
) -> None:
    plan = plan_of(algorithm, *changes)
    claim = with_dp_accounting(plan, plan.expected_claim())
    # 0.1 % is the auditor's tolerance; above, ours may be coarser by about as much.
    assert claim["dp_accounting"]["epsilon"] == pytest.approx(headline(claim), rel=1e-3)


def test_batches_of_fixed_size_are_bounded_from_below() -> None:
    claim = with_dp_accounting(plan := plan_of("dp-fedadamw", *FIXED), plan.expected_claim())
    assert claim["dp_accounting"]["bound"] == "lower"
    assert 0.5 * headline(claim) < claim["dp_accounting"]["epsilon"] <= headline(claim)


def test_a_selection_among_runs_that_hide_who_took_part_has_no_event() -> None:
    plan = plan_of("dp-fedadamw", TRIALS, SCORED, "federation.clients_per_round=2")
    assert plan.trials == Trials(5.0, 1.0)
    found = with_dp_accounting(plan, plan.expected_claim())["dp_accounting"]
    assert (found["view"], found["epsilon"], found["reason"]) == ("third_party", None, "no event")


def test_of_a_run_without_privacy_nothing_is_asked() -> None:
    plan = plan_of("fedavg")
    assert with_dp_accounting(plan, {"view_headline": "none"}) == {"view_headline": "none"}


def test_who_took_part_does_not_show() -> None:
    plan = plan_of("dp-fedadamw", "federation.clients_per_round=2")
    some = [charge(plan, client, index) for index in range(4) for client in (0, index % 3 + 1)]
    others = [charge(plan, client, index) for index in range(4) for client in (2, 3)]
    found = [
        with_dp_accounting(plan, plan.unit.realised_claim(plan, spends), spends)["dp_accounting"]
        for spends in (some, others)
    ]
    assert found[0] == found[1]
    limited = plan_of("dp-fedadamw", "federation.clients_per_round=2", "federation.max_epsilon=4")
    parts = [
        composed(limited, limited.unit.realised_claim(limited, spends), spends)
        for spends in (some[:2], others)
    ]
    assert parts[0] == parts[1]


def test_rounds_that_were_repeated_count_as_they_do_in_the_claim() -> None:
    plan = plan_of()
    spends = [charge(plan, 0, index) for index in range(4)]
    spends += [charge(plan, 0, 3, attempt) for attempt in (1, 2)]
    claim = with_dp_accounting(plan, plan.unit.realised_claim(plan, spends), spends)
    assert claimed(claim["server"]) > headline(plan.expected_claim())
    assert claim["dp_accounting"]["epsilon"] == pytest.approx(headline(claim), rel=1e-3)
    # Of a client with more records the same rounds cost less than the plan's most.
    cheap = [charge(plan, 3, index) for index in range(4)]
    found = composed(plan, plan.unit.realised_claim(plan, cheap), cheap)
    assert found == composed(plan, plan.expected_claim())


def test_under_a_limit_on_epsilon_it_is_that_of_the_rounds_that_fit() -> None:
    due = headline(plan_of(rounds=2).expected_claim())
    plan = plan_of("dp-fedadamw", f"federation.max_epsilon={due * 1.01}")
    claim = with_dp_accounting(plan, plan.expected_claim())
    assert headline(claim) == pytest.approx(due * 1.01)
    assert claim["dp_accounting"]["epsilon"] == pytest.approx(due, rel=1e-3)


def test_a_person_of_one_record_has_the_headline_and_one_of_two_more_than_twice_as_much() -> None:
    plan = plan_of()
    claim = plan.expected_claim()
    of_one = headline(claim)
    assert with_people(plan, claim) == claim
    found = {most: with_people(replace(plan, most_records=most), claim) for most in (1, 2, 3)}
    assert found[1]["person"] == {"records": 1, "epsilon": of_one}
    parts = composed(plan, claim).parts
    of_two = epsilon_of_records(parts, 2, claim["delta"])
    assert found[2]["person"] == {"records": 2, "epsilon": of_two}
    assert 2 * of_one < of_two < found[3]["person"]["epsilon"]
    for one in found.values():
        assert one["assumptions"] == [*claim["assumptions"], MOST_RECORDS_PUBLIC]
    kept = with_people(replace(plan, most_records=1, keeps_most_records=True), claim)
    assert kept["assumptions"] == [*claim["assumptions"], MOST_RECORDS_KEPT]


def test_of_a_person_with_several_records_in_batches_of_fixed_size_there_is_no_epsilon() -> None:
    plan = plan_of("dp-fedadamw", *FIXED)
    claim = plan.expected_claim()
    one, two = (with_people(replace(plan, most_records=most), claim)["person"] for most in (1, 2))
    assert one == {"records": 1, "epsilon": headline(claim)}
    assert two.keys() == {"records", "reason"}
    assert "no accountant covers several records of one person" in two["reason"]
