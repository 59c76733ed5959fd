"""The annex on which a person signs off a report: what it names, asks, and where it may lie."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reports import Auditing, ReportError, build_report
from reports.content.build import build
from reports.content.meaning import Meaning
from reports.render import sign_off
from reports.signatures import certificates, keyring, pades
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import Outcome
from tests.reports import drawings
from tests.reports.signing_keys import create, fresh

pikepdf = pytest.importorskip("pikepdf", reason="pikepdf is not installed")

MakeRun = Any  # the builder that conftest gives
undrawn = drawings.undrawn


@pytest.fixture(scope="module")
def filed(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its report, an officer's key, and the annex signed with it."""
    folder = tmp_path_factory.mktemp("filed")
    stated = {"purpose": "Reading postal codes.", "governance": {"controller": "Example Ltd."}}
    made = Path(run_builder(folder / "run", spec_extra={"report": stated}))
    build_report(made)
    key = keyring.load_signing_key("auditor", create("auditor", folder / "officer").private)
    answers = {"governance.retention": "One year.", "purpose": "ignored: the spec states it"}
    sign_off.write(made, folder / "annex.pdf", answers=answers, decision=DECISION, key=key)
    return folder


@pytest.fixture
def run(filed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filed / "run", tmp_path / "run"))


def test_it_names_the_report_by_its_digests_and_says_what_is_open(
    run: Path, tmp_path: Path
) -> None:
    target = tmp_path / "annex.pdf"
    sign_off.write(run, target)
    with pikepdf.open(target) as pages:
        found = json.loads(pages.attachments["sign-off.json"].get_file().read_bytes())
        with pages.open_metadata() as metadata:
            assert metadata["pdfaid:part"] == "3"
            assert metadata["pdfuaid:part"] == "1"
    assert found["files"] == {
        name: hashlib.sha256((run / name).read_bytes()).hexdigest()
        for name in ("report.pdf", "report.json", "model.safetensors")
    }
    assert found["stated"] == {
        "Controller": "Example Ltd.",
        "Purpose of the processing": "Reading postal codes.",
    }
    assert "Retention" in found["open"]
    assert "Controller" not in found["open"]
    assert found["promise"] == build(run)[Meaning].promise
    assert target.stat().st_mode & 0o777 == 0o600


