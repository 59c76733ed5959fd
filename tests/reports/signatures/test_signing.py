"""Signatures: what is signed, that every tampering is named, and that a shell can check it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import reports
from reports import KeyFileError, ReportError, build_report
from reports.content import findings
from reports.content.guarantee import attested_claims
from reports.content.parts import PUBLIC
from reports.signatures import keyring, keys, signing
from reports.signatures.dsse import parse_envelope, pre_authentication_encoding, seal
from reports.signatures.inventory import evidence_digests
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import public_pem
from reports.signatures.statements import Sealed, write_bundle
from reports.signatures.verification import VerificationResult, verify
from reports.source import load
from tests.reports.signing_keys import create, fresh

MakeRun = Any  # the builder that conftest gives
SCHEMAS = Path(reports.__file__).parent / "schema"


@dataclass(frozen=True)
class Signed:
    run: Path
    trainer: keys.KeyFiles
    auditor: keys.KeyFiles


@pytest.fixture(scope="module")
def original(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Signed:
    folder = tmp_path_factory.mktemp("signed")
    run = run_builder(folder / "run", rounds=4, clients=4)
    trainer = create("trainer", folder / "keys")
    auditor = create("auditor", folder / "keys")
    for audience in ("internal", "public"):
        build_report(run, audience)
    signing.sign(run, trainer=keyring.load_signing_key("trainer", trainer.private))
    signing.sign(run, auditor=keyring.load_signing_key("auditor", auditor.private))
    return Signed(run, trainer, auditor)


@pytest.fixture
def signed(original: Signed, tmp_path: Path) -> Signed:
    """A copy that a test may change."""
    shutil.copytree(original.run, tmp_path / "signed" / "run")
    return dataclasses.replace(original, run=tmp_path / "signed" / "run")


def payload(path: Path) -> Any:
    return json.loads(parse_envelope(path.read_bytes(), path.name).payload)


def named(result: VerificationResult) -> set[str]:
    return {problem.file for problem in result.problems}


def test_a_signed_run_holds(signed: Signed) -> None:
    result = verify(signed.run)
    assert result.problems == ()
    assert result.is_intact
    assert [(s.role, s.fingerprint, s.envelope, s.pinned) for s in result.signers] == [
        ("trainer", signed.trainer.fingerprint, "training.attestation.json", False),
        ("auditor", signed.auditor.fingerprint, "attestation.json", False),
        ("auditor", signed.auditor.fingerprint, "attestation-public.json", False),
        ("auditor", signed.auditor.fingerprint, "report-public.pdf", False),
        ("auditor", signed.auditor.fingerprint, "report.pdf", False),
    ]
    assert any("integrity only" in text for text in result.statements)


def test_keys_that_were_given_are_used_and_said(signed: Signed) -> None:
    result = verify(signed.run, signed.trainer.public, signed.auditor.public)
    assert result.is_intact
    assert all(signer.pinned for signer in result.signers)
    assert not any("integrity only" in text for text in result.statements)
    assert any("independence" in text for text in result.statements)


def test_another_key_is_refused(signed: Signed) -> None:
    result = verify(signed.run, signed.auditor.public, signed.trainer.public)
    assert not result.is_intact
    assert named(result) >= {"trainer.pub", "auditor.pub", "training.attestation.json"}
    assert result.signers == ()


def test_a_key_that_cannot_be_read_is_the_callers_error(signed: Signed, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no such key"):
        verify(signed.run, tmp_path / "none.pub")


def test_one_key_for_both_proves_integrity_not_independence(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(rounds=2)
    build_report(run)
    private = keyring.load_signing_key("trainer", create("trainer", tmp_path / "keys").private)
    signing.sign(run, trainer=private)
    signing.sign(run, auditor=private)
    result = verify(run)
    assert result.is_intact
    assert any("same key: integrity, not independence" in text for text in result.statements)
    assert "integrity, not independence" in (run / "VERIFY.md").read_text("utf-8")


def test_statements_cover_what_they_promise_and_fit_their_schemas(signed: Signed) -> None:
    training = payload(signed.run / "training.attestation.json")
    run = payload(signed.run / "attestation.json")
    assert {subject["name"] for subject in training["subject"]} == {
        *signing.TRAINED_FILES,
        "evidence",
    }
    present = {path.name for path in signed.run.iterdir()} - {"attestation.json"}
    assert {subject["name"] for subject in run["subject"]} == present
    for kind, statement in (("training", training), ("run", run)):
        schema = json.loads((SCHEMAS / f"{kind}-attestation.schema.json").read_text("utf-8"))
        jsonschema.Draft202012Validator(schema).validate(statement)
        assert statement["predicateType"] == schema["$id"]


def test_attestations_tell_nothing_of_participation(signed: Signed) -> None:
    claim = json.loads((signed.run / "ledger.jsonl").read_text().strip().split("\n")[-1])
    for name in ("training.attestation.json", "attestation.json"):
        statement = payload(signed.run / name)
        shown = json.dumps(statement["predicate"])
        assert str(claim["server"]["epsilon"]["pld"]) not in shown
        assert "client" not in shown.lower().replace("client sizes", "")
        views = {view["key"]: view for view in statement["predicate"]["claims"]["views"]}
        assert views["third_party"]["epsilon"] == claim["third_party"]["epsilon"]["pld"]
        assert views["server_worst_case"]["delta"] == 1e-5


def test_a_run_without_privacy_is_signed_as_such(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(private=False, rounds=2)
    build_report(run)
    signing.sign(
        run, trainer=keyring.load_signing_key("trainer", create("trainer", tmp_path / "k").private)
    )
    signing.sign(
        run, auditor=keyring.load_signing_key("auditor", create("auditor", tmp_path / "k").private)
    )
    statement = payload(run / "attestation.json")
    assert statement["predicate"]["claims"]["statement"] == "no differential privacy"
    assert statement["predicate"]["verdict"] == "NO CLAIM"
    schema = json.loads((SCHEMAS / "run-attestation.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(statement)
    assert verify(run).is_intact


def test_valid_signatures_do_not_hide_a_bad_verdict(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(verdict="FAIL", rounds=2)
    build_report(run)
    private = keyring.load_signing_key("trainer", create("trainer", tmp_path / "k").private)
    signing.sign(run, trainer=private)
    signing.sign(run, auditor=private)
    result = verify(run)
    assert result.is_intact
    assert any("FAIL" in text and "contradicted" in text for text in result.statements)


def test_evidence_is_signed_by_a_salted_digest_alone(signed: Signed) -> None:
    statement = payload(signed.run / "attestation.json")
    names = [subject["name"] for subject in statement["subject"]]
    assert not any(name.startswith("evidence/") for name in names)
    digest = next(s["digest"] for s in statement["subject"] if s["name"] == "evidence")
    assert set(digest) == {"hmacSha256"}
    (signed.run / "evidence" / "salt").write_bytes(bytes(32))
    assert named(verify(signed.run)) == {"evidence"}


def test_absent_evidence_is_said_and_no_problem(signed: Signed) -> None:
    shutil.rmtree(signed.run / "evidence")
    result = verify(signed.run)
    assert result.is_intact
    assert any("evidence is not here" in text for text in result.statements)


def test_another_auditor_can_sign_anew(signed: Signed, tmp_path: Path) -> None:
    before = (signed.run / "training.attestation.json").read_bytes()
    other = create("auditor", tmp_path / "other")
    signing.sign(signed.run, auditor=keyring.load_signing_key("auditor", other.private))
    assert (signed.run / "training.attestation.json").read_bytes() == before
    assert verify(signed.run, signed.trainer.public, other.public).ok


SIGNED_FILES = (
    "spec.yaml",
    "ledger.jsonl",
    "metrics.jsonl",
    "model.safetensors",
    "model.json",
    "training.attestation.json",
    "audit.json",
    "report.json",
    "report.pdf",
    "report.html",
    "report-public.json",
    "report-public.pdf",
    "report-public.html",
    "attestation-public.json",
    "VERIFY-public.md",
    "VERIFY.md",
    "trainer.pub",
    "auditor.pub",
    "attestation.json",
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("change", ["append", "flip", "remove", "empty", "link", "folder"])
def test_every_tampering_names_the_file(signed: Signed, change: str) -> None:
    outside = signed.run.parent / "outside"
    for name in SIGNED_FILES:
        path = signed.run / name
        data = path.read_bytes()
        path.unlink()
        middle = len(data) // 2
        if change == "append":
            path.write_bytes(data + b"\n{}")
        elif change == "flip":
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        elif change == "empty":
            path.write_bytes(b"")
        elif change == "link":
            outside.write_bytes(data)
            path.symlink_to(outside)
        elif change == "folder":
            path.mkdir()
        result = verify(signed.run)
        assert not result.is_intact
        assert name in named(result)
        assert all("\n" not in str(problem) for problem in result.problems)
        if change == "folder":
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    assert verify(signed.run).is_intact


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda run: (run / "extra.txt").write_text("x"), "extra.txt"),
        (lambda run: (run / ".hidden").write_text("x"), ".hidden"),
        (lambda run: (run / "more").mkdir() or (run / "more" / "x").write_text("x"), "more/x"),
        (lambda run: (run / "link").symlink_to("/etc/passwd"), "link"),
        (lambda run: (run / "folder").symlink_to("/etc"), "folder"),
        (lambda run: (run / "evidence" / "extra").write_text("x"), "evidence"),
        (lambda run: (run / "evidence" / "layout.json").write_text("[]"), "evidence"),
        (lambda run: (run / "evidence" / "round-00000.npz").unlink(), "evidence"),
        (lambda run: (run / "evidence" / "salt").unlink(), "evidence/salt"),
        (lambda run: (run / "evidence" / "link").symlink_to("/etc/passwd"), "evidence/link"),
    ],
)
def test_whatever_is_added_or_missing_is_named(
    signed: Signed, change: Callable[[Path], Any], name: str
) -> None:
    change(signed.run)
    assert name in named(verify(signed.run))


def resign(signed: Signed) -> None:
    signing.sign(signed.run, trainer=keyring.load_signing_key("trainer", signed.trainer.private))
    signing.sign(signed.run, auditor=keyring.load_signing_key("auditor", signed.auditor.private))


def test_a_report_beside_another_model_is_found_even_if_signed(
    signed: Signed, make_run: MakeRun
) -> None:
    other = make_run("other", identifier="ffffffff")
    files = build_report(other)
    for path in (files.json, files.pdf, files.html):
        shutil.copy(path, signed.run / path.name)
    resign(signed)
    result = verify(signed.run)
    assert {"report.json", "report.pdf", "report.html"} == named(result)


def test_pages_that_carry_other_data_than_lie_beside_them_are_found_even_if_signed(
    signed: Signed,
) -> None:
    path = signed.run / "report.json"
    path.write_bytes(path.read_bytes().rstrip() + b"\n\n")
    resign(signed)
    assert [str(problem) for problem in verify(signed.run).problems] == [
        "report.pdf: carries other data than report.json in the same folder"
    ]


def test_a_report_beside_a_changed_model_is_found_even_if_signed(signed: Signed) -> None:
    (signed.run / "model.safetensors").write_bytes(b"another model")
    audit = json.loads((signed.run / "audit.json").read_text("utf-8"))
    audit["inputs"].pop("model.safetensors")
    (signed.run / "audit.json").write_text(json.dumps(audit), "utf-8")
    resign(signed)
    assert {"report.json", "report.pdf", "report-public.json"} <= named(verify(signed.run))


def test_a_report_that_is_older_than_the_audit_is_found_even_if_signed(signed: Signed) -> None:
    audit = json.loads((signed.run / "audit.json").read_text("utf-8"))
    audit["verdict"] = "FAIL"
    (signed.run / "audit.json").write_text(json.dumps(audit), "utf-8")
    signing.sign(signed.run, auditor=keyring.load_signing_key("auditor", signed.auditor.private))
    problems = {str(problem) for problem in verify(signed.run).problems}
    assert problems == {
        "report.json: was made with another audit.json",
        "report.json: states another verdict than the audit's, FAIL",
        "report-public.json: states another verdict than the audit's, FAIL",
    }


def test_an_attestation_of_another_run_is_found(signed: Signed, make_run: MakeRun) -> None:
    other = make_run("other", identifier="ffffffff")
    build_report(other)
    signing.sign(other, trainer=keyring.load_signing_key("trainer", signed.trainer.private))
    shutil.copy(other / "training.attestation.json", signed.run / "training.attestation.json")
    signing.sign(signed.run, auditor=keyring.load_signing_key("auditor", signed.auditor.private))
    assert "training.attestation.json" in named(verify(signed.run))


def test_a_claim_that_the_ledger_does_not_make_is_found(signed: Signed) -> None:
    path = signed.run / "training.attestation.json"
    text = parse_envelope(path.read_bytes(), path.name).payload.decode("utf-8")
    forged = re.sub(r'"epsilon": [\d.]+', '"epsilon": 0.1', text)
    assert forged != text
    path.write_bytes(
        seal(forged.encode(), keyring.load_signing_key("trainer", signed.trainer.private).private)
    )
    signing.sign(signed.run, auditor=keyring.load_signing_key("auditor", signed.auditor.private))
    problems = [str(problem) for problem in verify(signed.run).problems]
    assert problems == ["training.attestation.json: claims something else than the ledger"]


def test_the_two_envelopes_cannot_take_each_others_place(signed: Signed) -> None:
    shutil.copy(signed.run / "attestation.json", signed.run / "training.attestation.json")
    shutil.copy(signed.run / "auditor.pub", signed.run / "trainer.pub")
    assert "training.attestation.json" in named(verify(signed.run))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"payloadType":"application/vnd.in-toto+json"}',
        b'{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{}]}',
        b'{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":'
        b'[{"keyid":"x","sig":"AAAA"}]}',
        b'{"payloadType":"text/plain","payload":"e30=","signatures":[{"keyid":"","sig":"AA=="}]}',
        "é".encode("latin-1"),
        b"\x00" * 1000,
    ],
)
def test_hostile_envelopes_are_problems_not_tracebacks(signed: Signed, envelope: bytes) -> None:
    for name in ("attestation.json", "training.attestation.json"):
        (signed.run / name).write_bytes(envelope)
    result = verify(signed.run)
    assert {"attestation.json", "training.attestation.json"} <= named(result)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "statement",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"_type":"https://in-toto.io/Statement/v1","predicateType":'
        b'"urn:dpfedadamw:attestation:run:v2","subject":[],"predicate":{}}',
        b'{"_type":"https://in-toto.io/Statement/v1","predicateType":'
        b'"urn:dpfedadamw:attestation:run:v2","subject":[{"name":"../../etc/passwd",'
        b'"digest":{"sha256":"' + b"0" * 64 + b'"}}],"predicate":{"run":7,"claims":[]}}',
        b'{"_type":"https://in-toto.io/Statement/v1","predicateType":'
        b'"urn:dpfedadamw:attestation:run:v2","subject":[{"name":["x"],"digest":7}]}',
    ],
)
def test_hostile_statements_under_a_valid_signature_are_problems(
    signed: Signed, statement: bytes
) -> None:
    private = keyring.load_signing_key("auditor", signed.auditor.private).private
    (signed.run / "attestation.json").write_bytes(seal(statement or b" ", private))
    result = verify(signed.run)
    assert not result.is_intact
    assert all("\n" not in str(problem) for problem in result.problems)


def test_a_missing_run_is_a_problem(tmp_path: Path) -> None:
    assert named(verify(tmp_path / "none")) == {"none"}


def test_an_empty_folder_is_a_list_of_problems(tmp_path: Path) -> None:
    result = verify(tmp_path)
    assert {"attestation.json", "training.attestation.json", "spec.yaml"} <= named(result)


def test_the_auditor_needs_the_trainers_signature_and_findings(
    make_run: MakeRun, tmp_path: Path
) -> None:
    private = keyring.load_signing_key("auditor", create("auditor", tmp_path / "k").private)
    run = make_run(rounds=2)
    with pytest.raises(ReportError, match="the trainer signs first"):
        signing.sign(run, auditor=private)
    signing.sign(run, trainer=private)
    (run / "audit.json").unlink()
    with pytest.raises(ReportError, match="there is no finding to sign"):
        signing.sign(run, auditor=private)
    (run / "audit.json").write_text("{")
    with pytest.raises(ReportError, match=r"^audit\.json"):
        signing.sign(run, auditor=private)
    assert not (run / "attestation.json").exists()


def test_links_and_odd_names_are_not_signed(make_run: MakeRun, tmp_path: Path) -> None:
    private = keyring.load_signing_key("auditor", create("auditor", tmp_path / "k").private)
    run = make_run(rounds=2)
    signing.sign(run, trainer=private)
    (run / "a\nb").write_text("x")
    with pytest.raises(ReportError, match="unusual characters"):
        signing.sign(run, auditor=private)
    (run / "a\nb").unlink()
    (run / "link").symlink_to("/etc/passwd")
    with pytest.raises(ReportError, match="is a link"):
        signing.sign(run, auditor=private)


def test_a_run_identifier_that_a_shell_would_evaluate_is_refused(
    make_run: MakeRun, tmp_path: Path
) -> None:
    private = keyring.load_signing_key("auditor", create("auditor", tmp_path / "k").private)
    run = make_run(rounds=2, identifier="$(touch x)")
    signing.sign(run, trainer=private)
    with pytest.raises(ReportError, match="identifier"):
        signing.sign(run, auditor=private)


def test_the_pre_authentication_encoding_is_the_published_one() -> None:
    # The example of the DSSE protocol document.
    encoded = pre_authentication_encoding(b"hello world", "http://example.com/HelloWorld")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_the_fingerprint_is_over_the_der_key() -> None:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    body = public_pem(key).decode().split("-----")[2].replace("\n", "")
    digest = hashlib.sha256(base64.b64decode(body)).digest()
    assert keys.fingerprint(key) == "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


# What is put where, without pages that take long to make.


class Clock:
    """An authority that answers with the digest of what it was asked to stamp."""

    def stamp(self, data: bytes) -> bytes:
        return b"stamp " + hashlib.sha256(data).hexdigest().encode()


@pytest.fixture
def bare(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A run with files in the place of reports, and the names of the PDFs that were signed."""
    run, pages = make_run(rounds=2, clients=3), []

    def sign(data: bytes, _key: SigningKey, name: str, authority: Any) -> bytes:
        pages.append(name)
        return data + (b" signed with a stamp" if authority is not None else b" signed")

    monkeypatch.setattr(signing.pades, "sign", sign)
    for name in ("report.pdf", *signing.PUBLIC_REPORTS):
        (run / name).write_bytes(name.encode())
    return run, pages


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def subjects(path: Path) -> dict[str, dict[str, str]]:
    return {one["name"]: one["digest"] for one in payload(path)["subject"]}


