"""Single records: each noised gradient is one subsampled Gaussian, and its claim says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.accounting.calibration import PlannedRun
from dpfedadamw.accounting.epsilon_limit import Participations, Rounds
from dpfedadamw.accounting.registry import leading
from dpfedadamw.accounting.selection import Trials
from dpfedadamw.accounting.views import ClientSpend
from dpfedadamw.accounting.worst_case import Adaptation, NoiseDecay, SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.sampling import FixedSizeSampling, PoissonSampling, ShuffledEpochs
from dpfedadamw.spec.sections import PrivateSelection
from dpfedadamw.units import record
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.registry import make_plan
from tests.runs import small_spec

RECORDS = (120, 80, 200, 100)
POISSON = "kind: poisson, expected_batch_size: 8"
KINDS = {
    "poisson": POISSON,
    "stated": f"{POISSON}, rate: 0.125",
    "fixed": "kind: fixed, batch_size: 8",
    "shuffled": "kind: shuffled, batch_size: 8",
}
RULES = {
    "dp-fedavg": "{name: dp-fedavg}",
    "adap-dpfl": "{name: adap-dpfl, noise_decay: {factor: 0.8, patience: 2, floor: 0.6}}",
    "ali-dpfl": "{name: ali-dpfl, local_iterations: {minimum: 1, maximum: 5, estimate: true}}",
}


def plan_of(
    *overrides: str, kind: str = "poisson", rule: str = "dp-fedavg", queries: int = 1
) -> RunPlan:
    adjacency = "replace-one" if kind in ("fixed", "shuffled") else "add-remove"
    target = "target_epsilon: 2.5, " if rule == "ali-dpfl" else ""
    text = (
        "data: {dataset: digits, clients: 4}\nmodel: {name: mlp}\n"
        f"algorithm: {RULES[rule]}\n"
        "federation: {rounds: 6, clients_per_round: 2, local_steps: 3}\n"
        f"privacy: {{unit: record, clipping_norm: 0.5, noise_multiplier: 3, {target}delta: 1.0e-4, "
        f"adjacency: {adjacency}, sampling: {{{KINDS[kind]}}}}}\n"
    )
    return make_plan(specs.loads(text, "a.yaml", list(overrides)), RECORDS, queries)


def epsilon(steps: int, rate: float = 0.1, noise: float = 3.0) -> float:
    """Of steps of the client with the fewest records."""
    return leading()[0].epsilon(Composition(noise, rate, steps), 1e-4)


@pytest.fixture
def asked(monkeypatch):
    """What the claim is asked for, by name."""
    found: list[dict[str, object]] = []

    def claim(spends, **named):
        found.append({"spends": tuple(spends), **named})
        return {"claim": len(found)}

    monkeypatch.setattr(record.record_level, "claim", claim)
    return found


def test_gradients_are_noised_and_updates_are_not_and_twelve_bits_are_written():
    unit = plan_of().unit
    assert (unit.name, unit.noises_gradients, unit.noises_updates) == ("record", True, False)
    assert unit.grid is not None
    assert (unit.grid.update, unit.grid.vectors) == (12, 16)


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        ("poisson", PoissonSampling(8.0)),
        ("stated", PoissonSampling(8.0, 0.125)),
        ("fixed", FixedSizeSampling(8)),
        ("shuffled", ShuffledEpochs(8)),
    ],
)
def test_the_sampler_is_the_specs(kind, sampler):
    assert plan_of(kind=kind).sampling == sampler
    sized = plan_of("privacy.sampling.reference_size=400")
    assert sized.sampling == PoissonSampling(8.0, None, 400.0)
    assert sized.stated_rate == 0.02


@pytest.mark.parametrize(
    ("kind", "key", "told"),
    [
        ("poisson", "expected_batch_size", ", whose sampling rate would exceed 1"),
        ("fixed", "batch_size", ""),
        ("shuffled", "batch_size", ""),
    ],
)
def test_a_batch_is_no_larger_than_the_smallest_client(kind, key, told):
    name = f"privacy.sampling.{key}"
    assert plan_of(f"{name}=80", kind=kind).divisor(1) == 80.0
    with pytest.raises(PrivacyError) as caught:
        plan_of(f"{name}=81", kind=kind)
    instead = ", or state privacy.sampling.rate" if told else ""
    assert str(caught.value) == (
        f"{name}: 81 exceeds the 80 records of client 1{told}; use at most 80, or raise "
        f"data.partition.minimum_records{instead}"
    )


def test_a_stated_rate_has_any_batch():
    assert plan_of("privacy.sampling.expected_batch_size=90", kind="stated").sampling_rate(1) == (
        0.125
    )


def test_a_delta_that_one_record_in_the_clear_would_keep_to_is_refused():
    assert plan_of("privacy.delta=0.00499").delta == 0.00499
    for delta, product in ((0.005, "1"), (0.01, "2")):
        told = (
            rf"{delta} times the 200 records of the largest client is {product}; .* below 0\.005$"
        )
        with pytest.raises(PrivacyError, match=told):
            plan_of(f"privacy.delta={delta}")


def test_a_pair_that_no_accountant_covers_is_refused_when_the_plan_is_made():
    """The spec's reader refuses it first; whoever makes a spec by program meets the plan."""
    spec = small_spec("dp-fedavg")
    privacy = spec.privacy.model_copy(update={"adjacency": "replace-one"})
    changed = spec.model_copy(update={"privacy": privacy})
    with pytest.raises(PrivacyError, match="Poisson sampling is accounted under add-remove"):
        make_plan(changed, RECORDS, 1)


