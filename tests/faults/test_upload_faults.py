"""Rules that smuggle what was never noised into what leaves a client: the audit names the place.

Each rule does its work correctly and then reaches behind the oracle for the clean gradient. The
same runs without a fault are judged in ``tests/dpfedadamw/algorithms/test_registry.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

import audit.exchanges
from dpfedadamw import run as engine_run
from dpfedadamw import upload_evidence
from dpfedadamw.algorithms.base import Upload
from dpfedadamw.cli import filing
from dpfedadamw.evidence import ClientEvidence
from dpfedadamw.federation.client_level import ClientLevelFederation
from dpfedadamw.federation.recording import RecordingOracle
from dpfedadamw.privacy import oracle as oracles
from dpfedadamw.privacy.noise import add_gaussian_noise
from dpfedadamw.probe import probe_of
from tests.faults.test_client_level_faults import client_spec
from tests.runs import begin, small_spec


def behind(oracle, parameters):
    """The clean mean gradient of all of a client's records."""
    private = getattr(oracle, "_oracle", oracle)
    batch = (private._inputs, private._labels)
    total = oracles.clipped_sum(private._engine, private._flat, parameters, batch, 512).total
    return total / len(private._labels)


@dataclasses.dataclass(frozen=True)
class Smuggling:
    """A rule that changes its upload by the clean gradient once it has done its work."""

    rule: object
    change: Callable
    only_round: int | None = None

    @property
    def queries_per_step(self):
        return self.rule.queries_per_step

    def run(self, broadcast, oracle, observer):
        upload = self.rule.run(broadcast, oracle, observer)
        round_index = broadcast.earlier_steps // broadcast.local_steps
        if self.only_round in (None, round_index):
            return self.change(upload, behind(oracle, broadcast.parameters))
        return upload


def judged_with(spec, parent, change, only_round=None):
    """Findings on a run whose rule smuggles."""
    training = begin(spec, parent)
    federation = training.federation
    rule = Smuggling(federation.worker.rule, change, only_round)
    worker = dataclasses.replace(federation.worker, rule=rule)
    training.federation = dataclasses.replace(federation, worker=worker)
    engine_run.train(training)
    filing.attest_training(training.run, probe_of(training), filing.load_signers(None, None))
    return filing.audit(training.run).to_json()


def uploads_of(findings):
    return next(check for check in findings["checks"] if check["name"] == "uploads")


def said(findings):
    """What the check says of a run that must fail by it."""
    check = uploads_of(findings)
    assert (findings["verdict"], check["verdict"]) == ("FAIL", "FAIL"), check
    return check["measurement"]


def into_the_update(upload, clean):
    return dataclasses.replace(upload, update=upload.update + 1e-2 * clean)


def into_the_second_moment(upload, clean):
    moment = torch.full_like(upload.state["second_moment"], float(clean.square().mean()))
    return dataclasses.replace(upload, state={**upload.state, "second_moment": moment})


def a_little_into_the_second_moment(upload, clean):
    moment = upload.state["second_moment"] + 1e-2 * clean.square().mean()
    return dataclasses.replace(upload, state={**upload.state, "second_moment": moment})


def beside_the_rest(upload, clean):
    return dataclasses.replace(upload, state={**upload.state, "loss": clean[:1].clone()})


def into_the_memory(upload, clean):
    memory = {name: value + 1e-2 * clean for name, value in upload.memory.items()}
    return dataclasses.replace(upload, memory=memory)


def as_a_memory_of_its_own(upload, clean):
    return dataclasses.replace(upload, memory={**upload.memory, "momentum": clean})


