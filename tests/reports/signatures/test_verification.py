"""What `verify` notices beside changed bytes: rewritten signatures, other states, other keys."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from audit.untrusted import files as untrusted
from reports import Auditing, KeyFileError, build_report
from reports.content.assurance import Facts
from reports.errors import EnvelopeError, PdfSignatureError, SourceError
from reports.files import Snapshot
from reports.signatures import keyring, keys, pades, signing, statements, verification
from reports.signatures.certificates import chain_pem, self_signed
from reports.signatures.dsse import (
    RUN_TYPE,
    SHA256,
    Envelope,
    Statement,
    parse_envelope,
    parse_statement,
    seal,
    write_envelope,
    write_statement,
)
from reports.signatures.inventory import Problem, evidence_digests
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import (
    Outcome,
    VerificationResult,
    verify,
    verify_pages,
)
from reports.signatures.verification.envelopes import Trust
from reports.signatures.verification.results import Found, Memory, Present, Seen, Signer
from tests.logs import TransparencyLog
from tests.reports.earlier_names import ADDRESS, earlier, rename
from tests.reports.signing_keys import create, fresh

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
ENVELOPES = ("training.attestation.json", "attestation.json")
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


@dataclasses.dataclass(frozen=True)
class Signed:
    run: Path
    keys: Path

    @property
    def trainer(self) -> SigningKey:
        return keyring.load_signing_key("trainer", self.keys / "trainer.key")

    @property
    def auditor(self) -> SigningKey:
        return keyring.load_signing_key("auditor", self.keys / "auditor.key")

    def verify(self, **options: Any) -> VerificationResult:
        """Check it as somebody who knows both keys."""
        return verify(self.run, self.keys / "trainer.pub", self.keys / "auditor.pub", **options)


@pytest.fixture(scope="module")
def original(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Signed:
    folder = tmp_path_factory.mktemp("verified")
    run = run_builder(folder / "run", rounds=2, clients=3)
    build_report(run)
    for role in keys.ROLES:
        create(role, folder / "keys")
    signed = Signed(run, folder / "keys")
    signing.sign(run, signed.trainer, signed.auditor)
    return signed


@pytest.fixture
def signed(original: Signed, tmp_path: Path) -> Signed:
    """A copy that a test may change."""
    return Signed(Path(shutil.copytree(original.run, tmp_path / "run")), original.keys)


def named(result: VerificationResult) -> set[str]:
    return {problem.file for problem in result.problems}


def statement_of(run: Path, name: str) -> Any:
    return json.loads(parse_envelope((run / name).read_bytes(), name).payload)


def test_all_holds_only_under_keys_that_the_reader_knows(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert signed.verify().outcome is Outcome.ALL_HOLD
    stranger = verify(signed.run)
    assert stranger.is_intact
    assert stranger.outcome is Outcome.SIGNER_UNKNOWN
    assert not stranger.ok
    shown = stranger.to_json()
    assert (shown["outcome"], shown["ok"]) == ("INTACT, SIGNER UNKNOWN", False)
    one = verify(signed.run, trainer_key=signed.keys / "trainer.pub")
    assert one.outcome is Outcome.SIGNER_UNKNOWN
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(signed.keys))
    holder = verify(signed.run)
    assert holder.outcome is Outcome.ALL_HOLD
    assert all(entry.own and not entry.pinned for entry in holder.signers)
    assert any(
        "Signed by your own key: the trainer and the auditor's" in s for s in holder.statements
    )


def test_files_lie_under_the_names_that_readers_look_for() -> None:
    names = (
        signing.TRAINING_ENVELOPE, signing.RUN_ENVELOPE, signing.PUBLIC_ENVELOPE,
        signing.TRAINER_KEY, signing.TRAINER_ROTATIONS, signing.AUDITOR_KEY,
        signing.AUDITOR_ROTATIONS, signing.INSTRUCTIONS, signing.PUBLIC_INSTRUCTIONS,
        signing.STAMP_SUFFIX, signing.PROOF_SUFFIX, *sorted(signing.SIGNED_PAGES),
    )  # fmt: skip
    assert names == (
        "training.attestation.json", "attestation.json", "attestation-public.json",
        "trainer.pub", "trainer.rotations.json", "auditor.pub",
        "auditor.rotations.json", "VERIFY.md", "VERIFY-public.md",
        ".tsr", ".tlog", "report-public.pdf", "report.pdf",
    )  # fmt: skip


def test_an_attestation_names_its_files_in_order_and_the_evidence_last(signed: Signed) -> None:
    names = [one["name"] for one in statement_of(signed.run, "attestation.json")["subject"]]
    assert names == [*sorted(names[:-1]), "evidence"]


@pytest.mark.parametrize("content", [b"{}", b"\0"])
def test_a_models_own_signature_that_does_not_hold_is_named(
    signed: Signed, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (signed.run / "model.sig").write_bytes(content)
    # Ours signs nothing next to it; another program may.
    monkeypatch.setattr(signing, "_refuse_other_bundle", lambda *_: None)
    signing.sign(signed.run, trainer=signed.trainer)
    signing.sign(signed.run, auditor=signed.auditor)
    result = signed.verify()
    assert named(result) == {"model.sig"}
    assert "model.sig" not in {signer.envelope for signer in result.signers}


def test_a_run_signed_anew_by_somebody_else_is_never_all_holds(signed: Signed) -> None:
    shutil.copytree(signed.keys, signed.run.parent / "mine")
    signing.sign(signed.run, fresh("trainer"), fresh("auditor"))
    assert verify(signed.run).outcome is Outcome.SIGNER_UNKNOWN
    assert signed.verify().outcome is Outcome.NOT_VALID


def test_a_key_in_the_folder_of_the_other_role_is_not_known(
    signed: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "swapped"
    folder.mkdir(mode=0o700)
    shutil.copy(signed.keys / "trainer.pub", folder / "auditor.pub")
    shutil.copy(signed.keys / "auditor.pub", folder / "trainer.pub")
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(folder))
    assert verify(signed.run).outcome is Outcome.SIGNER_UNKNOWN


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_a_key_folder_that_others_may_write_to_is_refused(
    signed: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "open"
    create("auditor", folder)
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(folder))
    assert verify(signed.run).is_intact
    for mode in (0o777, 0o720, 0o702, 0o1777):
        folder.chmod(mode)
        with pytest.raises(KeyFileError, match=r"others may write to it .* chmod 700"):
            verify(signed.run)
        with pytest.raises(KeyFileError, match="others may write to it"):
            create("trainer", folder)
    folder.chmod(0o755)
    assert verify(signed.run).is_intact


def test_signatures_have_the_lower_of_their_two_forms() -> None:
    key = fresh("auditor").private
    for index in range(24):
        _, s = decode_dss_signature(keys.sign(key, bytes([index])))
        assert s <= ORDER // 2


@pytest.mark.parametrize("name", ENVELOPES)
def test_a_signature_rewritten_into_its_other_form_is_refused(signed: Signed, name: str) -> None:
    path = signed.run / name
    envelope = parse_envelope(path.read_bytes(), name)
    r, s = decode_dss_signature(envelope.signature)
    other = encode_dss_signature(r, ORDER - s)
    path.write_bytes(write_envelope(Envelope(envelope.payload, envelope.keyid, other)))
    assert (
        f"{name}: the signature was rewritten; only its form with the lower s is accepted"
        in map(str, signed.verify().problems)
    )


def test_unsigned_bytes_behind_the_signature_of_a_pdf_are_refused(signed: Signed) -> None:
    data = (signed.run / "report.pdf").read_bytes()
    end = data.index(b">", data.index(b"/Contents <"))
    assert data[end - 8 : end] == b"00000000"
    padded = data[: end - 2] + b"41" + data[end:]
    with pytest.raises(PdfSignatureError, match="unsigned bytes behind its signature"):
        pades.check(padded, "report.pdf")
    assert pades.check(data, "report.pdf").key == signed.auditor.public


def test_a_report_whose_pages_lie_alone_is_judged_by_them(signed: Signed, tmp_path: Path) -> None:
    """Until now whatever was not a run or an annex was NOT VALID."""
    path = Path(shutil.copy(signed.run / "report.pdf", tmp_path / "pages.pdf"))
    assert verify_pages(path).outcome is Outcome.SIGNER_UNKNOWN
    assert verify_pages(path, signed.keys / "auditor.pub").outcome is Outcome.ALL_HOLD
    assert verify_pages(path, signed.keys / "trainer.pub").outcome is Outcome.NOT_VALID
    path.write_bytes(pades.sign(pades.unsigned(path.read_bytes(), "x"), fresh("auditor"), "x"))
    assert verify_pages(path).outcome is Outcome.SIGNER_UNKNOWN
    assert verify_pages(path, signed.keys / "auditor.pub").outcome is Outcome.NOT_VALID
    data = bytearray((signed.run / "report.pdf").read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert verify_pages(path).outcome is Outcome.NOT_VALID


@pytest.mark.parametrize("change", ["bytes", "link", "removed"])
def test_the_findings_in_the_evidence_are_covered_by_the_auditor(
    signed: Signed, change: str
) -> None:
    path = signed.run / "evidence" / "findings.json"
    content = path.read_bytes()
    path.unlink()
    if change == "bytes":
        path.write_bytes(content + b" ")
    elif change == "link":
        (signed.run.parent / "elsewhere").write_bytes(content)
        path.symlink_to(signed.run.parent / "elsewhere")
    problems = [str(problem) for problem in signed.verify().problems]
    assert problems
    assert all(problem.startswith("evidence") for problem in problems)
    if change != "link":
        assert problems == ["evidence: changed since attestation.json was signed, or its salt did"]


def test_attestations_of_the_form_before_numbers_are_still_read(signed: Signed) -> None:
    """That form had no number, left the findings out of the digest, and either form of s."""
    for name, key in zip(ENVELOPES, (signed.trainer, signed.auditor), strict=True):
        path = signed.run / name
        text = parse_envelope(path.read_bytes(), name).payload
        document = json.loads(text)
        predicate = document["predicate"]
        del predicate["sequence"], predicate["supersedes"]
        subjects = {
            entry["name"]: next(iter(entry["digest"].items())) for entry in document["subject"]
        }
        subjects["evidence"] = ("hmacSha256", evidence_digests(signed.run).trained)
        if name == "attestation.json":
            training = hashlib.sha256((signed.run / ENVELOPES[0]).read_bytes()).hexdigest()
            subjects[ENVELOPES[0]] = (SHA256, training)
        kind = earlier(document["predicateType"]).replace("/v2", "/v1")
        sealed = parse_envelope(
            seal(write_statement(Statement(subjects, kind, predicate)), key.private), name
        )
        r, s = decode_dss_signature(sealed.signature)
        high = dataclasses.replace(sealed, signature=encode_dss_signature(r, ORDER - s))
        path.write_bytes(write_envelope(high))
    result = signed.verify()
    assert result.problems == ()
    assert result.sequence == dict.fromkeys(ENVELOPES, 0)
    (signed.run / "evidence" / "findings.json").write_bytes(b"{}\n\n")
    assert signed.verify().ok
    signing.sign(signed.run, auditor=signed.auditor)
    assert signed.verify().sequence == {ENVELOPES[0]: 0, ENVELOPES[1]: 2}


def test_a_run_that_was_signed_while_types_had_addresses_still_verifies(
    signed: Signed, tmp_path: Path
) -> None:
    rename(signed.run, signed.trainer, signed.auditor)
    for name in ENVELOPES:
        assert statement_of(signed.run, name)["predicateType"].startswith(f"{ADDRESS}/")
    result = signed.verify()
    assert result.outcome is Outcome.ALL_HOLD
    # They are numbered as today's are, and what follows them has today's names.
    assert result.sequence == dict.fromkeys(ENVELOPES, 1)
    changed = shutil.copytree(signed.run, tmp_path / "changed")
    (changed / "metrics.jsonl").write_bytes(b"{}\n")
    assert not Signed(changed, signed.keys).verify().ok
    signing.sign(signed.run, signed.trainer, signed.auditor)
    assert signed.verify().sequence == dict.fromkeys(ENVELOPES, 2)
    for name in ENVELOPES:
        kind = statement_of(signed.run, name)["predicateType"]
        assert kind.startswith("urn:dpfedadamw:attestation:")


def test_each_signature_names_the_one_that_it_supersedes(signed: Signed) -> None:
    first = {name: (signed.run / name).read_bytes() for name in ENVELOPES}
    for name in ENVELOPES:
        said = statement_of(signed.run, name)["predicate"]
        assert (said["sequence"], said["supersedes"]) == (1, None)
    signing.sign(signed.run, auditor=signed.auditor)
    signing.sign(signed.run, auditor=signed.auditor)
    assert signed.verify().sequence == {ENVELOPES[0]: 1, ENVELOPES[1]: 3}
    signing.sign(signed.run, trainer=signed.trainer)
    said = statement_of(signed.run, ENVELOPES[0])["predicate"]
    digest = hashlib.sha256(first[ENVELOPES[0]]).hexdigest()
    assert (said["sequence"], said["supersedes"]) == (2, digest)


def test_signing_over_a_damaged_attestation_is_refused(signed: Signed) -> None:
    (signed.run / "attestation.json").write_bytes(b"{}")
    with pytest.raises(EnvelopeError, match="what a new signature supersedes is unknown"):
        signing.sign(signed.run, auditor=signed.auditor)


@pytest.mark.parametrize("value", [0, -1, True, "2", None, 2**60, 1.0])
def test_a_number_out_of_range_is_a_problem(signed: Signed, value: object) -> None:
    path = signed.run / "attestation.json"
    statement = parse_statement(
        parse_envelope(path.read_bytes(), path.name).payload, RUN_TYPE, path.name
    )
    statement.predicate["sequence"] = value
    path.write_bytes(seal(write_statement(statement), signed.auditor.private))
    reasons = {problem.file: problem.reason for problem in signed.verify().problems}
    assert "its sequence number must be from 1" in reasons["attestation.json"]


def test_an_earlier_signed_state_is_refused_by_who_verified_a_later_one(
    signed: Signed, tmp_path: Path
) -> None:
    memory = tmp_path / "reader" / "verified.json"
    earlier = shutil.copytree(signed.run, tmp_path / "earlier")
    signing.sign(signed.run, signed.trainer, signed.auditor)
    # A reader who knows no key remembers nothing: anybody could have sent a higher number.
    assert verify(signed.run, memory=memory).is_intact
    assert not memory.exists()
    assert signed.verify(memory=memory).ok
    assert memory.stat().st_mode & 0o777 == 0o600
    assert signed.verify(memory=memory).ok
    put_back = Signed(earlier, signed.keys)
    assert put_back.verify().ok
    result = put_back.verify(memory=memory)
    assert named(result) == set(ENVELOPES)
    assert all("an earlier state was put back" in problem.reason for problem in result.problems)
    assert verify(earlier, memory=memory).outcome is Outcome.NOT_VALID


def test_a_copy_with_a_high_number_by_another_key_does_not_make_the_true_run_void(
    signed: Signed, tmp_path: Path
) -> None:
    """Somebody whose keys were given once signs a copy of another's run three times."""
    memory = tmp_path / "reader" / "verified.json"
    copy = Path(shutil.copytree(signed.run, tmp_path / "copy"))
    mallory = {role: fresh(role) for role in ("trainer", "auditor")}
    for _ in range(3):
        signing.sign(copy, mallory["trainer"], mallory["auditor"])
    given = {}
    for role, key in mallory.items():
        given[f"{role}_key"] = tmp_path / f"{role}.pub"
        given[f"{role}_key"].write_bytes(keys.public_pem(key.public))
    assert verify(copy, **given, memory=memory).ok
    assert signed.verify(memory=memory).ok
    # The auditor's part alone, over the true trainer's signature, is Mallory's alone too.
    half = Path(shutil.copytree(signed.run, tmp_path / "half"))
    for _ in range(4):
        signing.sign(half, auditor=mallory["auditor"])
    given["trainer_key"] = signed.keys / "trainer.pub"
    assert verify(half, **given, memory=memory).ok
    assert signed.verify(memory=memory).ok
    signing.sign(signed.run, signed.trainer, signed.auditor)
    assert signed.verify(memory=memory).ok


