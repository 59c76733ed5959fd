"""Sparse updates gone wrong, patched into the real engine and run end to end.

Which coordinates survive must not tell of a client, and scaling must not outgrow the noise.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.coordinates import Sparsification
from dpfedadamw.federation import client as clients
from dpfedadamw.federation import client_level
from dpfedadamw.privacy import updates
from dpfedadamw.privacy.noise import add_gaussian_noise
from tests.runs import failing, judged, verdicts

SYSTEMS = {
    "random": "{name: fed-smp, sparsification: {kind: random, fraction: 0.3}}",
    "released-top": "{name: fed-smp, sparsification: {kind: released-top, fraction: 0.3}}",
    "local-top": "{name: dp-fedsam-topk, sparsification: {kind: local-top, fraction: 0.3}}",
}
PUBLIC = ["random", "released-top"]


def sparse_spec(kind: str, by: str = "server"):
    return specs.loads(
        f"""
version: 1
name: sparse-updates
data: {{dataset: digits, clients: 20, partition: {{kind: iid}}}}
model: {{name: mlp, hidden: [8]}}
algorithm: {SYSTEMS[kind]}
federation: {{rounds: 20, clients_per_round: 4, local_steps: 1}}
privacy:
  {{unit: client, clipping_norm: 0.5, noise_multiplier: 1.0, delta: 1.0e-3, noise_added_by: {by}}}
randomness: {{mode: reproducible, seed: 3}}
"""
    )


def fails(check: str, kind: str, path, by: str = "server") -> None:
    findings = judged(sparse_spec(kind, by), path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)[check] == "FAIL", failing(findings)


@pytest.mark.parametrize("by", ["server", "clients"])
@pytest.mark.parametrize("kind", SYSTEMS)
def test_the_correct_mechanism_passes(kind, by, tmp_path):
    findings = judged(sparse_spec(kind, by), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)
    expected = "NOT APPLICABLE" if kind == "local-top" else "PASS"
    assert verdicts(findings)["coordinates"] == expected


@pytest.mark.parametrize("by", ["server", "clients"])
def test_noise_on_the_clients_own_coordinates_alone_fails(by, tmp_path, monkeypatch):
    """Where the sum is 0 nobody's top k lies, and without noise everyone sees that."""

    def on_the_union(total, deviation, *rest):
        noisy = add_gaussian_noise(total, deviation, *rest)
        return torch.where(total == 0.0, torch.zeros_like(noisy), noisy)

    monkeypatch.setattr(updates, "add_gaussian_noise", on_the_union)
    fails("noise-scale", "local-top", tmp_path, by)


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_client_with_coordinates_of_its_own_fails(kind, tmp_path, monkeypatch):
    public = clients.public_coordinates
    calls = []

    def own(sparsification, *rest):
        calls.append(1)
        if len(calls) % 9 == 0:
            other = dataclasses.replace(sparsification, seed=len(calls), kind="random")
            return public(other, rest[0], {}, rest[2])
        return public(sparsification, *rest)

    monkeypatch.setattr(clients, "public_coordinates", own)
    fails("coordinates", kind, tmp_path)


@pytest.mark.parametrize("kind", PUBLIC)
def test_coordinates_that_a_clients_update_chose_for_all_fail(kind, tmp_path, monkeypatch):
    """All agree, but on the largest coordinates of one client's parameters-to-be."""
    chosen = {}

    def leaking(sparsification, round_index, state, device):
        del state
        if round_index not in chosen:
            secret = torch.randn(sparsification.size, generator=torch.Generator().manual_seed(9))
            chosen[round_index] = updates.largest_coordinates(secret, sparsification.kept)
        return chosen[round_index].to(device)

    monkeypatch.setattr(clients, "public_coordinates", leaking)
    monkeypatch.setattr(client_level, "public_coordinates", leaking)
    fails("coordinates", kind, tmp_path)


def test_a_top_k_of_the_sum_before_its_noise_fails(tmp_path, monkeypatch):
    release, renew = client_level.release_mean, Sparsification.renew
    clean = []

    def watching(total, *rest):
        clean.append(total.float().numpy())
        return release(total, *rest)

    monkeypatch.setattr(client_level, "release_mean", watching)
    monkeypatch.setattr(
        Sparsification,
        "renew",
        lambda self, index, previous, released: renew(self, index, previous, clean[-1]),
    )
    fails("coordinates", "released-top", tmp_path)


def test_scaling_after_clipping_fails(tmp_path, monkeypatch):
    """The sensitivity is then C·d/k, and the noise is still made for C."""
    contribute = updates.contribute

    def scaled_late(update, clipping_norm, sparsification=None, kept=None):
        plain = dataclasses.replace(sparsification, kind="released-top")
        clipped = contribute(update, clipping_norm, plain, kept)
        return dataclasses.replace(clipped, update=clipped.update * sparsification.scale)

    monkeypatch.setattr(updates, "contribute", scaled_late)
    fails("sensitivity", "random", tmp_path)


def test_scaling_noise_and_all_is_post_processing_but_not_what_was_measured(tmp_path, monkeypatch):
    """What is released is then larger, noise included: no sensitivity has changed."""
    spread = client_level.spread
    monkeypatch.setattr(
        client_level, "spread", lambda values, kept, size: spread(values * 2.0, kept, size)
    )
    checks = judged(sparse_spec("random"), tmp_path)["checks"]
    assert [check["name"] for check in checks if check["verdict"] == "FAIL"] == ["uploads"]


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_release_off_the_public_coordinates_fails(kind, tmp_path, monkeypatch):
    spread = client_level.spread
    monkeypatch.setattr(
        client_level, "spread", lambda values, kept, size: spread(values, kept, size) + 1e-6
    )
    fails("coordinates", kind, tmp_path)


@pytest.mark.parametrize("kind", PUBLIC)
@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_noise_at_the_wrong_scale_fails_on_kept_coordinates_too(
    kind, factor, tmp_path, monkeypatch
):
    """Such as noise divided by d/k, because fewer coordinates seem to need less."""
    monkeypatch.setattr(
        updates,
        "add_gaussian_noise",
        lambda total, deviation, *rest: add_gaussian_noise(total, deviation * factor, *rest),
    )
    fails("noise-scale", kind, tmp_path)


def test_the_same_noise_in_two_rounds_fails(tmp_path, monkeypatch):
    kept_noise = []

    def repeated(total, deviation, *rest):
        noisy = add_gaussian_noise(total, deviation, *rest)
        kept_noise.append(noisy - total)
        return total + kept_noise[2] if len(kept_noise) == 9 else noisy

    monkeypatch.setattr(updates, "add_gaussian_noise", repeated)
    fails("noise-scale", "random", tmp_path)


def test_publishing_traffic_of_the_clients_that_were_there_fails(tmp_path, monkeypatch):
    def of_those_present(self, message, answers):
        return sum(len(answer.message) for answer in answers), len(message) * len(answers)

    monkeypatch.setattr(client_level.ClientLevelFederation, "_traffic", of_those_present)
    fails("publication", "local-top", tmp_path)
