"""A run that is one of several trials: what it claims, and what its audit and report say."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.selection import commitment
from dpfedadamw.experiment import RunError, prepare
from dpfedadamw.filing import after_training as filing
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.header import UNACCOUNTED_TUNING
from dpfedadamw.run.start_options import StartOptions, check_trial, read_trial
from dpfedadamw.storage.disk import write_json
from reports import run_rows
from reports.content import accounting, guarantee, outcomes, tuning
from reports.content.coverage import outside_budget
from reports.content.parts import INTERNAL, PUBLIC
from reports.source import load
from tests.audit.synthetic_run import rewrite_ledger
from tests.faults.tuning_faults import (
    CLIENTS_SELECTED,
    SECRET,
    SELECTED,
    UNACCOUNTED,
    a_trial,
)
from tests.runs import attest, failing, probed, small_spec

SPEC = small_spec("dp-fedavg", rounds=2, overrides=SELECTED)


@pytest.fixture(scope="module")
def selected(tmp_path_factory):
    """A trial that was trained, signed, audited and reported."""
    experiment = prepare(SPEC, torch.device("cpu"))
    parent = tmp_path_factory.mktemp("selected")
    return finished(
        engine_setup.start(experiment, parent, options=StartOptions(trial=a_trial(SPEC)))
    )


@pytest.fixture(scope="module")
def of_clients(tmp_path_factory):
    """The same where whole clients are protected, and add the noise."""
    overrides = (*CLIENTS_SELECTED, "privacy.noise_added_by=clients")
    spec = small_spec("dp-fedavg", rounds=2, overrides=overrides)
    experiment = prepare(spec, torch.device("cpu"))
    parent = tmp_path_factory.mktemp("of-clients")
    return finished(
        engine_setup.start(experiment, parent, options=StartOptions(trial=a_trial(spec)))
    )


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A run whose settings were picked by test accuracy, unaccounted, under other seeds."""
    overrides = [*UNACCOUNTED, "tune.search_seeds=[100, 101]"]
    spec = small_spec("dp-fedavg", rounds=2, overrides=overrides)
    experiment = prepare(spec, torch.device("cpu"))
    return finished(engine_setup.start(experiment, tmp_path_factory.mktemp("searched")))


def finished(training):
    with training.lock:
        outcome = engine_run.train(training, before_claim=probed)
    attest(training)
    findings = filing.audit(training.run)
    filing.file_report(training.run, findings, filing.load_signers(None, None).auditor)
    return training.run, outcome.claim, findings.to_json()


def test_the_claim_and_the_audit_are_those_of_the_selection(selected):
    _, claim, findings = selected
    assert [name for name, _ in failing(findings)] == ["reexecution"]
    assert findings["verdict"] == "PASS"
    chosen, alone = claim["third_party"]["epsilon"]["rdp"], claim["tuning"]["one_trial"]
    every = claim["tuning"]["server_all_trials"]["epsilon"]["pld"]
    assert claim["view_headline"] == "third-party"
    assert 1.5 * alone["epsilon"]["pld"] < chosen < 4 * alone["epsilon"]["pld"]
    assert every > claim["server_worst_case"]["epsilon"]["pld"]
    views = next(check for check in findings["checks"] if check["name"] == "views")
    third = next(row for row in views["details"]["closed_forms"] if row["towards"] == "third party")
    assert third["compared_with"] == views["details"]["third_party"]
    assert views["details"]["third_party"] == pytest.approx(chosen, rel=0.01)


def test_the_report_gives_no_number_of_one_trial_as_the_headline(selected):
    run, claim, _ = selected
    shown = accounting.accounting(load(run.path), INTERNAL)
    (conversion,) = shown.conversions
    assert conversion.epsilon == claim["third_party"]["epsilon"]["rdp"]
    assert shown.accountant == "rdp"
    assert shown.profile == ()
    assert {row.third_party for row in shown.over_rounds} == {None}
    (tree,) = shown.events
    assert (tree.view, tree.root.event) == ("third_party", "repeat-and-select")


