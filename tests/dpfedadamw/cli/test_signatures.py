"""Keys and signatures from the command line: exit codes, one-line errors, nothing half written."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from dpfedadamw.cli import signatures, terminal
from dpfedadamw.filing import after_training
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run import setup as engine_setup
from reports.signatures import keyring, verification
from reports.signatures.inventory import Problem
from reports.signatures.keys import default_directory, fingerprint, load_public
from reports.signatures.signing import TRAINED_FILES
from reports.signatures.verification import VerificationResult, results
from tests.audit.corruptions import corrupt
from tests.authority import LocalAuthority
from tests.runs import PRIVATE, SMALL, call, key_of_a_test

NOBODY = "http://127.0.0.1:9/"
REVOKE = ("keys", "revoke", "--role", "auditor", "--reason", "superseded", "--yes")


def write_spec(folder: Path) -> Path:
    spec = folder / "small.yaml"
    spec.write_text(
        SMALL.format(
            algorithm="dp-fedavg",
            rounds=2,
            clients_per_round=2,
            privacy=PRIVATE,
            mode="release",
            seed="",
        )
    )
    return spec


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Path]:
    """A finished run and the folder of the keys that signed it."""
    folder = tmp_path_factory.mktemp("signatures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDADAMW_KEYS", str(folder / "keys"))
        patch.setattr(engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key_of_a_test()))
        call("run", str(write_spec(folder)), "--out", str(folder / "runs"))
    return (folder / "runs" / "latest").resolve(), folder / "keys"


@pytest.fixture
def case(finished, tmp_path, monkeypatch) -> tuple[str, Path]:
    """A copy of the run, and of its keys, which are the user's own here."""
    run, keys = finished
    shutil.copytree(run, tmp_path / run.name, symlinks=True)
    shutil.copytree(keys, tmp_path / "keys")
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))
    return str(tmp_path / run.name), tmp_path / "keys"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> LocalAuthority:
    return LocalAuthority(tmp_path_factory.mktemp("authority"))


