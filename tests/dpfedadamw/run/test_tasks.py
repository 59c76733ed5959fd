"""Runs of other tasks than a classification: trained, audited, told, computed again, exported."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dpfedadamw import api
from dpfedadamw import spec as specs
from dpfedadamw.accounting.registry import headline
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.experiment import prepare
from dpfedadamw.models.own.permission import allowing
from dpfedadamw.reexecution.plain import PlainGradients
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine
from dpfedadamw.run.start_options import StartOptions
from tests.runs import begin, failing, small_spec, train

TAGGER = """
from torch import nn

class Tagger(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words, self.head = nn.Embedding(12, 4), nn.Linear(4, classes)

    def forward(self, tokens):
        return self.head(self.words(tokens))
"""
TASKS = {
    "regression": {"kind": "regression", "loss": "huber"},
    "multi_label": {"kind": "multi_label"},
    "token_classification": {"kind": "token_classification", "reduction": "sum"},
}


def made(kind: str, count: int, generator: np.random.Generator):
    """Records and targets that a model can learn."""
    if kind == "token_classification":
        tokens = generator.integers(1, 12, (count, 5))
        tags = np.where(np.arange(5) > 2 + generator.integers(0, 3, (count, 1)), -100, tokens % 3)
        return np.stack([tokens, np.zeros_like(tokens)], 1).astype(np.int32), tags
    records = generator.normal(size=(count, 3)).astype(np.float32)
    told = records @ np.array([[1.0, -1.0], [0.5, 1.0], [0.0, 0.25]])
    return records, told if kind == "regression" else (told > 0).astype(np.uint8)


@pytest.fixture
def spec_of(tmp_path, monkeypatch):
    """Makes the spec of a small run of a task."""
    (tmp_path / "tagger.py").write_text(TAGGER)
    monkeypatch.chdir(tmp_path)

    def make(kind: str, rounds: int = 4):
        generator = np.random.default_rng(0)
        (x_train, y_train), (x_test, y_test) = (made(kind, n, generator) for n in (240, 60))
        np.savez("records.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
        mapping = small_spec(rounds=rounds).to_mapping()
        mapping["model"]["hidden"] = [8]
        mapping["data"] = {
            "dataset": "arrays",
            "path": "records.npz",
            "cache": str(tmp_path / "cache"),
            "clients": 5,
            "partition": {"kind": "iid"},
        }
        mapping["task"] = TASKS[kind]
        if kind == "token_classification":
            own = {"name": "python", "target": "tagger:Tagger", "vocabulary": 12, "length": 5}
            mapping["model"] = own
        return specs.from_mapping(mapping)

    with allowing(["tagger"]):
        yield make


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", TASKS)
def test_a_run_of_every_task_passes_its_audit_and_tells_its_measures(spec_of, tmp_path, kind):
    run = api.run(spec_of(kind).to_mapping(), out=tmp_path / "runs", allow_code=["tagger"])
    findings = run.audit().to_json()
    assert findings["verdict"] == "PASS", failing(findings)
    last = list(run.metrics)[-1]
    report = json.loads((run.path / "report.json").read_text())
    assert last["epsilon"] == pytest.approx(run.epsilon)
    expected = {
        "regression": {"test_rmse", "test_mae", "test_r2"},
        "multi_label": {"test_micro_f1"},
        "token_classification": set(),
    }[kind]
    rate = set() if kind == "regression" else {"test_majority_rate"}
    assert set(run.measures) == expected | rate
    assert {one["name"] for one in report["utility"]["measures"]} == expected
    page = (run.path / "report.html").read_text()
    if kind == "regression":
        assert run.accuracy is None
        assert last["test_rmse"] < next(iter(run.metrics))["test_rmse"]
        assert "Test RMSE" in page
        assert "Test error over the rounds" in page
    else:
        assert run.accuracy is not None
        assert report["utility"]["final_accuracy"] == run.accuracy
        assert ("exact match" in page) == (kind == "multi_label")

    card = (run.export(tmp_path / "model", licence="mit") / "README.md").read_text()
    assert ("RMSE" in card) == (kind == "regression")
    loaded = api.load_model(tmp_path / "model", allow_code=["tagger"])
    assert loaded.record_task.kind == kind
    trained = run.model.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in loaded.state_dict().items())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", TASKS)
def test_sums_computed_again_plainly_agree_with_the_engine_and_so_do_canaries(
    spec_of, tmp_path, kind
):
    experiment = prepare(spec_of(kind, rounds=1), torch.device("cpu"))
    order = CanaryOrder(20, "input")
    training = engine_setup.start(
        experiment, tmp_path / "runs", options=StartOptions(canaries=order)
    )
    with training.lock:
        engine.train(training)
    planted = dict(np.load(training.run.evidence / "canaries.npz"))
    assert np.isfinite(planted["projections"]).any()

    dataset = experiment.dataset
    records, labels = dataset.train.inputs[0:6], torch.from_numpy(dataset.train.labels[:6])
    found = training.engine._inner(records, labels)
    plain = PlainGradients(experiment).clipped_sum(
        training.flat.vector, records, labels, 1.0, found.raw_norms.numpy().astype(np.float32)
    )
    assert np.allclose(found.raw_norms, plain.raw_norms, rtol=1e-5, atol=1e-7)
    assert float(torch.linalg.vector_norm(found.total.double() - plain.clean)) <= 1e-5


def test_epsilon_by_round_grows_to_the_claim_and_is_the_same_whoever_took_part(tmp_path):
    for unit, algorithm in (("record", "dp-fedadamw"), ("client", "blur")):
        spec = small_spec(algorithm, rounds=2)
        assert spec.privacy.unit == unit
        told = []
        for seed in (1, 2):
            one = small_spec(algorithm, rounds=2, seed=seed)
            training = begin(one, tmp_path / f"{unit}-{seed}")
            outcome = engine.train(training)
            lines = training.run.metrics.read_text().splitlines()
            told.append([json.loads(line)["epsilon"] for line in lines])
            assert told[-1][-1] == pytest.approx(headline(outcome.claim), rel=1e-9)
        assert told[0] == told[1]
        assert told[0][0] == 0.0
        assert told[0] == sorted(set(told[0]))


def test_a_round_that_was_begun_again_counts_in_what_is_told(tmp_path):
    training, _ = train(small_spec(rounds=3), tmp_path)
    plan = training.experiment.plan
    assert plan.epsilon_after(2, 1) == plan.epsilon_after(3)
    entries = list(training.ledger.entries)
    assert plan.begun_again(entries, 3) == 0
    # The process ended in round 2: what it charged there counts before that round is run again.
    cut = [one for one in entries if one["kind"] != "round" or one["round"] < 2]
    assert plan.begun_again(cut, 2) == 1
    spends = [{**one, "attempt": 2} for one in entries if one["kind"] == "spend"]
    again = [*cut, *(one for one in spends if one["round"] == 2)]
    ended = [*again, *(one for one in entries if one["kind"] == "round" and one["round"] == 2)]
    assert plan.begun_again(ended, 3) == 1
    assert plan.epsilon_of_round(ended, 3) == plan.epsilon_after(4)
    assert plan.epsilon_of_round(ended, 2) == plan.epsilon_after(2)
    assert plan.epsilon_after(0) == 0.0
    free = train(small_spec("fedavg", rounds=1), tmp_path / "free")[0]
    assert free.epsilon is None
    assert "epsilon" not in free.run.metrics.read_text()
