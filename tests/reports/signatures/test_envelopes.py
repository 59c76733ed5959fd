"""A run's signatures one by one: what each must be by, and what is told of one that is not."""

from __future__ import annotations

import dataclasses
import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from reports.errors import PdfSignatureError
from reports.files import Snapshot
from reports.signatures import bundles, certificates, dsse, pades, statements, timestamps
from reports.signatures.dsse import (
    COMPARISON_TYPE,
    PUBLIC_TYPE,
    RUN_TYPE,
    SHA256,
    TRAINING_TYPE,
    Statement,
    parse_envelope,
    seal,
    write_envelope,
    write_statement,
)
from reports.signatures.inventory import Problem
from reports.signatures.keys import fingerprint, public_pem
from reports.signatures.statements import Revocation, Sealed
from reports.signatures.timestamps import Timestamp
from reports.signatures.verification import envelopes
from reports.signatures.verification.envelopes import Trust
from reports.signatures.verification.results import Found, Signer

WHEN = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
AUDITOR, TRAINER, STRANGER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
PUBLIC = AUDITOR.public_key()
KEY, NAME = fingerprint(PUBLIC), "attestation.json"
NOBODY = Trust({}, (), {}, {"trainer": frozenset(), "auditor": frozenset()})
SAID = {"run": "a-run", "role": "auditor", "sequence": 3, "supersedes": None}


def sealed(
    kind: str = RUN_TYPE, key: ec.EllipticCurvePrivateKey = AUDITOR, **changes: Any
) -> bytes:
    subjects = {"ledger.jsonl": (SHA256, "0" * 64)}
    return seal(write_statement(Statement(subjects, kind, {**SAID, **changes})), key)


def opened(
    folder: Path,
    data: bytes | None,
    kind: str = RUN_TYPE,
    key: ec.EllipticCurvePublicKey | None = PUBLIC,
    trust: Trust = NOBODY,
) -> tuple[Statement | None, Found]:
    if data is not None:
        (folder / NAME).write_bytes(data)
    found = Found()
    files = Snapshot(folder)
    return envelopes.open_envelope(files, "auditor", NAME, kind, key, trust, found), found


def told(found: Found) -> list[str]:
    return [str(problem) for problem in found.problems]


def revoked_since(moment: datetime.datetime, key: str = KEY) -> Trust:
    revocation = Revocation("auditor", key, moment, "key-compromise", key)
    return dataclasses.replace(NOBODY, revoked={key: revocation})


def test_an_envelope_that_holds_gives_its_statement_its_signer_and_its_number(
    tmp_path: Path,
) -> None:
    statement, found = opened(tmp_path, sealed())
    assert statement is not None
    assert statement.predicate == SAID
    assert told(found) == []
    assert found.signers == [Signer("auditor", KEY, NAME, pinned=False, time=None, own=False)]
    assert found.sequence == {NAME: 3}
    assert found.statements == []
    _, found = opened(tmp_path, sealed(COMPARISON_TYPE), COMPARISON_TYPE)
    assert (told(found), found.sequence, len(found.signers)) == ([], {}, 1)


def test_a_missing_envelope_is_a_missing_signature_and_a_link_is_a_link(tmp_path: Path) -> None:
    statement, found = opened(tmp_path, None)
    assert statement is None
    assert told(found) == [f"{NAME}: missing; the auditor's signature is missing"]
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    statement, found = opened(tmp_path, None)
    assert statement is None
    (problem,) = told(found)
    assert problem.startswith(f"{NAME}: ")
    assert "signature is missing" not in problem
    assert str(tmp_path) not in problem


def other_form(data: bytes) -> bytes:
    """The same signature as (r, n - s)."""
    envelope = parse_envelope(data, NAME)
    r, s = decode_dss_signature(envelope.signature)
    high = encode_dss_signature(r, ec.SECP256R1().group_order - s)
    return write_envelope(dataclasses.replace(envelope, signature=high))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{}", "payloadType must be application/vnd.in-toto+json"),
        (sealed(key=STRANGER), f"the signature is not by the key {KEY}, or the content was"),
        (sealed(PUBLIC_TYPE), f"predicateType must be {RUN_TYPE}"),
        (other_form(sealed()), "the signature was rewritten; only its form with the lower s"),
        (sealed(sequence=0), "its sequence number must be from 1 to 9007199254740991"),
    ],
)
def test_an_envelope_that_does_not_hold_has_neither_statement_nor_signer(
    tmp_path: Path, data: bytes, said: str
) -> None:
    statement, found = opened(tmp_path, data)
    assert (statement, found.signers, found.sequence) == (None, [], {})
    (problem,) = told(found)
    assert problem.startswith(f"{NAME}: {said}")


