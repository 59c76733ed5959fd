"""Audit runs end to end: marked as such, judged without the engine, and refused where wrong."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from audit import audit_run
from audit.checks.canaries import CANARIES
from audit.reading.bundle import open_bundle
from dpfedadamw import spec as specs
from dpfedadamw.canaries import record
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.experiment import RunError, prepare
from dpfedadamw.privacy import updates
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.export import load_model
from dpfedadamw.run.journal import Journal
from dpfedadamw.run.start_options import StartOptions
from tests.audit.corruptions import finding_of
from tests.faults.canary_table import noise_times, people_clipped_by_record
from tests.people import BY_HOSPITAL, people_spec, people_table
from tests.runs import attest, call, failing, small_spec, torch, verdicts

CLIENTS = (
    "algorithm={name: dp-fedavg, learning_rate: 0.5}",
    "privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}",
)
FEW = ("data.clients=3", "federation.clients_per_round=3", "federation.rounds=2")


def audit_training(parent, order, overrides=(), algorithm="dp-fedadamw", mode="reproducible"):
    """A whole audit run, trained and signed but not yet judged."""
    spec = small_spec(algorithm, overrides=(*FEW, *overrides), mode=mode)
    training = engine_setup.start(
        prepare(spec, torch.device("cpu")), parent, options=StartOptions(canaries=order)
    )
    engine_run.train(training)
    attest(training)
    return training.run


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """One audit run, shared by the tests that only look at it or at copies of it."""
    return audit_training(tmp_path_factory.mktemp("audited"), CanaryOrder(120, "gradient", "a-run"))


@pytest.fixture(scope="module")
def findings(audited):
    """What the whole audit finds of it."""
    return audit_run(audited.path)


def copied(run, tmp_path):
    return shutil.copytree(run.path, tmp_path / run.identifier)


def rewrite(path, change):
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, **change(arrays)})


def finding(path):
    return finding_of(path, "canaries")


def test_an_audit_run_passes_every_check_of_a_run_and_one_more(findings):
    found = findings.to_json()
    assert found["verdict"] == "PASS", failing(found)
    assert verdicts(found)["canaries"] == "PASS"
    (check,) = [one for one in found["checks"] if one["name"] == "canaries"]
    said = check["measurement"]
    assert said.startswith("not contradicted. Planted: 120 gradients far above the clipping norm")
    assert "Scores: the ledger's steps explain" in said
    assert "Not shown: that nothing else leaks" in said
    assert {view["view"] for view in check["details"]["views"]} >= {"uploads", "final-model"}
    for view in check["details"]["views"]:
        assert view["epsilon_any_mechanism"] <= view["ceiling_any_mechanism"]
        assert view["epsilon_these_steps"] <= view["ceiling_these_steps"]
    assert check["details"]["audited"] == "a-run"


def test_an_audit_run_says_everywhere_what_it_is(audited, findings):
    said = "audit run with 120 planted canaries: its model is not for release"
    assert "-canaries-" in audited.identifier
    assert "name: small-canaries" in audited.spec.read_text()
    header = json.loads(audited.ledger.read_text().splitlines()[0])
    assert header["canaries"] == {"count": 120, "kind": "gradient", "audited": "a-run"}
    assert header["qualifications"][0] == said
    assert json.loads(audited.model_config.read_text())["qualifications"][0] == said
    assert all(
        json.loads(line)["canaries"] == 120 for line in audited.metrics.read_text().splitlines()
    )
    assert said in findings.qualifications
    assert not (audited.path.parent / "latest").exists()


@pytest.mark.slow
def test_the_auditor_without_the_engine_says_the_same(audited):
    done = subprocess.run(
        [sys.executable, "-m", "audit", str(audited.path), "--json"],
        capture_output=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0
    (check,) = [one for one in found["checks"] if one["name"] == "canaries"]
    assert check == finding(audited.path).to_json()


def test_so_few_canaries_that_nothing_could_be_contradicted_are_not_a_pass(tmp_path):
    spec = small_spec(overrides=FEW)
    training = engine_setup.start(
        prepare(spec, torch.device("cpu")), tmp_path, options=StartOptions(canaries=CanaryOrder(2))
    )
    engine_run.train(training)
    found = finding(training.run.path)
    assert found.verdict.value == "NOT VERIFIED"
    assert "2 canaries are too few" in found.measurement
    assert "Plant at least" in found.measurement


def test_missing_evidence_of_canaries_is_never_a_pass(audited, tmp_path):
    path = copied(audited, tmp_path)
    (path / "evidence" / "canaries.npz").unlink()
    assert finding(path).verdict.value == "NOT VERIFIED"


def test_coins_that_are_not_fair_are_not_judged(audited, tmp_path):
    path = copied(audited, tmp_path)
    rewrite(
        path / "evidence" / "canaries.npz",
        lambda arrays: {"included": np.ones_like(arrays["included"])},
    )
    found = finding(path)
    assert found.verdict.value == "NOT VERIFIED"
    assert "coins" in found.measurement


@pytest.mark.thorough
def test_an_audit_run_of_a_retired_kind_is_still_judged_by_guesses(audited, monkeypatch):
    bundle = open_bundle(audited.path)
    planted = dataclasses.replace(bundle.header.canaries, kind="label")
    header = dataclasses.replace(bundle.header, canaries=planted)
    monkeypatch.setattr(type(bundle), "header", header)
    found = CANARIES.judge(bundle)
    assert found.verdict.value == "PASS"
    assert "Scores: not tested" in found.measurement
    assert "plant canaries of the kind input" in found.measurement
    assert found.details["views"]
    assert "scores" not in found.details


def test_crafted_inputs_are_refused_where_activations_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "drops", lambda model: True)
    spec = small_spec(overrides=FEW)
    with pytest.raises(RunError, match="a dropout of 0"):
        engine_setup.start(
            prepare(spec, torch.device("cpu")),
            tmp_path,
            options=StartOptions(canaries=CanaryOrder(3, "input")),
        )
    assert not list(tmp_path.iterdir())


def test_fewer_canaries_or_answers_than_there_were_are_not_judged(audited, tmp_path):
    path = copied(audited, tmp_path)
    file = path / "evidence" / "canaries.npz"

    def without_last_row(arrays):
        kept = {name: arrays[name][:-1] for name in arrays if name.startswith("row_")}
        last = int(arrays["row_count"][-1])
        return {**kept, "projections": arrays["projections"][:-last]}

    rewrite(file, without_last_row)
    found = finding(path)
    assert "lacks an answer" in found.measurement
    assert found.verdict.value == "NOT VERIFIED"

    def without_last_canary(arrays):
        keep = arrays["row_first"] + arrays["row_count"] < len(arrays["client"])
        per_canary = ("client", "included", "loss_before", "loss_after")
        sizes = arrays["row_count"][keep]
        return {
            **{name: arrays[name][:-1] for name in per_canary},
            **{name: arrays[name][keep] for name in arrays if name.startswith("row_")},
            "projections": np.zeros(int(sizes.sum()), np.float32),
        }

    rewrite(file, without_last_canary)
    assert "a different number of canaries" in finding(path).measurement


def test_coins_that_the_scores_know_contradict_the_claim(audited, tmp_path):
    path = copied(audited, tmp_path)
    rewrite(
        path / "evidence" / "canaries.npz",
        lambda arrays: {"loss_after": arrays["loss_before"] - arrays["included"]},
    )
    found = finding(path)
    assert found.verdict.value == "FAIL"
    assert found.measurement.startswith("contradicts the claim: the final model")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "overrides", "kind"),
    [
        ("dp-fedsam", (), "gradient"),
        pytest.param("adap-dpfl", (), "gradient", marks=pytest.mark.slow),
        pytest.param("ali-dpfl", ("federation.rounds=3",), "gradient", marks=pytest.mark.slow),
        pytest.param("dp-fedavg", (), "input", marks=pytest.mark.slow),
        pytest.param(
            "dp-fedavg",
            ("privacy.adjacency=replace-one", "privacy.sampling={kind: fixed, batch_size: 24}"),
            "gradient",
            marks=pytest.mark.slow,
        ),
        (
            "dp-fedavg",
            ("privacy.adjacency=replace-one", "privacy.sampling={kind: shuffled, batch_size: 24}"),
            "input",
        ),
        pytest.param(
            "dp-fedavg",
            ("federation.client_sampling=poisson",),
            "gradient",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_canaries_suit_every_algorithm_and_sampler_of_record_level(
    algorithm, overrides, kind, tmp_path
):
    run = audit_training(tmp_path, CanaryOrder(60, kind), overrides, algorithm)
    found = audit_run(run.path).to_json()
    assert verdicts(found)["canaries"] in ("PASS", "NOT VERIFIED"), failing(found)
    check = next(one for one in found["checks"] if one["name"] == "canaries")
    assert check["details"]["scores"]["noise"] == pytest.approx(1.0, abs=0.3)
    assert not [name for name, verdict in verdicts(found).items() if verdict == "FAIL"]


@pytest.fixture(scope="module")
def audited_clients(tmp_path_factory):
    """One audit run of whole clients, shared by the tests that look at it or at copies of it."""
    spec = small_spec(overrides=("data.clients=60", "data.partition={kind: iid}", *CLIENTS))
    training = engine_setup.start(
        prepare(spec, torch.device("cpu")),
        tmp_path_factory.mktemp("clients"),
        options=StartOptions(canaries=CanaryOrder(40)),
    )
    engine_run.train(training)
    attest(training)
    return training.run


def test_an_audit_run_of_whole_clients_passes_every_check_of_its_level(audited_clients):
    found = audit_run(audited_clients.path).to_json()
    assert found["verdict"] == "PASS", failing(found)
    assert verdicts(found)["canaries"] == "PASS"


def people_audit_run(parent, kind="gradient", overrides=()):
    """An audit run of people, most of whom are at both of two hospitals."""
    parent.mkdir(exist_ok=True)
    table, visits = parent / "visits.csv", people_table().read_text()
    table.write_text(re.sub(r",H(\d)", lambda found: f",H{int(found[1]) % 2}", visits))
    spec = people_spec(partition=BY_HOSPITAL, clients=2, s=2, table=table, overrides=overrides)
    training = engine_setup.start(
        prepare(spec, torch.device("cpu")),
        parent / "runs",
        options=StartOptions(canaries=CanaryOrder(60, kind)),
    )
    engine_run.train(training)
    attest(training)
    return training.run


@pytest.fixture(scope="module")
def audited_people(tmp_path_factory):
    """One audit run of people, shared by the tests that look at it or at copies of it."""
    return people_audit_run(tmp_path_factory.mktemp("people"))


@pytest.mark.slow
def test_canary_people_are_judged_with_all_their_clients_together(audited_people):
    found = audit_run(audited_people.path).to_json()
    assert found["verdict"] == "PASS", failing(found)
    check = next(one for one in found["checks"] if one["name"] == "canaries")
    assert "Planted: 60 people whose records' gradients are far above" in check["measurement"]
    scores, claim = check["details"]["scores"], Journal(audited_people).claim
    # Two clients, four rounds of three steps each, 60 people who are at both.
    assert scores["scores"] == 2 * 4 * 3 * 60
    assert scores["claimed_epsilon"] == pytest.approx(claim["server"]["epsilon"]["pld"], rel=0.01)
    # An interval of 95 %: the run's seed is fixed.
    low, high = scores["noise_interval"]
    assert low < 1.0 < high
    assert scores["epsilon_these_steps"] > 0.7 * scores["claimed_epsilon"]


@pytest.mark.parametrize(
    ("broken", "contribution"),
    [
        pytest.param(people_clipped_by_record, 2.0, id="each-record-clipped"),
        pytest.param(lambda: noise_times(0.5), 1.0, id="half-the-noise", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", ["gradient", pytest.param("input", marks=pytest.mark.slow)])
def test_canary_people_show_faults(broken, contribution, kind, tmp_path):
    with broken():
        found = finding(people_audit_run(tmp_path, kind, ("privacy.noise_multiplier=0.5",)).path)
    assert found.verdict.value == "FAIL", found.measurement
    assert found.details["scores"]["contribution"] > 0.7 * contribution


def test_coins_that_differ_within_one_person_are_not_judged(audited_people, tmp_path):
    path = copied(audited_people, tmp_path)

    def differ(arrays):
        included = arrays["included"].copy()
        included[0] = 1 - included[0]
        return {"included": included}

    rewrite(path / "evidence" / "canaries.npz", differ)
    found = finding(path)
    assert found.verdict.value == "NOT VERIFIED"
    assert "different coins" in found.measurement
    rewrite(path / "evidence" / "canaries.npz", lambda arrays: {"person": arrays["person"] + 1})
    assert "number the canaries" in finding(path).measurement


SPARSE = {
    "random": "{name: fed-smp, sparsification: {kind: random, fraction: 0.3}}",
    "released-top": "{name: fed-smp, sparsification: {kind: released-top, fraction: 0.3}}",
    "local-top": "{name: dp-fedsam-topk, sparsification: {kind: local-top, fraction: 0.3}}",
    "blurs": "{name: blurs, sparsification: {kind: local-top, fraction: 0.3}}",
}


def sparse_audit_run(parent, kind):
    changes = ("data.clients=60", "data.partition={kind: iid}", f"algorithm={SPARSE[kind]}")
    spec = small_spec(overrides=(*changes, *CLIENTS[1:], "federation.clients_per_round=20"))
    training = engine_setup.start(
        prepare(spec, torch.device("cpu")), parent, options=StartOptions(canaries=CanaryOrder(60))
    )
    engine_run.train(training)
    return training


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    [
        "local-top",
        pytest.param("released-top", marks=pytest.mark.slow),
        "random",
        pytest.param("blurs", marks=pytest.mark.slow),
    ],
)
def test_canary_clients_add_the_clipping_norm_to_updates_that_are_cut(kind, tmp_path):
    """Its every check passes, and what a canary adds is C wherever the round's coordinates lie."""
    training = sparse_audit_run(tmp_path, kind)
    attest(training)
    found = audit_run(training.run.path).to_json()
    assert found["verdict"] == "PASS", failing(found)
    scores = next(one for one in found["checks"] if one["name"] == "canaries")["details"]["scores"]
    assert scores["scores"] == 60 * 4
    # Half of the canaries are in, each in a third of the rounds, under noise of 2C.
    assert 0.3 < scores["contribution"] < 2.0
    assert scores["noise"] == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("kind", [pytest.param(one, marks=pytest.mark.slow) for one in SPARSE])
