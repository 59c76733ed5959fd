"""The plan: every number that noise, divisor and accounting take from it, and what it charges.

The numbers of a plan here are all different, so that none can stand in for another.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.charges import charge_of_updates, charges_of_columns, charges_of_records
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.histograms import ColumnQueries
from dpfedadamw.privacy.plan import PrivacyPlan, ProtectedUnit
from dpfedadamw.privacy.sampling import (
    FixedClients,
    FixedSizeSampling,
    PoissonClients,
    PoissonSampling,
)
from dpfedadamw.vectors.sparsification import Sparsification


class Records(ProtectedUnit):
    name, noises_gradients = "record", True


class Clients(ProtectedUnit):
    name, noises_updates = "client", True


class Nobody(ProtectedUnit):
    name = "none"


RECORDS = PrivacyPlan(
    unit=Records(),
    adjacency="add-remove",
    clipping_norm=0.5,
    noise_multiplier=3.0,
    delta=1e-5,
    sampling=PoissonSampling(8.0),
    records=(40, 64, 100),
    rounds=7,
    local_steps=5,
    clients_per_round=2,
    queries_per_step=4,
)
CLIENTS = replace(
    RECORDS, unit=Clients(), client_sampling="poisson", noise_added_by="clients", queries_per_step=1
)


def test_noise_is_sigma_c_on_what_the_unit_noises_and_zero_on_all_else():
    assert RECORDS.noise_standard_deviation == 1.5
    assert RECORDS.update_noise_standard_deviation == 0.0
    assert CLIENTS.noise_standard_deviation == 0.0
    assert CLIENTS.update_noise_standard_deviation == 1.5
    nothing = replace(RECORDS, unit=Nobody())
    assert nothing.noise_standard_deviation == nothing.update_noise_standard_deviation == 0.0


def test_a_run_claims_something_if_either_sum_is_noised():
    assert RECORDS.private
    assert CLIENTS.private
    assert not replace(RECORDS, unit=Nobody()).private
    assert RECORDS.claimed_delta == 1e-5


def test_records_stand_for_themselves_unless_a_unit_says_that_people_do():
    assert Records.of_people is False
    assert RECORDS.records_per_person is None
    assert RECORDS.clients_per_person == 1


def test_the_divisor_is_fixed_where_gradients_are_noised_and_its_variance_follows():
    assert RECORDS.divisor(1) == RECORDS.fixed_divisor(1) == 8.0
    assert CLIENTS.fixed_divisor(1) is None
    # (σC/B)² = (1.5/8)².
    assert RECORDS.noise_variance(1) == 0.03515625
    assert RECORDS.sampling_rate(0) == 0.2
    assert RECORDS.sampling_rate(1) == 0.125


def test_a_rate_is_stated_where_one_holds_for_all_clients():
    stated = replace(RECORDS, sampling=PoissonSampling(8.0, stated_rate=0.25))
    assert stated.stated_rate == 0.25
    assert stated.sampling_rate(0) == stated.sampling_rate(2) == 0.25
    of_a_size = replace(RECORDS, sampling=PoissonSampling(8.0, reference_size=50.0))
    assert of_a_size.stated_rate == 0.16
    assert RECORDS.stated_rate is None
    assert replace(stated, unit=Clients()).stated_rate is None
    fixed = FixedSizeSampling(8)
    assert replace(RECORDS, sampling=fixed, adjacency="replace-one").stated_rate is None


def test_clients_are_drawn_as_the_plan_says_and_hidden_only_where_each_is_drawn_by_chance():
    assert RECORDS.client_sampling == "fixed-size"
    assert RECORDS.cohort == FixedClients(2)
    assert CLIENTS.cohort == PoissonClients(2)
    assert RECORDS.participation == 2 / 3
    assert CLIENTS.participants_hidden is True
    assert RECORDS.participants_hidden is False
    assert replace(CLIENTS, unit=Nobody()).participants_hidden is False


@pytest.mark.parametrize(
    ("public", "adds", "coordinates"),
    [(False, "server", 6), (True, "server", None), (False, "clients", None)],
)
def test_clients_choose_coordinates_only_where_they_are_private_and_the_server_adds_noise(
    public, adds, coordinates
):
    sparse = Sparsification("random" if public else "local-top", size=10, kept=6, seed=1)
    plan = replace(CLIENTS, sparsification=sparse, noise_added_by=adds)
    assert sparse.public is public
    assert plan.private_coordinates == coordinates


def test_without_sparsification_no_client_chooses_coordinates():
    assert replace(CLIENTS, noise_added_by="server").private_coordinates is None


def test_what_participations_cost_is_that_of_the_clients_own_rate():
    assert RECORDS.event(1, steps=5, rounds=3) == Composition(3.0, 0.125, 5 * 3, 4, "poisson")
    assert RECORDS.event(0, steps=5) == Composition(3.0, 0.2, 5, 4, "poisson")
    with pytest.raises(PrivacyError):
        replace(RECORDS, adjacency="replace-one").event(0, 5)


LINE = {
    "round": 6,
    "client": 1,
    "attempt": 2,
    "records": 64,
    "sampling": "poisson",
    "sampling_rate": 0.125,
    "expected_batch_size": 8.0,
    "clipping_norm": 0.5,
    "noise_multiplier": 3.0,
    "steps": 5,
    "queries_per_step": 4,
}


def test_each_client_of_a_round_has_a_line_with_all_that_its_records_are_charged():
    assert charges_of_records(RECORDS, 6, 2, [1]) == [LINE]
    assert [line["client"] for line in charges_of_records(RECORDS, 6, 2, [2, 0])] == [2, 0]
    assert [line["records"] for line in charges_of_records(RECORDS, 6, 2, [2, 0])] == [100, 40]
    stated = replace(RECORDS, sampling=PoissonSampling(8.0, stated_rate=0.25))
    expected = [{**LINE, "rate_stated": True, "sampling_rate": 0.25}]
    assert charges_of_records(stated, 6, 2, [1]) == expected


def test_every_client_is_charged_once_for_the_histograms_of_its_columns():
    queries = ColumnQueries(columns=("age", "dose"), bins=(16, 32), noise_multiplier=9.0)
    lines = charges_of_columns(replace(RECORDS, column_queries=queries))
    shared = {
        "attempt": 1,
        "columns": ["age", "dose"],
        "bins": [16, 32],
        "sensitivity": 1.0,
        "noise_multiplier": 9.0,
    }
    assert lines == [
        {"client": 0, "records": 40, **shared},
        {"client": 1, "records": 64, **shared},
        {"client": 2, "records": 100, **shared},
    ]


ROUND = {
    "round": 6,
    "attempt": 2,
    "unit": "client",
    "sampling": "poisson",
    "sampling_rate": 2 / 3,
    "expected_clients": 2,
    "clipping_norm": 0.5,
    "noise_multiplier": 3.0,
}


def test_a_round_of_updates_has_one_line_and_an_empty_one_too():
    served = replace(CLIENTS, noise_added_by="server")
    by_server = {**ROUND, "noise_added_by": "server", "upload_noise_multiplier": None}
    assert charge_of_updates(served, 6, 2, [2, 0]) == {**by_server, "clients": [2, 0]}
    assert charge_of_updates(served, 6, 2, []) == {**by_server, "clients": []}


def test_clients_that_share_the_noise_each_add_a_square_root_of_it():
    shared = charge_of_updates(CLIENTS, 6, 2, [0, 1, 2, 3])
    assert shared == {
        **ROUND,
        "noise_added_by": "clients",
        "clients": [0, 1, 2, 3],
        # 3/√4: the sum of four such shares has σ = 3.
        "upload_noise_multiplier": 1.5,
    }
    assert charge_of_updates(CLIENTS, 6, 2, [])["upload_noise_multiplier"] is None