def test_without_a_key_nothing_is_said_of_an_envelope_but_that_it_is_none(tmp_path: Path) -> None:
    statement, found = opened(tmp_path, sealed(), key=None)
    assert (statement, told(found), found.signers) == (None, [], [])
    statement, found = opened(tmp_path, b"{}", key=None)
    assert (statement, len(found.problems)) == (None, 1)


def test_the_form_before_numbers_has_either_signature_and_number_0(tmp_path: Path) -> None:
    earlier = "https://dpfedadamw.org/attestation/run/v1"
    for data in (sealed(earlier), other_form(sealed(earlier))):
        statement, found = opened(tmp_path, data)
        assert statement is not None
        assert (told(found), found.sequence) == ([], {NAME: 0})


def test_another_role_and_another_key_than_it_names_are_told_of_a_signature_that_holds(
    tmp_path: Path,
) -> None:
    statement, found = opened(tmp_path, sealed(role="trainer"))
    assert statement is not None
    assert told(found) == [f"{NAME}: was not signed in the role of the auditor"]
    other = dataclasses.replace(
        parse_envelope(sealed(), NAME), keyid=fingerprint(STRANGER.public_key())
    )
    statement, found = opened(tmp_path, write_envelope(other))
    assert statement is not None
    assert told(found) == [f"{NAME}: its keyid names another key than the one that signed"]


@pytest.mark.parametrize(("since", "signs"), [(WHEN + DAY, True), (WHEN - DAY, False)])
def test_a_revoked_key_is_no_signer_but_by_a_time_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: datetime.datetime, signs: bool
) -> None:
    statement, found = opened(tmp_path, sealed(role="trainer"), trust=revoked_since(since))
    assert statement is not None
    assert found.signers == []
    # Of whoever may not sign at all, no more is told.
    (problem,) = told(found)
    assert f"{NAME}: its key {KEY} is revoked since" in problem
    asked = []

    def stamp(*given: Any) -> Timestamp:
        asked.append(given)
        return Timestamp(WHEN, "Clock", True)

    monkeypatch.setattr(timestamps, "check", stamp)
    (tmp_path / f"{NAME}.tsr").write_bytes(b"stamp")
    trust = dataclasses.replace(revoked_since(since), roots=("root",))  # type: ignore[arg-type] # Handed on alone.
    data = sealed()
    statement, found = opened(tmp_path, data, trust=trust)
    assert statement is not None
    assert asked == [(b"stamp", data, ("root",), f"{NAME}.tsr")]
    assert [one.time for one in found.signers] == (["2026-11-22T12:00:00Z"] if signs else [])
    assert (told(found) == []) is signs


def test_a_timestamp_beside_an_envelope_is_told_and_a_damaged_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beside(data: bytes | None) -> tuple[Timestamp | None, Found]:
        if data is not None:
            (tmp_path / f"{NAME}.tsr").write_bytes(data)
        found = Found()
        return envelopes.stamp_beside(Snapshot(tmp_path), NAME, b"data", NOBODY, found), found

    stamp, found = beside(None)
    assert (stamp, told(found), found.statements) == (None, [], [])
    stamp, found = beside(b"no timestamp")
    assert (stamp, told(found)) == (None, [f"{NAME}.tsr: is no valid RFC 3161 timestamp"])
    trusted = Timestamp(WHEN, "Clock", True)
    monkeypatch.setattr(timestamps, "check", lambda *_: trusted)
    stamp, found = beside(bytes(65_536))
    assert (stamp, told(found)) == (trusted, [])
    assert found.statements == [f"{NAME}: signed before 2026-11-22T12:00:00Z, says Clock."]
    stamp, found = beside(bytes(65_537))
    assert (stamp, told(found)) == (None, [f"{NAME}.tsr: larger than the accepted 65536 bytes"])


