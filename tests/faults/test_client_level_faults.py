"""Broken client-level mechanisms, patched into the real engine and run end to end."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dpfedadamw import claims
from dpfedadamw import run as engine_run
from dpfedadamw import spec as specs
from dpfedadamw.federation.client_level import ClientLevelFederation
from dpfedadamw.privacy import updates
from dpfedadamw.privacy.noise import add_gaussian_noise
from dpfedadamw.privacy.updates import ClippedUpdate
from tests.runs import failing, judged, verdicts

SPEC = """
version: 1
name: whole-clients
data: {{dataset: digits, clients: 20, partition: {{kind: iid}}}}
model: {{name: mlp, hidden: [8]}}
algorithm: {{name: dp-fedavg, learning_rate: 0.5}}
federation: {{rounds: 30, clients_per_round: 3, local_steps: 1}}
privacy:
  {{unit: client, clipping_norm: 0.5, noise_multiplier: 1.0, delta: 1.0e-3, noise_added_by: {by}}}
randomness: {{mode: reproducible, seed: 3}}
"""


def client_spec(by: str = "server"):
    return specs.loads(SPEC.format(by=by))


@pytest.mark.parametrize("by", ["server", "clients"])
def test_the_correct_mechanism_passes(by, tmp_path):
    findings = judged(client_spec(by), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)


@pytest.mark.parametrize("by", ["server", "clients"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_noise_at_the_wrong_scale_fails(by, factor, tmp_path, monkeypatch):
    monkeypatch.setattr(
        updates,
        "add_gaussian_noise",
        lambda total, deviation, *rest: add_gaussian_noise(total, deviation * factor, *rest),
    )
    findings = judged(client_spec(by), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["noise-scale"] == "FAIL"


def per_tensor(update, clipping_norm):
    """Each tensor is clipped alone, as layer-wise code does without sharing the norm."""
    sizes = [8 * 64, 8, 80, 10]
    parts = [
        part * min(1.0, clipping_norm / max(float(part.norm()), 1e-30))
        for part in torch.split(update.nan_to_num(0.0, 0.0, 0.0), sizes)
    ]
    clipped = torch.cat(parts)
    return ClippedUpdate(clipped, float(update.norm()), min(float(update.norm()), clipping_norm))


def test_clipping_tensor_by_tensor_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(updates, "clip_update", per_tensor)
    findings = judged(client_spec(), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["sensitivity"] == "FAIL"


def test_an_empty_round_without_noise_fails(tmp_path, monkeypatch):
    def silent(total, deviation, *rest):
        if not total.any():
            return total.double()
        return add_gaussian_noise(total, deviation, *rest)

    monkeypatch.setattr(updates, "add_gaussian_noise", silent)
    findings = judged(client_spec(), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["noise-scale"] == "FAIL"


def test_dividing_by_the_realised_number_of_clients_fails(tmp_path, monkeypatch):
    receive = ClientLevelFederation._receive

    def realised(self, state, index, attempt, chosen, answers):
        plan = dataclasses.replace(self.worker.plan, clients_per_round=max(1, len(chosen)))
        worker = dataclasses.replace(self.worker, plan=plan)
        patched = dataclasses.replace(self, worker=worker)
        return receive(patched, state, index, attempt, chosen, answers)

    monkeypatch.setattr(ClientLevelFederation, "_receive", realised)
    findings = judged(client_spec(), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["promise"] == "FAIL"


def test_publishing_the_real_traffic_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ClientLevelFederation,
        "_traffic",
        lambda self, message, answers: (
            sum(len(answer.message) for answer in answers),
            len(message) * len(answers),
        ),
    )
    findings = judged(client_spec(), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["publication"] == "FAIL"


def test_an_accountant_that_is_told_a_larger_noise_multiplier_fails(tmp_path, monkeypatch):
    claim = claims.client_level_claim

    def told_more(spends, clients, delta):
        richer = [
            {**spend, "noise_multiplier": spend["noise_multiplier"] + 0.5} for spend in spends
        ]
        return claim(richer, clients, delta)

    monkeypatch.setattr(claims, "client_level_claim", told_more)
    findings = judged(client_spec(), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["accounting"] == "FAIL"


def test_claiming_amplification_towards_the_server_fails(tmp_path, monkeypatch):
    claim = claims.client_level_claim

    def amplified(spends, clients, delta):
        honest = claim(spends, clients, delta)
        third = honest["third_party"]["epsilon"]
        flattered = [{**entry, "epsilon_pld": third} for entry in honest["server"]["clients"]]
        return {**honest, "server": {**honest["server"], "epsilon": third, "clients": flattered}}

    monkeypatch.setattr(claims, "client_level_claim", amplified)
    findings = judged(client_spec("clients"), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["accounting"] == "FAIL"


def test_a_fixed_cohort_posing_as_poisson_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ClientLevelFederation,
        "_choose",
        lambda self, index: ([0, 1, 2], 1),
    )
    findings = judged(client_spec(), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert "FAIL" in {
        verdicts(findings)[name] for name in ("participation", "promise", "sensitivity")
    }


def test_resuming_a_client_level_run_charges_the_round_again(tmp_path, monkeypatch):
    from dpfedadamw.rundir import open_existing
    from tests.runs import begin

    training = begin(client_spec(), tmp_path)
    receive = ClientLevelFederation._receive

    def cutting(self, state, index, *rest):
        if index == 2:
            raise KeyboardInterrupt
        return receive(self, state, index, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(ClientLevelFederation, "_receive", cutting)
        with pytest.raises(KeyboardInterrupt):
            engine_run.train(training)
    resumed = engine_run.resume(open_existing(training.run.path), torch.device("cpu"))
    outcome = engine_run.train(resumed)
    assert outcome.claim["third_party"]["rounds"] == 31
