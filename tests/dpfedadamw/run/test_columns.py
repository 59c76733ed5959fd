"""Whole runs that learn bounds of columns: what is charged, kept, resumed, claimed and served."""

from __future__ import annotations

import json
import shutil

import dp_accounting
import numpy as np
import pytest
import torch

from dpfedadamw.accounting.registry import claimed
from dpfedadamw.budget import charges
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.experiment import RunError, foresee
from dpfedadamw.filing import after_training as filing
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.run import columns, evaluation, prediction
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions
from dpfedadamw.rundir import RunDirectory
from tests.runs import attest, begin, failing, train, verdicts
from tests.tables import learning_spec, write_table

CPU = torch.device("cpu")
DELTA = 1e-5
BESIDE = Composition(6.0, 1.0, 2, 1, "full")


class Killed(BaseException):
    """The process ends here."""


def lines(run):
    return [json.loads(line) for line in run.ledger.read_text().splitlines()]


def by_dp_accounting(rate, sigma, steps, beside):
    """ε of Poisson steps, and of the histograms where they are counted, by dp-accounting."""
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    events = [dp_accounting.SelfComposedDpEvent(step, steps)]
    if beside:
        query = dp_accounting.GaussianDpEvent(beside.noise_multiplier)
        events.append(dp_accounting.SelfComposedDpEvent(query, beside.steps))
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    return accountant.compose(dp_accounting.ComposedDpEvent(events)).get_epsilon(DELTA)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    training, outcome = train(learning_spec(), tmp_path_factory.mktemp("run"))
    filing.attest_training(training.run, filing.load_signers(None, None))
    return training, outcome


def test_a_correct_run_passes_its_audit(trained):
    findings = filing.audit(trained[0].run).to_json()
    assert findings["verdict"] in ("PASS", "NOT VERIFIED"), failing(findings)
    found = verdicts(findings)
    assert "FAIL" not in found.values(), failing(findings)
    asked = ("integrity", "promise", "columns", "accounting", "views", "disclosure")
    assert [found[name] for name in (*asked, "outside-budget")] == ["PASS"] * 7, failing(findings)


def test_the_claim_is_that_of_rounds_and_histograms(trained):
    training, outcome = trained
    worst = max(24 / records for records in training.experiment.plan.records)
    due = by_dp_accounting(worst, 2.0, 12, BESIDE)
    found = claimed(outcome.claim["server_worst_case"])
    assert found == pytest.approx(due, rel=1e-3)
    without = by_dp_accounting(worst, 2.0, 12, None)
    assert found > 1.02 * without
    assert outcome.claim["dp_accounting"]["epsilon"] == pytest.approx(due, rel=1e-3)
    assert outcome.claim["columns"]["learnt"] == 2
    alone = by_dp_accounting(1e-9, 100.0, 1, BESIDE)
    assert outcome.claim["columns"]["epsilon"] == pytest.approx(alone, rel=1e-3)
    third = claimed(outcome.claim["third_party"])
    assert outcome.claim["columns"]["epsilon"] < third < found


def test_what_is_foreseen_is_what_is_claimed(trained):
    plan = foresee(learning_spec())
    expected = plan.expected_claim()
    assert claimed(expected["server_worst_case"]) == claimed(trained[1].claim["server_worst_case"])
    assert claimed(expected["third_party"]) == claimed(trained[1].claim["third_party"])
    assert claimed(expected["server"]) == claimed(expected["server_worst_case"])


def test_a_target_is_solved_for_with_the_histograms_in_it():
    overrides = ("privacy.noise_multiplier=null", "privacy.target_epsilon=1.5")
    with_them = foresee(learning_spec(*overrides))
    assert 1.49 < claimed(with_them.expected_claim()["server_worst_case"]) <= 1.5
    nearly_free = foresee(learning_spec(*overrides, "data.column_noise_multiplier=100000"))
    assert with_them.noise_multiplier > nearly_free.noise_multiplier


def test_a_limit_on_epsilon_counts_them():
    limited = ("federation.rounds=200", "federation.max_epsilon=1.6")
    rounds = []
    for sigma in (6, 100000):
        plan = foresee(learning_spec(*limited, f"data.column_noise_multiplier={sigma}"))
        rounds.append(plan.expected_claim(1)["server"]["clients"][0]["participations"])
    assert 0 < rounds[0] < rounds[1] < 200


@pytest.mark.thorough
def test_a_run_that_is_ended_by_its_limit_passes(tmp_path):
    spec = learning_spec("federation.rounds=30", "federation.max_epsilon=1.1")
    training, outcome = train(spec, tmp_path)
    assert 1 <= training.completed < 30
    assert claimed(outcome.claim["server"]) <= 1.1
    filing.attest_training(training.run, filing.load_signers(None, None))
    findings = filing.audit(training.run).to_json()
    assert "FAIL" not in verdicts(findings).values(), failing(findings)


def test_budgets_count_them_before_and_after(trained):
    training, _ = trained
    plan, entries = training.experiment.plan, lines(training.run)
    assert BESIDE in charges.reserved(plan)
    assert BESIDE in charges.charged(entries)
    # What is charged already is not reserved once more.
    asked = [one for one in entries if one["kind"] in ("header", "query", "bounds")]
    assert charges.charged(asked) == (BESIDE,)
    assert charges.reserved(plan, asked) == charges.reserved(plan)