# The keys.


def keys(folder: Path, trust: Trust = NOBODY, *roles: Any) -> tuple[dict[Any, str], Found]:
    found = Found()
    files = Snapshot(folder)
    got = (
        envelopes.check_keys(files, trust, found, roles)
        if roles
        else envelopes.check_keys(files, trust, found)
    )
    return {role: fingerprint(key) for role, key in got.items()}, found


def pinned(**by_role: ec.EllipticCurvePrivateKey) -> Trust:
    public: Any = {role: key.public_key() for role, key in by_role.items()}
    return dataclasses.replace(NOBODY, pinned=public)


def test_a_runs_own_key_counts_where_none_was_given_or_the_same(tmp_path: Path) -> None:
    (tmp_path / "trainer.pub").write_bytes(public_pem(TRAINER.public_key()))
    (tmp_path / "auditor.pub").write_bytes(public_pem(AUDITOR.public_key()))
    both = {"trainer": fingerprint(TRAINER.public_key()), "auditor": KEY}
    for trust in (NOBODY, pinned(auditor=AUDITOR), pinned(trainer=TRAINER, auditor=AUDITOR)):
        got, found = keys(tmp_path, trust)
        assert (got, told(found)) == (both, [])
    assert keys(tmp_path, NOBODY, "auditor")[0] == {"auditor": KEY}


def test_a_key_that_was_given_counts_and_another_one_in_the_run_is_named(tmp_path: Path) -> None:
    got, found = keys(tmp_path, pinned(auditor=AUDITOR))
    assert got == {"auditor": KEY}
    assert told(found) == ["trainer.pub: missing", "auditor.pub: missing"]
    other = fingerprint(STRANGER.public_key())
    (tmp_path / "auditor.pub").write_bytes(public_pem(STRANGER.public_key()))
    got, found = keys(tmp_path, pinned(auditor=AUDITOR), "auditor")
    assert got == {"auditor": KEY}
    assert told(found) == [f"auditor.pub: is {other}, not the key you gave, {KEY}"]
    # A chain of the holder's own statements leads from the one to the other.
    step = statements.write_rotation("auditor", AUDITOR, STRANGER.public_key(), WHEN)
    agreed = statements.consented(Sealed(step), STRANGER, "file")
    bundle = statements.write_bundle("rotations", (agreed,))
    (tmp_path / "auditor.rotations.json").write_bytes(bundle)
    got, found = keys(tmp_path, pinned(auditor=AUDITOR), "auditor")
    assert (got, told(found)) == ({"auditor": other}, [])
    (tmp_path / "trainer.pub").write_bytes(public_pem(STRANGER.public_key()))
    step = statements.write_rotation("trainer", AUDITOR, STRANGER.public_key(), WHEN)
    agreed = statements.consented(Sealed(step), STRANGER, "file")
    bundle = statements.write_bundle("rotations", (agreed,))
    (tmp_path / "trainer.rotations.json").write_bytes(bundle)
    assert keys(tmp_path, pinned(trainer=AUDITOR), "trainer")[0] == {"trainer": other}


def test_a_key_file_of_sixteen_kibibytes_is_read_and_none_that_is_larger(tmp_path: Path) -> None:
    pem = public_pem(AUDITOR.public_key())
    (tmp_path / "auditor.pub").write_bytes(pem.ljust(16_384, b"\n"))
    assert keys(tmp_path, NOBODY, "auditor")[0] == {"auditor": KEY}
    (tmp_path / "auditor.pub").write_bytes(pem.ljust(16_385, b"\n"))
    got, found = keys(tmp_path, NOBODY, "auditor")
    assert (got, told(found)) == ({}, ["auditor.pub: larger than the accepted 16384 bytes"])
    (tmp_path / "auditor.pub").write_bytes(b"junk")
    got, found = keys(tmp_path, NOBODY, "auditor")
    assert (got, told(found)) == ({}, ["auditor.pub: no public key in PEM form"])