def test_a_limit_must_leave_room_for_one_round():
    least = epsilon(3)
    assert plan_of(f"federation.max_epsilon={least}").max_epsilon == least
    with pytest.raises(PrivacyError, match="a single round already costs more than"):
        plan_of(f"federation.max_epsilon={0.99 * least}")


def test_a_rule_may_change_what_its_section_says():
    assert plan_of().adaptation is None
    falling = plan_of(rule="adap-dpfl").adaptation
    assert falling == Adaptation(3, None, True, NoiseDecay(0.8, 2, 0.6))


@pytest.mark.parametrize("estimate", [True, False])
def test_steps_that_adapt_have_a_limit_that_keeps_to_the_target(estimate):
    own = f"algorithm.local_iterations.estimate={str(estimate).lower()}"
    constants = () if estimate else ("algorithm.local_iterations.strong_convexity=0.7",)
    plan = plan_of(own, *constants, rule="ali-dpfl")
    limit = plan.adaptation.step_limit
    assert plan.adaptation == Adaptation(5, limit, estimate, None)
    # The target leaves room for all 30 steps that six rounds of five can have.
    assert limit == 30
    assert epsilon(30) <= 2.5
    tight = plan_of(own, *constants, "privacy.target_epsilon=0.5", rule="ali-dpfl")
    found = tight.adaptation.step_limit
    noise = tight.noise_multiplier
    assert epsilon(found, noise=noise) <= 0.5
    assert found == 30 or epsilon(found + 1, noise=noise) > 0.5


def spend(round_index: int, client: int, steps: int = 3) -> dict[str, object]:
    return {
        "kind": "spend",
        "round": round_index,
        "attempt": 1,
        "client": client,
        "noise_multiplier": 3.0,
        "sampling_rate": 8.0 / RECORDS[client],
        "sampling": "poisson",
        "expected_batch_size": 8.0,
        "records": RECORDS[client],
        "steps": steps,
        "queries_per_step": 1,
    }


def usual(plan: RunPlan) -> dict[str, object]:
    """What a claim is asked for whatever was spent."""
    return {
        "per_round": Composition(3.0, 0.1, 3, 1, "poisson"),
        "share": 0.1,
        "clients": 4,
        "clients_per_round": 2,
        "bound": SpendingBound(6, 3, 3.0),
        "delta": 1e-4,
        "client_sampling": "fixed-size",
        "max_epsilon": None,
        "rate_is_stated": False,
        "selection": "none",
        "trials": None,
        "drawn": None,
        "of_people": False,
        "released": 0,
    }


def test_the_claim_is_asked_for_with_what_the_ledger_was_charged(asked):
    plan = plan_of()
    entries = [
        {"kind": "header", "tuning": {"trials": 7}},
        spend(0, 1),
        spend(0, 3),
        {"kind": "round", "round": 0},
        spend(1, 1),
    ]
    assert plan.unit.realised_claim(plan, entries) == {"claim": 1}
    spends = (
        ClientSpend(1, 80, 2, (Composition(3.0, 0.1, 6),)),
        ClientSpend(3, 100, 1, (Composition(3.0, 0.08, 3),)),
    )
    assert asked == [{"spends": spends, **usual(plan), "drawn": 7, "released": 1}]


