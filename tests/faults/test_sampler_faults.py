"""Samplers that pose as others, and claims that do not fit their sampler: the audit says FAIL.

Correct runs of every sampler are judged first, so that a FAIL cannot come from anything else.
"""

from __future__ import annotations

import numpy as np
import pytest

from dpfedadamw import claims
from dpfedadamw import run as engine_run
from dpfedadamw.cli import filing
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.privacy import pld
from dpfedadamw.privacy.cohorts import FixedClients, PoissonClients
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.sampling import FixedSizeSampling, PoissonSampling, ShuffledEpochs
from dpfedadamw.records import header
from tests.faults.test_faults import cut_off_and_resumed
from tests.runs import failing, judged, small_spec, train, verdicts

SIX_STEPS = "federation.local_steps=6"
FIXED = (
    "privacy.adjacency=replace-one",
    "privacy.sampling={kind: fixed, batch_size: 24}",
    SIX_STEPS,
)
SHUFFLED = (
    "privacy.adjacency=replace-one",
    "privacy.sampling={kind: shuffled, batch_size: 24}",
    SIX_STEPS,
)
BY_CHANCE = (
    "federation.client_sampling=poisson",
    "federation.clients_per_round=1",
    "federation.rounds=8",
)
CORRECT = {"poisson": (SIX_STEPS,), "fixed": FIXED, "shuffled": SHUFFLED, "clients": BY_CHANCE}
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed > 1 else []) for seed in range(1, 21)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sampler", CORRECT)
def test_a_correct_run_of_every_sampler_passes(sampler, seed, tmp_path):
    findings = judged(small_spec(overrides=CORRECT[sampler], seed=seed), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)


@pytest.mark.parametrize(
    ("algorithm", "overrides"),
    [
        ("ali-dpfl", (*FIXED[:2], "privacy.target_epsilon=6")),
        ("adap-dpfl", FIXED),
        ("adap-dpfl", SHUFFLED),
        ("dp-scaffold", ("federation.client_sampling=poisson", "federation.clients_per_round=2")),
    ],
)
def test_rules_that_adapt_or_remember_pass_with_other_samplers(algorithm, overrides, tmp_path):
    findings = judged(small_spec(algorithm, rounds=6, overrides=overrides), tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)


@pytest.mark.parametrize("sampler", ["fixed", "shuffled", "clients"])
def test_a_run_that_was_cut_off_is_resumed_and_passes(sampler, tmp_path, monkeypatch):
    changes = CORRECT[sampler]
    if sampler == "clients":
        changes = ("federation.client_sampling=poisson", "federation.clients_per_round=3")
    findings = cut_off_and_resumed(tmp_path, monkeypatch, overrides=changes)
    assert findings["verdict"] == "PASS", failing(findings)


def verdict_of(name, overrides, parent):
    findings = judged(small_spec(overrides=overrides), parent)
    assert findings["verdict"] == "FAIL"
    return verdicts(findings)[name]


def test_shuffled_epochs_posing_as_poisson_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(PoissonSampling, "batches", ShuffledEpochs(24).batches)
    assert verdict_of("sensitivity", (SIX_STEPS,), tmp_path) == "FAIL"


def test_epochs_cut_into_batches_of_poisson_sizes_fail_as_well(tmp_path, monkeypatch):
    # Their sizes are those of a Poisson sample; only that no record repeats gives them away.
    def batches(self, records, stream):
        while True:
            order = stream.permutation(records)
            start = 0
            while start < records:
                size = int(stream.bernoulli(self.rate(records), records).sum())
                yield order[start : start + size]
                start += max(size, 1)

    monkeypatch.setattr(PoissonSampling, "batches", batches)
    assert verdict_of("sensitivity", (SIX_STEPS,), tmp_path) == "FAIL"


def test_batches_of_fixed_size_posing_as_poisson_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(
        PoissonSampling, "draw", lambda self, records, stream: stream.choice(records, 24)
    )
    assert verdict_of("sensitivity", (), tmp_path) == "FAIL"


def test_shuffled_epochs_posing_as_fixed_size_fail(tmp_path, monkeypatch):
    def batches(self, records, stream):
        whole = records - records % self.batch_size
        while True:
            order = stream.permutation(records)
            for start in range(0, whole, self.batch_size):
                yield order[start : start + self.batch_size]

    monkeypatch.setattr(FixedSizeSampling, "batches", batches)
    assert verdict_of("sensitivity", FIXED, tmp_path) == "FAIL"