def content(folder: str | Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("level", "required", "code", "said"),
    [
        (None, 1, 1, "error: no level of 4 is established, and 1 is required"),
        (1, 3, 1, "error: level 1 of 4 is established, and 3 is required"),
        (3, 3, 0, ""),
        (4, 3, 0, ""),
    ],
)
def test_a_run_without_the_level_that_is_required_ends_with_1(
    tmp_path, monkeypatch, capsys, level, required, code, said
):
    """One whose audit did not pass has no level, however whole its signatures are."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.yaml").write_text("version: 1\n")
    signer = results.Signer("auditor", "SHA256:own", "attestation.json", pinned=False, own=True)
    whole = results.VerificationResult((), (), (signer,), {}, level)
    monkeypatch.setattr(verification, "verify", lambda *_, **__: whole)
    assert call("verify", str(tmp_path / "run"), "--require-level", str(required)) == code
    assert capsys.readouterr().err.strip() == said


def one_error(capsys) -> str:
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert "Traceback" not in error
    return error


def test_signing_anew_with_a_timestamp_can_be_checked(case, authority, capsys):
    run, _ = case
    with authority.serve() as url:
        assert call("sign", run, "--timestamp", url) == 0
    capsys.readouterr()
    assert call("verify", run, "--tsa-root", str(authority.root), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert all(entry["time"] for entry in found["signers"])
    assert {entry["envelope"] for entry in found["signers"]} == {
        "training.attestation.json",
        "attestation.json",
        "report.pdf",
    }


@pytest.mark.parametrize("command", ["sign", "report"])
def test_an_authority_that_does_not_answer_changes_nothing(case, command, capsys):
    run, _ = case
    before = content(run)
    assert call(command, run, "--timestamp", NOBODY) == 2
    assert "timestamp: no answer from http://127.0.0.1:9/" in one_error(capsys)
    assert content(run) == before


def test_an_authority_that_does_not_answer_costs_no_training(case, tmp_path, capsys):
    spec = str(write_spec(tmp_path))
    assert call("run", spec, "--out", str(tmp_path / "runs"), "--timestamp", NOBODY) == 2
    assert "timestamp: no answer" in one_error(capsys)
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("answers", [1, 2])
def test_an_authority_that_fails_after_training_loses_no_run(tmp_path, authority, capsys, answers):
    spec = str(write_spec(tmp_path))
    authority.requests, authority.fails_after = 0, answers
    with authority.serve() as url:
        code = call("run", spec, "--out", str(tmp_path / "runs"), "--timestamp", url)
    authority.fails_after = None
    assert code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "everything is signed, but without a timestamp; add one with dpfedadamw sign" in error
    run = (tmp_path / "runs" / "latest").resolve()
    assert call("verify", str(run)) == 0


@pytest.mark.thorough
def test_a_run_can_be_timestamped_from_the_start(tmp_path, authority, capsys):
    spec = str(write_spec(tmp_path))
    with authority.serve() as url:
        call("run", spec, "--out", str(tmp_path / "runs"), "--timestamp", url)
    run = (tmp_path / "runs" / "latest").resolve()
    assert (run / "training.attestation.json.tsr").exists()
    assert (run / "attestation.json.tsr").exists()
    assert call("verify", str(run), "--tsa-root", str(authority.root)) == 0


def test_a_signature_that_was_cut_off_before_its_timestamp_gets_it_and_stays(case, authority):
    run, _ = case
    (Path(run) / "attestation.json").unlink()
    envelope = (Path(run) / "training.attestation.json").read_bytes()
    with authority.serve() as url:
        assert call("run", "--resume", run, "--timestamp", url) == 0
    assert (Path(run) / "training.attestation.json").read_bytes() == envelope
    assert (Path(run) / "training.attestation.json.tsr").exists()
    assert call("verify", run, "--tsa-root", str(authority.root)) == 0


def test_the_model_can_be_signed_by_itself(case, capsys):
    pytest.importorskip("model_signing")
    run, _ = case
    assert call("sign", run, "--model-signing") == 0
    assert (Path(run) / "model.sig").exists()
    assert call("verify", run) == 0
    assert call("sign", run, "--model-signing", "--role", "auditor") == 2
    assert "the trainer signs the model" in capsys.readouterr().err


def test_signing_in_one_role_leaves_the_others_signature_to_the_other(case, capsys):
    run, _ = case
    assert call("sign", run, "--role", "trainer") == 0
    assert f"auditor signs next: dpfedadamw audit {run} --write" in capsys.readouterr().err
    assert call("verify", run) == 1
    assert call("audit", run, "--write") == 0
    assert call("verify", run) == 0


def test_the_signature_of_somebody_else_is_not_replaced_unasked(
    case, tmp_path, monkeypatch, capsys
):
    run, _ = case
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "another auditor's"))
    before = content(run)
    assert call("sign", run) == 2
    assert "no trainer key" in one_error(capsys)
    assert not (tmp_path / "another auditor's").exists()
    call("keys", "new", "--role", "trainer")
    call("keys", "new", "--role", "auditor")
    capsys.readouterr()
    assert call("sign", run) == 2
    assert "which is not a key of yours" in one_error(capsys)
    assert content(run) == before
    assert call("sign", run, "--role", "auditor") == 0
    assert call("verify", run) == 3
    assert call("verify", run, "--trainer-key", str(tmp_path / "keys" / "trainer.pub")) == 0
    after = content(run)
    for name in ("trainer.pub", "training.attestation.json"):
        assert after[Path(run) / name] == before[Path(run) / name]


def change_a_finding(run: str) -> None:
    """What somebody does who wants another verdict, or another reason for it."""
    audit = Path(run) / "audit.json"
    text = audit.read_text("utf-8")
    audit.write_text(text.replace("every line of the ledger", "each line of the ledger"))
    assert audit.read_text("utf-8") != text


SIGNING = {
    "report": ("report",),
    "report for the public": ("report", "--audience", "public"),
    "sign": ("sign",),
    "sign as auditor": ("sign", "--role", "auditor"),
    "erase": ("erase", "--yes"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", SIGNING.values(), ids=SIGNING)
def test_a_changed_finding_is_signed_by_no_command_that_judges_nothing(command, case, capsys):
    run, _ = case
    change_a_finding(run)
    before = content(run)
    capsys.readouterr()
    assert call(command[0], run, *command[1:]) == 2
    error = one_error(capsys)
    assert "audit.json: changed since attestation.json was signed" in error
    remedy = f"dpfedadamw audit {run} --write" if command[0] != "erase" else "dpfedadamw verify"
    assert error.endswith(remedy)
    assert content(run) == before
    assert call("audit", run, "--write") == 0
    assert call(command[0], run, *command[1:]) == 0
    assert call("verify", run) == 0


def spoilt_and_signed(finished: Path, folder: Path, seeds: range, capsys) -> int:
    """Spoil copies of a run at random, and ask for a signature that judges nothing.

    Returns:
        How many hold after it.
    """
    memory, held = default_directory() / results.MEMORY_FILE, 0
    judged = ("audit.json", *TRAINED_FILES)
    was = {name: (finished / name).read_bytes() for name in judged}
    for seed in seeds:
        for command in SIGNING.values():
            run = folder / finished.name
            shutil.copytree(finished, run, symlinks=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # two members of one name, on purpose
                done = corrupt(run, finished, random.Random(seed))
            # Each copy has a course of its own.
            memory.unlink(missing_ok=True)
            capsys.readouterr()
            code = call(command[0], str(run), *command[1:])
            told = capsys.readouterr().err
            assert code in (0, 2), (seed, command, done, told)
            assert "Traceback" not in told, (seed, command, done)
            # What was signed is what was judged, or does not hold.
            if code == 0 and call("verify", str(run)) == 0:
                now = {name: (run / name).read_bytes() for name in judged}
                assert now == was, (seed, command, done)
                held += 1
            shutil.rmtree(run)
    return held


@pytest.mark.slow
def test_what_is_signed_of_a_spoilt_run_is_what_was_judged(case, tmp_path, capsys):
    run, _ = case
    assert spoilt_and_signed(Path(run), tmp_path / "spoilt", range(20), capsys) > 0


@pytest.mark.slow
def test_what_is_signed_of_three_hundred_spoilt_runs_is_what_was_judged(case, tmp_path, capsys):
    run, _ = case
    assert spoilt_and_signed(Path(run), tmp_path / "spoilt", range(1000, 1300), capsys) > 10


@pytest.mark.sampled(5)
@pytest.mark.parametrize("command", SIGNING.values(), ids=SIGNING)
def test_without_evidence_what_was_signed_must_be_put_back(command, case, capsys):
    run, _ = case
    assert call("erase", run, "--yes") == 0
    was = (Path(run) / "audit.json").read_bytes()
    change_a_finding(run)
    capsys.readouterr()
    assert call(command[0], run, *command[1:]) == 2
    assert one_error(capsys).endswith("nothing was signed; restore what was signed")
    (Path(run) / "audit.json").write_bytes(was)
    assert call(command[0], run, *command[1:]) == 0
    assert call("verify", run) == 0


def test_a_trainer_signs_no_model_that_was_changed_since_training(case, capsys):
    run, _ = case
    with open(Path(run) / "model.safetensors", "ab") as file:
        file.write(b" ")
    before = content(run)
    for options in ((), ("--role", "trainer"), ("--model-signing",)):
        capsys.readouterr()
        assert call("sign", run, *options) == 2
        error = one_error(capsys)
        assert "model.safetensors: changed since training.attestation.json was signed" in error
    assert content(run) == before


def test_who_audited_nothing_reports_nothing_under_a_key_of_their_own(
    case, tmp_path, monkeypatch, capsys
):
    """Otherwise what a forger found would become the officer's by a report or an erasure."""
    run, _ = case
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "officer"))
    before = content(run)
    for command in (("report", run), ("erase", run, "--yes")):
        capsys.readouterr()
        assert call(*command) == 2
    assert "was not signed by a key of yours" in capsys.readouterr().err.replace("\n", " ")
    assert content(run) == before
    assert call("audit", run, "--write") == 0
    assert call("report", run) == 0