def test_everything_is_signed_by_its_digest_and_filed_under_its_name(
    bare: tuple[Path, list[str]],
) -> None:
    run, pages = bare
    step = Sealed(b"envelope", b"stamp")
    trainer, auditor = fresh("trainer"), fresh("auditor")
    before, after = (dataclasses.replace(key, rotations=(step,)) for key in (trainer, auditor))
    (run / "intent.json").write_bytes(b"intent")
    (run / "challenge.json").write_bytes(b"challenge")
    clock: Any = Clock()
    made = signing.sign(run, before, after, clock, b"the model's")
    assert made == (run / "training.attestation.json", run / "attestation.json")
    assert pages == ["report-public.pdf", "report.pdf"]
    assert (run / "report.pdf").read_bytes() == b"report.pdf signed with a stamp"
    assert (run / "model.sig").read_bytes() == b"the model's"
    for role, key in (("trainer", trainer), ("auditor", auditor)):
        assert (run / f"{role}.pub").read_bytes() == public_pem(key.public)
        rotations = (run / f"{role}.rotations.json").read_bytes()
        assert rotations == write_bundle("rotations", (step,))
    for name in ("training.attestation.json", "attestation.json", "attestation-public.json"):
        stamp = b"stamp " + digest(run / name).encode()
        assert (run / f"{name}.tsr").read_bytes() == stamp
    header = json.loads((run / "ledger.jsonl").read_bytes().splitlines()[0])
    for name, public in (("VERIFY.md", False), ("VERIFY-public.md", True)):
        page = signing.verify_page(header["run"], trainer.public, auditor.public, public=public)
        assert (run / name).read_text("utf-8") == page
    evidence = evidence_digests(run)
    trained = (
        "spec.yaml", "ledger.jsonl", "metrics.jsonl", "model.safetensors", "model.json",
        "trainer.pub", "intent.json", "challenge.json",
    )  # fmt: skip
    assert list(subjects(made[0]).items()) == [
        *((name, {"sha256": digest(run / name)}) for name in trained),
        ("evidence", {"hmacSha256": evidence.trained}),
    ]
    itself = {"attestation.json", "attestation.json.tsr"}
    rest = sorted({path.name for path in run.iterdir() if path.is_file()} - itself)
    assert list(subjects(made[1]).items()) == [
        *((name, {"sha256": digest(run / name)}) for name in rest),
        ("evidence", {"hmacSha256": evidence.judged}),
    ]
    public = (
        "model.safetensors", "model.json", "metrics.jsonl", "report-public.json",
        "report-public.pdf", "report-public.html", "trainer.pub", "auditor.pub",
        "VERIFY-public.md", "model.sig", "trainer.rotations.json", "auditor.rotations.json",
        "intent.json", "challenge.json",
    )  # fmt: skip
    assert list(subjects(run / "attestation-public.json").items()) == [
        (name, {"sha256": digest(run / name)}) for name in public
    ]


