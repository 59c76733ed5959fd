"""Runs on people's records: what is claimed, judged, reported, and never written."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from audit.verdict import Verdict
from dpfedadamw import spec as specs
from dpfedadamw.data.formats.visits import write_table
from dpfedadamw.filing import after_training as filing
from dpfedadamw.run.journal import Journal
from dpfedadamw.rundir import RunDirectory
from tests.audit.corruptions import finding_of
from tests.runs import call, failing, train

SPEC = """
version: 1
name: people
data:
  {{dataset: table, path: {path}, cache: {cache}, label: label, numbers: [x0, x1, x2, x3],
   person: patient_id, clients: 8, partition: {{kind: column, column: hospital}}}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: dp-fedavg, learning_rate: 0.5}}
federation: {{rounds: 2, clients_per_round: 8, local_steps: 2}}
privacy:
  {{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5,
   sampling: {{kind: poisson, expected_batch_size: 20}}}}
randomness: {{mode: reproducible, seed: 1}}
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """2,000 visits whose people have names that nothing else has."""
    text = io.StringIO()
    write_table(text)
    path = tmp_path_factory.mktemp("people") / "visits.csv"
    lines = text.getvalue().splitlines(keepends=True)[:2001]
    path.write_text("".join(lines).replace("P0", "Zoe-7f3a-"))
    return path


@pytest.fixture(scope="module")
def spec(table):
    return specs.loads(SPEC.format(path=table, cache=table.parent / "cache"))


@pytest.fixture(scope="module")
def run(spec, table):
    training, _ = train(spec, table.parent / "runs")
    filing.attest_training(training.run, filing.load_signers(None, None))
    return training.run


@pytest.fixture(scope="module")
def audited(run):
    """What the audit finds of the run."""
    return filing.audit(run)


def rewritten(run, change):
    """What `views` finds where the claim is another one, with digests made to fit."""
    lines = run.ledger.read_bytes()
    entries = [json.loads(line) for line in lines.splitlines()]
    claim = {name: entries[-1][name] for name in entries[-1] if name not in ("previous", "digest")}
    from dpfedadamw.privacy.ledger import Ledger

    run.ledger.write_bytes(b"".join(line + b"\n" for line in lines.splitlines()[:-1]))
    Ledger(run.ledger).append("claim", change(claim))
    try:
        return finding_of(run.path, "views")
    finally:
        run.ledger.write_bytes(lines)


def test_the_claim_says_what_it_means_for_the_person_with_most_records(run, audited):
    findings = audited.to_json()
    assert [name for name, _ in failing(findings)] == ["reexecution"]
    told, claim = Journal(run).claim["person"], Journal(run).claim
    assert 2 < told["records"] <= 10
    assert told["epsilon"] > told["records"] * claim["server_worst_case"]["epsilon"]["pld"]
    measured = next(one for one in findings["checks"] if one["name"] == "views")["measurement"]
    assert f"a person with {told['records']} records" in measured


@pytest.mark.parametrize("most", [1, 2])
def test_a_person_of_one_record_has_its_epsilon_and_one_of_two_more_than_twice_as_much(
    table, tmp_path, monkeypatch, capsys, most
):
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC.format(path=table, cache=tmp_path / "cache"))
    assert call("epsilon", "spec.yaml", f"--set=data.most_records_per_person={most}", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["person"]["records"] == most
    of_a_record = found["server_worst_case"]["epsilon"]["pld"]
    if most == 1:
        assert found["person"]["epsilon"] == of_a_record
    else:
        assert found["person"]["epsilon"] > 2 * of_a_record


@pytest.mark.parametrize("wrong", ["epsilon", "records", "missing"])
def test_a_claim_that_says_less_fails(run, wrong):
    def change(claim):
        if wrong == "missing":
            return {name: claim[name] for name in claim if name != "person"}
        factor = {"epsilon": 0.99, "records": 0.5}[wrong]
        value = type(claim["person"][wrong])(claim["person"][wrong] * factor)
        return {**claim, "person": {**claim["person"], wrong: value}}

    assert rewritten(run, change).verdict is Verdict.FAIL


def test_no_identifier_is_in_any_file_of_the_run(run, audited):
    key = filing.load_key("auditor", None, [])
    with filing.writing(run):
        filing.file_report(run, audited, key)
    for file in run.path.rglob("*"):
        assert file.is_dir() or b"Zoe-7f3a" not in file.read_bytes()
    report = json.loads((run.path / "report.json").read_text())
    assert "No person has more than" in report["meaning"]["promise"]
    assert report["guarantee"]["person"]["epsilon"] > report["guarantee"]["epsilon"]


def test_validate_and_init_say_in_one_line_that_a_column_looks_like_people(
    table, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    flags = ("--label", "label", "--numbers", "x0", "--model", "mlp", "--clients", "2")
    assert call("init", "new.yaml", "--data", str(table), *flags) == 0
    even = "--set=data.partition={kind: iid}"
    line = "the column patient_id looks like an identifier of people, and one value has"
    assert "add --person patient_id" in " ".join(capsys.readouterr().out.split())
    assert call("spec", "validate", "new.yaml", even) == 0
    assert line in " ".join(capsys.readouterr().out.split())
    assert call("spec", "validate", "new.yaml", "--set", "data.person=patient_id", even) == 0
    assert "looks like" not in capsys.readouterr().out
    assert call("spec", "validate", "new.yaml", "--set", "data.person=x0", even) == 2
    assert "this column may only name people" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_spec_that_keeps_few_records_of_each_claims_for_so_many_whatever_the_data_hold(
    table, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC.format(path=table, cache=tmp_path / "cache"))
    few = ("--set", "data.most_records_per_person=3")
    solve = ("calibrate", "spec.yaml", "--target-epsilon", "2", "--per-person")
    assert call(*solve, *few, "-o", "few.yaml", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert 1.98 < found["epsilon"] <= 2.0
    assert call("epsilon", "few.yaml", "--records-per-person", "3", "--json") == 0
    by_records = json.loads(capsys.readouterr().out)["epsilon_by_records_of_a_person"]
    assert by_records["3"] == pytest.approx(found["epsilon"], rel=1e-9)
    assert call("run", "few.yaml", "--out", "runs", "--set", "federation.rounds=1") == 0
    capsys.readouterr()
    claim = Journal(RunDirectory(Path("runs/latest"))).claim
    assert claim["person"]["records"] == 3
    assert any("data.most_records_per_person" in one for one in claim["assumptions"])
    # Nobody has 20: the claim is for 20 all the same, since it may not follow from the data.
    many = ("--set", "data.most_records_per_person=20", "--set", "federation.rounds=1")
    assert call("epsilon", "few.yaml", *many, "--json") == 0
    assert json.loads(capsys.readouterr().out)["person"]["records"] == 20
    assert call(*solve) == 2
    assert "needs privacy.unit record, data.person and" in " ".join(capsys.readouterr().err.split())