@pytest.mark.parametrize(
    ("algorithm", "change", "named"),
    [
        ("dp-fedadamw", into_the_update, "tensor 'parameters'"),
        ("dp-fedavg", into_the_update, "tensor 'parameters'"),
        ("dp-fafed", into_the_update, "tensor 'parameters'"),
        ("dp-fedavg-ls", into_the_update, "tensor 'parameters'"),
        ("dp-fedadamw", into_the_second_moment, "tensor 'second_moment'"),
        ("dp-fedadamw", a_little_into_the_second_moment, "tensor 'second_moment'"),
        ("dp-fedadamw", beside_the_rest, "holds a tensor 'loss'"),
        ("dp-fedavg", beside_the_rest, "holds a tensor 'loss'"),
        ("dp-scaffold", into_the_memory, "memory, tensor 'control'"),
        ("dp-fedavg", as_a_memory_of_its_own, "memory holds a tensor 'momentum'"),
    ],
)
def test_what_is_smuggled_is_found_and_named(algorithm, change, named, tmp_path):
    assert named in said(judged_with(small_spec(algorithm, rounds=2), tmp_path, change))


def test_a_leak_in_the_last_round_alone_is_found(tmp_path):
    text = said(judged_with(small_spec(), tmp_path, into_the_update, only_round=3))
    assert "round 3, client" in text
    assert "round 2" not in text


def test_asking_at_a_point_made_of_clean_gradients_is_found(tmp_path, monkeypatch):
    # Every answer is noised, but what is asked depends on the records: their sensitivity is not C.
    gradient = RecordingOracle.gradient

    def elsewhere(self, parameters):
        return gradient(self, parameters + 1e-2 * behind(self, parameters))

    monkeypatch.setattr(RecordingOracle, "gradient", elsewhere)
    assert "the point of query 1" in said(judged_with(small_spec(), tmp_path, lambda u, c: u))


def test_a_recorder_that_shows_each_check_what_it_likes_is_found(tmp_path, monkeypatch):
    # Hardly any noise is added; fresh noise of the right size is shown to the noise checks.
    monkeypatch.setattr(
        oracles,
        "add_gaussian_noise",
        lambda total, deviation, *rest, **more: add_gaussian_noise(
            total, 1e-3 * deviation, *rest, **more
        ),
    )
    query, generator = ClientEvidence.query, torch.Generator().manual_seed(5)

    def flattering(self, real):
        noise = 2.0 * torch.randn(len(real.clean_sum), generator=generator)
        query(self, dataclasses.replace(real, noisy_sum=real.clean_sum + noise))

    monkeypatch.setattr(ClientEvidence, "query", flattering)
    findings = judged_with(small_spec("dp-fedavg"), tmp_path, lambda upload, clean: upload)
    assert {c["name"] for c in findings["checks"] if c["verdict"] == "FAIL"} == {"uploads"}
    assert "do not carry the noise recorded" in said(findings)


def test_a_recorder_that_calls_the_missing_noise_clean_is_found(tmp_path, monkeypatch):
    # As above, but the difference is declared to be the clean sum: it is then far too long.
    query, generator = ClientEvidence.query, torch.Generator().manual_seed(5)

    def flattering(self, real):
        noise = 2.0 * torch.randn(len(real.clean_sum), generator=generator)
        query(self, dataclasses.replace(real, clean_sum=real.noisy_sum - noise))

    monkeypatch.setattr(ClientEvidence, "query", flattering)
    findings = judged_with(small_spec("dp-fedavg"), tmp_path, lambda upload, clean: upload)
    assert "longer than its clipped gradients" in said(findings)


def test_an_upload_that_is_not_the_one_combined_is_found(tmp_path, monkeypatch):
    participation = upload_evidence.UploadRecorder.participation

    def another(self, index, place, client, broadcast, upload, *rest):
        participation(self, index, place, client, broadcast, upload, *rest)
        name = upload_evidence.upload_file(index, client)
        with np.load(self._directory / name) as file:
            arrays = dict(file)
        arrays["upload"][-1] ^= 1
        upload_evidence.write_arrays(self._directory / name, arrays)

    monkeypatch.setattr(upload_evidence.UploadRecorder, "participation", another)
    findings = judged_with(small_spec("dp-fedavg"), tmp_path, lambda upload, clean: upload)
    assert "not the one that the server combined" in said(findings)