def test_independent_batches_posing_as_epochs_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(ShuffledEpochs, "batches", FixedSizeSampling(24).batches)
    assert verdict_of("sensitivity", SHUFFLED, tmp_path) == "FAIL"


@pytest.fixture
def fresh_accountant():
    """An accountant that has computed nothing yet, and forgets what it computes in the test."""
    pld._epsilon_pld.cache_clear()
    yield
    pld._epsilon_pld.cache_clear()


@pytest.mark.usefixtures("fresh_accountant")
@pytest.mark.parametrize("sampler", ["fixed", "shuffled"])
def test_a_replaced_record_accounted_with_sensitivity_c_fails(sampler, tmp_path, monkeypatch):
    monkeypatch.setattr(Composition, "sensitivity", 1.0)
    assert verdict_of("accounting", CORRECT[sampler], tmp_path) == "FAIL"


def test_epochs_that_are_counted_over_the_whole_run_fail(tmp_path, monkeypatch):
    # Rounds that end in mid-epoch do not fill each other up.
    monkeypatch.setattr(
        ShuffledEpochs, "charged_steps", lambda self, records, steps: max(1, steps * 24 // records)
    )
    longer = (*SHUFFLED[:2], "federation.local_steps=9")
    assert verdict_of("accounting", longer, tmp_path) == "FAIL"


@pytest.mark.parametrize("law", [FixedClients, PoissonClients])
def test_clients_that_are_always_the_same_fail(law, tmp_path, monkeypatch):
    monkeypatch.setattr(law, "draw", lambda self, clients, stream: np.arange(2))
    how = "fixed" if law is FixedClients else "poisson"
    changes = (
        f"federation.client_sampling={how}",
        "federation.clients_per_round=2",
        "federation.rounds=12",
    )
    assert verdict_of("participation", changes, tmp_path) == "FAIL"


def test_a_rota_of_clients_fails(tmp_path, monkeypatch):
    turn = iter(range(1000))
    monkeypatch.setattr(
        FixedClients, "draw", lambda self, clients, stream: np.array([next(turn) % clients])
    )
    changes = ("federation.clients_per_round=1", "federation.rounds=40")
    assert verdict_of("participation", changes, tmp_path) == "FAIL"


def test_an_adjacency_mislabelled_in_the_claim_fails(tmp_path, monkeypatch):
    claim = claims.accounting.claim
    monkeypatch.setattr(
        claims.accounting,
        "claim",
        lambda *some, **more: {**claim(*some, **more), "adjacency": "add-remove"},
    )
    assert verdict_of("promise", FIXED, tmp_path) == "FAIL"


def test_an_adjacency_mislabelled_in_the_ledger_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(
        engine_run, "header", lambda *some: {**header(*some), "adjacency": "add-remove"}
    )
    assert verdict_of("promise", FIXED, tmp_path) == "FAIL"


def test_counting_empty_rounds_as_steps_of_the_second_moment_fails(tmp_path, monkeypatch):
    def every(self, before):
        return before * self.worker.plan.local_steps

    monkeypatch.setattr(Federation, "_earlier_steps", every)
    assert verdict_of("second-moment", BY_CHANCE, tmp_path) == "FAIL"


def test_publishing_how_many_clients_took_part_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Federation,
        "_traffic",
        lambda self, message, answers: (1000 * len(answers), len(message) * len(answers)),
    )
    changes = ("federation.client_sampling=poisson", "federation.clients_per_round=3")
    assert verdict_of("publication", changes, tmp_path) == "FAIL"


def test_a_round_without_clients_changes_nothing_and_is_on_the_ledger(tmp_path):
    training, outcome = train(small_spec(overrides=BY_CHANCE), tmp_path)
    rounds = training.ledger.of_kind("round")
    empty = [entry for entry in rounds if not entry["clients"]]
    assert empty
    assert len(rounds) == 8
    charged = {entry["round"] for entry in training.ledger.of_kind("spend")}
    assert not charged & {entry["round"] for entry in empty}
    assert outcome.claim["server"]["epsilon"] > 0


def test_a_run_in_which_nobody_took_part_ends_and_is_not_verified(tmp_path, monkeypatch):
    nobody = np.zeros(0, np.int64)
    monkeypatch.setattr(PoissonClients, "draw", lambda self, clients, stream: nobody)
    training, outcome = train(small_spec(overrides=(*BY_CHANCE, "federation.rounds=2")), tmp_path)
    assert outcome.claim["server"] == {"epsilon": 0.0, "accountant": "pld", "clients": []}
    assert filing.audit(training.run).to_json()["verdict"] == "NOT VERIFIED"
