"""Canaries in broken mechanisms: the claim is contradicted; in correct ones it is not.

Every run goes through the real engine with one part of it broken, and is judged by the check
"canaries" alone, which knows nothing of noise, norms or batches but what releases betray.
"""

from __future__ import annotations

import math

import pytest
import torch

from audit.checks.canaries import CANARIES, CANARY_CLIENTS
from audit.reading.bundle import open_bundle
from dpfedadamw import spec as specs
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.experiment import prepare
from dpfedadamw.privacy import oracle, updates
from dpfedadamw.privacy.clipping.clipped_sum import Clipping
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.updates import ClippedUpdate
from dpfedadamw.run import training as engine_run
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
    training = engine_run.start(prepare(spec, torch.device("cpu")), parent, canaries=order)
    engine_run.train(training)
    return CANARIES.judge(open_bundle(training.run.path))


def contradicted_views(judgement):
    return {view["view"] for view in judgement.details["views"] if view["contradicted"]}


def test_canaries_contradict_a_claim_whose_noise_was_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(oracle, "add_gaussian_noise", lambda total, *rest, **more: total.clone())
    found = judged(tmp_path)
    assert found.verdict.value == "FAIL"
    assert "uploads" in contradicted_views(found)
    (view,) = [one for one in found.details["views"] if one["view"] == "uploads"]
    assert view["epsilon_any_mechanism"] > view["claimed_epsilon"]


@pytest.mark.slow
def test_canaries_contradict_a_claim_whose_noise_is_a_quarter(tmp_path, monkeypatch):
    monkeypatch.setattr(
        oracle,
        "add_gaussian_noise",
        lambda total, deviation, *rest, **more: add_gaussian_noise(
            total, deviation / 4, *rest, **more
        ),
    )
    found = judged(tmp_path)
    assert found.verdict.value == "FAIL"
    assert "uploads" in contradicted_views(found)


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.75])
def test_scores_tell_noise_that_no_guess_tells(tmp_path, monkeypatch, share):
    """Noise × ½ survives all guesses on 400 canaries; their scores show it, and × ¾ as well."""
    monkeypatch.setattr(
        oracle,
        "add_gaussian_noise",
        lambda total, deviation, *rest, **more: add_gaussian_noise(
            total, deviation * share, *rest, **more
        ),
    )
    found = judged(tmp_path)
    assert found.verdict.value == "FAIL"
    assert not contradicted_views(found)
    scores = found.details["scores"]
    assert scores["contradicted"]
    assert scores["noise"] == pytest.approx(share, rel=0.05)
    assert scores["noise_interval"][1] < 1.0
    assert scores["epsilon_these_steps"] > scores["claimed_epsilon"]
    assert f"noise of {scores['noise']:.3g} times the ledger's" in found.measurement


def test_canaries_contradict_a_claim_whose_clipping_is_off(tmp_path, monkeypatch):
    weights = Clipping.weights
    monkeypatch.setattr(
        Clipping,
        "weights",
        lambda self, squared_norms, dtype: weights(Clipping(math.inf), squared_norms, dtype),
    )
    found = judged(tmp_path)
    assert found.verdict.value == "FAIL"
    assert "uploads" in contradicted_views(found)
    assert found.details["scores"]["contribution"] == pytest.approx(10.0, rel=0.05)
    assert found.details["scores"]["noise"] == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_crafted_inputs_show_half_the_noise(tmp_path, monkeypatch, share):
    monkeypatch.setattr(
        oracle,
        "add_gaussian_noise",
        lambda total, deviation, *rest, **more: add_gaussian_noise(
            total, deviation * share, *rest, **more
        ),
    )
    found = judged(tmp_path, kind="input", count=60)
    assert found.verdict.value == ("PASS" if share == 1.0 else "FAIL"), found.measurement
    assert found.details["scores"]["noise"] == pytest.approx(share, rel=0.1)


def test_crafted_inputs_show_that_nothing_is_clipped(tmp_path, monkeypatch):
    weights = Clipping.weights
    monkeypatch.setattr(
        Clipping,
        "weights",
        lambda self, squared_norms, dtype: weights(Clipping(math.inf), squared_norms, dtype),
    )
    found = judged(tmp_path, kind="input", count=150)
    assert found.verdict.value == "FAIL", found.measurement
    assert found.details["scores"]["contribution"] > 3.0


def judged_at_client_level(parent):
    """What the check says of an audit run that claims ε = 1.6 for whole clients."""
    changes = ["federation.rounds=10", "privacy.noise_multiplier=2.5", "privacy.delta=1e-3"]
    changes.append("randomness={mode: reproducible, seed: 1}")
    experiment = prepare(specs.load("digits-client-level", changes), torch.device("cpu"))
    training = engine_run.start(experiment, parent, canaries=CanaryOrder(100))
    engine_run.train(training)
    return CANARY_CLIENTS.judge(open_bundle(training.run.path))


def test_canary_clients_do_not_contradict_a_correct_run(tmp_path):
    found = judged_at_client_level(tmp_path)
    assert found.verdict.value == "PASS", found.measurement


def test_canary_clients_contradict_a_claim_whose_noise_was_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(updates, "add_gaussian_noise", lambda total, *rest, **more: total.clone())
    found = judged_at_client_level(tmp_path)
    assert found.verdict.value == "FAIL", found.measurement
    assert {"uploads", "final-model"} <= contradicted_views(found)


def test_canary_clients_contradict_a_claim_whose_clipping_is_off(tmp_path, monkeypatch):
    def unclipped(update, clipping_norm):
        return ClippedUpdate(update, float(update.norm()), clipping_norm)

    monkeypatch.setattr(updates, "clip_update", unclipped)
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