def test_it_can_be_signed_where_the_report_cannot(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "annex.pdf"
    sign_off.write(run, target)
    signed = pades.sign(target.read_bytes(), fresh("auditor"), target.name)
    assert pades.check(signed, target.name).key is not None


DECISION = sign_off.Decision("Approved, for one year.", "A. Person, privacy officer", "2026-11-22")


@pytest.fixture
def officer(filed: Path, tmp_path: Path) -> SigningKey:
    shutil.copytree(filed / "officer", tmp_path / "officer")
    return keyring.load_signing_key("auditor", tmp_path / "officer" / "auditor.key")


@pytest.fixture
def annex(filed: Path, tmp_path: Path, officer: SigningKey) -> Path:
    return Path(shutil.copy(filed / "annex.pdf", tmp_path / "annex.pdf"))


def problems(annex: Path, run: Path | None, key: Path | None = None) -> list[str]:
    keys = [] if key is None else [key]
    return [problem.reason for problem in sign_off.check(annex, run, keys).problems]


def test_a_person_signs_it_off_and_it_holds_for_who_knows_the_key(
    run: Path, annex: Path, tmp_path: Path
) -> None:
    found = sign_off.check(annex, run, [tmp_path / "officer" / "auditor.pub"])
    assert found.ok
    assert [one.decision for one in found.signers] == ["Approved, for one year."]
    assert any("to the byte" in text for text in found.statements)
    assert sign_off.check(annex, run).outcome is Outcome.SIGNER_UNKNOWN
    with pikepdf.open(annex) as pages:
        said = json.loads(pages.attachments["sign-off.json"].get_file().read_bytes())
    assert said["decision"]["name"] == DECISION.name
    assert "Retention" not in said["open"]
    assert said["stated"]["Purpose of the processing"] == "Reading postal codes."


def test_an_annex_that_is_not_signed_changed_or_of_somebody_else_does_not_hold(
    run: Path, annex: Path, tmp_path: Path
) -> None:
    unsigned = tmp_path / "unsigned.pdf"
    sign_off.write(run, unsigned)
    assert problems(unsigned, run) == ["nobody has signed it"]
    changed = tmp_path / "changed.pdf"
    changed.write_bytes(annex.read_bytes().replace(b"/Title", b"/Titel", 1))
    assert any("does not hold" in reason for reason in problems(changed, run))
    more = tmp_path / "more.pdf"
    with pikepdf.open(annex) as pages:
        pages.docinfo["/Added"] = "later"
        pages.save(more)
    assert problems(more, run)
    other = create("auditor", tmp_path / "other").private.with_name("auditor.pub")
    assert any("nobody signed it with the key you gave" in r for r in problems(annex, run, other))


def test_a_revoked_signer_does_not_hold_by_a_list_given_or_ones_own(
    run: Path, annex: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "officer"
    given, _ = keyring.revoke("auditor", folder, None, "key-compromise")
    found = sign_off.check(annex, run, [folder / "auditor.pub"], revocations=[given])
    (problem,) = found.problems
    assert "is revoked since" in problem.reason
    assert problem.reason.endswith("no timestamp that you trust shows that it was signed before")
    assert found.signers == ()
    assert problems(annex, run) == []
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(folder))
    assert problems(annex, run) == [problem.reason]


def test_a_signer_whose_certificate_has_expired_does_not_hold(
    run: Path, annex: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(annex, run) == []
    later = certificates.now() + timedelta(days=20_000)
    monkeypatch.setattr(certificates, "now", lambda: later)
    (reason,) = problems(annex, run)
    assert "expired on" in reason


def test_an_annex_on_another_report_is_told_apart(
    run: Path, annex: Path, make_run: MakeRun
) -> None:
    other = Path(make_run("other", rounds=5))
    build_report(other)
    assert "is about another report.pdf than the one here" in problems(annex, other)
    assert problems(annex, None) == []


def test_pages_that_say_something_else_than_the_data_are_noticed(
    run: Path, tmp_path: Path, officer: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has a person sign pages of which the data inside are not all."""
    made = sign_off.document

    def otherwise(*given: Any) -> Any:
        shown = made(*given)
        return dataclasses.replace(shown, title="Sign-off of something else")

    target = tmp_path / "other.pdf"
    with monkeypatch.context() as patch:
        patch.setattr(sign_off, "document", otherwise)
        sign_off.write(run, target, decision=DECISION, key=officer)
    found = sign_off.check(target, run, [tmp_path / "officer" / "auditor.pub"])
    assert any("read the decision on them" in text for text in found.statements)
    assert not any("to the byte" in text for text in found.statements)
    assert not any(DECISION.text in text for text in found.statements)
    assert [one.decision for one in found.signers] == [None]


@pytest.mark.parametrize("named", [(), ("spec.yaml",), ("report.pdf", "audit.json")])
def test_an_annex_that_does_not_name_reports_alone_does_not_hold(
    run: Path,
    tmp_path: Path,
    officer: SigningKey,
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[str, ...],
) -> None:
    """Its digests are right, but no decision on a report follows from them."""
    made = sign_off.document

    def otherwise(report: Any, digests: Any, *given: Any) -> Any:
        files = {file: hashlib.sha256((run / file).read_bytes()).hexdigest() for file in named}
        return made(report, files, *given)

    target = tmp_path / "other.pdf"
    with monkeypatch.context() as patch:
        patch.setattr(sign_off, "document", otherwise)
        sign_off.write(run, target, decision=DECISION, key=officer)
    found = sign_off.check(target, run, [tmp_path / "officer" / "auditor.pub"])
    assert [problem.reason for problem in found.problems] == ["names no report by its digests"]
    assert [one.decision for one in found.signers] == [None]


def test_a_report_that_an_annex_names_and_that_is_gone_is_a_problem(run: Path, annex: Path) -> None:
    (run / "report.pdf").unlink()
    (problem,) = sign_off.check(annex, run).problems
    assert problem.file == "report.pdf"
    assert "missing" in problem.reason


def test_only_an_annex_is_taken_for_one(run: Path, annex: Path, tmp_path: Path) -> None:
    assert sign_off.is_annex(annex)
    (tmp_path / "no.pdf").write_bytes(b"%PDF-1.7\n")
    for other in (run / "report.pdf", tmp_path / "no.pdf", tmp_path / "nowhere.pdf"):
        assert not sign_off.is_annex(other)


def test_a_second_person_may_sign_too(
    run: Path, annex: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = fresh("auditor")
    monkeypatch.setattr(pades, "SIGN_OFF_FIELD", "Signed off too")
    twice = tmp_path / "twice.pdf"
    twice.write_bytes(pades.sign_off(annex.read_bytes(), second, "B. Person", "twice.pdf"))
    found = sign_off.check(twice, run, [tmp_path / "officer" / "auditor.pub"])
    assert len(found.signers) == 2
    assert found.is_intact


def test_it_lies_outside_the_run_and_replaces_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="lies in the run"):
        sign_off.write(run, run / "annex.pdf")
    target = tmp_path / "annex.pdf"
    target.write_text("mine")
    with pytest.raises(ReportError, match="exists and is never overwritten"):
        sign_off.write(run, target)
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        ("Approved.  Conditions: none", "One year."),
        ("Approved\u200b for\ta year\n", "Needed for planning.\n  No other data would do.\n"),
        ("e\u200b\u0301" + " " * 5_000 + "Approved", "x" * 4_000),
    ],
)
def test_texts_are_recognised_however_they_were_typed(
    decision: str, answer: str, run: Path, tmp_path: Path, officer: SigningKey
) -> None:
    target, decided = tmp_path / "typed.pdf", dataclasses.replace(DECISION, text=decision)
    answers = {"governance.retention": answer}
    sign_off.write(run, target, answers=answers, decision=decided, key=officer)
    found = sign_off.check(target, run, [tmp_path / "officer" / "auditor.pub"])
    assert found.ok
    assert any("to the byte" in text for text in found.statements)
    (signer,) = found.signers
    assert signer.decision is not None
    assert "Approved" in signer.decision


@pytest.mark.parametrize(
    ("decision", "answer", "said"),
    [
        (" \n", "One year.", "the decision: is empty; say what is decided"),
        ("a" * 4_001, "One year.", "the decision: has 4,001 characters; give at most 4,000"),
        (
            "Approved", "b" * 5_000,
            "governance.retention: has 5,000 characters; give at most 4,000",
        ),
    ],
)  # fmt: skip
def test_a_text_that_could_not_be_recognised_is_refused(
    decision: str, answer: str, said: str, run: Path, tmp_path: Path
) -> None:
    decided = dataclasses.replace(DECISION, text=decision)
    with pytest.raises(ReportError) as caught:
        sign_off.write(
            run, tmp_path / "a.pdf", answers={"governance.retention": answer}, decision=decided
        )
    assert str(caught.value) == said
    assert not (tmp_path / "a.pdf").exists()


def test_the_public_annex_is_about_the_public_report(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"report-public\.pdf"):
        sign_off.write(run, tmp_path / "early.pdf", "public")
    assert not (tmp_path / "early.pdf").exists()
    build_report(run, "public")
    sign_off.write(run, tmp_path / "annex.pdf", "public")
    assert (tmp_path / "annex.pdf").stat().st_mode & 0o777 == 0o644


def test_it_says_of_the_audit_what_the_report_says(run: Path, tmp_path: Path) -> None:
    for name, stated, words in (
        ("own", None, "The trainer’s own audit"),
        (
            "other",
            Auditing("SHA256:theirs", "SHA256:ours", one_hand=False),
            "The independent audit",
        ),
    ):
        build_report(run, auditing=stated)
        sign_off.write(run, tmp_path / f"{name}.pdf")
        with pikepdf.open(tmp_path / f"{name}.pdf") as pages:
            found = json.loads(pages.attachments["sign-off.json"].get_file().read_bytes())
        assert found["audit"].startswith(words)
