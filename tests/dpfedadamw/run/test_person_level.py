"""Runs that protect people: drawn, clipped, charged and judged as people, by every algorithm."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.accounting import record_level
from dpfedadamw.accounting.epsilon_limit import Rounds
from dpfedadamw.accounting.selection import epsilon_of_selection
from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.budget import charges
from dpfedadamw.budget.charges import charged, epsilon_of, reserved
from dpfedadamw.errors import PrivacyError
from dpfedadamw.evidence.states import state_file
from dpfedadamw.experiment import RunError, foresee
from dpfedadamw.federation.worker import Worker
from dpfedadamw.filing import after_training as filing
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.journal import Journal
from dpfedadamw.units import record as unit_of_records
from tests.audit.corruptions import finding_of
from tests.faults.tuning_faults import SELECTED, one_trial
from tests.people import BY_HOSPITAL, people_spec, write_people
from tests.runs import begin, call, failing, judged, probed, train

RECORD_LEVEL = [name for name, entry in ALGORITHMS.items() if "record" in entry.units]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table whose people have names that nothing else has."""
    return write_people(tmp_path_factory.mktemp("people") / "visits.csv", "Zoe-7f3a-")


def spec_of(table, *given, overrides=(), **more):
    """A spec of two rounds, where nothing else is said."""
    given_or_two = ("federation.rounds=2", *overrides)
    return people_spec(*given, table=table, overrides=given_or_two, **more)


def found_by(check, training):
    """What one check finds of a run that is done, and says of it."""
    filing.attest_training(training.run, filing.load_signers(None, None))
    found = finding_of(training.run.path, check)
    return found.verdict.value, found.measurement


@pytest.mark.sampled(len(RECORD_LEVEL))
@pytest.mark.parametrize("name", sorted(RECORD_LEVEL, key=lambda name: name != "dp-fedadamw"))
def test_every_record_level_algorithm_protects_people_and_passes_the_audit(name, table, tmp_path):
    more = ", target_epsilon: 3" if name == "ali-dpfl" else ""
    findings = judged(spec_of(table, name, more=more), tmp_path)
    assert [one for one in failing(findings) if one[0] != "reexecution"] == []


@pytest.fixture(scope="module")
def run(table):
    """A finished run of people at up to three hospitals, and its training."""
    spec = spec_of(table, "dp-fedsam", BY_HOSPITAL, clients=8, s=3)
    training, _ = train(spec, table.parent / "runs")
    filing.attest_training(training.run, filing.load_signers(None, None))
    return training


@pytest.mark.thorough
def test_a_budget_charges_a_person_for_as_many_clients_as_they_may_be_at(table, tmp_path, capsys):
    shared = tmp_path / "budget.db"
    own = ("--set", f"budget={{file: {shared}, epsilon: 5, delta: 1.0e-5}}")
    spec = tmp_path / "spec.yaml"
    spec.write_text(specs.dump(spec_of(table, partition=BY_HOSPITAL, clients=8, s=3)))
    out = ("--out", str(tmp_path / "runs"))
    assert call("epsilon", str(spec), "--json") == 0
    alone = json.loads(capsys.readouterr().out)["server_worst_case"]["epsilon"]["pld"]
    assert call("run", str(spec), *own, "--set", f"budget.epsilon={3 * alone}", *out) == 0
    capsys.readouterr()
    assert call("budget", "show", str(shared), "--json") == 0
    (account,) = json.loads(capsys.readouterr().out)["budgets"]
    assert account["unit"] == "person"
    # No more than the claim's worst case, at the largest rate of all clients.
    assert alone * (1 - 1e-3) <= account["spent"] <= alone * 1.1
    own = (*own, "--set", f"budget.epsilon={3 * alone}")
    other = ("--set", "data.person=x0", "--set", "data.numbers=[x1]")
    assert (
        call("run", str(spec), *own, *other, "--set", "federation.clients_per_person=8", *out) == 2
    )
    assert "names people otherwise" in " ".join(capsys.readouterr().err.split())
    assert call("run", str(spec), *own, "--set", "federation.rounds=400", *out) == 2
    assert "would fit instead of 400" in " ".join(capsys.readouterr().err.split())