def test_a_claim_is_told_what_the_spec_states_and_how_the_run_was_chosen(asked):
    plan = plan_of("federation.client_sampling=poisson", kind="stated")
    chosen = replace(
        plan, tune=PrivateSelection(mean_trials=5.0, shape=1.0), max_epsilon=9.0, noise_multiplier=3
    )
    chosen.unit.realised_claim(chosen, [spend(0, 0)])
    (found,) = asked
    expected = {
        **usual(plan),
        "per_round": Composition(3.0, 0.125, 3),
        "share": 0.125,
        "client_sampling": "poisson",
        "max_epsilon": 9.0,
        "rate_is_stated": True,
        "selection": "private",
        "trials": Trials(5.0, 1.0),
    }
    assert {key: value for key, value in found.items() if key != "spends"} == expected


def test_the_forecast_has_every_client_in_every_round_and_says_of_the_dearest(asked):
    plan = plan_of()
    every = tuple(
        ClientSpend(client, size, 6, (Composition(3.0, 8.0 / size, 18),))
        for client, size in enumerate(RECORDS)
    )
    for dearest, clients in (
        (None, (0, 1, 2, 3)),
        (1, (1,)),
        (2, (1, 3)),
        (3, (0, 1, 3)),
        (9, (0, 1, 2, 3)),
    ):
        asked.clear()
        assert plan.expected_claim(dearest) == {"claim": 1}
        assert asked == [{"spends": tuple(every[one] for one in clients), **usual(plan)}]


def test_a_forecast_for_people_has_all_clients_that_one_of_them_may_be_at(asked):
    """Of fewer than these the claim against the server would be too low."""
    plan = replace(plan_of(), clients_per_person=3)
    for dearest, clients in ((1, (0, 1, 3)), (3, (0, 1, 3)), (4, (0, 1, 2, 3))):
        asked.clear()
        plan.expected_claim(dearest)
        (spends,) = (one["spends"] for one in asked)
        assert tuple(one.client for one in spends) == clients


def test_of_clients_with_one_rate_those_with_more_steps_are_dearest(asked):
    plan = plan_of(kind="shuffled")
    # Epochs of 8: 15, 10, 25 and 13 batches; each of six rounds of 12 steps begins a new one.
    long = replace(plan, local_steps=12)
    long.expected_claim(1)
    (spends,) = (one["spends"] for one in asked)
    assert [(one.client, one.steps) for one in spends] == [(1, 12)]


def test_a_limit_ends_forecast_and_claim(asked):
    limit = 0.5 * (epsilon(12) + epsilon(15))
    plan = plan_of(f"federation.max_epsilon={limit}")
    plan.expected_claim()
    assert [one.participations for one in asked[0]["spends"]] == [4] * 4
    entries = [
        entry
        for index in range(4)
        for entry in (
            *(spend(index, client) for client in range(4)),
            {"kind": "round", "round": index},
        )
    ]
    stopped = {"rounds": 4, "max_epsilon": limit}
    assert plan.unit.realised_claim(plan, entries) == {"claim": 2, "stopped": stopped}


def test_a_limit_is_watched_by_client_or_by_rounds_where_nobody_may_tell_who_took_part():
    limit = 0.5 * (epsilon(12) + epsilon(15))
    watch = plan_of(f"federation.max_epsilon={limit}").watch
    assert isinstance(watch, Participations)
    bound = SpendingBound(6, 3, 3.0)
    each = [Composition(3.0, 8.0 / size, 3) for size in RECORDS]
    found = (watch._bound, watch._per_round, watch._sampling, watch._records)
    assert found == (bound, each, PoissonSampling(8.0), RECORDS)
    assert (watch._limit, watch._delta) == (limit, 1e-4)
    hidden = plan_of(f"federation.max_epsilon={limit}", "federation.client_sampling=poisson").watch
    assert hidden == Rounds(bound, Composition(3.0, 0.1, 3), limit, 1e-4, False)


