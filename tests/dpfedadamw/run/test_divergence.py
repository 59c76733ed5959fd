"""A run whose model is no numbers any more ends there, says so, and can be audited."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from audit.reading.ledger import read_ledger
from audit.verdict import Verdict
from dpfedadamw import api
from dpfedadamw import spec as specs
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.rounds import has_diverged
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.journal import Journal
from dpfedadamw.rundir import open_existing
from tests.audit.corruptions import finding_of
from tests.faults.client_level_faults import client_spec
from tests.faults.fault import filed
from tests.runs import begin, call, failing, small_spec, verdicts

# Each step multiplies the weights by 1 − 10⁶: float32 holds six of them.
DIVERGING = ("algorithm.learning_rate=1000", "algorithm.weight_decay=1000")


def diverging(algorithm="dp-fedadamw", **more):
    return small_spec(algorithm, overrides=DIVERGING, **more)


def kinds(training):
    return [entry["kind"] for entry in training.ledger.entries]


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """Makes a run that diverged, and its outcome; once for each algorithm."""

    @functools.cache
    def made(algorithm):
        training = begin(diverging(algorithm), tmp_path_factory.mktemp(algorithm))
        with training.lock:
            return training, engine_run.train(training)

    return made


@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "fedadamw"])
def test_a_run_ends_with_the_round_that_left_no_numbers(algorithm, diverged):
    training, outcome = diverged(algorithm)
    assert outcome.claim["diverged"] == {"rounds": training.completed}
    assert 1 < training.completed < 4
    rounds = {entry["round"] for entry in training.ledger.of_kind("spend")}
    assert rounds == (set() if algorithm == "fedadamw" else set(range(training.completed)))
    assert kinds(training)[-2:] == ["round", "claim"]
    assert not torch.isfinite(training.flat.vector).all()
    assert read_ledger(training.run.ledger.read_bytes()).rounds_to_finish == training.completed


def test_what_was_charged_stays_charged_and_no_view_is_lower_for_it(diverged, tmp_path):
    _, outcome = diverged("dp-fedadamw")
    whole = engine_run.train(begin(small_spec(), tmp_path))
    assert 0 < outcome.claim["server"]["epsilon"]["pld"] < whole.claim["server"]["epsilon"]["pld"]
    # Whoever reads these does not know in which round it ended.
    for view in ("server_worst_case", "third_party"):
        assert outcome.claim[view]["epsilon"] == whole.claim[view]["epsilon"]


def test_the_audit_says_diverged_and_fails_nobody_for_it(diverged):
    training, _ = diverged("dp-fedadamw")
    findings = filed(training)
    assert findings["verdict"] == "NOT VERIFIED", failing(findings)
    assert verdicts(findings)["uploads"] == "NOT VERIFIED"
    said = {check["name"]: check["measurement"] for check in findings["checks"]}
    assert said["uploads"].startswith("training diverged: round 2, client")
    after = training.completed
    said = f"diverged: after round {after} of 4"
    assert any(one.startswith(said) for one in findings["qualifications"])


def test_a_client_level_run_ends_likewise(tmp_path, monkeypatch):
    """Clipped updates do not diverge, but a server's rate and its noise can."""
    training = begin(client_spec(), tmp_path)
    combine = type(training.federation.server).combine

    def overflowing(self, state, uploads, broadcast):
        combined = combine(self, state, uploads, broadcast)
        enough = state.parameters.abs().max() > 0.0 and training.completed == 2
        far = combined.parameters * (math.inf if enough else 1.0)
        return ServerState(far, combined.state, combined.memories)

    monkeypatch.setattr(type(training.federation.server), "combine", overflowing)
    outcome = engine_run.train(training)
    assert outcome.claim["diverged"] == {"rounds": 3}
    assert len(training.ledger.of_kind("spend")) == 3
    # This one was made up: from the released means the auditor makes finite weights.
    assert finding_of(training.run.path, "uploads").verdict is Verdict.FAIL


def test_a_run_that_was_cut_off_after_it_diverged_charges_nothing_when_it_is_resumed(
    tmp_path, monkeypatch
):
    training = begin(diverging(), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(engine_run, "close_claim", lambda training: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine_run.train(training)
    charged = len(training.ledger.of_kind("spend"))
    again = engine_setup.resume(open_existing(training.run.path), torch.device("cpu"))
    outcome = engine_run.train(again)
    assert outcome.claim["diverged"] == {"rounds": training.completed}
    assert len(again.ledger.of_kind("spend")) == charged


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "fedadamw"])
def test_the_command_ends_with_1_and_a_line_and_so_does_resume(algorithm, tmp_path, capsys):
    spec = tmp_path / "spec.yaml"
    spec.write_text(specs.dump(diverging(algorithm)))
    assert call("run", str(spec), "--out", str(tmp_path / "runs"), "--json") == 1
    told = capsys.readouterr()
    assert "training diverged: after round 3 of 4" in told.err
    summary = json.loads(told.out)
    assert summary["test_accuracy"] is None
    assert summary["privacy"]["diverged"] == {"rounds": 3}
    assert call("run", "--resume", summary["directory"]) == 1
    assert "training diverged: after round 3 of 4" in capsys.readouterr().err
    assert Journal(open_existing(Path(summary["directory"]))).claim["diverged"] == {"rounds": 3}


def test_weights_that_are_no_numbers_to_begin_with_are_refused(tmp_path):
    experiment = prepare(small_spec(), torch.device("cpu"))
    next(experiment.model.parameters()).data.fill_(math.nan)
    with pytest.raises(engine_setup.RunError, match="not finite"):
        engine_setup.start(experiment, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["parameters", "state"])
def test_one_number_in_any_tensor_that_is_sent_is_seen(bad, where):
    vectors = {"parameters": torch.ones(9), "state": torch.ones(4)}
    whole = {"control": vectors["state"], "round": torch.arange(3), "none": torch.zeros(0)}
    assert not has_diverged(ServerState(vectors["parameters"], whole))
    vectors[where][-1] = bad
    assert has_diverged(ServerState(vectors["parameters"], whole))


@pytest.mark.thorough
def test_records_near_the_end_of_float32_pass(tmp_path):
    inputs = np.random.default_rng(3).uniform(0.0, 3e37, (600, 8)).astype(np.float32)
    labels = np.arange(600) % 2
    changes = ("federation.rounds=2", "data.clients=5", "federation.clients_per_round=4")
    run = api.run("quickstart", data=(inputs, labels), out=tmp_path, changes=changes)
    found = finding_of(run.path, "sensitivity")
    assert found.verdict is Verdict.PASS, found.measurement