def test_two_states_under_one_number_are_noticed(signed: Signed, tmp_path: Path) -> None:
    memory = tmp_path / "verified.json"
    other = Signed(Path(shutil.copytree(signed.run, tmp_path / "other")), signed.keys)
    for run in (signed, other):
        signing.sign(run.run, auditor=run.auditor)
    assert signed.verify(memory=memory).ok
    result = other.verify(memory=memory)
    assert named(result) == {"attestation.json"}
    assert "signed twice from one state" in result.problems[0].reason


@pytest.mark.parametrize("content", [b"", b"{", b'{"runs": {"r": {"attestation.json": 7}}}'])
def test_a_damaged_memory_is_the_callers_error(
    signed: Signed, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "verified.json").write_bytes(content)
    with pytest.raises(KeyFileError, match="move it away to start again"):
        signed.verify(memory=tmp_path / "verified.json")


def test_a_state_that_cannot_be_remembered_is_said_and_holds(
    signed: Signed, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = signed.verify(memory=tmp_path / "file" / "verified.json")
    assert result.ok
    assert any("could not be remembered" in text for text in result.statements)


def test_each_file_is_read_once_so_that_a_swap_in_between_shows_nothing(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    plain = untrusted._open_plain

    def swapping(path: Path, name: str, flags: int, folder: int | None = None) -> Any:
        """Open a file; who comes to it a second time is shown another one."""
        if path.parent.resolve() == signed.run.resolve():
            opened.append(path.name)
            if opened.count(path.name) == 2:
                path.write_bytes(b"swapped")
        return plain(path, name, flags, folder)

    monkeypatch.setattr(untrusted, "_open_plain", swapping)
    result = signed.verify()
    assert result.ok
    assert sorted(opened) == sorted(set(opened))
    assert {"ledger.jsonl", "model.safetensors", "report.pdf", "report.json"} <= set(opened)


def test_a_write_that_did_not_end_is_said_and_is_not_signed(signed: Signed) -> None:
    (signed.run / ".unfinished").mkdir()
    (signed.run / ".unfinished" / "report.json").write_text("half")
    signing.sign(signed.run, auditor=signed.auditor)
    assert not any(
        entry["name"].startswith(".unfinished")
        for entry in statement_of(signed.run, "attestation.json")["subject"]
    )
    result = signed.verify()
    assert [str(problem) for problem in result.problems] == [
        ".unfinished: a write to this run was cut off or is going on; dpfedadamw run --resume "
        "RUN_DIR finishes it"
    ]
    shutil.rmtree(signed.run / ".unfinished")
    assert signed.verify().ok


def test_a_lock_that_a_killed_command_left_changes_nothing_that_is_signed(signed: Signed) -> None:
    (signed.run / ".unfinished").mkdir()
    (signed.run / ".unfinished" / "lock").write_text('{"process": 1}')
    result = signed.verify()
    assert result.ok
    assert any(text.startswith(".unfinished/ is there") for text in result.statements)
    (signed.run / ".unfinished" / "lock").write_bytes(bytes(10_000))
    assert not signed.verify().ok
    (signed.run / ".unfinished" / "lock").rename(signed.run / ".unfinished" / "other")
    assert not signed.verify().ok


@pytest.mark.parametrize("kind", ["file", "link", "empty folder", "folder"])
def test_a_checkpoint_beside_a_finished_run_is_named(signed: Signed, kind: str) -> None:
    path = signed.run / "checkpoint"
    if kind == "file":
        path.write_bytes(b"x")
    elif kind == "link":
        path.symlink_to("/etc")
    else:
        path.mkdir()
        if kind == "folder":
            (path / "state.safetensors").write_text("x")
    assert named(signed.verify()) == {"checkpoint"}
    assert any("a finished one has none" in problem.reason for problem in signed.verify().problems)


def test_an_invented_public_report_is_named(signed: Signed) -> None:
    invented = (signed.run / "report.html").read_bytes()
    (signed.run / "report-public.html").write_bytes(invented)
    assert [str(problem) for problem in signed.verify().problems] == [
        "report-public.html: is not covered by attestation.json"
    ]


def reported_as_independent(signed: Signed, auditor: SigningKey, signs: SigningKey) -> list[str]:
    """What does not hold of a report that calls one auditor independent, and is signed by one."""
    stated = Auditing(auditor.fingerprint, signed.trainer.fingerprint, one_hand=False)
    if stated.trainer == stated.auditor:
        # No report says so by itself.
        stated = Auditing(auditor.fingerprint, "SHA256:another", one_hand=False)
    build_report(signed.run, auditing=stated)
    signing.sign(signed.run, signed.trainer, signs)
    return [str(problem) for problem in verify(signed.run).problems]


@pytest.mark.parametrize(
    ("stem", "other"),
    [
        ("report", {"epsilon": 0.1}),
        ("report", {"delta": 1e-9}),
        ("report", {"unit": "client"}),
        ("report", {"view": "third_party"}),
        ("report-public", {"epsilon": 0.1}),
        ("report-public", {"view": "server"}),
    ],
)
def test_a_report_that_its_auditor_signed_leads_with_the_guarantee_of_the_ledger(
    signed: Signed, stem: str, other: dict[str, Any]
) -> None:
    build_report(signed.run, "public")
    signing.sign(signed.run, signed.trainer, signed.auditor)
    assert not signed.verify().problems
    path = signed.run / f"{stem}.json"
    report = json.loads(path.read_text("utf-8"))
    report["guarantee"].update(other)
    path.write_text(json.dumps(report), "utf-8")
    signing.sign(signed.run, signed.trainer, signed.auditor)
    assert f"{stem}.json: states another guarantee than ledger.jsonl" in [
        str(problem) for problem in signed.verify().problems
    ]


def test_an_audit_called_independent_is_signed_by_the_key_that_is_named(signed: Signed) -> None:
    other = fresh("auditor")
    assert reported_as_independent(signed, signed.auditor, signed.auditor) == []
    found = reported_as_independent(signed, signed.auditor, other)
    assert found == [
        "report.json: calls its audit independent, but names another auditor’s key than signed"
    ]


def test_a_report_that_names_another_key_than_signed_it_is_told_apart(signed: Signed) -> None:
    """Its first pages tell readers to compare that key; a key that was replaced since may sign."""
    named = fresh("auditor")
    for stated, said in ((signed.auditor.fingerprint, 0), (named.fingerprint, 1)):
        build_report(signed.run, auditing=Auditing(stated, None, one_hand=False))
        signing.sign(signed.run, signed.trainer, signed.auditor)
        found = verify(signed.run)
        assert not found.problems
        words = f"names the auditor's key {named.fingerprint}, and {signed.auditor.fingerprint}"
        assert sum(words in text for text in found.statements) == said


def test_an_audit_called_independent_is_not_signed_by_the_trainers_key(signed: Signed) -> None:
    private = signed.trainer.private
    both = SigningKey("auditor", private, (self_signed(private, "auditor"),))
    found = reported_as_independent(signed, both, both)
    assert found == [
        "report.json: calls its audit independent, but one key signed as trainer and auditor"
    ]


# What is asked of whom, without pages that take long to make.


def test_what_the_caller_brings_along_is_read_by_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, log = tmp_path / "keys", TransparencyLog()
    made = {role: create(role, folder) for role in keys.ROLES}
    other = create("auditor", tmp_path / "other")
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(folder))
    own = {role: frozenset({pair.fingerprint}) for role, pair in made.items()}
    nothing = verification.trust_of({"trainer": None, "auditor": None}, (), (), ())
    assert nothing == Trust({}, (), {}, own)
    (tmp_path / "log.pub").write_text(f"{log.key}\n")
    (tmp_path / "root.pem").write_bytes(chain_pem(fresh("auditor").chain))
    given = verification.trust_of(
        {"trainer": None, "auditor": other.public},
        (listed(tmp_path / "list.json"),),
        [tmp_path / "root.pem"],
        [tmp_path / "log.pub"],
    )
    assert {role: keys.fingerprint(key) for role, key in given.pinned.items()} == {
        "auditor": other.fingerprint
    }
    assert len(given.roots) == len(given.logs) == len(given.revoked) == 1
    # A list in the caller's own folder counts as well.
    listed(folder / "trainer.revocations.json")
    assert len(verification.trust_of({}, (), (), ()).revoked) == 1
    both = verification.trust_of({}, (listed(tmp_path / "second.json"),), (), ())
    assert len(both.revoked) == 2


def listed(path: Path) -> Path:
    """A list of one revoked key."""
    key = fresh("trainer")
    name = key.fingerprint
    entry = statements.Revocation("trainer", name, NOON, "superseded", name)
    private: Any = key.private
    sealed = statements.write_revocation(entry, key.public, private, (), NOON)
    path.write_bytes(statements.write_bundle("revocations", (statements.Sealed(sealed),)))
    return path


@pytest.mark.parametrize(
    ("error", "known", "said"),
    [
        ("ledger.jsonl, line 3: no JSON in {}", (), ["ledger.jsonl: no JSON"]),
        ("spec.yaml: missing in {}: none", (), ["spec.yaml: missing: none"]),
        ("spec.yaml: missing", ("spec.yaml",), ["spec.yaml: known"]),
        ("spec.yaml: missing", ("other",), ["other: known", "spec.yaml: missing"]),
    ],
)
def test_a_run_that_cannot_be_read_is_named_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: str,
    known: tuple[str, ...],
    said: list[str],
) -> None:
    def load(folder: Path, files: Snapshot) -> None:
        assert files.folder == folder == tmp_path
        raise SourceError(error.format(tmp_path))

    monkeypatch.setattr(verification, "load", load)
    found = Found()
    for name in known:
        found.add(name, "known")
    assert verification._check_run(Snapshot(tmp_path), {}, found) is None
    assert [str(problem) for problem in found.problems] == said