def test_canary_clients_show_missing_noise_in_updates_that_are_cut(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(updates, "add_gaussian_noise", lambda total, *rest, **more: total.clone())
    found = finding(sparse_audit_run(tmp_path, kind).run.path)
    assert found.verdict.value == "FAIL"
    assert found.details["scores"]["noise"] < 0.02
    # Without noise a canary that is drawn shows exactly C, on whatever coordinate it lay.
    assert found.details["scores"]["contribution"] == pytest.approx(1.0, rel=0.01)


def test_the_evidence_of_canary_clients_must_have_every_release(audited_clients, tmp_path):
    path = copied(audited_clients, tmp_path)
    rewrite(
        path / "evidence" / "canaries.npz",
        lambda arrays: {
            **{name: arrays[name][1:] for name in arrays if name.startswith("row_")},
            "projections": arrays["projections"][40:],
        },
    )
    assert "lacks a round's release" in finding(path).measurement


def test_a_spec_that_canaries_do_not_suit_is_refused_and_nothing_is_written(tmp_path):
    for spec, kind, why in (
        (small_spec("fedavg"), "gradient", "claims no privacy"),
        (small_spec("blur"), "input", "whole updates; use --canary-kind gradient"),
    ):
        experiment = prepare(spec, torch.device("cpu"))
        with pytest.raises(RunError, match=why):
            engine_setup.start(
                experiment, tmp_path, options=StartOptions(canaries=CanaryOrder(3, kind))
            )
    assert not list(tmp_path.iterdir())


def test_too_many_canaries_are_refused_and_nothing_is_written(tmp_path):
    experiment = prepare(small_spec(), torch.device("cpu"))
    with pytest.raises(DpfedadamwError, match="training records"):
        engine_setup.start(experiment, tmp_path, options=StartOptions(canaries=CanaryOrder(10_000)))
    assert not list(tmp_path.iterdir())


def test_an_audit_run_is_not_continued(audited, tmp_path):
    path = copied(audited, tmp_path)
    lines = path.joinpath("ledger.jsonl").read_text().splitlines(keepends=True)
    path.joinpath("ledger.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(RunError, match="start a new one"):
        engine_setup.resume(type(audited)(path), torch.device("cpu"))


@pytest.mark.slow
def test_the_command_audits_a_spec_and_a_run_and_leaves_the_run_as_it_is(tmp_path, capsys):
    file = tmp_path / "spec.yaml"
    file.write_text(specs.dump(small_spec(overrides=FEW)))
    out = str(tmp_path / "runs")
    assert call("run", str(file), "--out", out, "--json") == 0
    run = json.loads(capsys.readouterr().out)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    assert call("audit", "--out", out, "--canaries", "120", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["audited"] == run["run"]
    assert found["canaries"]["verdict"] == "PASS"
    assert found["directory"].startswith(str(tmp_path / "runs" / "canaries"))
    after = {path: path.stat().st_mtime_ns for path in before}
    assert {path for path in before if path.is_file() and before[path] != after[path]} == set()
    assert call("audit", str(file), "--out", out, "--canaries", "120") == 0
    shown = capsys.readouterr().out
    assert "NOT CONTRADICTED" in shown
    assert "audits      the spec" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quickstart", "--canaries", "0"), "must be at least 1"),
        (
            ("quickstart", "--canaries", "5", "--canary-kind", "image"),
            "use gradient, input or secret",
        ),
        (
            ("quickstart", "--canaries", "5", "--canary-kind", "label"),
            "retired, because 300 of them",
        ),
        (("quickstart", "--canaries", "5", "--write"), "trains a separate run"),
        (("digits-baseline-fedavg", "--canaries", "5"), "claims no privacy"),
        (("no-such-spec", "--canaries", "5"), "no-such-spec"),
    ],
)
def test_wrong_use_of_canaries_is_refused_in_one_line(arguments, message, tmp_path, capsys):
    assert call("audit", *arguments, "--out", str(tmp_path / "runs")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_audit_run_is_not_audited_with_canaries_again(audited, tmp_path, capsys):
    assert call("audit", str(audited.path), "--canaries", "5", "--out", str(tmp_path)) == 2
    assert "is an audit run itself" in capsys.readouterr().err


def test_the_model_of_an_audit_run_is_not_exported(audited):
    with pytest.raises(DpfedadamwError, match="its model is not for release"):
        load_model(audited)