def only_some_fit(monkeypatch, capacity):
    for module in (audit.exchanges, upload_evidence):
        monkeypatch.setattr(module, "CAPACITY_BYTES", capacity)
        monkeypatch.setattr(module, "FEWEST_WHOLE", 4)


# 650 coordinates, three queries: 36 kB a participation; 5 of 16 fit, or none.
@pytest.mark.parametrize("capacity", [5 * 36_400, 36_400])
def test_a_leak_is_found_where_only_some_participations_fit(capacity, tmp_path, monkeypatch):
    only_some_fit(monkeypatch, capacity)
    correct = judged_with(small_spec(), tmp_path / "correct", lambda upload, clean: upload)
    assert uploads_of(correct)["verdict"] == "PASS", uploads_of(correct)
    assert 2 <= uploads_of(correct)["details"]["replayed"] < 16
    assert "tensor 'parameters'" in said(
        judged_with(small_spec(), tmp_path / "leaking", into_the_update)
    )


@pytest.mark.parametrize("name", ["dp-fedsam", "dp-scaffold", "dp-fedlada"])
def test_other_rules_are_replayed_at_a_sample_of_coordinates(name, tmp_path, monkeypatch):
    only_some_fit(monkeypatch, 36_400)
    findings = judged_with(small_spec(name, rounds=2), tmp_path, lambda upload, clean: upload)
    assert findings["verdict"] == "PASS", uploads_of(findings)
    assert uploads_of(findings)["details"]["coordinates"] < 650


def test_a_rule_that_needs_whole_vectors_says_so_beside_the_verdict(tmp_path, monkeypatch):
    only_some_fit(monkeypatch, 36_400)
    spec = small_spec("dp-fedavg-ls", rounds=2)
    findings = judged_with(spec, tmp_path, lambda upload, clean: upload)
    check = uploads_of(findings)
    assert (findings["verdict"], check["verdict"]) == ("PASS", "NOT VERIFIED")
    assert check["severity"] == "theoretical"
    assert any("smoothing mixes all coordinates" in text for text in findings["qualifications"])


def test_a_participation_that_should_have_been_kept_cannot_be_left_out(tmp_path):
    findings = judged_with(small_spec(rounds=2), tmp_path, lambda upload, clean: upload)
    assert findings["verdict"] == "PASS"
    run = next(path for path in tmp_path.iterdir() if not path.is_symlink())
    next((run / "evidence").glob("upload-00001-*.npz")).unlink()
    again = filing.audit(engine_run.RunDirectory(run)).to_json()
    # The trainer signed for it, and the replay misses it.
    assert again["verdict"] == "FAIL"
    assert uploads_of(again)["verdict"] == "NOT VERIFIED"
    assert "is missing" in uploads_of(again)["measurement"]


def test_a_client_level_upload_with_a_further_tensor_is_found(tmp_path):
    findings = judged_with(client_spec(), tmp_path, beside_the_rest)
    assert "uploaded or kept a tensor 'loss'" in said(findings)


def test_a_client_level_memory_is_found(tmp_path):
    findings = judged_with(client_spec(), tmp_path, as_a_memory_of_its_own, only_round=29)
    assert "uploaded or kept a tensor 'momentum'" in said(findings)


def test_a_client_level_server_that_adds_a_clean_update_is_found(tmp_path, monkeypatch):
    receive = ClientLevelFederation._receive

    def adding(self, state, index, attempt, chosen, answers):
        uploads = receive(self, state, index, attempt, chosen, answers)
        if index < 29 or not answers:
            return uploads
        return [Upload(uploads[0].update + 1e-2 * answers[0].clipped.update)]

    monkeypatch.setattr(ClientLevelFederation, "_receive", adding)
    findings = judged_with(client_spec(), tmp_path, lambda upload, clean: upload)
    assert "round 29: the released mean does not carry the noise recorded" in said(findings)
