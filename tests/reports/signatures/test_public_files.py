"""The public files of a run: what they hold, what they withhold, and that they hold alone."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import reports
from reports import EnvelopeError, SourceError, build_report
from reports.files import Snapshot
from reports.signatures import challenges, copies, keyring, keys, signing
from reports.signatures.challenges import Promised, Seen
from reports.signatures.copies import files_for
from reports.signatures.dsse import (
    PUBLIC_TYPE,
    Statement,
    parse_envelope,
    parse_statement,
    seal,
    write_statement,
)
from reports.signatures.inventory import CHALLENGE, INTENT
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import Outcome, VerificationResult, contents, verify
from reports.signatures.verification.results import Found
from tests.reports import stranger
from tests.reports.signing_keys import create, fresh
from tests.reports.stranger import needs_shell

ENVELOPE = "attestation-public.json"
PUBLIC = {
    "model.safetensors", "model.json", "metrics.jsonl", "report-public.json", "report-public.pdf",
    "report-public.html", "VERIFY-public.md", "trainer.pub", "auditor.pub", ENVELOPE,
}  # fmt: skip


@dataclass(frozen=True)
class Handed:
    """A run, and a folder with what one audience was given of it."""

    run: Path
    folder: Path
    trainer: SigningKey
    auditor: SigningKey
    keys: Path

    def verify(self, **options: Any) -> VerificationResult:
        return verify(self.folder, self.keys / "trainer.pub", self.keys / "auditor.pub", **options)


def hand_out(run: Path, audience: copies.Audience, folder: Path) -> Path:
    """Copy what an audience may hold."""
    for name in files_for(run, audience):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def original(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Handed:
    folder = tmp_path_factory.mktemp("public")
    run = run_builder(folder / "run", rounds=2, clients=3)
    for audience in ("internal", "public"):
        build_report(run, audience)
    trainer, auditor = (
        keyring.load_signing_key(role, create(role, folder / "keys").private) for role in keys.ROLES
    )
    signing.sign(run, trainer, auditor)
    return Handed(
        run, hand_out(run, "public", folder / "handed"), trainer, auditor, folder / "keys"
    )


@pytest.fixture
def handed(original: Handed, tmp_path: Path) -> Handed:
    """Copies that a test may change."""
    run = Path(shutil.copytree(original.run, tmp_path / "run"))
    folder = Path(shutil.copytree(original.folder, tmp_path / "handed"))
    return Handed(run, folder, original.trainer, original.auditor, original.keys)


def named(result: VerificationResult) -> set[str]:
    return {problem.file for problem in result.problems}


def statement_of(folder: Path) -> Any:
    return json.loads(parse_envelope((folder / ENVELOPE).read_bytes(), ENVELOPE).payload)


def test_the_public_files_hold_by_themselves(handed: Handed) -> None:
    assert {path.name for path in handed.folder.iterdir()} == PUBLIC
    result = handed.verify()
    assert result.problems == ()
    assert result.outcome is Outcome.ALL_HOLD
    assert [(entry.role, entry.envelope) for entry in result.signers] == [
        ("auditor", ENVELOPE),
        ("auditor", "report-public.pdf"),
    ]
    assert result.sequence == {ENVELOPE: 1}
    assert any("These are the public files alone" in text for text in result.statements)
    assert any("The audit's verdict is PASS" in text for text in result.statements)
    assert verify(handed.folder).outcome is Outcome.SIGNER_UNKNOWN


def test_the_public_attestation_fits_its_schema_and_names_nothing_withheld(handed: Handed) -> None:
    statement = statement_of(handed.folder)
    folder = Path(reports.__file__).parent / "schema"
    schema = json.loads((folder / "public-attestation.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(statement)
    assert statement["predicateType"] == schema["$id"] == PUBLIC_TYPE
    assert {entry["name"] for entry in statement["subject"]} == PUBLIC - {ENVELOPE}
    whole = json.loads(
        parse_envelope((handed.run / "attestation.json").read_bytes(), "attestation.json").payload
    )
    withheld = [
        next(iter(entry["digest"].values()))
        for entry in whole["subject"]
        if entry["name"] not in PUBLIC
    ]
    assert len(withheld) > 5
    shown = b"".join(path.read_bytes() for path in handed.folder.iterdir()).decode("latin-1")
    shown += json.dumps(statement)
    spec = next(e["digest"]["sha256"] for e in whole["subject"] if e["name"] == "spec.yaml")
    # The digest of the spec, whose settings the public report prints, is public as well.
    assert not any(digest in shown for digest in withheld if digest != spec)


def test_the_whole_run_holds_with_its_public_attestation(handed: Handed) -> None:
    result = verify(handed.run, handed.keys / "trainer.pub", handed.keys / "auditor.pub")
    assert result.problems == ()
    assert ENVELOPE in result.sequence
    (handed.run / ENVELOPE).unlink()
    assert ENVELOPE in named(verify(handed.run))


def test_each_audience_can_check_what_it_was_given(handed: Handed, tmp_path: Path) -> None:
    archive = hand_out(handed.run, "archive", tmp_path / "archive")
    auditor = hand_out(handed.run, "auditor", tmp_path / "auditor")
    everything = {
        p.relative_to(handed.run).as_posix() for p in handed.run.rglob("*") if p.is_file()
    }
    assert set(files_for(handed.run, "auditor")) == everything
    assert set(files_for(handed.run, "archive")) == {
        name for name in everything if not name.startswith("evidence/")
    }
    for folder in (archive, auditor):
        assert verify(folder, handed.keys / "trainer.pub", handed.keys / "auditor.pub").ok
    assert any("evidence is not here" in text for text in verify(archive).statements)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_changed_or_missing_public_file_is_named(handed: Handed, name: str) -> None:
    path = handed.folder / name
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    assert name in named(handed.verify())
    path.unlink()
    # Without the attestation of the public files it is no folder of public files any more.
    assert named(handed.verify()) >= ({name} if name != ENVELOPE else {"attestation.json"})


@pytest.mark.parametrize("name", ["invented.html", "report.json", "spec.yaml", "checkpoint"])
def test_whatever_lies_beside_the_public_files_is_named(handed: Handed, name: str) -> None:
    (handed.folder / name).write_text("x")
    assert named(handed.verify()) == {name} | ({"checkpoint"} if name == "checkpoint" else set())


@pytest.mark.parametrize("name", ["ledger.jsonl", "audit.json", "attestation.json", "evidence"])
def test_with_a_restricted_file_it_must_hold_as_a_run(handed: Handed, name: str) -> None:
    (handed.folder / name).write_text("x")
    assert {"training.attestation.json", "attestation.json"} <= named(handed.verify())


def test_the_public_files_of_another_run_or_key_are_refused(
    handed: Handed, run_builder: Callable[..., Path], tmp_path: Path
) -> None:
    other = run_builder(tmp_path / "other", rounds=2, clients=3, identifier="ffffffff")
    for audience in ("internal", "public"):
        build_report(other, audience)
    signing.sign(other, handed.trainer, handed.auditor)
    shutil.copy(other / ENVELOPE, handed.folder / ENVELOPE)
    assert {"model.safetensors", "report-public.json"} <= named(handed.verify())
    signing.sign(handed.run, auditor=fresh("auditor"))
    strange = hand_out(handed.run, "public", tmp_path / "strange")
    assert verify(strange).outcome is Outcome.SIGNER_UNKNOWN
    result = verify(strange, auditor_key=handed.keys / "auditor.pub")
    assert "auditor.pub" in named(result)


def change_statement(handed: Handed, change: Callable[[Any], None]) -> None:
    """Let the auditor sign another statement over the same files."""
    path = handed.folder / ENVELOPE
    statement = parse_statement(
        parse_envelope(path.read_bytes(), ENVELOPE).payload, PUBLIC_TYPE, ENVELOPE
    )
    change(statement)
    path.write_bytes(seal(write_statement(statement), handed.auditor.private))


def challenge(handed: Handed, by: SigningKey) -> None:
    """Add an intent and a challenge, which the auditor's statement covers."""
    noon, digest = datetime(2026, 11, 22, 12, tzinfo=UTC), "cd" * 32
    promised = Promised(
        run="a-run", spec_sha256=digest, root=digest, rounds=2, clients=1, data=(digest,),
        handle=digest,
    )  # fmt: skip
    intent = challenges.write_intent(promised, handed.trainer, "0", noon)
    seen = Seen(of_trainer=1, for_data=1, dropped=0, dropped_of_trainer=0)
    answer = challenges.write_challenge(
        challenges.read_intent(intent, "it"), bytes(32), seen, by, noon
    )
    for name, data in ((INTENT, intent), (CHALLENGE, answer)):
        (handed.folder / name).write_bytes(data)
        due = ("sha256", hashlib.sha256(data).hexdigest())
        change_statement(handed, lambda it, name=name, due=due: it.subjects.update({name: due}))