def test_the_cost_towards_the_server_is_looked_at_before_the_run(monkeypatch):
    looked: list[tuple[float, str]] = []
    monkeypatch.setattr(record, "check_epsilon", lambda *given: looked.append(given))
    plan_of().check_cost()
    limit = 0.5 * (epsilon(12) + epsilon(15))
    plan_of(f"federation.max_epsilon={limit}").check_cost()
    assert looked == [(epsilon(18), "the server"), (epsilon(12), "the server")]


def test_a_plan_beyond_its_own_target_is_refused_unless_a_limit_keeps_it_below():
    most = epsilon(18)
    replace(plan_of(), target_epsilon=most).check_cost()
    beyond = replace(plan_of(), target_epsilon=0.9 * most)
    with pytest.raises(PrivacyError, match="leave out noise_multiplier to have it solved for"):
        beyond.check_cost()
    replace(beyond, max_epsilon=0.9 * most).check_cost()


def test_the_solvers_take_the_plan_as_it_is():
    plan = plan_of(queries=2)
    for view in ("server", "third-party"):
        assert plan.planned_run(view) == PlannedRun(
            sampling=PoissonSampling(8.0),
            records=RECORDS,
            noise_multiplier=3,
            rounds=6,
            local_steps=3,
            delta=1e-4,
            queries_per_step=2,
            view=view,
            participation=0.5,
            decay=None,
        )
    assert plan_of(rule="adap-dpfl").planned_run().decay == NoiseDecay(0.8, 2, 0.6)
    for rounds in (1, 4):
        assert plan_of().epsilon_after(rounds) == epsilon(3 * rounds)


def test_a_run_is_charged_its_rounds_participation_and_drawing():
    unit, one = plan_of().unit, Composition(3.0, 0.1, 3)
    assert unit.charged(plan_of()) == (((one, 6),), 0.5, "fixed-size", 1)
    hidden = plan_of("federation.client_sampling=poisson", "federation.clients_per_round=1")
    assert unit.charged(hidden) == (((one, 6),), 0.25, "poisson", 1)


def test_any_number_is_solved_for_towards_anybody_and_told_in_its_view():
    plan = plan_of()
    for view in ("server", "third-party"):
        for solve in ("noise", "rounds", "rate", "local-steps"):
            plan.unit.check_target(view, solve)
    claim = {
        part: {"epsilon": {"pld": value}, "accountant": "pld"}
        for part, value in (("server", 1.0), ("server_worst_case", 2.0), ("third_party", 3.0))
    }
    assert plan.unit.spent(claim, "server") == 2.0
    assert plan.unit.spent(claim, "third-party") == 3.0


RATES = "0.0400 … 0.1000 of a client's records in each step"


@pytest.mark.parametrize(
    ("kind", "batches", "name", "span"),
    [
        (
            "poisson",
            "each record by itself (Poisson)",
            "sampling rate q",
            f"{RATES}, B over its size, which is assumed to be public",
        ),
        (
            "stated",
            "each record by itself (Poisson)",
            "sampling rate q",
            "0.1250 of a client's records in each step, as the spec states",
        ),
        ("fixed", "of fixed size, without replacement", "sampling rate q", RATES),
        (
            "shuffled",
            "shuffled epochs",
            "amplification",
            "none claimed; a record is in at most 6 batches of the run",
        ),
    ],
)
def test_a_reader_is_told_the_mechanism(kind, batches, name, span):
    plan = plan_of(kind=kind)
    assert plan.unit.cost(plan) == [
        ("noise on one gradient", "standard deviation σC/B = 0.1875"),
        ("batches", batches),
        (name, span),
        ("steps per client", "at most 18"),
        ("records per client", "80 … 200"),
    ]


def test_a_reader_is_told_how_steps_may_grow():
    steps = dict(plan_of(rule="ali-dpfl").unit.cost(plan_of(rule="ali-dpfl")))["steps per client"]
    assert steps == "at most 30 in all, 3 at first, then up to 5"
    falling = plan_of(rule="adap-dpfl")
    assert dict(falling.unit.cost(falling))["steps per client"] == "at most 18"


def test_a_plan_of_one_client_has_its_cost_too():
    plan = replace(plan_of(), records=(100,), clients_per_round=1)
    assert plan.unit.cost(plan)[0] == (
        "noise on one gradient",
        "standard deviation σC/B = 0.1875",
    )