KNOWN = Memory(without_keys={"known": {}})


class Stubs:
    """Every step of a check, that notes what it was given."""

    def __init__(self, patch: pytest.MonkeyPatch, alone: bool, opened: bool, run: Any) -> None:
        self.called: list[str] = []
        self.given: dict[str, tuple[Any, ...]] = {}
        self.by = {"trainer": object(), "auditor": object()}
        self.statements = {name: object() for name in ENVELOPES}
        self.statements["attestation-public.json"] = SimpleNamespace(predicate={})
        if not opened:
            self.statements = {}
        patch.setattr(verification.contents, "is_public_alone", lambda _: alone)
        for module, name, answer in (
            (verification.envelopes, "check_keys", self.by),
            (verification.envelopes, "check_envelopes", self.statements),
            (verification.envelopes, "check_pages", None),
            (verification.contents, "check_files", None),
            (verification.envelopes, "check_model", None),
            (verification, "_check_announcements", None),
            (verification, "_check_run", run),
            (verification.contents, "check_public", "a-run"),
            (verification.results, "read_memory", KNOWN),
            (verification.results, "refuse_earlier", None),
            (verification.results, "remember", None),
        ):
            patch.setattr(module, name, self.step(name, answer))
        # A run of no files has no level, and a key that is none no fingerprint.
        for name in ("facts_of", "facts_from", "fingerprint"):
            patch.setattr(verification, name, lambda _: None)

    def step(self, name: str, answer: Any) -> Any:
        def act(*given: Any) -> Any:
            self.called.append(name)
            self.given[name] = given
            return answer

        return act


