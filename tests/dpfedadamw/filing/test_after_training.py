"""What follows training, step by step: keys, timestamps, what is told, and what is found again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dpfedadamw.errors import FilingError
from dpfedadamw.filing import after_training as filing
from dpfedadamw.filing.after_training import Filed, Filing, Signers
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.run.journal import Outcome
from dpfedadamw.rundir import RunDirectory
from reports import Auditing
from reports.errors import TimestampError
from reports.signatures import keyring, keys
from reports.signatures.inventory import Problem


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A folder of a run, without any file."""
    (tmp_path / "a-run").mkdir()
    return RunDirectory(tmp_path / "a-run")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key folder, which is not there yet; nothing protects keys."""
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))
    for name in (filing.PASSPHRASE_VARIABLE, filing.PIN_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "keys"


def wrote(run: RunDirectory, claim: dict[str, Any] | None, unit: str = "record") -> None:
    """The ledger of a run of nine rounds, with or without its claim."""
    ledger = Ledger(run.ledger)
    ledger.append("header", {"unit": unit, "rounds": 9})
    if claim is not None:
        ledger.append("claim", claim)


def test_a_claim_is_told_without_who_took_part_and_without_how_many_trials_there_were() -> None:
    claim = {
        "epsilon": 1.0,
        "profile": [[0, 3]],
        "server": {"accountant": "pld", "epsilon": {"pld": 2.0}, "clients": [{"client": 4}]},
        "third_party": {"epsilon": {"pld": 1.0}},
        "tuning": {"one_trial": {"epsilon": {"pld": 0.5}}, "all_trials": {"epsilon": 9.0}},
    }
    before = json.dumps(claim)
    assert filing.without_participation(claim) == {
        "epsilon": 1.0,
        "server": {"accountant": "pld", "epsilon": {"pld": 2.0}},
        "third_party": {"epsilon": {"pld": 1.0}},
        "tuning": {"one_trial": {"epsilon": {"pld": 0.5}}},
    }
    assert json.dumps(claim) == before
    assert filing.without_participation({"view_headline": "none"}) == {"view_headline": "none"}


@pytest.mark.parametrize(
    ("claim", "unit", "parts"),
    [
        (None, "record", None),
        ({}, "record", None),
        ({"diverged": {"rounds": 4}}, "record", ("round 4 of 9", "nothing was charged after it")),
        ({"diverged": {"rounds": 4}}, "none", ("round 4 of 9",)),
    ],
)
def test_a_run_that_diverged_is_said_to_have_and_what_was_charged_where_something_was(
    claim: dict[str, Any] | None, unit: str, parts: tuple[str, ...] | None, run: RunDirectory
) -> None:
    wrote(run, claim, unit)
    said = filing.divergence_of(run)
    if parts is None:
        assert said is None
        return
    assert said is not None
    assert all(part in said for part in parts)
    assert ("charged" in said) == (unit != "none")


METRICS = {
    "round": 9, "test_accuracy": 0.5, "test_loss": 1.25, "test_auc": 0.75, "test_f1": 0.5,
    "validation_accuracy": 0.1, "test_own": {"f2": 0.25},
}  # fmt: skip


def test_what_training_came_to_is_read_from_the_last_line_of_metrics(run: RunDirectory) -> None:
    wrote(run, {"delta": 1e-5})
    lines = [{"round": 8, "test_accuracy": 0.9}, METRICS]
    run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run.checkpoint.mkdir()
    (run.checkpoint / "state-00009.safetensors").write_bytes(b"memories of clients")
    found = filing.outcome_of(run)
    assert found is not None
    assert (found.run, found.claim["delta"], found.engine) == (run, 1e-5, None)
    assert (found.accuracy, found.loss) == (0.5, 1.25)
    assert found.measures == {"test_auc": 0.75, "test_f1": 0.5}
    assert found.own == {"f2": 0.25}
    # A killed process may have left it next to the claim.
    assert not run.checkpoint.exists()


def test_a_run_without_a_claim_came_to_nothing_and_one_without_metrics_to_no_numbers(
    run: RunDirectory,
) -> None:
    wrote(run, None)
    assert filing.outcome_of(run) is None
    Ledger(run.ledger).append("claim", {})
    run.metrics.write_text("")
    found = filing.outcome_of(run)
    assert found is not None
    assert (found.accuracy, found.loss, found.measures, found.own) == (None, None, {}, {})


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        (b'{"verdict": "FAIL"}', "FAIL"),
        (b"{}", "NOT VERIFIED"),
        (b"[]", "NOT VERIFIED"),
        (b"{", "NOT VERIFIED"),
        (None, "NOT VERIFIED"),
    ],
)
def test_a_verdict_is_what_was_filed_and_else_not_verified(
    content: bytes | None, verdict: str, run: RunDirectory
) -> None:
    if content is not None:
        (run.path / "audit.json").write_bytes(content)
    assert filing.filed_verdict(run) == verdict


def test_findings_are_the_filed_ones_where_they_say_exactly_the_same(run: RunDirectory) -> None:
    def found(verdict: str) -> Any:
        return SimpleNamespace(to_json=lambda: {"verdict": verdict})

    assert not filing.same_as_filed(run, found("PASS"))
    (run.path / "audit.json").write_text('{"verdict": "PASS"}')
    assert filing.same_as_filed(run, found("PASS"))
    assert not filing.same_as_filed(run, found("FAIL"))


TRAINING, WHOLE = "training.attestation.json", "attestation.json"


@pytest.mark.parametrize(
    ("names", "attested", "signed", "filed"),
    [
        ((), False, False, False),
        ((TRAINING,), True, False, False),
        ((TRAINING, WHOLE), True, True, False),
        ((TRAINING, "audit.json"), True, False, False),
        ((WHOLE, "audit.json"), False, True, False),
        ((TRAINING, WHOLE, "audit.json"), True, True, True),
    ],
)
def test_a_run_is_filed_once_both_have_signed_and_the_findings_are_there(
    names: tuple[str, ...], attested: bool, signed: bool, filed: bool, run: RunDirectory
) -> None:
    for name in names:
        (run.path / name).touch()
    found = filing.is_attested(run), filing.is_signed(run), filing.is_filed(run)
    assert found == (attested, signed, filed)


def test_a_link_in_the_place_of_a_signature_is_one_that_would_be_superseded(
    run: RunDirectory,
) -> None:
    (run.path / WHOLE).symlink_to("nowhere")
    assert filing.is_signed(run)
    assert not filing.is_filed(run)


BY_WHOLE = f"is not what {WHOLE} covers"


@pytest.mark.parametrize(
    ("file", "reason", "changed"),
    [
        ("model.safetensors", f"changed since {TRAINING} was signed", True),
        ("report.pdf", f"changed since {WHOLE} was signed", False),
        ("trainer.pub", "is damaged", True),
        (TRAINING, "is damaged", True),
        (f"{TRAINING}.tsr", "is damaged", True),
        ("trainer.rotations.json", "is damaged", True),
        # What the auditor has not signed yet is signed next.
        (TRAINING, BY_WHOLE, False),
        ("auditor.pub", "is damaged", False),
        (WHOLE, "is damaged", False),
    ],
)
def test_what_the_trainer_signed_is_told_from_what_the_auditor_can_sign_again(
    file: str, reason: str, changed: bool
) -> None:
    problem = Problem(file, reason)
    harmless = Problem("report.html", "missing")
    assert filing.changed_since_training([harmless, problem]) == (problem if changed else None)


class _Authority:
    """Notes what it stamps, and fails where it is told to."""

    def __init__(self, fails: bool = False) -> None:
        self.stamped: list[bytes] = []
        self._fails = fails

    def stamp(self, data: bytes) -> bytes:
        self.stamped.append(data)
        if self._fails:
            raise TimestampError("no answer")
        return b"stamp of " + data


def test_the_trainer_s_signature_gets_one_timestamp_and_keeps_it(run: RunDirectory) -> None:
    (run.path / TRAINING).write_bytes(b"envelope")
    stamp = run.path / f"{TRAINING}.tsr"
    filing.stamp_training(run, None)
    assert not stamp.exists()
    authority = _Authority()
    for _ in range(2):
        filing.stamp_training(run, cast("Any", authority))
        assert stamp.read_bytes() == b"stamp of envelope"
    assert authority.stamped == [b"envelope"]


@pytest.mark.parametrize(
    ("fails", "asked", "why"), [(False, [True], None), (True, [True, False], "no answer")]
)
def test_work_is_done_without_a_timestamp_where_the_authority_fails(
    fails: bool, asked: list[bool], why: str | None
) -> None:
    done: list[bool] = []

    def act(authority: Any) -> None:
        done.append(authority is not None)
        if authority is not None:
            authority.stamp(b"work")

    assert filing.stamped(act, cast("Any", _Authority(fails))) == why
    assert done == asked


def test_an_authority_is_asked_once_before_anything_is_signed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert filing.authority(None) is None
    made = _Authority()
    monkeypatch.setattr(filing, "Authority", lambda url: made if url == "http://tsa" else None)
    assert cast("Any", filing.authority("http://tsa")) is made
    assert len(made.stamped) == 1
    monkeypatch.setattr(filing, "Authority", lambda _url: _Authority(fails=True))
    with pytest.raises(TimestampError):
        filing.authority("http://tsa")


def test_the_first_run_makes_both_keys_and_a_later_one_uses_them(folder: Path) -> None:
    first = filing.load_signers(None, None)
    assert first.created == (folder / "trainer.key", folder / "auditor.key")
    assert (first.trainer.role, first.auditor.role) == ("trainer", "auditor")
    again = filing.load_signers(None, None)
    assert again.created == ()
    assert again.trainer.fingerprint == first.trainer.fingerprint
    # One that was left half written is whole again.
    public = (folder / "trainer.pub").read_bytes()
    (folder / "trainer.pub").unlink()
    filing.load_signers(None, None)
    assert (folder / "trainer.pub").read_bytes() == public


def test_a_key_that_is_named_is_used_and_none_made(folder: Path, tmp_path: Path) -> None:
    named = keyring.new("auditor", tmp_path / "elsewhere", None)
    made: list[Path] = []
    key = filing.load_key("auditor", named.private, made)
    assert (key.fingerprint, made) == (named.fingerprint, [])
    assert not folder.exists()


@pytest.mark.parametrize(
    ("named", "secret"),
    [("trainer.key", "phrase"), ("pkcs11:token=t;object=o", "1234"), (Path("pkcs11"), "phrase")],
)
def test_a_key_in_hardware_is_opened_by_its_pin_and_a_file_by_the_passphrase(
    named: str | Path, secret: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(keyring, "load_signing_key", lambda *given: asked.append(given))
    filing.load_key("trainer", named, [])
    monkeypatch.setenv("DPFEDADAMW_PASSPHRASE", "phrase")
    monkeypatch.setenv("DPFEDADAMW_PIN", "1234")
    filing.load_key("trainer", named, [])
    for name in ("DPFEDADAMW_PASSPHRASE", "DPFEDADAMW_PIN"):
        monkeypatch.setenv(name, "")
    filing.load_key("trainer", named, [])
    assert asked == [("trainer", named, one) for one in (None, secret, None)]
    assert not folder.exists()


def test_a_new_key_is_protected_by_the_passphrase_and_opened_by_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFEDADAMW_PASSPHRASE", "phrase")
    first = filing.load_key("trainer", None, [])
    assert b"ENCRYPTED" in (folder / "trainer.key").read_bytes()
    assert filing.load_key("trainer", None, []).fingerprint == first.fingerprint


def test_whose_the_auditor_s_key_is_follows_from_the_keys_at_hand(
    folder: Path, run: RunDirectory, tmp_path: Path
) -> None:
    own = filing.load_signers(None, None)
    other = keyring.load_signing_key(
        "trainer", keyring.new("trainer", tmp_path / "other", None).private, None
    )
    mine, theirs = own.auditor.fingerprint, other.fingerprint

    def said(*, one_hand: bool = False, key: Any = own.auditor) -> Auditing:
        return filing._auditing(run, key, one_hand)

    assert said() == Auditing(mine, None, one_hand=False)
    assert said(one_hand=True) == Auditing(mine, None, one_hand=True)
    (run.path / "trainer.pub").write_bytes(keys.public_pem(other.public))
    assert said() == Auditing(mine, theirs, one_hand=False)
    # The same key in both roles, or a trainer's key in the auditor's folder.
    assert said(key=other) == Auditing(theirs, theirs, one_hand=True)
    (run.path / "trainer.pub").write_bytes(keys.public_pem(own.trainer.public))
    assert said() == Auditing(mine, own.trainer.fingerprint, one_hand=True)
    rotated = keyring.rotate("auditor", folder, None, None)
    newer = keyring.load_signing_key("auditor", rotated.private, None)
    assert said(key=newer).replaced == {mine}
    # A folder that cannot be read may hold the trainer's key.
    (run.path / "trainer.pub").write_bytes(keys.public_pem(other.public))
    folder.chmod(0o777)
    assert said() == Auditing(mine, theirs, one_hand=True)


def test_a_folder_that_cannot_be_written_to_is_told_in_one_line(run: RunDirectory) -> None:
    run.path.rmdir()
    run.path.touch()
    with (
        pytest.raises(FilingError, match="a-run: cannot be written to"),
        filing.writing(run),
    ):
        pass


def outcome(run: RunDirectory, claim: dict[str, Any], **more: Any) -> Outcome:
    measured = {"measures": {"test_auc": 0.75}, "own": {"f2": 0.25}}
    return Outcome(run=run, claim=claim, accuracy=0.5, loss=1.25, **{**measured, **more})


CLAIM = {"delta": 1e-5, "profile": [1], "server": {"epsilon": {"pld": 2.0}, "clients": [1]}}
FOUND = {"verdict": "PASS", "qualifications": ["by one hand"], "checks": []}


@pytest.mark.parametrize("attested", [True, False])
@pytest.mark.parametrize("unstamped", ["training", "report", None])
def test_a_run_is_finished_by_one_signature_of_what_was_trained_an_audit_and_a_report(
    attested: bool,
    unstamped: str | None,
    run: RunDirectory,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []
    authority: Any = _Authority(fails=unstamped == "training")
    findings = SimpleNamespace(to_json=lambda: dict(FOUND), level=2)
    signers = cast("Signers", SimpleNamespace(trainer="trainer", auditor="auditor"))
    if attested:
        (run.path / TRAINING).touch()

    def attest(of: RunDirectory, by: Any, given: Any) -> None:
        done.append(("attest", of, by, given is not None))
        if given is not None:
            given.stamp(b"")

    def stamp(of: RunDirectory, given: Any) -> None:
        done.append(("stamp", of, given is not None))
        if given is not None:
            given.stamp(b"")

    def audit(of: RunDirectory, **more: Any) -> Any:
        done.append(("audit", of, more))
        return findings

    def report(of: RunDirectory, found: Any, key: Any, **more: Any) -> Filed:
        done.append(("report", of, found, key, more))
        return Filed(cast("Any", None), "late" if unstamped == "report" else None)

    for name, stands in (
        ("attest_training", attest), ("stamp_training", stamp), ("audit", audit),
        ("file_report", report),
    ):  # fmt: skip
        monkeypatch.setattr(filing, name, stands)
    ended = outcome(run, dict(CLAIM), engine="loop")
    finished = filing.finish(ended, Filing(signers, authority), replay=cast("Any", "again"))
    tries = [True, False] if unstamped == "training" else [True]
    what = [("stamp", run, t) if attested else ("attest", run, signers, t) for t in tries]
    kept = None if unstamped == "training" else authority
    assert done == [
        *what,
        ("audit", run, {"replay": "again"}),
        ("report", run, findings, "auditor", {"authority": kept, "one_hand": True}),
    ]
    assert finished.unstamped == {"training": "no answer", "report": "late", None: None}[unstamped]
    assert finished.findings == FOUND
    assert finished.summary == {
        "run": "a-run", "directory": str(run.path), "test_accuracy": 0.5, "test_loss": 1.25,
        "test_auc": 0.75, "test_own": {"f2": 0.25},
        "privacy": {"delta": 1e-5, "server": {"epsilon": {"pld": 2.0}}},
        "verdict": "PASS", "level": 2, "qualifications": ["by one hand"], "engine": "loop",
    }  # fmt: skip


def test_a_run_that_diverged_has_no_number_of_a_model_and_an_epsilon_too_large_is_told(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {**FOUND, "unprotected_against": "anyone"}
    findings = SimpleNamespace(to_json=lambda: found, level=None)
    monkeypatch.setattr(filing, "attest_training", lambda *_: None)
    monkeypatch.setattr(filing, "audit", lambda *_, **__: findings)
    monkeypatch.setattr(filing, "file_report", lambda *_, **__: Filed(cast("Any", None), None))
    claim = {"delta": 1e-5, "diverged": {"rounds": 1}}
    signers = cast("Signers", SimpleNamespace(trainer="trainer", auditor="auditor"))
    assert filing.finish(outcome(run, claim), Filing(signers, None)).summary == {
        "run": "a-run", "directory": str(run.path), "test_accuracy": None, "test_loss": None,
        "privacy": claim, "verdict": "PASS", "unprotected_against": "anyone", "level": None,
        "qualifications": ["by one hand"], "engine": None,
    }  # fmt: skip
    plain = outcome(run, {}, own={})
    assert "test_own" not in filing.finish(plain, Filing(signers, None)).summary