def test_a_report_that_says_something_else_than_the_statement_is_named(handed: Handed) -> None:
    def other_claim(statement: Any) -> None:
        for view in statement.predicate["claims"]["views"]:
            view["epsilon"] = 0.01

    change_statement(handed, other_claim)
    assert [str(problem) for problem in handed.verify().problems] == [
        "report-public.json: states another guarantee than attestation-public.json"
    ]
    change_statement(handed, lambda statement: statement.predicate.update(verdict="FAIL"))
    assert any("another verdict" in problem.reason for problem in handed.verify().problems)


def test_the_level_of_the_public_files_follows_from_what_the_auditor_attests(
    handed: Handed,
) -> None:
    assert handed.verify().level == 1

    def attested(**facts: Any) -> int | None:
        change_statement(
            handed, lambda statement: statement.predicate["reexecution"].update(facts, level=4)
        )
        result = handed.verify()
        assert result.problems == ()
        return result.level

    assert attested(agrees=True, participations=20) == 2
    # Nothing here is signed by the challenger.
    assert attested(public_coin=True) == 2
    challenge(handed, fresh("auditor"))
    assert handed.verify().level == 2
    challenge(handed, handed.auditor)
    assert handed.verify().level == 3
    shutil.copy(handed.folder / "auditor.pub", handed.folder / "trainer.pub")
    assert handed.verify().level is None
    change_statement(handed, lambda statement: statement.predicate.pop("reexecution"))
    assert handed.verify().level is None