STEPS = [
    "check_keys", "check_envelopes", "check_pages", "check_files", "check_model",
    "_check_announcements",
]  # fmt: skip
RUN = SimpleNamespace(run="a-run")
FACTS = Facts("PASS", True, 20, True)


@pytest.mark.parametrize(
    ("alone", "opened", "run", "memory", "called"),
    [
        (False, True, RUN, False, [*STEPS, "_check_run"]),
        (False, True, RUN, True, ["read_memory", *STEPS, "_check_run", "refuse_earlier"]),
        (False, True, None, True, ["read_memory", *STEPS, "_check_run"]),
        (True, True, RUN, False, [*STEPS, "check_public"]),
        (True, True, RUN, True, ["read_memory", *STEPS, "check_public", "refuse_earlier"]),
        (True, False, RUN, True, ["read_memory", *STEPS]),
    ],
)
def test_each_part_is_checked_in_its_turn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
    opened: bool,
    run: Any,
    memory: bool,
    called: list[str],
) -> None:
    stubs = Stubs(monkeypatch, alone, opened, run)
    path = tmp_path / "memory.json" if memory else None
    _, source = verification.verify_and_read(tmp_path, memory=path)
    assert stubs.called == called
    assert source is (None if alone else run)
    assert stubs.given["check_envelopes"][1] is stubs.by
    assert stubs.given["check_envelopes"][4] is alone
    assert stubs.given["check_pages"][1] is stubs.by["auditor"]
    assert stubs.given["check_model"][1] is stubs.by["trainer"]
    last = "attestation-public.json" if alone else "attestation.json"
    assert stubs.given["check_files"][1:3] == (stubs.statements, last)
    if "check_public" in called:
        assert stubs.given["check_public"][1] is stubs.statements["attestation-public.json"]
    if "refuse_earlier" in called:
        assert stubs.given["refuse_earlier"][:4] == (KNOWN, "a-run", {}, path)


