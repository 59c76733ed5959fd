"""What was changed since it was signed is not signed anew by whoever judges nothing."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from reports import build_report
from reports.errors import EnvelopeError, SourceError
from reports.signatures import copies, keyring, signing
from reports.signatures.dsse import RUN_TYPE, parse_envelope, parse_statement, seal, write_statement
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import contents
from reports.signatures.verification.contents import BY_AUDITOR, BY_TRAINER, refuse_changed
from tests.reports.signing_keys import create, fresh

RUN, TRAINING = signing.RUN_ENVELOPE, signing.TRAINING_ENVELOPE


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SigningKey]:
    folder = tmp_path_factory.mktemp("keys")
    return {
        role: keyring.load_signing_key(role, create(role, folder).private)
        for role in ("trainer", "auditor")
    }


@pytest.fixture(scope="module")
def signed(
    tmp_path_factory: pytest.TempPathFactory, run_builder, keys: dict[str, SigningKey]
) -> Path:
    run = Path(run_builder(tmp_path_factory.mktemp("signed") / "run"))
    for audience in ("internal", "public"):
        build_report(run, audience)
    signing.sign(run, keys["trainer"], keys["auditor"])
    return run


@pytest.fixture
def run(signed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(signed, tmp_path / "run")


def refused(run: Path, key: SigningKey, rewritten=frozenset()) -> str | None:
    """What is said against a new signature in the role of a key; None where nothing is."""
    name = TRAINING if key.role == "trainer" else RUN
    try:
        refuse_changed(run, name, [key.public], rewritten)
    except (SourceError, EnvelopeError) as error:
        return str(error)
    return None


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize("role", ["trainer", "auditor"])
def test_what_is_as_it_was_signed_may_be_signed_anew(run, keys, role):
    assert refused(run, keys[role]) is None
    shutil.rmtree(run / "evidence")
    assert refused(run, keys[role]) is None


@pytest.mark.parametrize(
    "name",
    [
        "audit.json", "spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.json",
        "model.safetensors", "report.json", "report.html", "report.pdf", "report-public.json",
        "report-public.html", "report-public.pdf",
    ],
)  # fmt: skip
def test_a_changed_or_missing_file_is_not_covered_anew(run, keys, name):
    append(run / name)
    assert refused(run, keys["auditor"]) == f"{name}: changed since attestation.json was signed"
    assert refused(run, keys["auditor"], {name}) is None
    everything_else = {path.name for path in run.iterdir()} - {name}
    assert refused(run, keys["auditor"], everything_else) is not None
    (run / name).unlink()
    assert refused(run, keys["auditor"]) == f"{name}: missing, though attestation.json covers it"


@pytest.mark.parametrize("name", signing.TRAINED_FILES)
def test_the_trainer_signs_nothing_that_was_changed_since_training(run, keys, name):
    (run / "audit.json").write_text("{}")
    assert refused(run, keys["trainer"]) is None
    append(run / name)
    assert refused(run, keys["trainer"]) == f"{name}: changed since {TRAINING} was signed"


@pytest.mark.parametrize("role", ["trainer", "auditor"])
def test_changed_evidence_is_not_covered_anew(run, keys, role):
    name = TRAINING if role == "trainer" else RUN
    append(run / "evidence" / "findings.json")
    wanted = None if role == "trainer" else f"evidence: changed since {name} was signed"
    assert refused(run, keys[role]) == wanted
    append(next((run / "evidence").glob("*.npz")))
    assert refused(run, keys[role]) == f"evidence: changed since {name} was signed"
    assert refused(run, keys[role], {"evidence"}) is None


def test_a_file_that_nobody_signed_is_not_covered_by_the_way(run, keys):
    (run / "report-public.docx").write_text("All is well.")
    assert refused(run, keys["auditor"]) == "report-public.docx: is not covered by attestation.json"
    assert refused(run, keys["auditor"], {"report-public.docx"}) is None
    (run / "a-note.txt").write_text("All is well.")
    assert refused(run, keys["auditor"]) == "a-note.txt: is not covered by attestation.json"
    (run / "a-note.txt").unlink()
    # The trainer's signature covers what was trained, and nothing else.
    assert refused(run, keys["trainer"]) is None
    (run / "report-public.docx").unlink()
    (run / "report-public.docx").symlink_to(run / "audit.json")
    assert "report-public.docx" in str(refused(run, keys["auditor"]))


def test_what_another_key_signed_is_not_taken_over(run, keys):
    other = fresh("auditor")
    message = "attestation.json: was not signed by a key of yours, or was changed since"
    assert refused(run, other) == message
    refuse_changed(run, RUN, [other.public, keys["auditor"].public], ())
    with pytest.raises(EnvelopeError, match="was not signed by a key of yours"):
        refuse_changed(run, RUN, [], ())


def test_a_statement_that_somebody_wrote_anew_is_not_taken_over(run, keys):
    """Who changes a verdict can write its digest into the statement, and cannot sign that."""
    append(run / "audit.json")
    payload = parse_envelope((run / RUN).read_bytes(), RUN).payload
    statement = parse_statement(payload, RUN_TYPE, RUN)
    digest = hashlib.sha256((run / "audit.json").read_bytes()).hexdigest()
    statement.subjects["audit.json"] = ("sha256", digest)
    forger = fresh("auditor")
    (run / RUN).write_bytes(seal(write_statement(statement), forger.private))
    assert refused(run, forger) is None
    assert "was not signed by a key of yours" in str(refused(run, keys["auditor"]))


def test_pages_that_a_signing_left_before_it_was_cut_off_are_the_auditors_own(run, keys):
    before = (run / "report.pdf").read_bytes()
    again = signing.pades.sign(before, keys["auditor"], "report.pdf", None)
    assert again != before
    (run / "report.pdf").write_bytes(again)
    assert refused(run, keys["auditor"]) is None
    by_another = signing.pades.sign(before, fresh("auditor"), "report.pdf", None)
    (run / "report.pdf").write_bytes(by_another)
    changed = "report.pdf: changed since attestation.json was signed"
    assert refused(run, keys["auditor"]) == changed
    (run / "report.pdf").write_bytes(b"%PDF-1.7 nobody signed this")
    assert refused(run, keys["auditor"]) == changed


def test_an_envelope_that_is_missing_or_damaged_says_so(run, keys):
    append(run / RUN)
    assert "attestation.json: is not laid out as envelopes are" in str(
        refused(run, keys["auditor"])
    )
    (run / RUN).unlink()
    assert "attestation.json" in str(refused(run, keys["auditor"]))


def test_what_signing_writes_whatever_lies_there_is_named(run, keys, monkeypatch):
    """A signing that was cut off after any of its files is done again."""
    written: list[str] = []
    real = signing.write_atomic

    def note(path: Path, data: bytes) -> None:
        written.append(path.name)
        real(path, data)

    monkeypatch.setattr(signing, "write_atomic", note)
    signing.sign(run, keys["trainer"], keys["auditor"], bundle=b"{}")
    by_both = BY_TRAINER | BY_AUDITOR | signing.SIGNED_PAGES | {RUN}
    assert set(written) <= by_both
    stamps = {f"{name}.tsr" for name in (TRAINING, signing.PUBLIC_ENVELOPE)}
    unused = {signing.TRAINER_ROTATIONS, signing.AUDITOR_ROTATIONS}
    assert by_both - set(written) == stamps | unused
    assert copies.ERASURE not in by_both
    assert contents.EVIDENCE not in by_both
