"""``bundle`` and ``erase``: each reader gets what is meant for her, and it holds as it stands."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat

import pytest

from dpfedadamw.cli import display
from reports.errors import KeyFileError
from reports.signatures import copies, keys, verification
from reports.signatures.verification import results
from tests.runs import call

PUBLIC = {
    "model.safetensors",
    "model.json",
    "metrics.jsonl",
    "report-public.json",
    "report-public.pdf",
    "report-public.html",
    "trainer.pub",
    "auditor.pub",
    "VERIFY-public.md",
    "attestation-public.json",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole run with its public report."""
    out = tmp_path_factory.mktemp("finished")
    small = ("federation.rounds=1", "federation.clients_per_round=2", "federation.local_steps=2")
    sets = [option for change in small for option in ("--set", change)]
    assert call("run", "quickstart", *sets, "--out", str(out)) == 0
    assert call("report", str(out / "latest"), "--audience", "public") == 0
    return (out / "latest").resolve()


@pytest.fixture
def run(finished, tmp_path):
    # Each test has a course of its own; `verify` would remember the others'.
    (keys.default_directory() / results.MEMORY_FILE).unlink(missing_ok=True)
    return shutil.copytree(finished, tmp_path / finished.name)


def names(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("audience", ["public", "archive", "auditor"])
def test_each_audience_gets_its_files_and_no_others_and_they_hold(audience, run):
    assert call("bundle", str(run), "--audience", audience) == 0
    copy = run.with_name(f"{run.name}-{audience}")
    everything = names(run)
    evidence = {name for name in everything if name.startswith("evidence/")}
    assert evidence
    expected = {"public": PUBLIC, "archive": everything - evidence, "auditor": everything}
    assert names(copy) == expected[audience]
    assert call("verify", str(copy)) == 0
    modes = {stat.S_IMODE(path.stat().st_mode) for path in copy.rglob("*") if path.is_file()}
    assert modes == ({0o644} if audience == "public" else {0o600})
    assert stat.S_IMODE(copy.stat().st_mode) == (0o755 if audience == "public" else 0o700)


def test_the_auditors_copy_can_be_audited_and_gives_the_same_verdict(run, capsys):
    assert call("bundle", str(run), "--audience", "auditor") == 0
    capsys.readouterr()
    assert call("audit", str(run.with_name(f"{run.name}-auditor")), "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"


def test_no_copy_is_made_without_an_audience_over_a_folder_or_of_a_run_that_does_not_hold(
    run, capsys
):
    assert call("bundle", str(run)) == 2
    target = run.with_name("taken")
    target.mkdir()
    assert call("bundle", str(run), "--audience", "archive", "-o", str(target)) == 2
    assert "is never overwritten" in capsys.readouterr().err
    with (run / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert call("bundle", str(run), "--audience", "public", "-o", str(run.with_name("new"))) == 2
    assert {path.name for path in run.parent.iterdir()} == {run.name, "taken"}


def test_a_copy_that_cannot_be_finished_leaves_nothing(run, monkeypatch, capsys):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies.os, "fsync", full)
    with monkeypatch.context() as patch:
        patch.setattr(copies.os, "fsync", full)
        assert call("bundle", str(run), "--audience", "public") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in run.parent.iterdir()] == [run.name]


def test_the_public_copy_needs_the_public_report(run, capsys):
    os.remove(run / "attestation-public.json")
    assert call("bundle", str(run), "--audience", "public") == 2
    assert "report RUN_DIR --audience public" in capsys.readouterr().err.replace("\n", " ")


def test_evidence_is_erased_with_a_signed_record_and_the_findings_stay(run, capsys):
    before = (run / "audit.json").read_bytes()
    assert call("erase", str(run), "--reason", "two years are over", "--yes") == 0
    assert not (run / "evidence").exists()
    record = json.loads((run / "erasure.json").read_text())
    assert (record["run"], record["reason"]) == (run.name, "two years are over")
    capsys.readouterr()
    assert call("verify", str(run)) == 0
    assert "The evidence was erased on" in " ".join(capsys.readouterr().out.split())
    assert (run / "audit.json").read_bytes() == before
    for command in (("audit", str(run), "--write"), ("run", "--resume", str(run))):
        assert call(*command) == 2
        assert "can no longer be audited" in capsys.readouterr().err
    assert (run / "audit.json").read_bytes() == before
    assert call("audit", str(run)) == 1
    capsys.readouterr()
    assert call("erase", str(run), "--json") == 0
    again = capsys.readouterr()
    assert "erased already" in again.err
    told = {"run": run.name, "erased": record["erased"], "record": "erasure.json"}
    assert json.loads(again.out) == told


def test_what_a_copy_left_that_was_killed_is_erased_with_the_evidence(run):
    others = [run.with_name(f".{name}.partial") for name in ("another-auditor", f"{run.name}2-x")]
    for left in (run.with_name(f".{run.name}-auditor.partial"), *others):
        (left / "evidence").mkdir(parents=True)
        (left / "evidence" / "records.npz").write_bytes(b"private")
    assert call("erase", str(run), "--yes") == 0
    assert sorted(run.parent.glob(".*")) == sorted(others)


def test_a_changed_record_of_an_erasure_is_noticed(run, capsys):
    assert call("erase", str(run), "--yes") == 0
    record = (run / "erasure.json").read_text()
    (run / "erasure.json").write_text(record.replace("not needed", "needed"))
    assert call("verify", str(run)) == 1
    # Nor is it signed.
    capsys.readouterr()
    assert call("erase", str(run), "--yes") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "erasure.json: changed since attestation.json was signed" in told
    assert told.endswith("restore what was signed")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("record", ["{", "link"])
def test_a_record_of_an_erasure_that_cannot_be_read_is_not_valid_and_not_handed_on(
    record, run, capsys
):
    assert call("erase", str(run), "--yes") == 0
    (run / "erasure.json").unlink()
    if record == "link":
        (run / "erasure.json").symlink_to(run / "spec.yaml")
    else:
        (run / "erasure.json").write_text(record)
    assert call("verify", str(run)) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "does not hold erasure.json: " in told
    assert "NOT VALID" in told
    assert call("bundle", str(run), "--audience", "archive") == 2
    assert [path.name for path in run.parent.iterdir()] == [run.name]


def test_a_copy_that_cannot_be_judged_is_not_kept(run, monkeypatch):
    def fails(*_, **__):
        raise KeyFileError("keys: cannot be read")

    monkeypatch.setattr(verification, "verify", fails)
    assert call("bundle", str(run), "--audience", "archive") == 2
    assert [path.name for path in run.parent.iterdir()] == [run.name]


def test_a_signed_folder_without_ledger_and_spec_is_judged(run, capsys):
    for name in ("ledger.jsonl", "spec.yaml"):
        (run / name).unlink()
    assert call("verify", str(run)) == 1
    assert "ledger.jsonl: missing" in " ".join(capsys.readouterr().out.split())
    for name in ("attestation.json", "training.attestation.json", "attestation-public.json"):
        (run / name).unlink()
    assert call("verify", str(run)) == 2
    assert "neither ledger.jsonl nor spec.yaml" in " ".join(capsys.readouterr().err.split())


def test_an_erasure_that_was_cut_off_is_finished_by_another(run, monkeypatch, capsys):
    class PowerCutError(Exception):
        """The power goes."""

    def cut(*_, **__):
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(copies.signing, "sign", cut)
        assert call("erase", str(run), "--yes") == 70
    first = (run / "erasure.json").read_bytes()
    assert call("verify", str(run)) == 1
    capsys.readouterr()
    assert call("report", str(run)) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.endswith(f"finish the erasure that was cut off: dpfedadamw erase {run}")
    assert call("erase", str(run), "--reason", "asked for", "--yes") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "gives the reason 'the evidence is not needed any more' (erasure.json)" in told
    assert call("erase", str(run), "--yes") == 0
    assert (run / "erasure.json").read_bytes() == first
    assert call("verify", str(run)) == 0
    assert call("erase", str(run), "--reason", "asked for") == 2
    assert call("erase", str(run), "--reason", "the evidence is not needed any more") == 0


def test_a_record_laid_into_a_run_does_not_keep_it_from_being_looked_at(run, capsys):
    (run / "erasure.json").write_bytes(copies._record(run.name, "mine", "2026-11-22T12:00:00Z"))
    path = run / "training.attestation.json"
    path.write_bytes(path.read_bytes().replace(b'"sig"', b'"signature"'))
    assert call("erase", str(run), "--yes") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "its evidence is kept, because the run does not verify (training.attestation" in told
    assert (run / "evidence").is_dir()


@pytest.mark.thorough
def test_an_erasure_that_was_killed_in_its_last_step_is_finished_by_another(run, capsys):
    assert call("erase", str(run), "--yes") == 0
    # What a writer leaves that was killed while it let go of the run.
    (run / ".unfinished").mkdir()
    (run / ".unfinished" / "lock").touch()
    capsys.readouterr()
    # The lock alone says that a command was killed, not that anything is missing.
    assert call("verify", str(run)) == 0
    assert "nothing in it but the lock" in " ".join(capsys.readouterr().out.split())
    (run / ".unfinished" / "attestation.json").touch()
    assert call("verify", str(run)) == 1
    advice = "repeat the command that was cut off: dpfedadamw erase, report or sign RUN_DIR"
    assert advice in " ".join(capsys.readouterr().out.split())
    assert call("run", "--resume", str(run)) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"repeating it: dpfedadamw erase, report or sign {run}" in told
    assert call("erase", str(run), "--yes") == 0
    assert not (run / ".unfinished").exists()
    assert call("verify", str(run)) == 0
    assert call("erase", str(run), "--yes") == 0
    assert "erased already" in capsys.readouterr().err


def test_evidence_that_cannot_be_deleted_is_named_with_what_finishes_it(run, monkeypatch, capsys):
    real = os.unlink

    def refuse(path, *rest, **more):
        if os.path.basename(path) == "partition.npz":
            raise OSError(28, "No space left on device", path)
        real(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        assert call("erase", str(run), "--yes") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "evidence/partition.npz: cannot be deleted (No space left on device)" in told
    assert told.endswith(f"finish it: dpfedadamw erase {run}")
    assert call("verify", str(run)) == 1
    assert call("erase", str(run), "--yes") == 0
    assert call("verify", str(run)) == 0


def test_a_run_that_does_not_hold_keeps_its_evidence(run, capsys):
    (run / "report.html").write_text("All is well.")
    assert call("erase", str(run), "--yes") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "its evidence is kept, because the run does not verify (report.html: " in told
    assert (run / "evidence").is_dir()
    assert not (run / "erasure.json").exists()


def test_nothing_is_erased_unasked_or_from_a_run_that_is_not_signed(run, capsys):
    assert call("erase", str(run)) == 2
    assert "give --yes to confirm" in capsys.readouterr().err
    os.remove(run / "attestation.json")
    assert call("erase", str(run), "--yes") == 2
    assert "must be signed before" in capsys.readouterr().err.replace("\n", " ")
    assert (run / "evidence").is_dir()


def test_a_run_that_holds_can_be_signed_off_and_no_other(run, capsys):
    assert call("sign-off", str(run)) == 0
    annex = run.with_name(f"{run.name}-sign-off.pdf")
    assert annex.read_bytes().startswith(b"%PDF-1.7")
    # The run is as it was.
    assert call("verify", str(run)) == 0
    assert call("sign-off", str(run)) == 2
    assert "never overwritten" in capsys.readouterr().err
    annex.unlink()
    (run / "report.pdf").write_bytes((run / "report.pdf").read_bytes() + b" ")
    assert call("sign-off", str(run)) == 2
    assert "does not verify" in capsys.readouterr().err
    assert not annex.exists()


def test_a_decision_is_signed_and_verify_says_what_it_is_about(run, tmp_path, capsys):
    key = str(keys.default_directory() / "auditor.key")
    annex, answers = tmp_path / "annex.pdf", tmp_path / "answers.yaml"
    answers.write_text("governance: {retention: One year.}")
    decided = ("--decision", "Approved.", "--name", "A. Person", "--answers", str(answers))
    assert call("sign-off", str(run), "-o", str(annex), *decided, "--key", key) == 0
    capsys.readouterr()
    public = str(keys.default_directory() / "auditor.pub")
    assert call("verify", str(annex), "--of", str(run), "--signer-key", public, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["decision"] for one in told["signers"]] == ["Approved."]
    assert any("to the byte" in text for text in told["statements"])
    assert call("verify", str(annex)) == 3
    # Each key that is given must have signed.
    twice = ("--signer-key", public, "--signer-key", public.replace("auditor", "trainer"))
    assert call("verify", str(annex), "--of", str(run), *twice) == 1
    assert "nobody signed it with the key you gave" in " ".join(capsys.readouterr().out.split())
    annex.write_bytes(annex.read_bytes() + b"%")
    assert call("verify", str(annex), "--of", str(run)) == 1


def test_an_annex_on_a_run_that_does_not_hold_is_not_valid(run, tmp_path, capsys):
    key = str(keys.default_directory() / "auditor.key")
    decided = ("--decision", "Approved.", "--name", "A. Person", "--key", key)
    annex = tmp_path / "annex.pdf"
    assert call("sign-off", str(run), "-o", str(annex), *decided) == 0
    public = str(keys.default_directory() / "auditor.pub")
    check = ("verify", str(annex), "--of", str(run), "--signer-key", public)
    capsys.readouterr()
    assert call(*check) == 0
    assert "by itself: ALL HOLD" in " ".join(capsys.readouterr().out.split())
    for name in ("attestation.json", "training.attestation.json"):
        (run / name).unlink()
    (run / "ledger.jsonl").write_text("junk")
    assert call(*check) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "attestation.json: missing" in told
    assert "by itself: NOT VALID" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sign-off", "RUN", "--decision", "Approved."), "give both"),
        (("sign-off", "RUN", "--key", "nowhere.pem"), "signs a decision"),
        (("verify", "RUN", "--of", "RUN"), "belong to a signed-off annex"),
    ],
)
def test_half_a_decision_is_refused(run, arguments, said, capsys):
    assert call(*(str(run) if word == "RUN" else word for word in arguments)) == 2
    assert said in capsys.readouterr().err
    assert not list(run.parent.glob("*sign-off*"))