def test_a_state_is_remembered_with_its_numbers_and_digests_where_all_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs = Stubs(monkeypatch, False, True, RUN)
    (tmp_path / "attestation.json").write_bytes(b"envelope")
    digest = hashlib.sha256(b"envelope").hexdigest()
    seen = {"attestation.json": Present(Seen(3, digest), frozenset({"key"}))}
    memory = tmp_path / "memory.json"

    def envelopes(_files: Any, _keys: Any, _trust: Any, found: Found, _alone: bool) -> Any:
        found.sequence["attestation.json"] = 3
        found.signers.append(Signer("auditor", "key", "attestation.json", pinned=known))
        return stubs.statements

    monkeypatch.setattr(verification.envelopes, "check_envelopes", envelopes)
    for known in (False, True):
        stubs.called.clear()
        result, _ = verification.verify_and_read(tmp_path, memory=memory)
        assert result.ok is known
        assert ("remember" in stubs.called) is known
        assert any("number 3" in said for said in result.statements)
    assert stubs.given["remember"][:3] == ("a-run", seen, memory)
    assert stubs.given["refuse_earlier"][2] == seen


TRAINER = Signer("trainer", "SHA256:t", "training.attestation.json", pinned=False)
AUDITOR = Signer("auditor", "SHA256:a", "attestation.json", pinned=True, time="2026-01-01")


