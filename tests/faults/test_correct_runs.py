"""The same runs without a fault pass: a FAIL in the gallery comes only from its patch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedadamw.federation.client import ClientLevel
from dpfedadamw.filing import after_training as filing
from dpfedadamw.privacy.cohorts import PoissonClients
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import open_existing
from tests.faults.adaptive_faults import adap, ali
from tests.faults.client_level_faults import client_spec
from tests.faults.noise_faults import SHUFFLED as SHORT_BATCHES
from tests.faults.noise_faults import SPARSE, cut_off_and_resumed, fixed_keys
from tests.faults.sampling_faults import BY_CHANCE, FIXED, SHUFFLED, SIX_STEPS
from tests.faults.server_faults import LARGER
from tests.faults.sparse_faults import SYSTEMS, sparse_spec
from tests.runs import attest, begin, failing, judged, small_spec, train, verdicts

CORRECT = {"clients": BY_CHANCE, "poisson": (SIX_STEPS,), "fixed": FIXED, "shuffled": SHUFFLED}
BY_CHANCE_RECORDS = ("federation.client_sampling=poisson", "federation.clients_per_round=1")
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed > 1 else []) for seed in range(1, 21)]


def passes(spec, folder):
    findings = judged(spec, folder)
    assert findings["verdict"] == "PASS", failing(findings)
    return findings


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "dp-fedavg", "dp-localadamw"])
def test_the_correct_engine_passes(algorithm, tmp_path):
    passes(small_spec(algorithm), tmp_path)


def test_a_run_passes_again_with_all_its_reports_beside_it(tmp_path):
    training, _ = train(small_spec(), tmp_path)
    signers = filing.load_signers(None, None)
    attest(training)
    findings = filing.audit(training.run)
    for audience in ("internal", "public"):
        filing.file_report(training.run, findings, signers.auditor, audience)
    again = filing.audit(training.run).to_json()
    assert again["verdict"] == "PASS", failing(again)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("overrides", [SPARSE, SHORT_BATCHES], ids=["empty", "short"])
def test_empty_and_short_batches_pass(overrides, tmp_path):
    passes(small_spec(overrides=overrides), tmp_path)


@pytest.mark.thorough
def test_a_model_with_hidden_layers_and_a_small_clipping_norm_passes(tmp_path):
    changes = ("model={name: mlp, hidden: [8]}", "privacy.clipping_norm=0.1")
    passes(small_spec(overrides=changes), tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spec", [ali, adap], ids=["ali", "adap"])
def test_rules_that_adapt_pass(spec, tmp_path):
    passes(spec(), tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "dp-fedopt", "dp-scaffold"])
def test_runs_that_publish_the_average_of_their_models_pass(algorithm, tmp_path):
    passes(small_spec(algorithm, overrides=("algorithm.server.averaging=8",)), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("overrides", [BY_CHANCE_RECORDS, LARGER], ids=["by chance", "in pieces"])
def test_averages_pass_where_rounds_may_be_empty_and_where_pieces_are_kept(overrides, tmp_path):
    changes = ("algorithm.server.averaging=2", *overrides)
    passes(small_spec("dp-fedavg", rounds=20, overrides=changes), tmp_path)


# Poisson batches are those of the correct engine above, and cohorts by chance stay quick here.
@pytest.mark.sampled(4 * len(SEEDS))
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sampler", CORRECT)
def test_every_sampler_passes(sampler, seed, tmp_path):
    passes(small_spec(overrides=CORRECT[sampler], seed=seed), tmp_path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("adap-dpfl", SHUFFLED),
        ("ali-dpfl", (*FIXED[:2], "privacy.target_epsilon=6")),
        ("adap-dpfl", FIXED),
        ("dp-scaffold", ("federation.client_sampling=poisson", "federation.clients_per_round=2")),
    ],
)
def test_rules_that_adapt_or_remember_pass_with_other_samplers(algorithm, overrides, tmp_path):
    passes(small_spec(algorithm, rounds=6, overrides=overrides), tmp_path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("by", ["server", "clients"])
def test_client_level_runs_pass(by, tmp_path):
    passes(client_spec(by), tmp_path)


@pytest.mark.sampled(2 * len(SYSTEMS))
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        pytest.param(kind, by, marks=[pytest.mark.slow] if (place + turn) % 2 else [])
        for place, kind in enumerate(SYSTEMS)
        for turn, by in enumerate(("clients", "server"))
    ],
)
def test_sparse_updates_pass(kind, by, tmp_path):
    findings = passes(sparse_spec(kind, by), tmp_path)
    expected = "NOT APPLICABLE" if kind == "local-top" else "PASS"
    assert verdicts(findings)["coordinates"] == expected


def test_two_queries_on_one_batch_are_one_draw_of_it(tmp_path):
    # Counted twice, the batch sizes of this correct run would scatter too little to be believed.
    passes(small_spec("dp-fedsam", seed=117), tmp_path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        FIXED,
        SHUFFLED,
        ("federation.client_sampling=poisson", "federation.clients_per_round=3"),
    ],
    ids=["poisson", "fixed", "shuffled", "clients"],
)
def test_a_run_that_was_cut_off_is_resumed_and_passes(overrides, tmp_path, monkeypatch):
    fixed_keys(monkeypatch)
    findings = cut_off_and_resumed(small_spec(mode="release", overrides=overrides), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)


def test_resuming_a_client_level_run_charges_the_round_again(tmp_path, monkeypatch):
    training = begin(client_spec(), tmp_path)
    receive = ClientLevel.receive

    def cutting(self, current):
        if current.index == 2:
            raise KeyboardInterrupt
        return receive(self, current)

    with monkeypatch.context() as patch:
        patch.setattr(ClientLevel, "receive", cutting)
        with pytest.raises(KeyboardInterrupt):
            engine_run.train(training)
    resumed = engine_setup.resume(open_existing(training.run.path), torch.device("cpu"))
    outcome = engine_run.train(resumed)
    assert outcome.claim["third_party"]["rounds"] == 31


def test_a_round_without_clients_changes_nothing_and_is_on_the_ledger(tmp_path):
    training, outcome = train(small_spec(overrides=BY_CHANCE), tmp_path)
    rounds = training.ledger.of_kind("round")
    empty = [entry for entry in rounds if not entry["clients"]]
    assert empty
    assert len(rounds) == 8
    charged = {entry["round"] for entry in training.ledger.of_kind("spend")}
    assert not charged & {entry["round"] for entry in empty}
    assert outcome.claim["server"]["epsilon"]["pld"] > 0


def test_a_run_in_which_nobody_took_part_ends_and_is_not_verified(tmp_path, monkeypatch):
    nobody = np.zeros(0, np.int64)
    monkeypatch.setattr(PoissonClients, "draw", lambda self, clients, stream: nobody)
    training, outcome = train(small_spec(overrides=(*BY_CHANCE, "federation.rounds=2")), tmp_path)
    assert outcome.claim["server"] == {"epsilon": {"pld": 0.0}, "accountant": "pld", "clients": []}
    assert filing.audit(training.run).to_json()["verdict"] == "NOT VERIFIED"
