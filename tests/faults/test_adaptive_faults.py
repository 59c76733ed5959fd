"""Faults of runs that adapt, patched into the real engine: the audit must say FAIL."""

from __future__ import annotations

import dataclasses

import pytest

from dpfedadamw import run as engine_run
from dpfedadamw.algorithms.adaptive_iterations import IterationPace
from dpfedadamw.algorithms.adaptive_noise import NoisePace
from dpfedadamw.algorithms.base import Turn
from dpfedadamw.cli import filing
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.privacy import oracle, plan
from dpfedadamw.privacy.course import Course
from dpfedadamw.privacy.noise import add_gaussian_noise
from dpfedadamw.probe import probe_of
from tests.runs import begin, failing, judged, small_spec, verdicts

ALI = small_spec("ali-dpfl")
ADAP = small_spec("adap-dpfl", rounds=6, overrides=("algorithm.noise_decay.patience=1",))


@pytest.mark.parametrize("spec", [ALI, ADAP], ids=["ali", "adap"])
def test_the_correct_engine_passes(spec, tmp_path):
    findings = judged(spec, tmp_path)
    assert findings["verdict"] == "PASS", failing(findings)


def hide_a_step(monkeypatch):
    """The ledger is charged for one step less than each round takes."""
    charge = Federation._charge

    def told_less(self, index, attempt, chosen):
        fewer = dataclasses.replace(
            self.worker.plan, local_steps=max(1, self.worker.plan.local_steps - 1)
        )
        worker = dataclasses.replace(self.worker, plan=fewer)
        charge(dataclasses.replace(self, worker=worker), index, attempt, chosen)

    monkeypatch.setattr(Federation, "_charge", told_less)


def test_a_ledger_that_hides_a_step_fails(tmp_path, monkeypatch):
    hide_a_step(monkeypatch)
    findings = judged(ALI, tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["promise"] == "FAIL"


def test_a_ledger_that_hides_a_step_in_charge_and_round_fails(tmp_path, monkeypatch):
    hide_a_step(monkeypatch)
    close = Federation._close_round

    def tell_less(self, index, attempt, chosen, collected, answers, state):
        fewer = [
            dataclasses.replace(one, steps=one.steps - 1, queries=one.queries - 1)
            for one in answers
        ]
        close(self, index, attempt, chosen, collected, fewer, state)

    monkeypatch.setattr(Federation, "_close_round", tell_less)
    findings = judged(ALI, tmp_path)
    assert findings["verdict"] == "FAIL"
    # Evidence has a column a query, and the rule's own steps can be worked out anew.
    assert {verdicts(findings)[name] for name in ("promise", "integrity")} == {"FAIL"}


def test_steps_that_are_not_those_of_the_rule_fail(tmp_path, monkeypatch):
    turn = IterationPace.turn

    def greedy(self, state, terms):
        more = turn(self, state, terms).local_steps
        return Turn(min(10, more + 1 if more < 10 else 9, terms.step_limit - terms.spent_steps))

    monkeypatch.setattr(IterationPace, "turn", greedy)
    findings = judged(ALI, tmp_path)
    assert verdicts(findings)["promise"] == "FAIL"


def test_a_run_that_goes_on_beyond_its_budget_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(Course, "check", lambda *arguments: None)
    monkeypatch.setattr(IterationPace, "turn", lambda self, state, terms: Turn(10))
    findings = judged(small_spec("ali-dpfl", rounds=6), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert {verdicts(findings)[name] for name in ("promise", "accounting")} == {"FAIL"}


def test_a_limit_that_the_target_does_not_afford_fails(tmp_path, monkeypatch):
    solve = plan.solve_step_limit
    monkeypatch.setattr(plan, "solve_step_limit", lambda *given: solve(*given) + 3)
    findings = judged(small_spec("ali-dpfl", rounds=6), tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["promise"] == "FAIL"


def test_noise_below_the_ledgers_in_the_late_rounds_alone_fails(tmp_path, monkeypatch):
    """The noise falls by a tenth more than the ledger says, wherever it has fallen at all."""
    first = ADAP.privacy.noise_multiplier

    def falls_further(total, deviation, *rest, **more):
        return add_gaussian_noise(
            total, deviation * (0.9 if deviation < first else 1.0), *rest, **more
        )

    monkeypatch.setattr(oracle, "add_gaussian_noise", falls_further)
    findings = judged(ADAP, tmp_path)
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["noise-scale"] == "FAIL"


def test_noise_that_falls_although_the_loss_does_not_fails(tmp_path, monkeypatch):
    """Within what is accounted for, and charged as it is: but not what the rule says."""
    monkeypatch.setattr(
        NoisePace,
        "turn",
        lambda self, state, terms: Turn(
            terms.local_steps, max(self.floor, self.factor ** max(0, terms.round_index - 1))
        ),
    )
    spec = small_spec("adap-dpfl", rounds=6, overrides=("algorithm.noise_decay.patience=1",
                                                         "algorithm.learning_rate=8"))  # fmt: skip
    findings = judged(spec, tmp_path)
    assert verdicts(findings)["promise"] == "FAIL"


def test_a_claim_for_what_happened_to_be_spent_fails(tmp_path, monkeypatch):
    """How much was spent followed the releases, so its ε is no guarantee."""
    monkeypatch.setattr(Course, "accounted", lambda self, entries: list(entries))
    spec = small_spec("ali-dpfl", clients_per_round=2)
    training = begin(spec, tmp_path)
    engine_run.train(training)
    filing.attest_training(training.run, probe_of(training), filing.load_signers(None, None))
    findings = filing.audit(training.run).to_json()
    assert findings["verdict"] == "FAIL"
    assert verdicts(findings)["accounting"] == "FAIL"
