"""The comparisons that two cores can run: fair as they say, and small enough to try."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

import dp_accounting
import pytest
import yaml
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

import specs
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.spec.matrix import Sweep, load_sweep

NAMES = [name for name in specs.sweep_files() if name.startswith("replication-")]
ALL = {"record": "replication-fashion-mnist", "client": "replication-fashion-mnist-clients"}
# The one row that is at equal noise and not at equal ε says so.
PARTS = (
    "replication-ablations",
    "replication-fashion-mnist-server-rate",
    "replication-frontier",
)
SERVER_RATE = "replication-fashion-mnist-server-rate"
# Reading a comparison takes about a second: these few are read quickly, and others weekly.
QUICK = (
    "replication-ablations",
    "replication-confirmation-mnist",
    "replication-fashion-mnist",
    "replication-fashion-mnist-clients",
    "replication-fashion-mnist-server-rate",
)
# At one local step a round a local rate and a server's rate are one knob, and one grid is enough:
# tests/dpfedadamw/algorithms/test_identities.py.
ONE_STEP = tuple(name for name in NAMES if name.startswith("replication-confirmation-"))
FIRST_STAGE = {"DP-FedAvg", "DP-FedOpt (Adam)", "DP-FedAdamW", "DP-FedAdamW, γ = 0.9"}
# The row without privacy, of the data, model and division of the private ones.
WITHOUT = "replication-without-privacy"
EQUAL_NOISE = "DP-FedSAM at DP-FedAvg's σ"


@cache
def once(name: str) -> Sweep:
    """A sweep with one seed: the others differ in nothing else."""
    return load_sweep(name, ["seeds={numbers: 1, vary: [partition, weights, run]}"])


def each(names: Iterable[str]) -> list:
    """Cases by name, of which those that are read quickly stay in the quick suite."""
    return [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.thorough]) for name in names
    ]


@pytest.mark.parametrize("name", each(NAMES))
def test_each_search_has_seeds_of_its_own_and_chooses_by_records_that_are_not_reported_on(name):
    sweep, written = once(name), yaml.safe_load(specs.find(name).read_text(encoding="utf-8"))
    assert sweep.name == name
    assert sweep.tune.selection == "unaccounted"
    assert sweep.tune.score == "validation_accuracy"
    assert written["seeds"] == {"numbers": 5, "vary": ["partition", "weights", "run"]}
    assert written["tune"]["seeds"] == [100]


@pytest.mark.parametrize("name", each(name for name in NAMES if name not in ONE_STEP))
def test_every_search_tries_the_servers_learning_rate_but_the_one_that_holds_it_at_1(name):
    for grid in once(name).grids.values():
        tried = "algorithm.server.learning_rate" in {axis.name for axis in grid}
        assert tried == (name != SERVER_RATE)
    if name == SERVER_RATE:
        assert {cell.spec.algorithm.server.learning_rate for cell in once(name).cells} == {1}


@pytest.mark.parametrize("name", each(ONE_STEP))
def test_a_confirmation_searches_one_rate_at_one_step_with_as_many_candidates_for_each(name):
    sweep = once(name)
    assert {cell.spec.federation.local_steps for cell in sweep.cells} == {1}
    for grid in sweep.grids.values():
        ((searched, values),) = ((axis.name, axis.labels) for axis in grid)
        assert searched.endswith("learning_rate")
        assert len(values) == 5
        assert all(2.9 < after / before < 3.4 for before, after in pairwise(map(float, values)))


@pytest.mark.parametrize("name", each(ONE_STEP))
def test_a_confirmation_compares_the_same_methods_at_three_epsilons(name):
    found: dict[float, set] = {}
    for cell in once(name).cells:
        found.setdefault(cell.spec.privacy.target_epsilon, set()).add(cell.values["method"])
    assert set(found) == {1, 4, 8}
    assert all(methods == found[4] for methods in found.values())
    assert found[4] >= FIRST_STAGE
    text = specs.find(name).read_text(encoding="utf-8")
    (named,) = re.findall(r'--only "method=(.*)"', text)
    assert set(named.split("|")) == FIRST_STAGE


@pytest.mark.parametrize(("unit", "name"), ALL.items())
def test_no_algorithm_of_a_unit_is_left_out(unit, name):
    compared = {cell.spec.algorithm.name for cell in once(name).cells}
    # DP-FedAdamW's parts have a comparison of their own.
    assert compared == {name for name, entry in ALGORITHMS.items() if unit in entry.units}


@pytest.mark.parametrize(
    "name", each(n for n in NAMES if n not in (ALL["client"], WITHOUT) and n not in ONE_STEP)
)
def test_all_that_is_compared_claims_one_epsilon(name):
    found = {}
    for cell in once(name).cells:
        found.setdefault(cell.values.get("method", cell.values.get("change")), cell.spec)
    assert (found.pop(EQUAL_NOISE, None) is None) == (name in PARTS)
    for label, spec in found.items():
        assert spec.privacy.target_epsilon == 4, label


def texts() -> dict[str, str]:
    """Each comparison as it is written."""
    return {name: specs.find(name).read_text(encoding="utf-8") for name in NAMES}


@pytest.mark.parametrize(
    "name", each(name for name, text in texts().items() if EQUAL_NOISE in text)
)
def test_the_rows_at_equal_noise_have_the_noise_that_gives_dp_fedavg_that_epsilon(name):
    """By dp-accounting, from the rate that is stated for all clients: 3.98 to 4 at σ."""
    by_label = {cell.values.get("method"): cell.spec for cell in once(name).cells}
    spec, sigma = by_label["DP-FedAvg"], by_label[EQUAL_NOISE].privacy.noise_multiplier
    assert by_label["ALI-DPFL"].privacy.noise_multiplier == sigma
    sampling, federation = spec.privacy.sampling, spec.federation
    event = dp_accounting.PoissonSampledDpEvent(
        sampling.expected_batch_size / sampling.reference_size,
        dp_accounting.GaussianDpEvent(sigma),
    )
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(event, federation.rounds * federation.local_steps)
    assert 3.98 < accountant.get_epsilon(spec.privacy.delta) < 4.005


def test_the_row_without_privacy_differs_from_the_private_ones_in_nothing_but_privacy():
    """And in its rule, which is that of DP-FedAvg without clipping and noise."""
    with_, without = (
        yaml.safe_load(specs.find(name).read_text(encoding="utf-8"))
        for name in ("replication-mnist", WITHOUT)
    )
    same = ("data", "model", "federation", "evaluation", "seeds", "randomness")
    assert {key: with_[key] for key in same} == {key: without[key] for key in same}


@pytest.mark.thorough
def test_the_row_without_privacy_is_searched_over_as_many_candidates():
    sizes = {
        tuple(len(axis.labels) for axis in grid)
        for name in ("replication-mnist", ALL["record"], WITHOUT)
        for grid in once(name).grids.values()
    }
    assert sizes == {(4, 4)}