def test_histograms_are_charged_on_the_disk_before_their_noise_is_drawn(tmp_path, monkeypatch):
    noised, seen = columns.noised, []

    def looking(counts, queries, stream, method):
        (run,) = [path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()]
        content = (run / "ledger.jsonl").read_bytes()
        charged = [json.loads(line) for line in content.splitlines()]
        paid = int((run / "checkpoint" / "paid").read_text().splitlines()[-1].split()[0])
        assert paid == len(content)
        seen.append([one["client"] for one in charged if one["kind"] == "query"])
        return noised(counts, queries, stream, method)

    monkeypatch.setattr(columns, "noised", looking)
    begin(learning_spec(), tmp_path).lock.release()
    assert seen == [[0, 1, 2, 3]] * 4


def test_the_ledger_has_charges_then_bounds_then_rounds(trained):
    kinds = [one["kind"] for one in lines(trained[0].run)]
    assert kinds[:6] == ["header", *["query"] * 4, "bounds"]
    assert not {"query", "bounds"} & set(kinds[6:])


def test_a_run_that_was_cut_off_later_draws_no_histogram_again(trained, tmp_path, monkeypatch):
    training = begin(learning_spec(), tmp_path / "cut")
    done = []

    def killed(result, _):
        done.append(result.completed)
        if len(done) == 2:
            raise Killed

    with pytest.raises(Killed):
        engine_run.train(training, on_round=killed)

    def never(*_):
        raise AssertionError("noise on histograms is drawn a second time")

    monkeypatch.setattr(columns, "noised", never)
    before = (training.run.evidence / "columns.npz").read_bytes()
    again = engine_setup.resume(training.run, CPU)
    assert again.experiment.dataset.train.inputs.bounds is not None
    with again.lock:
        outcome = engine_run.train(again)
    assert (again.run.evidence / "columns.npz").read_bytes() == before
    assert again.run.weights.read_bytes() == trained[0].run.weights.read_bytes()
    assert [one["kind"] for one in lines(again.run)].count("query") == 4
    assert claimed(outcome.claim["server_worst_case"]) > 0
    attest(again)
    findings = filing.audit(again.run).to_json()
    assert "FAIL" not in verdicts(findings).values(), failing(findings)


def test_a_run_that_was_cut_off_while_bounds_were_learnt_is_not_continued(tmp_path, monkeypatch):
    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(columns, "bounds_of", killed)
        with pytest.raises(Killed):
            begin(learning_spec(), tmp_path)
    (path,) = [one for one in tmp_path.iterdir() if one.is_dir() and not one.is_symlink()]
    run, before = RunDirectory(path), (path / "ledger.jsonl").read_bytes()
    with pytest.raises(RunError, match="not drawn twice, so start a new run"):
        engine_setup.resume(run, CPU)
    assert run.ledger.read_bytes() == before


def test_bounds_that_were_kept_reach_a_model_config_that_was_not(tmp_path, monkeypatch):
    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(columns, "write_model_config", killed)
        with pytest.raises(Killed):
            begin(learning_spec(), tmp_path)
    (path,) = [one for one in tmp_path.iterdir() if one.is_dir() and not one.is_symlink()]
    again = engine_setup.resume(RunDirectory(path), CPU)
    again.lock.release()
    (said,) = [one for one in lines(again.run) if one["kind"] == "bounds"]
    assert json.loads(again.run.model_config.read_text())["learnt"] == said["columns"]


@pytest.mark.thorough
def test_clients_in_other_processes_have_the_same_bounds(trained, tmp_path):
    training, _ = train(learning_spec("federation.workers=2"), tmp_path)
    assert training.run.weights.read_bytes() == trained[0].run.weights.read_bytes()


def test_served_predictions_are_the_runs_own_bit_for_bit(trained, tmp_path):
    training, _ = trained
    experiment = training.experiment
    found = prediction.load(training.run).predict(experiment.spec.data.path).outputs
    rows = training.experiment.dataset.test.inputs
    own = [out for _, out in evaluation.answers(experiment.model, rows, CPU)]
    expected = torch.cat(own).numpy()
    places = rows.rows
    assert np.array_equal(found[places], expected)
    # Without the bounds they are others.
    served = prediction.load(training.run)
    other = prediction.Served(**{**vars(served), "bounds": None}).predict(experiment.spec.data.path)
    assert not np.array_equal(other.outputs, found)


def test_model_config_without_its_bounds_is_refused_where_rounds_are_run_again(trained, tmp_path):
    run = RunDirectory(tmp_path / trained[0].run.path.name)
    shutil.copytree(trained[0].run.path, run.path)
    config = json.loads(run.model_config.read_text())
    del config["learnt"]
    run.model_config.write_text(json.dumps(config))
    with pytest.raises(Exception, match="learnt: is missing"):
        columns.of_run(trained[0].experiment, run)


def test_counts_of_other_data_are_told_apart(trained, tmp_path):
    training, _ = trained
    assert columns.same_counts(training.experiment, training.run)
    path = write_table(tmp_path / "t.csv")
    path.write_text(path.read_text().replace("\n2", "\n9"))
    other = engine_setup.prepare(learning_spec(path=path), CPU)
    assert not columns.same_counts(other, training.run)


def test_canaries_are_refused_with_the_reason(tmp_path):
    experiment = engine_setup.prepare(learning_spec(), CPU)
    options = StartOptions(canaries=CanaryOrder(count=10, kind="gradient", audited=None))
    with pytest.raises(RunError, match="learnt from records before any canary"):
        engine_setup.start(experiment, tmp_path, options=options)


def test_in_release_mode_noise_is_that_of_a_committed_key(tmp_path):
    spec = learning_spec("randomness={mode: release}")
    begun = [begin(spec, tmp_path / name) for name in "ab"]
    for training in begun:
        training.lock.release()
    first, second = (np.load(one.run.evidence / "columns.npz") for one in begun)
    assert np.array_equal(first["counts"], second["counts"])
    assert not np.array_equal(first["noised"], second["noised"])