def test_a_budget_reserves_what_a_person_at_several_clients_can_be_charged(run):
    """Reserved for one client, three would be charged: no run is refused that overspends."""
    plan, entries = run.experiment.plan, Journal(run.run).ledger.entries
    spent = epsilon_of([charged(entries)], plan.claimed_delta)
    assert plan.clients_per_person == 3
    assert spent <= epsilon_of([reserved(plan)], plan.claimed_delta) <= 1.1 * spent


def test_a_budget_that_is_charged_for_one_hospital_of_three_fails_the_audit(
    table, tmp_path, monkeypatch
):
    monkeypatch.setattr(charges, "_times", lambda cost, _: cost)
    own = f"budget={{file: {tmp_path / 'budget.db'}, epsilon: 3, delta: 1.0e-5}}"
    training, _ = train(
        spec_of(table, partition=BY_HOSPITAL, clients=8, s=3, overrides=(own,)), tmp_path
    )
    claim = Journal(training.run).claim
    assert claim["budget"]["charged"] < 3.0 < claim["server"]["epsilon"]["pld"]
    verdict, measurement = found_by("promise", training)
    assert verdict == "FAIL"
    assert "more than the 3 that all runs may spend" in measurement


def test_people_are_counted_in_the_ledger_and_rows_beside_them(run):
    header, plan = Journal(run.run).header, run.experiment.plan
    people, owner = run.experiment.dataset.people_of_train, run.experiment.owner
    for client in range(8):
        assert header["records"][client] == len(np.unique(people[owner == client]))
        assert header["rows"][client] == np.count_nonzero(owner == client)
    assert header["unit"] == "person"
    assert plan.records == tuple(header["records"])
    assert plan.divisor(0) == 24.0


def test_a_batch_holds_people_with_at_most_so_many_of_their_records(run):
    for index in range(2):
        file = np.load(run.run.evidence / f"round-{index:05d}.npz")
        assert file["batch_size"].sum() == 2 * file["inclusions"].sum()
        assert file["inclusions"].sum() <= file["rows_used"].sum() <= 3 * file["inclusions"].sum()
        assert len(file["raw_norms"]) == file["batch_size"].sum()
        assert file["clipped_norms"].max() <= 1.0


def test_the_claim_composes_the_dearest_clients_of_a_person(run):
    claim = Journal(run.run).claim
    clients = sorted(one["epsilon"]["pld"] for one in claim["server"]["clients"])
    assert (claim["unit"], claim["clients_per_person"]) == ("person", 3)
    assert claim["server"]["epsilon"]["pld"] > clients[-1] * 1.3
    assert claim["server"]["epsilon"]["pld"] <= claim["server_worst_case"]["epsilon"]["pld"]
    assert claim["third_party"]["epsilon"] == claim["server_worst_case"]["epsilon"]
    assert claim["assumptions"][0].startswith("no person has records at more than 3 clients")