@pytest.mark.thorough
def test_of_whole_clients_claim_audit_and_report_are_those_of_the_selection(of_clients):
    run, claim, findings = of_clients
    assert [name for name, _ in failing(findings)] == ["reexecution"]
    assert findings["verdict"] == "PASS"
    chosen, trials = claim["third_party"]["epsilon"]["rdp"], claim["tuning"]
    assert 1.5 * trials["one_trial"]["epsilon"]["pld"] < chosen
    assert trials["server_all_trials"]["epsilon"]["pld"] > claim["server"]["epsilon"]["pld"]
    views = next(check for check in findings["checks"] if check["name"] == "views")
    assert views["details"]["third_party"] == pytest.approx(chosen, rel=0.01)
    source = load(run.path)
    shown = accounting.accounting(source, INTERNAL)
    assert [(tree.view, tree.root.event) for tree in shown.events] == [
        ("third_party", "repeat-and-select")
    ]
    assert shown.profile == accounting.accounting(source, PUBLIC).profile == ()
    # What all trials cost tells how many there were.
    assert [view.key for view in guarantee.views(source, PUBLIC)] == ["third_party"]
    keys = [view.key for view in guarantee.views(source, INTERNAL)]
    assert keys == ["third_party", "server", "server_worst_case"]
    said = guarantee.guarantee(source, PUBLIC)
    assert said.epsilon == chosen
    assert "the best of a random number of trials" in said.statement
    assert said.statement.endswith("against the server, which saw them all, it is larger.")
    # A server that adds the noise has no guarantee, so that nothing is larger.
    trusted = {**source.header, "noise_added_by": "server"}
    assert tuning.choice_in_words(dataclasses.replace(source, header=trusted)).endswith(
        "the loss is that of publishing this run alone."
    )


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((*SELECTED, "federation.clients_per_round=5"), id="records"),
        pytest.param((*CLIENTS_SELECTED, "privacy.noise_added_by=clients"), id="clients"),
    ],
)
def test_a_server_saw_the_round_that_the_winner_repeated_in_addition_to_the_other_trials(
    overrides, tmp_path
):
    spec = small_spec("dp-fedavg", rounds=2, overrides=overrides)
    law = a_trial(spec)
    training = engine_setup.start(
        prepare(spec, torch.device("cpu")), tmp_path, options=StartOptions(trial=law)
    )
    calls = []

    def stop(*done):
        calls.append(done)
        if done[0] == done[1] and len(calls) > done[1]:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        engine_run.train(training, on_client=stop)
    run, claim, findings = finished(engine_setup.resume(training.run, torch.device("cpu")))
    assert [name for name, _ in failing(findings)] == ["reexecution"]
    trials, stated = claim["tuning"], claim["tuning"]["server_all_trials"]["epsilon"]["pld"]
    header = json.loads(run.ledger.read_text("utf-8").splitlines()[0])
    planned = every_trial(header, law.trials)
    assert stated > 1.01 * planned > claim["server"]["epsilon"]["pld"]

    def as_planned(entries):
        entries[-1]["tuning"] = {
            **trials,
            "server_all_trials": {"epsilon": {"pld": planned}, "accountant": "pld"},
        }

    rewrite_ledger(run.path, as_planned)
    filing.attest_training(run, filing.load_signers(None, None))
    said = dict(failing(filing.audit(run).to_json()))
    assert "the server's epsilon of all trials" in said["views"]


def every_trial(header, trials):
    """ε of all trials if no round of any was repeated."""
    if header["unit"] == "client":
        uploads = trials * header["rounds"] * header["clients"]
        return epsilon_pld(
            Composition(header["noise_multiplier"] / uploads**0.5, 1.0, 1, 1, "full"),
            header["delta"],
        )
    rate = header["expected_batch_size"] / min(header["records"])
    steps = trials * header["rounds"] * header["local_steps"]
    return epsilon_pld(Composition(header["noise_multiplier"], rate, steps), header["delta"])


@pytest.mark.parametrize("audience", [INTERNAL, PUBLIC])
def test_the_first_page_gives_the_loss_of_the_selection(selected, audience):
    run, claim, _ = selected
    source = load(run.path)
    said = guarantee.guarantee(source, audience)
    assert (said.view, said.epsilon) == ("third_party", claim["third_party"]["epsilon"]["rdp"])
    assert "the best of a random number of trials" in said.statement
    title, text = (lambda one: (one.title, one.text))(outside_budget(source, audience).root[0])
    assert title == "Trials outside the private selection"
    assert "private selection" in text


def test_the_public_is_not_told_how_many_trials_there_were(selected):
    run, claim, _ = selected
    views = guarantee.views(load(run.path), PUBLIC)
    assert [view.key for view in views] == ["third_party"]
    trial = a_trial(SPEC)
    secret = claim["tuning"]["server_all_trials"]["epsilon"]["pld"]
    for name in ("spec.yaml", "metrics.jsonl", "model.json", "training.attestation.json"):
        text = (run.path / name).read_text(encoding="utf-8")
        assert SECRET.hex() not in text
        assert '"trials"' not in text
        assert repr(secret) not in text
    assert f'"trials":{trial.trials}' in run.ledger.read_text(encoding="utf-8").replace(" ", "")


def test_an_unaccounted_choice_is_said_by_ledger_audit_and_first_page(searched):
    run, claim, findings = searched
    assert findings["verdict"] == "PASS"
    assert any("chosen by looking at the private records" in one for one in claim["assumptions"])
    assert not any("not tuned" in one for one in claim["assumptions"])
    assert any("no ε covers that choice" in one for one in findings["qualifications"])
    assert UNACCOUNTED_TUNING in run.ledger.read_text(encoding="utf-8")
    said = guarantee.guarantee(load(run.path), PUBLIC).statement
    assert "were chosen by looking at the private records: no ε covers that choice" in said


