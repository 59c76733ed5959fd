"""What `epsilon` says beforehand is never below what the finished run claims."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpfedadamw.accounting.registry import claimed
from dpfedadamw.accounting.worst_case import NoiseDecay
from dpfedadamw.units.registry import make_plan
from tests.runs import small_spec

RECORDS = (60, 60, 75, 90)

# Few settings, so that what is composed for one example serves the next.
NOISE, ROUNDS = (2.0, 0.6, 40.0), st.sampled_from([1, 3, 40])


def record_plan(algorithm: str, noise: float, rounds: int, steps: int, overrides=()):
    spec = small_spec(
        algorithm,
        rounds=rounds,
        overrides=(
            f"privacy.noise_multiplier={noise}",
            f"federation.local_steps={steps}",
            "data.clients=4",
            *overrides,
        ),
    )
    return make_plan(spec, RECORDS, 1)


def charge(plan, client: int, index: int, steps: int, noise: float) -> dict:
    return {
        "kind": "spend",
        "round": index,
        "attempt": 0,
        "client": client,
        "noise_multiplier": noise,
        "sampling_rate": plan.sampling_rate(client),
        "sampling": plan.sampling.event_kind,
        "expected_batch_size": plan.divisor(client),
        "records": plan.records[client],
        "steps": steps,
        "queries_per_step": plan.queries_per_step,
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("noise", NOISE)
@given(data=st.data(), rounds=ROUNDS, steps=st.sampled_from([1, 7]))
@settings(max_examples=14)
def test_at_record_level_whoever_takes_part(data, noise, rounds, steps):
    kind = data.draw(st.sampled_from(["dp-fedavg", "adap-dpfl"]))
    plan = record_plan(kind, noise, rounds, steps)
    bound = plan.spending_bound
    spends = []
    for index in range(rounds):
        for client in data.draw(st.sets(st.integers(0, 3))):
            spends.append(charge(plan, client, index, steps, bound.noise_multiplier_of(index)))
    forecast, claim = plan.expected_claim(), plan.unit.realised_claim(plan, spends)
    for view in ("server", "server_worst_case", "third_party"):
        assert claimed(claim[view]) <= claimed(forecast[view])
    by_client = {entry["client"]: entry["epsilon"] for entry in forecast["server"]["clients"]}
    for entry in claim["server"]["clients"]:
        # Of a client with more records a step costs less: the forecast for the smallest bounds all.
        for name, epsilon in entry["epsilon"].items():
            assert epsilon <= max(by_client[0][name], by_client[entry["client"]][name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("noise", NOISE)
@given(data=st.data(), rounds=ROUNDS, by=st.sampled_from(["server", "clients"]))
@settings(max_examples=14)
def test_at_client_level_however_many_clients_a_poisson_cohort_has(data, noise, rounds, by):
    changes = (
        f"privacy.noise_multiplier={noise}",
        f"privacy.noise_added_by={by}",
        "data.clients=4",
        "federation.clients_per_round=2",
        "privacy.delta=0.01",
    )
    plan = make_plan(small_spec("fed-smp", rounds=rounds, overrides=changes), RECORDS, 1)
    cohorts = [sorted(data.draw(st.sets(st.integers(0, 3)))) for _ in range(rounds)]
    spends = [
        {
            "kind": "spend",
            "round": index,
            "noise_multiplier": noise,
            "sampling_rate": plan.participation,
            "noise_added_by": by,
            "clients": cohort if by == "clients" else [],
            "upload_noise_multiplier": noise / max(1, len(cohort)) ** 0.5,
        }
        for index, cohort in enumerate(cohorts)
    ]
    forecast, claim = plan.expected_claim(), plan.unit.realised_claim(plan, spends)
    assert claimed(claim["third_party"]) <= claimed(forecast["third_party"])
    if by == "clients":
        assert claimed(claim["server"]) <= claimed(forecast["server"])
        if all(len(cohort) == 4 for cohort in cohorts):
            assert claimed(claim["server"]) == claimed(forecast["server"])


def test_a_round_of_all_clients_costs_what_the_forecast_says():
    """With two of four expected, an upload can hold half of the noise that was forecast before."""
    changes = ("privacy.noise_added_by=clients", "data.clients=4", "privacy.delta=0.01")
    plan = make_plan(small_spec("fed-smp", rounds=1, overrides=changes), RECORDS, 1)
    spend = {
        "kind": "spend",
        "round": 0,
        "noise_multiplier": plan.noise_multiplier,
        "sampling_rate": plan.participation,
        "noise_added_by": "clients",
        "clients": [0, 1, 2, 3],
        "upload_noise_multiplier": plan.noise_multiplier / 2.0,
    }
    assert claimed(plan.unit.realised_claim(plan, [spend])["server"]) == claimed(
        plan.expected_claim()["server"]
    )


@given(
    factor=st.floats(0.01, 1.0),
    patience=st.integers(1, 9),
    floor=st.floats(0.001, 1.0),
    rounds=st.integers(1, 400),
)
# As many levels as are taken one by one, of which the last lasts for two decays.
@example(factor=0.90625, patience=1, floor=0.109375, rounds=26)
def test_grouped_levels_of_noise_never_lie_above_a_rounds_own(factor, patience, floor, rounds):
    decay = NoiseDecay(factor, patience, floor)
    levels = decay.levels(rounds)
    every = [least for least, count in levels for _ in range(count)]
    assert len(every) == rounds
    assert len(levels) <= 26
    own = [decay.least(index) for index in range(rounds)]
    assert all(one <= other for one, other in zip(every, own, strict=True))
    if len(set(own)) <= 24:
        assert every == own


def test_a_million_rounds_of_falling_noise_are_few_levels():
    slow = NoiseDecay(0.99999, 1, 0.1)
    assert sum(count for _, count in slow.levels(1_000_000)) == 1_000_000
    assert len(slow.levels(1_000_000)) <= 26


def test_specs_of_a_million_long_rounds_are_forecast():
    plan = record_plan("adap-dpfl", 3000.0, 1_000_000, 100_000)
    assert 0.0 < claimed(plan.expected_claim()["server"]) < 1e6