@pytest.mark.thorough
def test_an_officer_who_has_the_public_files_alone_signs_off_the_public_report(
    run, tmp_path, capsys
):
    assert call("bundle", str(run), "--audience", "public") == 0
    public = run.with_name(f"{run.name}-public")
    annex = tmp_path / "annex.pdf"
    decided = ("--decision", "Approved.", "--name", "A. Person")
    key = str(keys.default_directory() / "auditor.key")
    assert call("sign-off", str(public), "-o", str(annex), *decided, "--key", key) == 0
    capsys.readouterr()
    own = str(keys.default_directory() / "auditor.pub")
    for of in (public, run):
        assert call("verify", str(annex), "--of", str(of), "--signer-key", own, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert [one["decision"] for one in told["signers"]] == ["Approved."]
    # It is the annex that the holder of the whole run gets.
    whole = tmp_path / "whole.pdf"
    again = ("sign-off", str(run), "--audience", "public", "-o")
    assert call(*again, str(whole)) == 0
    assert call("sign-off", str(public), "-o", str(tmp_path / "boxes.pdf")) == 0
    assert (tmp_path / "boxes.pdf").read_bytes() == whole.read_bytes()
    answers = tmp_path / "answers.yaml"
    answers.write_text("purpose: Research.\n", "utf-8")
    capsys.readouterr()
    for more in (("--audience", "internal"), ("--answers", str(answers))):
        assert call("sign-off", str(public), "-o", str(tmp_path / "none.pdf"), *more) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert said.startswith(f"{more[0]}")
        assert str(public) in said
    assert not (tmp_path / "none.pdf").exists()


def test_terminal_page_and_odds_agree_to_the_digit(run):
    claim = json.loads((run / "ledger.jsonl").read_text("utf-8").splitlines()[-1])
    rows = {name: str(value) for name, value in display.privacy_rows(claim)}
    page = (run / "report.html").read_text("utf-8")
    shown = re.search(r"ε \(privacy loss\)[^<]*</dt><dd>([\d.]+)</dd>", page)
    odds = re.search(r"odds become ([\d.,]+) times as large \(= e\^ε\)", page)
    assert shown is not None
    assert odds is not None
    assert shown[1] in rows.values()
    printed = float(odds[1].replace(",", ""))
    assert printed == pytest.approx(math.exp(float(shown[1])), rel=5e-3)