def test_what_a_compromised_key_signed_is_judged_anew(case, capsys):
    run, keys = case
    assert call("keys", "rotate", "--role", "auditor") == 0
    named = ("--role", "auditor", "--key", str(keys / "auditor.pub"))
    assert call("keys", "revoke", *named, "--reason", "key-compromise", "--yes") == 0
    capsys.readouterr()
    for command in (("report", run), ("sign", run, "--role", "auditor")):
        assert call(*command) == 2
        assert "was not signed by a key of yours" in one_error(capsys)
    assert call("audit", run, "--write") == 0
    assert call("report", run) == 0
    assert call("verify", run) == 0


def test_who_knows_no_key_is_told_that_the_signer_is_unknown(case, tmp_path, monkeypatch, capsys):
    run, keys = case
    assert call("verify", run) == 0
    shown = capsys.readouterr().out
    assert shown.rstrip().endswith("ALL HOLD")
    assert "your own key" in shown
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "a stranger's"))
    assert call("verify", run) == 3
    assert capsys.readouterr().out.rstrip().endswith("INTACT, SIGNER UNKNOWN")
    assert call("verify", run, "--json") == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["ok"]) == ("INTACT, SIGNER UNKNOWN", False)
    assert not (tmp_path / "a stranger's").exists()
    given = [f"--{role}-key={keys / role}.pub" for role in ("trainer", "auditor")]
    assert call("verify", run, *given, "--json") == 0
    assert json.loads(capsys.readouterr().out)["sequence"]["attestation.json"] >= 1
    assert (tmp_path / "a stranger's" / "verified.json").is_file()