def test_signing_anew_takes_away_what_holds_no_longer(
    bare: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = bare
    # The file in the place of a model's signature is none.
    monkeypatch.setattr("reports.signatures.bundles.check_bundle", lambda *_: [])
    trainer, auditor = fresh("trainer"), fresh("auditor")
    rotated = dataclasses.replace(trainer, rotations=(Sealed(b"envelope"),))
    clock: Any = Clock()
    signing.sign(run, rotated, auditor, clock, b"bundle")
    shutil.rmtree(run / "evidence")
    (run / "report-public.html").unlink()
    signing.sign(run, trainer)
    # The auditor's part stands until the auditor signs.
    gone = {"trainer.rotations.json", "training.attestation.json.tsr"}
    left = {"auditor.pub", "attestation.json", "attestation.json.tsr", "attestation-public.json"}
    there = {path.name for path in run.iterdir()}
    assert left <= there
    assert not gone & there
    assert "evidence" not in subjects(run / "training.attestation.json")
    signing.sign(run, auditor=auditor)
    there = {path.name for path in run.iterdir()}
    assert not there & {
        "VERIFY-public.md", "attestation-public.json", "attestation-public.json.tsr",
        "attestation.json.tsr",
    }  # fmt: skip
    assert {"model.sig", "VERIFY.md", "report-public.pdf"} <= there
    assert list(subjects(run / "attestation.json")) == sorted(there - {"attestation.json"})


def test_trainer_and_auditor_say_of_the_run_what_each_can(bare: tuple[Path, list[str]]) -> None:
    run, _ = bare
    signing.sign(run, fresh("trainer"), fresh("auditor"))
    source = load(run)
    version = {name: metadata.version(name) for name in ("cryptography", "pyhanko", "typst")}
    place = {"sequence": 1, "supersedes": None, "run": source.run}
    claims = json.loads(json.dumps(attested_claims(source)))
    trained = payload(run / "training.attestation.json")["predicate"]
    assert trained == {
        **place, "role": "trainer", "claims": claims,
        "tools": {"package": "0.1.0", "cryptography": version["cryptography"]},
    }  # fmt: skip
    said = {
        **place, "role": "auditor", "claims": claims, "verdict": "PASS",
        "reexecution": {"agrees": False, "participations": None, "public_coin": False},
        "qualifications": findings.qualifications(source, PUBLIC),
        "tools": {**{one.name: one.version for one in findings.auditor(source)}, **version},
    }  # fmt: skip
    for name in ("attestation.json", "attestation-public.json"):
        assert payload(run / name)["predicate"] == said
    assert signing.libraries("no-such-library") == {"no-such-library": "unknown"}


def test_an_auditor_signs_a_trainers_work_and_findings_that_can_be_read(tmp_path: Path) -> None:
    key = fresh("auditor")
    files = signing._Files(tmp_path)

    def refused(source: Any) -> str:
        with pytest.raises(ReportError) as caught:
            signing._sign_findings(source, files, key, None)
        return str(caught.value)

    unread = SimpleNamespace(audit=None, notes=("metrics.jsonl: is gone", "audit.json: no JSON"))
    assert refused(unread) == "training.attestation.json: missing; the trainer signs first"
    (tmp_path / "training.attestation.json").write_bytes(b"")
    assert refused(unread) == "trainer.pub: missing; the trainer signs first"
    files.put("trainer.pub", public_pem(key.public))
    assert refused(unread) == "audit.json: missing; there is no finding to sign"
    (tmp_path / "audit.json").write_bytes(b"")
    assert refused(unread) == "audit.json: no JSON"
    assert refused(SimpleNamespace(audit=None, notes=("metrics.jsonl: is gone",))) == (
        "audit.json: cannot be used"
    )


def test_what_will_be_written_is_what_is_read_and_hashed_and_nothing_is_there_before(
    tmp_path: Path,
) -> None:
    files = signing._Files(tmp_path)
    for name in ("kept", "changed", "removed"):
        (tmp_path / name).write_bytes(b"old")
    files.put("changed", b"new")
    files.put("added", b"more")
    files.put("removed", None)
    files.put("never there", None)
    assert files.names() == ["added", "changed", "kept"]
    assert [files.exists(name) for name in ("added", "changed", "kept")] == [True] * 3
    assert [files.exists(name) for name in ("removed", "never there", "x")] == [False] * 3
    for name, content in (("kept", b"old"), ("changed", b"new"), ("added", b"more")):
        assert files.read(name) == content
        assert files.sha256(name) == hashlib.sha256(content).hexdigest()
    assert not (tmp_path / "added").exists()
    assert (tmp_path / "changed").read_bytes() == b"old"
    files.write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "added": b"more", "changed": b"new", "kept": b"old",
    }  # fmt: skip
    (tmp_path / "link").symlink_to("kept")
    with pytest.raises(ReportError, match="link: is a link"):
        files.names()