def test_a_statement_of_another_re_execution_than_the_files_is_refused(handed: Handed) -> None:
    facts = {"agrees": True, "participations": 20, "public_coin": False}
    change_statement(handed, lambda statement: statement.predicate.update(reexecution=facts))
    shutil.copy(handed.folder / ENVELOPE, handed.run / ENVELOPE)
    result = verify(handed.run, handed.keys / "trainer.pub", handed.keys / "auditor.pub")
    said = f"{ENVELOPE}: states another re-execution than audit.json and ledger"
    assert said in map(str, result.problems)


def test_an_attestation_that_names_what_is_withheld_is_refused(handed: Handed) -> None:
    change_statement(
        handed, lambda statement: statement.subjects.update({"ledger.jsonl": ("sha256", "0" * 64)})
    )
    reasons = map(str, handed.verify().problems)
    assert f"{ENVELOPE}: names ledger.jsonl, which is not public" in reasons
    with pytest.raises(EnvelopeError, match=r"names ledger\.jsonl, which is not public"):
        files_for(handed.folder, "public")


def test_an_earlier_state_of_the_public_files_is_refused(handed: Handed, tmp_path: Path) -> None:
    memory = tmp_path / "verified.json"
    signing.sign(handed.run, auditor=handed.auditor)
    later = hand_out(handed.run, "public", tmp_path / "later")
    pinned = (handed.keys / "trainer.pub", handed.keys / "auditor.pub")
    assert verify(later, *pinned, memory=memory).sequence == {ENVELOPE: 2}
    assert named(handed.verify(memory=memory)) == {ENVELOPE}


def test_without_a_public_report_nothing_public_is_attested(handed: Handed) -> None:
    for kind in ("json", "pdf", "html"):
        (handed.run / f"report-public.{kind}").unlink()
    signing.sign(handed.run, auditor=handed.auditor)
    assert not (handed.run / ENVELOPE).exists()
    assert not (handed.run / "VERIFY-public.md").exists()
    assert verify(handed.run).is_intact
    with pytest.raises(SourceError, match="report RUN_DIR --audience public"):
        files_for(handed.run, "public")


@pytest.mark.thorough
def test_public_files_of_a_run_without_privacy_hold(
    run_builder: Callable[..., Path], tmp_path: Path
) -> None:
    run = run_builder(tmp_path / "run", rounds=2, clients=3, private=False)
    for audience in ("internal", "public"):
        build_report(run, audience)
    signing.sign(run, fresh("trainer"), fresh("auditor"))
    result = verify(hand_out(run, "public", tmp_path / "handed"))
    assert result.problems == ()
    assert any("no differential privacy is claimed" in text for text in result.statements)


@needs_shell
def test_a_stranger_checks_the_public_files_with_their_own_page(handed: Handed) -> None:
    page = Path(shutil.copy(handed.folder / "VERIFY-public.md", handed.folder.parent / "page.md"))
    known = {"AUDITOR": handed.auditor.fingerprint}

    def last() -> str:
        return stranger.check(handed.folder, page, **known).last

    assert last() == "ALL HOLD"
    assert "warning" not in stranger.check(handed.folder, page, **known).text
    said = stranger.check(handed.folder, page)
    assert (said.code, said.last) == (
        3,
        "INTACT, SIGNER UNKNOWN: no fingerprint was given of the auditor",
    )
    (handed.folder / "report-public-2.html").write_text("x")
    (handed.folder / "evidence").mkdir()
    (handed.folder / "evidence" / "x.npz").write_text("x")
    assert last() == (
        "DOES NOT HOLD: evidence/x.npz: is not covered by attestation-public.json; "
        "report-public-2.html: is not covered by attestation-public.json"
    )
    (handed.folder / "report-public-2.html").unlink()
    shutil.rmtree(handed.folder / "evidence")
    shutil.copy(handed.run / "attestation.json", handed.folder / ENVELOPE)
    assert last().startswith("DOES NOT HOLD: attestation-public.json: is not what the auditor")