def test_an_earlier_state_that_was_put_back_is_refused(case, tmp_path, capsys):
    run, _ = case
    shutil.copytree(run, tmp_path / "earlier")
    assert call("sign", run) == 0
    assert call("verify", run) == 0
    shutil.rmtree(run)
    shutil.copytree(tmp_path / "earlier", run)
    capsys.readouterr()
    assert call("verify", run) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "an earlier state was put back" in shown
    assert shown.endswith("NOT VALID")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("bundle", "--audience", "archive", "-o"), 2),
        (("sign-off", "-o"), 2),
        (("export", "--output"), 1),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_an_earlier_state_that_was_put_back_is_handed_to_nobody(
    command, code, case, tmp_path, capsys
):
    run, keys = case
    shutil.copytree(run, tmp_path / "earlier")
    assert call("sign", run) == 0
    assert call("verify", run) == 0
    shutil.rmtree(run)
    shutil.copytree(tmp_path / "earlier", run)
    target = tmp_path / "made"
    capsys.readouterr()
    assert call(command[0], run, *command[1:], str(target)) == code
    shown = capsys.readouterr()
    assert "an earlier state was put back" in " ".join((shown.out + shown.err).split())
    assert not target.exists()
    (keys / "verified.json").unlink()
    assert call(command[0], run, *command[1:], str(target)) == 0
    shown = capsys.readouterr()
    assert "ALL HOLD" in shown.out
    assert "SIGNER UNKNOWN" not in shown.err


def test_an_earlier_state_is_not_signed_under_another_folder_s_name_either(case, tmp_path, capsys):
    """A copy is the same run: `verify` remembers it by the name that was signed."""
    run, _ = case
    earlier = tmp_path / "another name"
    shutil.copytree(run, earlier)
    assert call("sign", run) == call("verify", run) == 0
    capsys.readouterr()
    assert call("sign", str(earlier)) == 2
    assert "an earlier state was put back" in one_error(capsys)


@pytest.mark.parametrize("command", [("sign-off", "-o"), ("export", "--output")], ids=" ".join)
def test_whose_run_is_handed_on_is_said_where_the_signer_is_unknown(
    command, case, tmp_path, monkeypatch, capsys
):
    run, _ = case
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "no keys"))
    target = tmp_path / "made"
    assert call(command[0], run, *command[1:], str(target)) == 0
    shown = capsys.readouterr()
    assert "INTACT, SIGNER UNKNOWN" in shown.out
    assert "INTACT, SIGNER UNKNOWN: the signer's key is known only from the run" in " ".join(
        shown.err.split()
    )
    target = tmp_path / "again"
    assert call(command[0], run, *command[1:], str(target), "--json") == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "INTACT, SIGNER UNKNOWN"


