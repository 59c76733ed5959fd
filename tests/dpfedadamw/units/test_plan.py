"""What follows from a plan: deviations, rates, divisors and ε by round, by other formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.accounting.selection import Trials
from dpfedadamw.accounting.views import DERIVED_RATE, STATED_RATE
from dpfedadamw.accounting.worst_case import Adaptation
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.sampling import FixedClients, FullBatch, PoissonClients, ShuffledEpochs
from dpfedadamw.spec.sections import PrivateSelection, UnaccountedSearch
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.registry import make_plan
from dpfedadamw.vectors.sparsification import sparsification

RECORDS = (120, 80, 200, 100)
PRIVACY = {
    "record": "{unit: record, clipping_norm: 0.5, noise_multiplier: 3, delta: 1.0e-5, "
    "sampling: {kind: poisson, expected_batch_size: 8}}",
    "client": "{unit: client, clipping_norm: 0.5, noise_multiplier: 3, delta: 1.0e-5, "
    "noise_added_by: server}",
    "none": "{unit: none, sampling: {kind: shuffled, batch_size: 16}}",
}
ALGORITHMS = {"record": "dp-fedavg", "client": "dp-fedavg", "none": "fedavg"}


def plan_of(unit: str = "record", *overrides: str, sparse=None) -> RunPlan:
    text = (
        f"data: {{dataset: digits, clients: {len(RECORDS)}}}\nmodel: {{name: mlp}}\n"
        f"algorithm: {{name: {ALGORITHMS[unit]}}}\n"
        "federation: {rounds: 6, clients_per_round: 2, local_steps: 3}\n"
        f"privacy: {PRIVACY[unit]}\n"
    )
    return make_plan(specs.loads(text, "a.yaml", list(overrides)), RECORDS, 1, sparse)


def test_noise_lies_where_the_unit_has_it_and_nowhere_else():
    record, client, none = (plan_of(unit) for unit in ("record", "client", "none"))
    assert record.noise_standard_deviation == client.update_noise_standard_deviation == 1.5
    assert record.update_noise_standard_deviation == client.noise_standard_deviation == 0.0
    assert none.noise_standard_deviation == none.update_noise_standard_deviation == 0.0
    assert [one.private for one in (record, client, none)] == [True, True, False]


def test_a_plan_says_what_the_spec_says():
    plan = plan_of("record", "privacy.gaussian_sampler=four-draw", "federation.max_epsilon=3")
    assert (plan.rounds, plan.local_steps, plan.clients_per_round) == (6, 3, 2)
    assert (plan.clipping_norm, plan.noise_multiplier, plan.delta) == (0.5, 3, 1e-5)
    assert (plan.adjacency, plan.gaussian_sampler, plan.max_epsilon) == (
        "add-remove",
        "four-draw",
        3,
    )
    assert plan.claimed_delta == 1e-5
    assert plan.records == RECORDS
    assert plan.client_sampling == "fixed-size"
    assert plan.participation == 0.5
    assert plan.queries == 2 * 6 * 3
    assert replace(plan, queries_per_step=2).queries == 2 * 6 * 3 * 2


def test_the_sum_is_divided_by_the_public_batch_and_noise_by_its_square():
    plan = plan_of()
    assert [plan.divisor(client) for client in range(4)] == [8.0] * 4
    assert [plan.fixed_divisor(client) for client in range(4)] == [8.0] * 4
    assert plan.noise_variance(1) == pytest.approx((3 * 0.5 / 8) ** 2, rel=1e-15)
    none = plan_of("none")
    assert none.fixed_divisor(0) is None
    assert isinstance(none.sampling, ShuffledEpochs)
    assert isinstance(plan_of("none", "privacy.sampling={kind: full}").sampling, FullBatch)


def test_a_records_chance_is_the_batch_over_the_clients_records():
    plan = plan_of()
    rates = [plan.sampling_rate(client) for client in range(4)]
    assert rates == pytest.approx([8 / records for records in RECORDS])
    assert plan.stated_rate is None
    assert plan.rate_assumption == DERIVED_RATE
    assert plan.smallest_client == 1
    stated = plan_of("record", "privacy.sampling.reference_size=400")
    assert stated.stated_rate == stated.sampling_rate(2) == 8 / 400
    assert stated.rate_assumption == STATED_RATE


def test_nothing_is_said_of_rates_where_none_amplifies():
    fixed = "privacy.sampling={kind: fixed, batch_size: 8}"
    other = plan_of("record", fixed, "privacy.adjacency=replace-one")
    for plan in (plan_of("client"), plan_of("none"), other):
        assert plan.stated_rate is None
        assert plan.rate_assumption is None


@pytest.mark.parametrize(
    ("kind", "by", "shown"),
    [
        ("local-top", "server", 4),
        ("local-top", "clients", None),
        ("random", "server", None),
        (None, "server", None),
    ],
)
def test_only_coordinates_that_clients_choose_and_a_server_noises_are_private(kind, by, shown):
    sparse = None if kind is None else sparsification(kind, 0.4, 10, 0)
    plan = replace(plan_of("client"), noise_added_by=by, sparsification=sparse)
    assert plan.private_coordinates == shown


@pytest.mark.parametrize("unit", ["record", "client"])
def test_clients_are_drawn_as_the_plan_says(unit):
    plan = plan_of(unit)
    if unit == "client":
        assert isinstance(plan.cohort, PoissonClients)
    else:
        assert isinstance(plan.cohort, FixedClients)
    by_chance = replace(plan, client_sampling="poisson")
    assert isinstance(by_chance.cohort, PoissonClients)
    assert by_chance.participants_hidden
    assert not replace(plan, client_sampling="fixed-size").participants_hidden
    assert not plan_of("none").participants_hidden


def test_epsilon_by_round_counts_what_was_begun_and_is_nothing_before():
    plan = plan_of()
    assert plan.epsilon_after(0) == 0.0
    assert plan.epsilon_after(2, again=1) == plan.epsilon_after(3)
    assert 0.0 < plan.epsilon_after(1) < plan.epsilon_after(2) < plan.epsilon_after(6)
    whole = plan.expected_claim()["server"]["epsilon"]["pld"]
    assert plan.epsilon_after(6) == pytest.approx(whole, rel=1e-9)
    assert plan_of("none").epsilon_after(3) is None


def spend(round_index: int, attempt: int = 1, client: int = 0) -> dict[str, object]:
    return {
        "kind": "spend",
        "round": round_index,
        "attempt": attempt,
        "client": client,
        "steps": 3,
        "noise_multiplier": 3.0,
    }


def over(round_index: int) -> dict[str, object]:
    return {"kind": "round", "round": round_index, "clients": [0, 1]}


def test_rounds_that_were_cut_off_are_counted_once_each():
    plan = plan_of()
    begun = [spend(0), spend(0, client=1), over(0), spend(1), spend(1, attempt=2), over(1)]
    assert plan.begun_again(begun[:3], 1) == 0
    assert plan.begun_again(begun[:4], 1) == 1
    assert plan.begun_again(begun, 2) == 1
    # A round that was over and is run again counts as begun, until it is over again.
    assert plan.begun_again(begun, 1) == 2


def test_the_epsilon_of_a_round_is_that_of_its_last_line_and_nothing_after():
    plan = plan_of()
    entries = [spend(0), over(0), spend(1), spend(1, attempt=2), over(1), spend(2)]
    assert plan.epsilon_of_round(entries, 1) == plan.epsilon_after(1)
    assert plan.epsilon_of_round(entries, 2) == plan.epsilon_after(2, again=1)
    twice = [*entries[:5], spend(1, attempt=3), over(1)]
    assert plan.epsilon_of_round(twice, 2) == plan.epsilon_after(2, again=2)


def test_a_claim_says_how_early_a_run_ended():
    plan = plan_of()
    assert plan.watch is None
    assert plan.ends_early([over(0)]) == {}
    limit = 0.5 * (plan.epsilon_after(3) + plan.epsilon_after(4))
    limited = replace(plan, max_epsilon=limit)
    done = [entry for index in range(3) for entry in (*whole_round(limited, index), over(index))]
    assert limited.ends_early(done) == {"stopped": {"rounds": 3, "max_epsilon": limit}}
    assert limited.ends_early(done[: len(done) // 3]) == {}
    assert limited.ends_early([*done, over(5)]) == {}


def test_a_run_that_was_cut_off_keeps_to_the_target_that_its_noise_was_solved_for():
    plan = plan_of()
    target = plan.epsilon_after(plan.rounds)
    solved = replace(plan, target_epsilon=target)
    last = plan.rounds - 1
    before = [line for index in range(last) for line in (*whole_round(plan, index), over(index))]
    again = {"kind": "resume", "round": last}
    # Not cut off, or between two rounds, it has room for all of them.
    assert solved.watch.allows(before, last)
    assert solved.watch.allows([*before, again], last)
    cut_off = [*before, *whole_round(plan, last), again]
    assert not solved.watch.allows(cut_off, last)
    assert solved.ends_early(cut_off) == {"stopped": {"rounds": last, "target_epsilon": target}}
    # A limit above it changes nothing, one below it ends the run first.
    both = replace(solved, max_epsilon=2 * target)
    assert both.watch.allows(before, last)
    assert not both.watch.allows(cut_off, last)
    assert both.ends_early(cut_off) == {"stopped": {"rounds": last, "target_epsilon": target}}
    below = replace(solved, max_epsilon=plan.epsilon_after(last))
    assert not below.watch.allows(before, last)
    assert below.ends_early(cut_off)["stopped"].keys() == {"rounds", "max_epsilon"}
    # Steps that share a target end by themselves.
    shared = replace(solved, adaptation=Adaptation(plan.local_steps, 100, True, None))
    assert shared.watch is None


@pytest.mark.parametrize(
    ("unit", "more", "foreseen", "adapting"),
    [
        ("record", "federation.clients_per_round=4", True, False),
        ("record", "federation.client_sampling=poisson", True, True),
        # Who is drawn in the rounds to come decides how many fit.
        ("record", "federation.clients_per_round=2", False, False),
        ("client", "federation.clients_per_round=2", True, True),
    ],
)
def test_how_many_rounds_fit_is_known_where_it_depends_on_nobody(unit, more, foreseen, adapting):
    plan = plan_of(unit, more)
    solved = replace(plan, target_epsilon=plan.epsilon_after(plan.rounds))
    last = plan.rounds - 1

    def charged(index):
        return whole_round(plan, index) if unit == "record" else [spend(index)]

    before = [line for index in range(last) for line in (*charged(index), over(index))]
    cut_off = [*before, *charged(last)]

    def most(of, *cut):
        return "fewer" if of.most_rounds(*cut) == last else of.most_rounds(*cut)

    assert most(solved, cut_off, last) == ("fewer" if foreseen else plan.rounds)
    assert most(solved, charged(0), 0) == ("fewer" if foreseen else plan.rounds)
    assert most(plan, cut_off, last) == plan.rounds
    decaying = replace(solved, adaptation=Adaptation(plan.local_steps, None, False, None))
    assert most(decaying, cut_off, last) == ("fewer" if adapting else plan.rounds)


def test_a_run_without_a_round_is_asked_about_its_first(monkeypatch):
    asked = []

    class Watching:
        def allows(self, entries, index):
            asked.append(index)
            return True

    monkeypatch.setattr(RunPlan, "watch", property(lambda self: Watching()))
    plan = plan_of()
    assert plan.ends_early([]) == plan.ends_early([over(0)]) == {}
    assert asked == [0, 1]


def whole_round(plan: RunPlan, index: int) -> list[dict[str, object]]:
    """What a ledger is charged for a round in which every client takes part."""
    return [spend(index, client=client) for client in range(len(plan.records))]


def test_what_claims_nothing_refuses_to_say_an_epsilon():
    for ask in (
        lambda plan: plan.expected_claim(),
        lambda plan: plan.planned_run(),
    ):
        with pytest.raises(PrivacyError, match=r"privacy\.unit: none: this spec claims no privacy"):
            ask(plan_of("none"))
    assert math.isinf(plan_of("none").clipping_norm)


def test_a_trial_of_a_private_selection_knows_its_law_and_tells_no_epsilon_of_its_own():
    whole = plan_of()
    chosen = replace(whole, tune=PrivateSelection(mean_trials=5.0, shape=1.0))
    assert whole.trials is None
    assert chosen.trials == Trials(5.0, 1.0)
    assert chosen.epsilon_after(3) is None
    assert replace(whole, tune=UnaccountedSearch()).trials is None


def test_where_participants_are_hidden_rounds_begun_are_counted_by_resumes_alone():
    plan = replace(plan_of(), client_sampling="poisson")
    resumed = [over(0), {"kind": "resume", "round": 1}, spend(1, attempt=2)]
    assert plan.begun_again(resumed, 1) == 1
    assert plan.begun_again([over(0), spend(1)], 1) == 0
    # Whole clients are drawn by chance too, but their rounds are charged to the server.
    client = plan_of("client")
    assert client.participants_hidden
    assert client.begun_again([spend(0), over(0), spend(1)], 1) == 1


def test_the_line_of_the_round_itself_counts_what_was_begun_before_it():
    plan = plan_of()
    entries = [spend(0), over(0), spend(1)]
    assert plan.epsilon_of_round(entries, 1) == plan.epsilon_after(1)
    # Its own charge stands before its line.
    assert plan.epsilon_of_round([spend(0), spend(0, attempt=2), over(0)], 1) == pytest.approx(
        plan.epsilon_after(2)
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda unit, plan: unit.expected_claim(plan, None),
        lambda unit, plan: unit.planned_run(plan, "server"),
        lambda unit, plan: unit.spent({}, "server"),
        lambda unit, plan: unit.cost(plan),
        lambda unit, plan: unit.epsilon_after(plan, 1),
        lambda unit, plan: unit.charged(plan),
        lambda unit, plan: unit.watch(plan, 1.0),
    ],
)
def test_a_unit_without_privacy_refuses_whatever_asks_for_an_epsilon(ask):
    plan = plan_of("none")
    with pytest.raises(PrivacyError, match=r"privacy\.unit: none: this spec claims no privacy"):
        ask(plan.unit, plan)