def test_an_audience_that_cannot_be_given_what_it_needs_is_told_why(
    handed: Handed, tmp_path: Path
) -> None:
    run = handed.run
    (run / "evidence" / "link").symlink_to(run / "spec.yaml")
    with pytest.raises(SourceError, match=r"^evidence/"):
        files_for(run, "auditor")
    # The archive has no evidence, so what is wrong in it is not the archive's matter.
    assert "spec.yaml" in files_for(run, "archive")
    shutil.rmtree(run / "evidence")
    with pytest.raises(SourceError, match="evidence: missing; without it nothing can be audited"):
        files_for(run, "auditor")
    (run / "link").symlink_to(run / "spec.yaml")
    for audience in ("archive", "auditor"):
        with pytest.raises(SourceError, match="link: is a link"):
            files_for(run, audience)


def test_files_are_named_in_order_and_each_once(handed: Handed) -> None:
    for audience in copies.AUDIENCES:
        names = files_for(handed.run, audience)
        assert list(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("guarantee", "holds"),
    [
        ({"unit": "client", "view": "server", "epsilon": 2.0, "delta": 1e-5}, True),
        ({"unit": "client", "view": "public", "epsilon": 1.0, "delta": 1e-6}, True),
        ({"unit": "record", "view": "server", "epsilon": 2.0, "delta": 1e-5}, False),
        ({"unit": "client", "view": "server", "epsilon": 1.0, "delta": 1e-5}, False),
        ({"unit": "client", "view": "server", "epsilon": 2.0, "delta": 1e-6}, False),
        # The numbers of one view under the name of another, or of none.
        ({"unit": "client", "view": "public", "epsilon": 2.0, "delta": 1e-5}, False),
        ({"unit": "client", "view": "elsewhere", "epsilon": 2.0, "delta": 1e-5}, False),
        ({}, False),
    ],
)
def test_the_public_report_promises_what_is_claimed_in_its_view(
    tmp_path: Path, guarantee: dict[str, Any], holds: bool
) -> None:
    claims = {
        "unit": "client",
        "views": [
            {"key": "server", "epsilon": 2.0, "delta": 1e-5},
            {"key": "public", "epsilon": 1.0, "delta": 1e-6},
        ],
    }
    (tmp_path / "report-public.json").write_text(json.dumps({"guarantee": guarantee}))
    found = Found()
    contents._check_claim(Snapshot(tmp_path), claims, found)
    said = "report-public.json: states another guarantee than attestation-public.json"
    assert [str(problem) for problem in found.problems] == ([] if holds else [said])


def test_public_files_are_alone_where_nothing_restricted_lies_beside_them(tmp_path: Path) -> None:
    assert not contents.is_public_alone(Snapshot(tmp_path))
    (tmp_path / ENVELOPE).write_bytes(b"")
    (tmp_path / "model.json").write_bytes(b"")
    assert contents.is_public_alone(Snapshot(tmp_path))
    for name in ("attestation.json", "training.attestation.json", "ledger.jsonl", "audit.json",
                 "evidence"):  # fmt: skip
        (tmp_path / name).write_bytes(b"")
        assert not contents.is_public_alone(Snapshot(tmp_path))
        (tmp_path / name).unlink()


def test_the_statement_is_what_the_public_report_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(contents, "check_reports", lambda *given: asked.append(given))
    names = ("model.safetensors", "report-public.json", "report-public.pdf", "report-public.html")
    claims = {"unit": "client", "views": [{"key": "server", "epsilon": 2.0, "delta": 1e-5}]}
    said = Statement(
        {name: ("sha256", name) for name in names},
        PUBLIC_TYPE,
        {"run": "a-run", "verdict": "PASS", "claims": claims},
    )
    guarantee = {"unit": "client", "view": "server", "epsilon": 2.0, "delta": 1e-5}
    (tmp_path / "report-public.json").write_text(json.dumps({"guarantee": guarantee}))
    files, found = Snapshot(tmp_path), Found()
    assert contents.check_public(files, said, found) == "a-run"
    hashes = {"model.safetensors": "model.safetensors"}
    about = contents.About("a-run", "PASS", hashes, complete=False)
    assert asked == [(files, about, found, ("report-public",))]
    assert found.problems == []
    assert found.statements == [
        "The audit's verdict is PASS; no check contradicts the claim, which is not a proof.",
        "These are the public files alone. That verdict and claims follow from ledger and evidence "
        "is the auditor's word; the trainer's attestation is not public.",
    ]
    (tmp_path / "report-public.json").write_bytes(b"{}")
    found = Found()
    contents.check_public(Snapshot(tmp_path), said, found)
    assert [problem.file for problem in found.problems] == ["report-public.json"]
