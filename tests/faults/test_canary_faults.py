"""Canaries in broken mechanisms: the claim is contradicted; in correct ones it is not.

Every run goes through the real engine with one part of it broken, and is judged by the check
"canaries" alone, which knows nothing of noise, norms or batches but what releases betray.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from audit.checks.canaries import CANARIES, CANARY_CLIENTS
from audit.reading.bundle import open_bundle
from dpfedadamw import spec as specs
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.experiment import prepare
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions
from tests.faults.canary_table import BEGIN, CASES, END, no_clipping, noise_times, run_of
from tests.faults.canary_table import judged as of_spec
from tests.faults.fault import LARGE
from tests.runs import small_spec

SETTING = (
    "data.clients=3",
    "federation.clients_per_round=3",
    "federation.rounds=8",
    "privacy.sampling.expected_batch_size=80",
    "privacy.noise_multiplier=3.0",
)
CANARY_COUNT = 400


def judged(parent, seed=2, kind="gradient", count=CANARY_COUNT):
    """What the check says of an audit run of ε = 1.48."""
    spec = small_spec(seed=seed, overrides=SETTING)
    order = CanaryOrder(count, kind)
    training = engine_setup.start(
        prepare(spec, torch.device("cpu")), parent, options=StartOptions(canaries=order)
    )
    engine_run.train(training)
    return CANARIES.judge(open_bundle(training.run.path))


def contradicted_views(judgement):
    return {view["view"] for view in judgement.details["views"] if view["contradicted"]}


def test_canaries_contradict_a_claim_whose_noise_was_dropped(tmp_path):
    with noise_times(0.0):
        found = judged(tmp_path)
    assert found.verdict.value == "FAIL"
    assert "uploads" in contradicted_views(found)
    (view,) = [one for one in found.details["views"] if one["view"] == "uploads"]
    assert view["epsilon_any_mechanism"] > view["claimed_epsilon"]


@pytest.mark.slow
def test_canaries_contradict_a_claim_whose_noise_is_a_quarter(tmp_path):
    with noise_times(0.25):
        found = judged(tmp_path)
    assert found.verdict.value == "FAIL"
    assert "uploads" in contradicted_views(found)


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.75])
def test_scores_tell_noise_that_no_guess_tells(tmp_path, share):
    """Noise × ½ survives all guesses on 400 canaries; their scores show it, and × ¾ as well."""
    with noise_times(share):
        found = judged(tmp_path)
    assert found.verdict.value == "FAIL"
    assert not contradicted_views(found)
    scores = found.details["scores"]
    assert scores["contradicted"]
    assert scores["noise"] == pytest.approx(share, rel=0.05)
    assert scores["noise_interval"][1] < 1.0
    assert scores["epsilon_these_steps"] > scores["claimed_epsilon"]
    assert f"noise of {scores['noise']:.3g} times the ledger's" in found.measurement


@pytest.mark.thorough
def test_canaries_contradict_a_claim_whose_clipping_is_off(tmp_path):
    with no_clipping():
        found = judged(tmp_path)
    assert found.verdict.value == "FAIL"
    assert "uploads" in contradicted_views(found)
    assert found.details["scores"]["contribution"] == pytest.approx(10.0, rel=0.05)
    assert found.details["scores"]["noise"] == pytest.approx(1.0, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_crafted_inputs_show_half_the_noise(tmp_path, share):
    with noise_times(share):
        found = judged(tmp_path, kind="input", count=60)
    assert found.verdict.value == ("PASS" if share == 1.0 else "FAIL"), found.measurement
    assert found.details["scores"]["noise"] == pytest.approx(share, rel=0.1)


@pytest.mark.slow
def test_crafted_inputs_show_that_nothing_is_clipped(tmp_path):
    with no_clipping():
        found = judged(tmp_path, kind="input", count=150)
    assert found.verdict.value == "FAIL", found.measurement
    assert found.details["scores"]["contribution"] > 3.0


def judged_at_client_level(parent):
    """What the check says of an audit run that claims ε = 1.6 for whole clients."""
    changes = ["federation.rounds=10", "privacy.noise_multiplier=2.5", "privacy.delta=1e-3"]
    changes.append("randomness={mode: reproducible, seed: 1}")
    experiment = prepare(specs.load("digits-client-level", changes), torch.device("cpu"))
    training = engine_setup.start(
        experiment, parent, options=StartOptions(canaries=CanaryOrder(100))
    )
    engine_run.train(training)
    return CANARY_CLIENTS.judge(open_bundle(training.run.path))


@pytest.mark.slow
def test_canary_clients_do_not_contradict_a_correct_run(tmp_path):
    found = judged_at_client_level(tmp_path)
    assert found.verdict.value == "PASS", found.measurement


def test_canary_clients_contradict_a_claim_whose_noise_was_dropped(tmp_path):
    with noise_times(0.0):
        found = judged_at_client_level(tmp_path)
    assert found.verdict.value == "FAIL", found.measurement
    assert {"uploads", "final-model"} <= contradicted_views(found)


@pytest.mark.slow
def test_canary_clients_contradict_a_claim_whose_clipping_is_off(tmp_path):
    with no_clipping():
        found = judged_at_client_level(tmp_path)
    assert found.verdict.value == "FAIL", found.measurement


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 21))]
)
def test_canaries_do_not_contradict_a_correct_run(tmp_path, seed):
    """20 seeds, each contradicted with probability at most 0.1 %: 2 % for all of them together."""
    found = judged(tmp_path, seed)
    assert found.verdict.value == "PASS", found.measurement
    assert not contradicted_views(found)
    scores = found.details["scores"]
    assert scores["noise"] == pytest.approx(1.0, rel=0.05)
    assert scores["epsilon_these_steps"] > 0.0


_LARGE_CLIENTS = (
    "data.clients=60",
    "data.partition={kind: iid}",
    "algorithm={name: dp-fedavg, learning_rate: 0.5}",
    "privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}",
)
_LARGE_RECORDS = ("data.clients=3", "federation.clients_per_round=3", "federation.rounds=2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "contradicted"),
    [
        (contextlib.nullcontext, False),
        (lambda: noise_times(0.5), True),
        (no_clipping, True),
    ],
    ids=["correct", "half-the-noise", "no-clipping"],
)
@pytest.mark.parametrize("kind", ["gradient", "input", "client"])
def test_canaries_of_a_model_of_19_210_parameters_tell_faults(kind, broken, contradicted):
    changes = _LARGE_CLIENTS if kind == "client" else _LARGE_RECORDS
    spec = small_spec(overrides=(*changes, LARGE))
    with broken():
        found = of_spec(spec, CanaryOrder(60, "gradient" if kind == "client" else kind))
    assert found.details["scores"]["contradicted"] == contradicted, found.measurement


PAGE = Path(__file__).parents[2] / "docs" / "canaries.md"
RUNS = [(case, count) for case in CASES for count in case.numbers]


def test_the_published_table_has_every_case_and_says_what_must_be_said():
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    found = {tuple(cells[:3]): cells[-1] for cells in rows}
    assert set(found) == {(case.name, case.kind, str(count)) for case, count in RUNS}
    for case, count in RUNS:
        if case.contradicted is not None:
            said = "contradicted" if case.contradicted else "not contradicted"
            assert found[case.name, case.kind, str(count)] == said


@pytest.mark.slow
@pytest.mark.parametrize(("case", "count"), RUNS, ids=lambda one: str(getattr(one, "name", one)))
def test_a_case_of_the_table_is_judged_as_it_must_be(case, count):
    found = run_of(case, count)
    if case.contradicted is not None:
        assert found.verdict.value == ("FAIL" if case.contradicted else "PASS"), found.measurement