@pytest.mark.parametrize(
    ("trainer", "auditor", "expected"),
    [
        ({}, {}, (True, True, True)),
        ({"own": True}, {"pinned": False, "own": True}, (False, True, True)),
        ({"own": True}, {}, (True, True, True)),
        ({}, {"fingerprint": "SHA256:t"}, (False, True, True)),
        ({}, {"pinned": False}, (True, False, True)),
        ({}, {"time": None}, (True, True, False)),
        ({"envelope": "other.json"}, {"envelope": "other.json"}, (False, False, False)),
    ],
    ids=["two hands", "own both", "own trainer", "one key", "unknown", "no time", "other files"],
)
def test_what_a_level_is_computed_from(
    monkeypatch: pytest.MonkeyPatch,
    trainer: dict[str, Any],
    auditor: dict[str, Any],
    expected: tuple[bool, bool, bool],
) -> None:
    given: dict[str, bool] = {}
    monkeypatch.setattr(verification, "level_of", lambda _, **named: given.update(named))
    signers = (dataclasses.replace(TRAINER, **trainer), dataclasses.replace(AUDITOR, **auditor))
    result = VerificationResult((), (), signers, {})
    verification._level(result, FACTS)
    assert tuple(given.values()) == expected


def test_what_does_not_hold_or_is_not_whole_has_no_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "level_of", lambda *_, **__: 4)
    intact = VerificationResult((), (), (), {})
    spoilt = VerificationResult((Problem("spec.yaml", "was changed"),), (), (), {})
    levels = [
        verification._level(*given) for given in ((intact, FACTS), (spoilt, FACTS), (intact, None))
    ]
    assert levels == [4, None, None]


def test_what_is_no_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("file", "none"):
        result, source = verification.verify_and_read(tmp_path / name)
        assert source is None
        assert [str(problem) for problem in result.problems] == [f"{name}: no such run directory"]
