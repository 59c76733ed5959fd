"""A unit of protection is one object that is made from the spec's word."""

from __future__ import annotations

import dataclasses
import math

import pytest

from dpfedadamw.clipping.engines import PerformanceOptions
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.sampling import FullBatch
from dpfedadamw.run.computing import unit_of
from dpfedadamw.units.registry import make_plan, unit_named
from tests.runs import small_spec, train

ALGORITHMS = {"record": "dp-fedavg", "client": "fed-smp", "none": "fedavg"}
RECORDS = (100, 120, 140, 160, 180)


def plan_of(word: str):
    return make_plan(small_spec(ALGORITHMS[word]), RECORDS, 1)


@pytest.mark.parametrize("word", ALGORITHMS)
def test_a_plan_knows_the_unit_of_its_spec(word):
    plan = plan_of(word)
    assert plan.unit is unit_named(word)
    assert plan.unit.name == word
    assert unit_of(plan).rounds is not None


@pytest.mark.parametrize(
    ("word", "gradients", "updates"), [("record", 2.0, 0.0), ("client", 0.0, 2.0), ("none", 0, 0)]
)
def test_noise_is_added_where_the_unit_says(word, gradients, updates):
    plan = plan_of(word)
    assert plan.noise_standard_deviation == gradients
    assert plan.update_noise_standard_deviation == updates
    assert (plan.fixed_divisor(0) is None) == (word != "record")


def test_a_plan_without_privacy_has_neither_neighbours_nor_noise():
    plan = plan_of("none")
    assert (plan.adjacency, plan.noise_multiplier, plan.delta) == ("none", 0.0, None)
    assert plan.clipping_norm == math.inf
    assert plan.unit is unit_named("none")
    assert plan.sampling == FullBatch()
    assert plan.records == RECORDS
    assert not plan.unit.noises_gradients
    assert not plan.unit.noises_updates
    assert plan.unit.check_cost(plan) is None


def test_what_claims_nothing_has_no_epsilon_and_no_target():
    plan = plan_of("none")
    assert not plan.private
    assert plan.unit.realised_claim(plan, []) == {"view_headline": "none"}
    with pytest.raises(PrivacyError, match="there is no ε to compute"):
        plan.expected_claim()
    with pytest.raises(PrivacyError, match="no privacy to calibrate"):
        plan.unit.check_target("server", "noise")


def test_options_of_performance_change_neither_charge_nor_claim(tmp_path):
    """One record at a time, or all at once: what is drawn, charged and claimed is the same."""
    spends = []
    for size in (1, 512):
        options = f"compute.physical_batch_size={size}"
        spec = small_spec("dp-fedavg", rounds=2, overrides=(options,))
        training, outcome = train(spec, tmp_path / str(size))
        options = training.federation.worker.performance
        assert options == PerformanceOptions(physical_batch_size=size)
        charged = [
            {key: value for key, value in entry.items() if key not in ("previous", "digest")}
            for entry in training.ledger.of_kind("spend")
        ]
        spends.append((charged, outcome.claim))
    assert spends[0] == spends[1]


def test_no_option_of_performance_is_named_like_a_part_of_the_plan():
    options = {field.name for field in dataclasses.fields(PerformanceOptions)}
    section = set(small_spec().to_mapping()["privacy"])
    plan = {field.name for field in dataclasses.fields(type(plan_of("record")))}
    assert not options & (section | plan)