def test_a_check_for_others_compares_with_nothing_and_remembers_nothing(case, tmp_path, capsys):
    run, keys = case
    shutil.copytree(run, tmp_path / "earlier")
    assert call("sign", run) == 0
    assert call("verify", run, "--no-memory") == 0
    assert not (keys / "verified.json").exists()
    assert call("verify", run) == 0
    shutil.rmtree(run)
    shutil.copytree(tmp_path / "earlier", run)
    assert call("verify", run) == 1
    assert call("verify", run, "--no-memory") == 0
    (keys / "verified.json").write_text("{")
    capsys.readouterr()
    assert call("verify", run) == 2
    assert "or verify with --no-memory" in one_error(capsys)
    assert call("verify", run, "--no-memory") == 0


@pytest.mark.sampled(5)
@pytest.mark.parametrize("command", SIGNING.values(), ids=SIGNING)
def test_an_earlier_state_that_was_put_back_is_signed_by_nothing(command, case, tmp_path, capsys):
    run, keys = case
    shutil.copytree(run, tmp_path / "earlier")
    for _ in range(2):
        assert call("sign", run) == 0
    assert call("verify", run) == 0
    shutil.rmtree(run)
    shutil.copytree(tmp_path / "earlier", run)
    before = content(run)
    capsys.readouterr()
    assert call(command[0], run, *command[1:]) == 2
    error = one_error(capsys)
    assert "attestation.json: is number 1 of this run, and number 3 was verified here" in error
    assert "an earlier state was put back" in error
    assert content(run) == before
    (keys / "verified.json").unlink()
    assert call(command[0], run, *command[1:]) == 0


@pytest.mark.sampled(5)
@pytest.mark.parametrize("command", SIGNING.values(), ids=SIGNING)
def test_an_earlier_state_is_signed_by_nothing_in_a_folder_of_another_name(
    command, case, tmp_path, capsys
):
    run, _ = case
    shutil.copytree(run, tmp_path / "earlier")
    assert call("sign", run) == 0
    assert call("verify", run) == 0
    before = content(tmp_path / "earlier")
    capsys.readouterr()
    assert call(command[0], str(tmp_path / "earlier"), *command[1:]) == 2
    assert "attestation.json: is number 1 of this run, and number 2 was" in one_error(capsys)
    assert content(tmp_path / "earlier") == before


def test_a_key_folder_that_others_may_write_to_is_one_line(case, capsys):
    run, keys = case
    keys.chmod(0o777)
    for command in (("verify", run), ("sign", run), ("keys", "show")):
        assert call(*command) == 2
        assert "others may write to it (mode 0777)" in one_error(capsys)


def test_a_replaced_key_is_followed_and_a_revoked_one_refused(case, capsys):
    run, keys = case
    assert call("keys", "rotate", "--role", "auditor") == 0
    assert call("sign", run, "--role", "auditor") == 0
    trusted = ("--auditor-key", str(keys / "auditor.pub"))
    assert call("verify", run, *trusted) == 0
    assert "was replaced by its holder" in " ".join(capsys.readouterr().out.split())
    assert call("keys", "revoke", "--role", "auditor", "--reason", "key-compromise", "--yes") == 0
    capsys.readouterr()
    assert call("verify", run) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "does not hold attestation.json: its key" in shown
    assert "is revoked since" in shown
    assert call("sign", run, "--role", "auditor") == 2
    assert "signs no more" in one_error(capsys)


def test_a_list_of_revoked_keys_from_somebody_else_counts(case, monkeypatch, tmp_path):
    run, keys = case
    assert call("keys", "revoke", "--role", "trainer", "--reason", "superseded", "--yes") == 0
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "a stranger's"))
    assert call("verify", run) == 3
    assert call("verify", run, "--revocations", str(keys / "trainer.revocations.json")) == 1


def test_a_wrong_passphrase_is_one_line(case, tmp_path, monkeypatch, capsys):
    run, _ = case
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "protected"))
    monkeypatch.setenv("DPFEDADAMW_PASSPHRASE", "correct horse")
    assert call("keys", "new", "--role", "auditor") == 0
    before = content(run)
    monkeypatch.setenv("DPFEDADAMW_PASSPHRASE", "wrong")
    for command in (("sign", run, "--role", "auditor"), ("report", run), ("audit", run, "--write")):
        capsys.readouterr()
        assert call(*command) == 2
        error = one_error(capsys)
        assert "wrong passphrase" in error
        assert "correct horse" not in error
    monkeypatch.delenv("DPFEDADAMW_PASSPHRASE")
    assert call("sign", run, "--role", "auditor") == 2
    assert "a passphrase is needed" in one_error(capsys)
    assert content(run) == before