def test_a_search_under_other_seeds_is_said_by_the_report_and_the_results(searched):
    run, _, _ = searched
    for audience in (INTERNAL, PUBLIC):
        text = outside_budget(load(run.path), audience).root[0].text
        assert "by the test accuracy of several runs on the private records" in text
        assert text.endswith("used seeds of their own (100, 101); this run is not one of them.")
    assert run_rows.row_of(run.path)["tune_seeds"] == "100, 101"


def test_a_comparison_names_what_was_picked_by_test_accuracy(selected, searched):
    compare = pytest.importorskip("reports.extensions.comparison").compare
    groups = compare([selected[0].path, searched[0].path]).groups
    remarks = [remark for group in groups for remark in group.remarks]
    picked = [remark for remark in remarks if "best was picked by test accuracy" in remark]
    assert any("against a third party is that of the selection" in remark for remark in remarks)
    assert len(picked) == 1
    assert any("chosen by looking at the private records" in remark for remark in remarks)
    assert outcomes.utility(load(searched[0].path), PUBLIC).final_accuracy is not None


def test_a_trial_by_itself_is_refused(tmp_path):
    with pytest.raises(RunError, match="a single trial is not a selection"):
        engine_setup.start(prepare(SPEC, torch.device("cpu")), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_trial_of_a_number_that_was_not_drawn_is_refused(tmp_path):
    trial = a_trial(SPEC)
    wrong = dataclasses.replace(trial, trials=trial.trials + 1)
    with pytest.raises(RunError, match="was not drawn from the distribution"):
        engine_setup.start(
            prepare(SPEC, torch.device("cpu")), tmp_path, options=StartOptions(trial=wrong)
        )
    alone = prepare(small_spec("dp-fedavg"), torch.device("cpu"))
    with pytest.raises(RunError, match="is not private"):
        engine_setup.start(alone, tmp_path, options=StartOptions(trial=trial))


def test_a_trials_file_is_read_again_and_any_other_is_refused(tmp_path):
    path = tmp_path / "trial.json"
    write_json(path, a_trial(SPEC).to_plain())
    assert read_trial(path) == a_trial(SPEC)
    for text in ("", "{}", '{"secret": "00", "trial": 1, "trials": 2}'):
        path.write_text(text)
        with pytest.raises(RunError, match="not a trial that a sweep drew"):
            read_trial(path)


def trial_of(folder, **changes):
    written = {"secret": "ab" * 32, "trial": 2, "trials": 5} | changes
    path = folder / "trial"
    path.write_text(json.dumps({name: one for name, one in written.items() if one is not None}))
    return path


def test_a_trial_is_read_as_it_was_written_and_its_secret_stays_out_of_the_header(tmp_path):
    found = read_trial(trial_of(tmp_path))
    assert (found.secret, found.number, found.trials) == (b"\xab" * 32, 2, 5)
    assert found.to_plain() == {"secret": "ab" * 32, "trial": 2, "trials": 5}
    assert found.header == {"trial": 2, "trials": 5, "commitment": commitment(b"\xab" * 32)}
    assert "abab" not in str(found.header)


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": "ab" * 31},
        {"secret": "ab" * 33},
        {"secret": "xy" * 32},
        {"secret": 7},
        {"secret": None},
        {"trial": None},
        {"trials": "many"},
    ],
)
def test_a_file_that_is_no_trial_is_refused(changes, tmp_path):
    with pytest.raises(RunError, match="not a trial that a sweep drew"):
        read_trial(trial_of(tmp_path, **changes))


def test_a_trial_and_a_spec_go_together_or_not(tmp_path):
    law = SimpleNamespace(drawn=lambda secret: 5 if secret == b"\xab" * 32 else 6)

    def experiment(trials):
        return SimpleNamespace(plan=SimpleNamespace(trials=trials))

    check_trial(experiment(None), None)
    for number in (1, 5):
        check_trial(experiment(law), read_trial(trial_of(tmp_path, trial=number)))
    with pytest.raises(RunError, match="a single trial is not a selection"):
        check_trial(experiment(law), None)
    with pytest.raises(RunError, match="of this spec is not private"):
        check_trial(experiment(None), read_trial(trial_of(tmp_path)))
    for wrong in ({"trial": 0}, {"trial": 6}, {"trials": 4}, {"trials": 6}, {"secret": "cd" * 32}):
        with pytest.raises(
            RunError, match="was not drawn from the distribution that the spec states"
        ):
            check_trial(experiment(law), read_trial(trial_of(tmp_path, **wrong)))
