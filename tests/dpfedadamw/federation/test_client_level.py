"""Client-level runs end to end: Poisson cohorts, empty rounds, what leaves a client."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.errors import PrivacyError, SpecError
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.messages import unpack
from dpfedadamw.federation.worker import Worker
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import open_existing
from tests.runs import begin


def client_spec(*overrides: str, rounds: int = 6, per_round: int = 4):
    return specs.loads(
        f"""
version: 1
name: whole-clients
data: {{dataset: digits, clients: 20, partition: {{kind: iid}}}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: dp-fedavg, learning_rate: 0.5}}
federation: {{rounds: {rounds}, clients_per_round: {per_round}, local_steps: 2}}
privacy: {{unit: client, clipping_norm: 0.5, noise_multiplier: 1.0, delta: 1.0e-3}}
randomness: {{mode: reproducible, seed: 3}}
""",
        overrides=overrides,
    )


def train(spec, parent):
    """A whole training, without the probe that nothing here looks at."""
    training = begin(spec, parent)
    with training.lock:
        return training, engine_run.train(training)


def ledger(training) -> list[dict]:
    return [json.loads(line) for line in training.run.ledger.read_text().splitlines()]


@pytest.mark.parametrize("by", ["server", "clients"])
def test_the_released_sum_has_noise_of_the_plans_scale_in_every_round(by, tmp_path):
    training, _ = train(client_spec(f"privacy.noise_added_by={by}", rounds=12), tmp_path)
    for index in range(12):
        with np.load(training.run.evidence / f"round-{index:05d}.npz") as file:
            # 650 coordinates: standard deviation of the mean square is 5.5 %; five of them.
            assert file["noise_sum_squares"].sum() / 650 == pytest.approx(0.25, rel=0.28)
            assert (file["clipped_norms"] <= 0.5 * (1 + 1e-6)).all()
            assert file["divisor"] == 4.0


def test_a_round_without_clients_is_charged_and_released(tmp_path):
    training, _ = train(client_spec(rounds=12, per_round=1), tmp_path)
    empty = [e["round"] for e in ledger(training) if e["kind"] == "spend" and not e["clients"]]
    # Each of 20 clients comes at rate 0.05. The seed is fixed; of all seeds, 0.5 % have none.
    assert empty
    with np.load(training.run.evidence / f"round-{empty[0]:05d}.npz") as file:
        assert file["noise_sum_squares"].sum() > 0


def test_where_clients_add_the_noise_nothing_clean_leaves_them(tmp_path, monkeypatch):
    training = begin(client_spec("privacy.noise_added_by=clients", rounds=2), tmp_path)
    answer = Worker.take_part
    seen = []

    def watching(self, *arguments):
        result = answer(self, *arguments)
        upload, state = unpack(result.message, self.flat.vector)
        seen.append((upload - result.clipped.update).norm() / result.clipped.update.norm())
        assert state == {}
        return result

    monkeypatch.setattr(Worker, "take_part", watching)
    engine_run.train(training)
    assert seen
    assert min(seen) > 1.0, "each upload holds more noise than signal here"


def test_the_spend_is_on_disk_before_the_round(tmp_path, monkeypatch):
    training = begin(client_spec(rounds=3), tmp_path)
    answer = Worker.take_part

    def checking(self, *arguments):
        charged = [e["round"] for e in ledger(training) if e["kind"] == "spend"]
        assert charged == list(range(training.completed + 1))
        return answer(self, *arguments)

    monkeypatch.setattr(Worker, "take_part", checking)
    engine_run.train(training)


def test_a_delta_that_permits_publishing_a_client_is_refused():
    with pytest.raises(PrivacyError, match="one client outright would satisfy this"):
        prepare(client_spec("privacy.delta=0.05"), torch.device("cpu"))


def test_algorithms_that_upload_more_than_an_update_are_refused():
    with pytest.raises(SpecError, match="which clipping whole updates does not cover"):
        client_spec("algorithm={name: dp-fedadamw}")


def test_two_reproducible_runs_are_alike(tmp_path):
    first, _ = train(client_spec(rounds=2), tmp_path)
    second, _ = train(client_spec(rounds=2), tmp_path)
    assert first.run.weights.read_bytes() == second.run.weights.read_bytes()


def test_nothing_public_tells_how_many_took_part(tmp_path):
    training, _ = train(client_spec(rounds=5), tmp_path)
    spent = [len(e["clients"]) for e in ledger(training) if e["kind"] == "spend"]
    assert len(set(spent)) > 1, "the cohorts must differ in size for this test to mean anything"
    lines = [json.loads(line) for line in training.run.metrics.read_text().splitlines()][1:]
    for key in ("bytes_up", "bytes_down", "seconds"):
        assert len({line[key] for line in lines}) == 1


SPARSE = {
    "random": "{name: fed-smp, sparsification: {kind: random, fraction: 0.1}}",
    "released-top": "{name: fed-smp, sparsification: {kind: released-top, fraction: 0.1}}",
    "local-top": "{name: dp-fedsam-topk, sparsification: {kind: local-top, fraction: 0.1}}",
}
DENSE_BYTES = 650 * 4


@pytest.mark.sampled(5)
@pytest.mark.parametrize("by", ["server", "clients"])
@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_uploads_are_as_short_as_the_published_traffic_says(kind, by, tmp_path, monkeypatch):
    spec = client_spec(f"algorithm={SPARSE[kind]}", f"privacy.noise_added_by={by}", rounds=3)
    training = begin(spec, tmp_path)
    answer = Worker.take_part
    lengths = set()

    def watching(self, *arguments):
        result = answer(self, *arguments)
        lengths.add(len(result.message))
        return result

    monkeypatch.setattr(Worker, "take_part", watching)
    engine_run.train(training)
    (length,) = lengths
    lines = [json.loads(line) for line in training.run.metrics.read_text().splitlines()][1:]
    assert {line["bytes_up"] for line in lines} == {4 * length}, "of S clients, not of the m there"
    per_value = {"random": 4, "released-top": 4, "local-top": 8}[kind]
    if kind == "local-top" and by == "clients":
        # Their noise covers every coordinate, so every coordinate travels.
        assert length > DENSE_BYTES
    else:
        assert length < 65 * per_value + 200 < DENSE_BYTES / 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", SPARSE)
def test_noise_lies_on_public_coordinates_alone_and_on_all_where_they_are_private(kind, tmp_path):
    training, _ = train(client_spec(f"algorithm={SPARSE[kind]}", rounds=12), tmp_path)
    squares = 0.0
    for index in range(12):
        with np.load(training.run.evidence / f"round-{index:05d}.npz") as file:
            squares += float(file["noise_sum_squares"].sum()) / 12
            assert ("kept_digest" in file) == (kind != "local-top")
            if kind != "local-top":
                assert file["elsewhere_sum_squares"] == 0.0
                assert len(file["released"]) == 65
    noised = 650 if kind == "local-top" else 65
    # 12 rounds of 65 coordinates: standard deviation of the mean square is 5.1 %; five of them.
    assert squares / noised == pytest.approx(0.25, rel=0.26)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", SPARSE)
def test_a_sparse_run_that_is_cut_off_goes_on_as_if_it_had_not_been(kind, tmp_path, monkeypatch):
    spec = client_spec(f"algorithm={SPARSE[kind]}", rounds=3)
    whole, _ = train(spec, tmp_path)
    training = begin(spec, tmp_path)
    answer = Worker.take_part

    def cutting(self, *arguments):
        if arguments[0].current.index == 1:
            raise KeyboardInterrupt
        return answer(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "take_part", cutting)
        with pytest.raises(KeyboardInterrupt):
            engine_run.train(training)
    resumed = engine_setup.resume(open_existing(training.run.path), torch.device("cpu"))
    engine_run.train(resumed)
    assert resumed.run.weights.read_bytes() == whole.run.weights.read_bytes()


@pytest.mark.parametrize("unit", ["record", "none"])
@pytest.mark.parametrize("name", ["fed-smp", "dp-fedsam-topk", "blur", "blurs"])
def test_systems_of_client_level_say_what_to_use_under_another_unit(name, unit):
    privacy = {
        "record": "{unit: record, clipping_norm: 1, noise_multiplier: 1, delta: 1e-5, "
        "sampling: {kind: poisson, expected_batch_size: 8}}",
        "none": "{unit: none, sampling: {kind: full}}",
    }[unit]
    with pytest.raises(SpecError, match=r"use privacy\.unit client, or (dp-)?fed(avg|sam)"):
        client_spec(f"algorithm={{name: {name}}}", f"privacy={privacy}")