@pytest.mark.parametrize(
    ("there", "public", "read"),
    [
        (("training.attestation.json", "attestation.json"), False, None),
        (("training.attestation.json", "attestation.json", "attestation-public.json"), False, None),
        (("attestation-public.json",), True, None),
        (("training.attestation.json", "attestation-public.json"), True, "attestation-public.json"),
    ],
)
def test_the_envelopes_that_are_asked_for(
    tmp_path: Path, there: tuple[str, ...], public: bool, read: str | None
) -> None:
    kinds = {
        "training.attestation.json": (TRAINING_TYPE, TRAINER, "trainer"),
        "attestation.json": (RUN_TYPE, AUDITOR, "auditor"),
        "attestation-public.json": (PUBLIC_TYPE, AUDITOR, "auditor"),
    }
    for name in there:
        kind, key, role = kinds[name]
        (tmp_path / name).write_bytes(sealed(kind, key, role=role))
    by: Any = {"trainer": TRAINER.public_key(), "auditor": AUDITOR.public_key()}
    found = Found()
    got = envelopes.check_envelopes(Snapshot(tmp_path), by, NOBODY, found, public)
    assert told(found) == []
    assert tuple(got) == ((read,) if read else there)
    assert [(one.envelope, one.role) for one in found.signers] == [
        (name, kinds[name][2]) for name in got
    ]
    if not public:
        (tmp_path / "attestation.json").unlink()
        found = Found()
        by.pop("trainer")
        got = envelopes.check_envelopes(Snapshot(tmp_path), by, NOBODY, found)
        assert tuple(got) == there[2:]
        assert told(found) == ["attestation.json: missing; the auditor's signature is missing"]


# The pages.


def pages(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    auditor: ec.EllipticCurvePrivateKey | None = AUDITOR,
    trust: Trust = NOBODY,
    **signature: Any,
) -> Found:
    """What is found of a report that is signed as given."""
    chain = (certificates.self_signed(AUDITOR, "auditor", 30, WHEN),)
    signed = {"key": AUDITOR.public_key(), "chain": chain, "timestamp": None, **signature}

    def check(data: bytes, name: str, roots: Any) -> Any:
        assert roots == trust.roots
        if data == b"damaged":
            raise PdfSignatureError(f"{name}: is not signed")
        return SimpleNamespace(**signed)

    monkeypatch.setattr(pades, "check", check)
    monkeypatch.setattr(certificates, "now", lambda: WHEN)
    found = Found()
    public = auditor.public_key() if auditor is not None else None
    envelopes.check_pages(Snapshot(folder), public, trust, found)
    return found


@pytest.fixture
def reported(tmp_path: Path) -> Path:
    (tmp_path / "report.pdf").write_bytes(b"pages")
    return tmp_path