def test_participations_computed_again_are_the_same(run, capsys):
    assert call("audit", str(run.run.path), "--replay", "2", "--json") == 0
    checks = {one["name"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["reexecution"]["verdict"] == "PASS"
    assert "nobody has records at more than 3 of the clients" in checks["partition"]["measurement"]


def test_a_run_that_is_cut_off_goes_on_to_the_same_end(table, tmp_path):
    spec = spec_of(table)
    whole = begin(spec, tmp_path / "whole")
    engine_run.train(whole)
    cut = begin(spec, tmp_path / "cut")

    def stop(result, _):
        if result.completed == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine_run.train(cut, on_round=stop)
    again = engine_setup.resume(cut.run, torch.device("cpu"))
    engine_run.train(again)
    ends = [json.loads(t.run.ledger.read_text().splitlines()[-2])["parameters_sha256"]
            for t in (whole, again)]  # fmt: skip
    assert ends[0] == ends[1]


def test_a_run_that_lost_its_last_state_in_the_middle_of_a_round_passes_the_audit(
    table, tmp_path, monkeypatch
):
    """The ledger has the end of one round twice, and a charge of the next one between the two."""
    cut, work = begin(spec_of(table), tmp_path), Worker.take_part

    def stop(self, part):
        if part.current.index == 1:
            raise KeyboardInterrupt
        return work(self, part)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "take_part", stop)
        with pytest.raises(KeyboardInterrupt):
            engine_run.train(cut)
    for state in (cut.run.checkpoint / "state-00001.safetensors", cut.run.evidence / state_file(0)):
        state.unlink(missing_ok=True)
    again = engine_setup.resume(cut.run, torch.device("cpu"))
    engine_run.train(again, before_claim=probed)
    filing.attest_training(cut.run, filing.load_signers(None, None))
    assert [one["round"] for one in Journal(cut.run).ledger.of_kind("round")] == [0, 0, 1]
    findings = filing.audit(cut.run).to_json()
    assert [one for one in failing(findings) if one[0] != "reexecution"] == []


def test_people_at_more_clients_than_the_claim_counts_are_refused_with_their_number(table):
    with pytest.raises(RunError, match=r"is 1, but \d+ of the \d+ people have records at more"):
        foresee(spec_of(table, partition=BY_HOSPITAL, clients=8))
    assert foresee(spec_of(table, partition=BY_HOSPITAL, clients=8, s=3)).clients_per_person == 3


def test_a_limit_on_epsilon_holds_for_a_person_at_all_of_their_clients(table, tmp_path):
    spec = spec_of(table, partition=BY_HOSPITAL, clients=8, s=3)
    worst = [foresee(spec).epsilon_after(rounds) for rounds in (1, 2)]
    limit = round(sum(worst) / 2, 3)
    limited = specs.loads(specs.dump(spec), overrides=(f"federation.max_epsilon={limit}",))
    assert foresee(limited).expected_claim()["server_worst_case"]["epsilon"]["pld"] <= limit
    findings = judged(limited, tmp_path)
    assert [one for one in failing(findings) if one[0] != "reexecution"] == []
    (ledger,) = tmp_path.glob("**/ledger.jsonl")
    claim = json.loads(ledger.read_text().splitlines()[-1])
    assert claim["stopped"] == {"rounds": 1, "max_epsilon": limit}
    assert claim["server"]["epsilon"]["pld"] <= worst[0] * (1.0 + 1e-9) < limit
    assert any("of any person against the server" in one for one in claim["assumptions"])
    low = (f"federation.max_epsilon={foresee(spec).epsilon_after(1) / 2}",)
    with pytest.raises(PrivacyError, match="a single round already costs more"):
        foresee(specs.loads(specs.dump(spec), overrides=low))


def test_a_run_that_goes_on_beyond_a_person_s_limit_fails_the_audit(table, tmp_path, monkeypatch):
    """Each client alone keeps to the limit, which is what a limit per client would look at."""
    spec = spec_of(table, partition=BY_HOSPITAL, clients=8, s=3)
    limit = round(foresee(spec).epsilon_after(1), 3)
    limited = specs.loads(specs.dump(spec), overrides=(f"federation.max_epsilon={limit}",))
    monkeypatch.setattr(Rounds, "allows", lambda *_: True)
    verdict, said = found_by("promise", train(limited, tmp_path)[0])
    assert verdict == "FAIL"
    assert "the claimed epsilon exceeds max_epsilon" in said


@pytest.fixture
def budgeted(table):
    """A rule that fits its local steps to a target, for people at up to three hospitals."""
    target = ", target_epsilon: 5"
    return spec_of(table, "ali-dpfl", BY_HOSPITAL, clients=8, s=3, more=target)


def test_a_budget_of_steps_is_that_of_all_hospitals_of_a_person_together(budgeted):
    plan = foresee(budgeted)
    limit = plan.adaptation.step_limit
    run = replace(plan.planned_run(), rounds=1, clients_per_person=1)
    assert replace(run, local_steps=3 * limit).epsilon() <= 5.0
    assert replace(run, local_steps=3 * (limit + 1)).epsilon() > 5.0


@pytest.mark.thorough
def test_a_budget_of_steps_for_all_hospitals_of_a_person_passes_the_audit(budgeted, tmp_path):
    findings = judged(budgeted, tmp_path)
    assert [one for one in failing(findings) if one[0] != "reexecution"] == []


def test_a_budget_of_steps_for_one_hospital_of_three_fails_the_audit(
    budgeted, tmp_path, monkeypatch
):
    solve = unit_of_records.solve_step_limit

    def for_one(target, run, most):
        return solve(target, replace(run, clients_per_person=1), most)

    monkeypatch.setattr(unit_of_records, "solve_step_limit", for_one)
    # An engine that does not look at its own target either.
    monkeypatch.setattr(unit_of_records, "check_target", lambda *_: None)
    verdict, said = found_by("promise", train(budgeted, tmp_path)[0])
    assert verdict == "FAIL"
    assert "more than the target of 5" in said


def selected_of(table, *overrides):
    given = (*SELECTED, *overrides)
    return spec_of(table, partition=BY_HOSPITAL, clients=8, s=3, overrides=given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("drawn", [8, 4])
def test_a_private_selection_counts_all_hospitals_of_a_person_in_every_round(
    drawn, table, tmp_path
):
    """Which of them a round draws is not gone into, as against a third party."""
    spec = selected_of(table, f"federation.clients_per_round={drawn}")
    plan = foresee(spec)
    ((one, rounds),) = plan.spending_bound.each_round(plan.composition(plan.smallest_client))
    whole = [(replace(one, steps=3 * one.steps), rounds)]
    cost = epsilon_of_selection(whole, 1.0, plan.claimed_delta, plan.trials)
    assert plan.expected_claim(1)["third_party"]["epsilon"]["rdp"] == cost
    findings = one_trial(spec, tmp_path)
    assert [one for one in failing(findings) if one[0] != "reexecution"] == []


def test_a_private_selection_that_counts_one_hospital_of_three_fails_the_audit(
    table, tmp_path, monkeypatch
):
    claimed = record_level.claim_of_selection

    def of_one(rounds, *others):
        return claimed([(replace(one, steps=one.steps // 3), n) for one, n in rounds], *others)

    monkeypatch.setattr(record_level, "claim_of_selection", of_one)
    found = {one["name"]: one for one in one_trial(selected_of(table), tmp_path)["checks"]}
    assert found["views"]["verdict"] == "FAIL"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("data.person=null",), "data.person: missing with privacy.unit person"),
        (("federation.clients_per_person=4",), "found 4, but data.clients is 3"),
        (("privacy.adjacency=replace-one",), "use adjacency add-remove"),
    ],
)
def test_what_does_not_go_with_people_is_refused_in_one_line(
    table, tmp_path, changes, said, capsys
):
    file = tmp_path / "spec.yaml"
    file.write_text(specs.dump(spec_of(table)))
    sets = [part for change in changes for part in ("--set", change)]
    assert call("spec", "validate", str(file), *sets) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_digits_name_no_people(capsys):
    privacy = (
        "{unit: person, records_per_person: 2, clipping_norm: 1, noise_multiplier: 2, "
        "delta: 1.0e-5, sampling: {kind: poisson, expected_batch_size: 20}}"
    )
    assert call("spec", "validate", "quickstart", "--set", f"privacy={privacy}") == 2
    assert "digits names no people; use dataset" in " ".join(capsys.readouterr().err.split())


def test_epsilon_and_calibrate_speak_of_people(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "spec.yaml"
    file.write_text(specs.dump(spec_of(table, partition=BY_HOSPITAL, clients=8, s=3)))
    assert call("epsilon", str(file)) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "one person, with all of their records, at up to 3 clients, added or removed" in told
    assert call("calibrate", str(file), "--target-epsilon", "2", "--json") == 0
    solved = json.loads(capsys.readouterr().out)
    assert 1.9 < solved["epsilon"] <= 2.0


@pytest.mark.slow
def test_both_ways_to_keep_a_person_to_a_target_are_compared(table, tmp_path, capsys):
    file = tmp_path / "spec.yaml"
    file.write_text(specs.dump(spec_of(table)))
    compared = ("--target-epsilon", "2", "--compare-person")
    assert call("calibrate", str(file), *compared, "--json") == 0
    people, records = json.loads(capsys.readouterr().out)["ways"]
    assert all(1.98 < way["epsilon"] <= 2.0 for way in (people, records))
    assert (people["sampled"], records["sampled"]) == ("people", "records")
    # Somebody has ten records: the more of them may be drawn together, the more noise it takes.
    assert records["noise_multiplier"] > 2.0 * people["noise_multiplier"]
    assert 24.0 < records["batch"] < 3 * 24.0
    assert call("calibrate", "quickstart", *compared) == 2
    assert "needs privacy.unit person" in " ".join(capsys.readouterr().err.split())


def test_init_writes_a_spec_that_protects_people(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    columns = ("--label", "label", "--numbers", "x0", "--person", "patient_id", "--model", "mlp")
    assert call("init", "new.yaml", "--data", str(table), "--unit", "person", *columns) == 0
    spec = specs.load("new.yaml")
    assert (spec.privacy.unit, spec.data.person) == ("person", "patient_id")
    assert spec.privacy.records_per_person == 4
    assert "add --person" not in capsys.readouterr().out


def test_the_report_says_it_in_the_words_of_people(run):
    key = filing.load_key("auditor", None, [])
    with filing.writing(run.run):
        filing.file_report(run.run, filing.audit(run.run), key)
    report = json.loads((run.run.path / "report.json").read_text())
    guarantee, promise = report["guarantee"], report["meaning"]["promise"]
    assert "for a person with all of their records, at up to 3 clients" in promise
    assert "of one person, with all of their records, at up to 3 clients" in guarantee["statement"]
    assert guarantee["adjacency"] == "add-or-remove-one-person"
    assert report["clients"]["records_total"] == sum(Journal(run.run).header["rows"])
    assert "A drawn person contributes at most 3 of their records" in str(report["sampling"])
    assert b"Zoe-7f3a" not in b"".join(
        file.read_bytes() for file in run.run.path.rglob("*") if file.is_file()
    )


@pytest.mark.thorough
def test_in_bfloat16_people_pass_the_audit_and_their_participations_are_computed_again(
    table, tmp_path, capsys
):
    spec = spec_of(table, overrides=("compute.precision=bfloat16",))
    findings = judged(spec, tmp_path)
    assert [one for one in failing(findings) if one[0] != "reexecution"] == []
    (run,) = {ledger.parent.resolve() for ledger in tmp_path.glob("*/ledger.jsonl")}
    assert call("audit", str(run), "--replay", "3", "--json") == 0
    checks = {one["name"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["reexecution"]["verdict"] == "PASS"


@pytest.mark.thorough
def test_what_clients_in_other_processes_note_of_people_comes_back(table, tmp_path):
    findings = judged(spec_of(table, overrides=("federation.workers=2",)), tmp_path)
    assert [one for one in failing(findings) if one[0] != "reexecution"] == []