def test_a_key_that_others_may_read_signs_nothing(case, capsys):
    run, keys = case
    (keys / "auditor.key").chmod(0o644)
    before = content(run)
    assert call("sign", run) == 2
    assert "others may read it (mode 0644)" in one_error(capsys)
    assert content(run) == before


def test_keys_are_shown_in_a_narrow_terminal_and_for_machines(case, capsys, monkeypatch):
    _, keys = case
    call("keys", "rotate", "--role", "trainer")
    call(
        "keys",
        "revoke",
        "--role",
        "auditor",
        "--reason",
        "superseded",
        "--since",
        "2026-01-02",
        "--yes",
    )
    capsys.readouterr()
    monkeypatch.setattr(terminal.out, "width", 80)
    assert call("keys", "show") == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines()[1:])
    for word in ("in use", "replaced", "revoked", "2026-01-02T00:00:00Z", "mode 0600"):
        assert word in shown
    assert len(re.findall(r"SHA256:[\w+/]{43}", shown)) == 4
    assert call("keys", "show", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["state"] for entry in found] == ["replaced", "in use", "revoked"]
    assert call("keys", "show", "--directory", str(keys / "none")) == 2


def test_a_key_can_be_brought_along(case, tmp_path, capsys):
    _, keys = case
    target = str(tmp_path / "new")
    source = ("--key", str(keys / "trainer.key"), "--certificate", str(keys / "trainer.crt"))
    assert call("keys", "import", "--role", "auditor", *source, "--directory", target) == 0
    assert (tmp_path / "new" / "auditor.pub").read_bytes() == (keys / "trainer.pub").read_bytes()
    assert call("keys", "import", "--role", "auditor", *source, "--directory", target) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (REVOKE[:-1], "give --yes to confirm"),
        ((*REVOKE, "--since", "soon"), "is not a date"),
        ((*REVOKE, "--since", "2999-01-01"), "lies in the future"),
        (("keys", "new", "--role", "auditor", "--days", "0", "--directory", "empty"), "days: 0"),
        (("keys", "rotate", "--role", "auditor", "--directory", "empty"), "no auditor key"),
        (
            ("keys", "import", "--role", "auditor", "--key", "none", "--directory", "empty"),
            "no such key",
        ),
        (("sign", "nowhere"), "nowhere"),
        (("audit", "--timestamp", NOBODY), "nothing is signed without --write"),
        (("sign", "--auditor-key", "pkcs11:object=x"), "runs"),
    ],
)
def test_wrong_input_is_one_line(arguments, message, case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    assert message in one_error(capsys)


def test_a_hardware_address_that_is_none_is_one_line(case, capsys):
    pytest.importorskip("pkcs11")
    run, _ = case
    assert call("sign", run, "--auditor-key", "pkcs11:object=x") == 2
    assert "pkcs11: the address lacks token=" in one_error(capsys)


def test_of_two_first_runs_at_once_both_sign_with_the_key_that_one_makes(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path))
    make = keyring.new

    def overtaken(role, folder, passphrase):
        make(role, folder, passphrase)
        return make(role, folder, passphrase)

    monkeypatch.setattr(keyring, "new", overtaken)
    made = []
    loaded = after_training.load_key("trainer", None, made)
    assert made == []
    assert loaded.fingerprint == fingerprint(load_public(tmp_path / "trainer.pub"))


def test_of_very_many_problems_the_first_are_printed_and_the_rest_counted():
    problems = tuple(Problem(f"file-{number}", "missing") for number in range(1_000))
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(signatures.verification(VerificationResult(problems, (), (), {})))
    shown = console.export_text().split("\n")
    assert sum("does not hold" in line for line in shown) == 200
    assert any("and 800 more; --json has all" in line for line in shown)