def test_each_pdf_that_is_there_is_checked_in_order(
    reported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pages(reported, monkeypatch)
    signer = Signer("auditor", KEY, "report.pdf", pinned=False)
    assert (told(found), found.statements, found.signers) == ([], [], [signer])
    (reported / "report-public.pdf").write_bytes(b"pages")
    public = dataclasses.replace(signer, envelope="report-public.pdf")
    assert pages(reported, monkeypatch).signers == [public, signer]
    (reported / "report-public.pdf").write_bytes(b"damaged")
    found = pages(reported, monkeypatch)
    assert (told(found), found.signers) == (["report-public.pdf: is not signed"], [signer])
    (reported / "report-public.pdf").unlink()
    (reported / "report-public.pdf").mkdir()
    found = pages(reported, monkeypatch)
    assert ([one.file for one in found.problems], found.signers) == (
        ["report-public.pdf"], [signer],
    )  # fmt: skip


def test_pages_by_another_key_than_the_auditors_are_named(
    reported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pages(reported, monkeypatch, STRANGER)
    other = fingerprint(STRANGER.public_key())
    assert told(found) == [f"report.pdf: is signed by {KEY}, not by the auditor, {other}"]
    assert found.signers == []
    found = pages(reported, monkeypatch, None)
    assert told(found) == [
        f"report.pdf: is signed by {KEY}, not by the auditor, whose key is missing"
    ]
    assert found.signers == []
    # One that is another's does not end the check of those behind it.
    (reported / "report-public.pdf").write_bytes(b"pages")
    assert len(pages(reported, monkeypatch, None).problems) == 2


def test_pages_by_a_revoked_key_hold_where_a_time_shows_that_they_are_older(
    reported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = revoked_since(WHEN)
    (reported / "report-public.pdf").write_bytes(b"pages")
    found = pages(reported, monkeypatch, trust=trust)
    assert [one.file for one in found.problems] == ["report-public.pdf", "report.pdf"]
    assert found.signers == []
    older = Timestamp(WHEN - DAY, "Clock", True)
    # Its certificate was valid by then.
    chain = (certificates.self_signed(AUDITOR, "auditor", 30, WHEN - 2 * DAY),)
    found = pages(reported, monkeypatch, trust=trust, timestamp=older, chain=chain)
    assert told(found) == []
    assert {one.time for one in found.signers} == {"2026-11-21T12:00:00Z"}
    found = pages(reported, monkeypatch, timestamp=Timestamp(WHEN - DAY, "Clock", False))
    assert {one.time for one in found.signers} == {None}


def test_a_certificate_that_ran_out_and_one_by_an_authority_are_told(
    reported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = (certificates.self_signed(AUDITOR, "auditor", 1, WHEN - 3 * DAY),)
    found = pages(reported, monkeypatch, chain=ended)
    (problem,) = told(found)
    assert problem.startswith("report.pdf: the certificate of dpfedadamw auditor expired on 2026-1")
    (own,) = ended
    issued = SimpleNamespace(
        subject=own.subject, issuer=certificates.self_signed(STRANGER, "office").subject,
        not_valid_before_utc=WHEN, not_valid_after_utc=WHEN + DAY,
    )  # fmt: skip
    found = pages(reported, monkeypatch, chain=(issued,))
    assert (told(found), len(found.signers)) == ([], 1)
    assert found.statements == [
        "report.pdf: its certificate is for dpfedadamw auditor, issued by dpfedadamw office. "
        "Whether to trust that issuer is yours to judge; here the key alone counts."
    ]


# The model's own signature.


def model(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    problems: list[Problem],
    trust: Trust = NOBODY,
    signers: tuple[Signer, ...] = (),
    key: ec.EllipticCurvePrivateKey | None = TRAINER,
) -> Found:
    monkeypatch.setattr(bundles, "check_bundle", lambda *_: problems)
    found = Found(signers=list(signers))
    public = key.public_key() if key is not None else None
    envelopes.check_model(Snapshot(folder), public, trust, found)
    found.signers = found.signers[len(signers) :]
    return found


def test_a_models_own_signature_is_the_trainers_and_as_old_as_the_envelope_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = fingerprint(TRAINER.public_key())
    assert model(tmp_path, monkeypatch, []).signers == []
    (tmp_path / "model.sig").write_bytes(b"bundle")
    assert model(tmp_path, monkeypatch, [], key=None).signers == []
    (signer,) = model(tmp_path, monkeypatch, []).signers
    assert signer == Signer("trainer", key, "model.sig", pinned=False, time=None)
    changed = [Problem("model.json", "changed"), Problem("model.sig", "other")]
    found = model(tmp_path, monkeypatch, changed)
    assert (found.problems, found.signers) == (changed, [])
    over = Signer("auditor", KEY, "attestation.json", False, "2026-11-22T12:00:00Z")
    before = Signer("trainer", key, "training.attestation.json", False, "2020-01-01T00:00:00Z")
    (signer,) = model(tmp_path, monkeypatch, [], signers=(before, over)).signers
    assert signer.time == "2026-11-22T12:00:00Z"
    for since, holds in ((WHEN + DAY, True), (WHEN, False)):
        trust = revoked_since(since, key)
        found = model(tmp_path, monkeypatch, [], trust, (before, over))
        assert (found.problems == []) is holds
        assert (len(found.signers) == 1) is holds
    found = model(tmp_path, monkeypatch, [], revoked_since(WHEN + DAY, key), (before,))
    assert (len(found.problems), found.signers) == (1, [])


def test_a_number_is_a_whole_one_that_every_reader_of_json_has(tmp_path: Path) -> None:
    for value in (1, 2**53 - 1):
        _, found = opened(tmp_path, sealed(sequence=value))
        assert (told(found), found.sequence) == ([], {NAME: value})
    for value in (2**53, -1, None, 1.5):
        statement, found = opened(tmp_path, sealed(sequence=value))
        assert (statement, len(found.problems)) == (None, 1)
    assert json.loads(json.dumps(dsse._MOST)) == 2**53 - 1
