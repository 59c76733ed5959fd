"""Statements about keys: rotations and revocations that contradict themselves are refused."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import EnvelopeError, KeyFileError, SourceError
from reports.files import Snapshot
from reports.signatures import certificates, statements, timestamps
from reports.signatures.dsse import (
    SHA256,
    Statement,
    parse_envelope,
    parse_statement,
    seal,
    write_envelope,
    write_statement,
)
from reports.signatures.keys import fingerprint, public_pem
from reports.signatures.statements import (
    REVOCATION_TYPE,
    ROTATION_TYPE,
    Revocation,
    Sealed,
    read_revocation,
    read_rotation,
)
from reports.signatures.timestamps import Timestamp, from_status
from reports.signatures.verification import _judge_signers
from reports.signatures.verification.envelopes import (
    Trust,
    leads_to,
    refuse_expired,
    refuse_revoked,
    trusted_time,
)
from reports.signatures.verification.results import Found, Signer

WHEN = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
KEYS = [ec.generate_private_key(ec.SECP256R1()) for _ in range(4)]
FIRST, SECOND, THIRD, STRANGER = KEYS


def rotation(
    signer: ec.EllipticCurvePrivateKey = FIRST,
    following: ec.EllipticCurvePrivateKey = SECOND,
    role: Any = "trainer",
    *,
    consent: bool = True,
) -> Sealed:
    sealed = Sealed(statements.write_rotation(role, signer, following.public_key(), WHEN))
    return statements.consented(sealed, following, "file") if consent else sealed


def rewritten(
    sealed: bytes, kind: str, signer: ec.EllipticCurvePrivateKey, change: Callable[[Any], Any]
) -> bytes:
    """A statement with other words or subjects, signed anew."""
    said = parse_statement(parse_envelope(sealed, "file").payload, kind, "file")
    subjects, predicate = dict(said.subjects), json.loads(json.dumps(said.predicate))
    change({"subjects": subjects, "predicate": predicate})
    return seal(write_statement(Statement(subjects, kind, predicate)), signer)


def test_a_rotation_names_both_keys_and_when() -> None:
    found = read_rotation(rotation(), FIRST.public_key(), "file")
    assert found.role == "trainer"
    assert found.previous == fingerprint(FIRST.public_key())
    assert fingerprint(found.following) == fingerprint(SECOND.public_key())
    assert found.created == WHEN


OTHER = fingerprint(STRANGER.public_key())
CONTRADICT = "file: its keys contradict one another"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["predicate"].update(previous=OTHER), CONTRADICT),
        (lambda s: s["predicate"].update(following=OTHER), CONTRADICT),
        (lambda s: s["predicate"].update(previous_key=s["predicate"]["public_key"]), CONTRADICT),
        (lambda s: s["subjects"].update(following=(SHA256, "0" * 64)), CONTRADICT),
        (lambda s: s["subjects"].update(more=(SHA256, "0" * 64)), CONTRADICT),
        (lambda s: s["predicate"].update(public_key="none"), "file: holds no usable public key"),
        (lambda s: s["predicate"].update(role="judge"), "file: role must be one of trainer, audit"),
        (lambda s: s["predicate"].update(created="soon"), "file: "),
    ],
)
def test_a_rotation_that_contradicts_itself_is_refused(
    change: Callable[[Any], Any], said: str
) -> None:
    other = Sealed(rewritten(rotation().envelope, ROTATION_TYPE, FIRST, change))
    with pytest.raises(EnvelopeError) as caught:
        read_rotation(other, FIRST.public_key(), "file")
    assert str(caught.value).startswith(said)


def test_a_rotation_by_another_key_is_none() -> None:
    with pytest.raises(EnvelopeError):
        read_rotation(rotation(), SECOND.public_key(), "file")
    # Whoever has no key may say everything else as its holder would.
    forged = rewritten(rotation().envelope, ROTATION_TYPE, STRANGER, lambda _: None)
    with pytest.raises(EnvelopeError, match="signature is not by the key"):
        read_rotation(Sealed(forged), FIRST.public_key(), "file")


def test_a_statement_names_in_its_envelope_the_key_that_signed() -> None:
    def renamed(data: bytes) -> bytes:
        return write_envelope(dataclasses.replace(parse_envelope(data, "file"), keyid=OTHER))

    for read in (
        lambda: read_rotation(Sealed(renamed(rotation().envelope)), FIRST.public_key(), "file"),
        lambda: read_revocation(renamed(revocation(reason=statements.REASONS[0])), "file"),
    ):
        with pytest.raises(EnvelopeError, match="file: its keyid names another key"):
            read()


def test_a_revocation_that_its_issuer_did_not_sign_revokes_nothing() -> None:
    data = revocation(reason=statements.REASONS[0])
    with pytest.raises(EnvelopeError, match="signature is not by the key"):
        read_revocation(rewritten(data, REVOCATION_TYPE, STRANGER, lambda _: None), "file")


def test_a_rotation_is_signed_by_the_key_that_it_replaces_also_inside_a_revocation() -> None:
    forged = rewritten(rotation().envelope, ROTATION_TYPE, STRANGER, lambda _: None)
    with pytest.raises(EnvelopeError, match="signature is not by the key"):
        read_revocation(revocation(SECOND, (Sealed(forged),), statements.REASONS[0]), "file")


def revocation(
    signer: ec.EllipticCurvePrivateKey = FIRST,
    chain: tuple[Sealed, ...] = (),
    reason: str = "compromised",
    role: Any = "trainer",
) -> bytes:
    entry = Revocation(
        role, fingerprint(FIRST.public_key()), WHEN, reason, fingerprint(signer.public_key())
    )
    return statements.write_revocation(entry, FIRST.public_key(), signer, chain, WHEN)


def test_a_key_revokes_itself_and_those_that_it_followed_from() -> None:
    reason = statements.REASONS[0]
    found = read_revocation(revocation(reason=reason), "file")
    assert (found.key, found.since, found.reason) == (
        fingerprint(FIRST.public_key()),
        WHEN,
        reason,
    )
    chain = (rotation(), rotation(SECOND, THIRD))
    followed = read_revocation(revocation(THIRD, chain, reason), "file")
    assert followed.issuer == fingerprint(THIRD.public_key())
    for signer, steps in ((SECOND, ()), (SECOND, chain), (STRANGER, chain), (THIRD, chain[:1])):
        with pytest.raises(EnvelopeError, match="which has no say over"):
            read_revocation(revocation(signer, steps, reason), "file")
    # A chain begins at the key that is revoked.
    with pytest.raises(EnvelopeError):
        read_revocation(revocation(THIRD, chain[1:], reason), "file")


def test_a_revocation_says_of_which_key_since_when_why_and_by_whom() -> None:
    step = rotation()
    data = revocation(SECOND, (step,), statements.REASONS[0])
    said = parse_statement(parse_envelope(data, "file").payload, REVOCATION_TYPE, "file").predicate
    assert said == {
        "role": "trainer",
        "revoked": fingerprint(FIRST.public_key()),
        "revoked_key": public_pem(FIRST.public_key()).decode(),
        "since": "2026-11-22T12:00:00Z",
        "reason": "key-compromise",
        "issued": "2026-11-22T12:00:00Z",
        "issuer_key": public_pem(SECOND.public_key()).decode(),
        "rotations": [{"envelope": base64.b64encode(step.envelope).decode(), "timestamp": None}],
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["predicate"].update(revoked=OTHER), CONTRADICT),
        (lambda s: s["subjects"].update(revoked=(SHA256, "0" * 64)), CONTRADICT),
        (lambda s: s["predicate"].update(reason="bored"), "file: reason must be one of "),
        (lambda s: s["predicate"].update(role="judge"), "file: role must be one of "),
        (lambda s: s["predicate"].update(issuer_key=None), "file: holds no usable public key"),
        (
            lambda s: s["predicate"].update(rotations=[{"envelope": "§"}]),
            "file: holds something that is not base64",
        ),
        (
            lambda s: s["predicate"].update(rotations=[{"envelope": "AA==AA=="}]),
            "file: holds something that is not base64",
        ),
        (
            lambda s: s["predicate"].update(
                rotations=[{"envelope": "AAAA", "timestamp": "AA==AA=="}]
            ),
            "file: holds something that is not base64",
        ),
    ],
)
def test_a_revocation_that_contradicts_itself_is_refused(
    change: Callable[[Any], Any], said: str
) -> None:
    data = revocation(reason=statements.REASONS[0])
    with pytest.raises(EnvelopeError) as caught:
        read_revocation(rewritten(data, REVOCATION_TYPE, FIRST, change), "file")
    assert str(caught.value).startswith(said)


def test_a_list_has_entries_and_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = rotation()
    whole = statements.write_bundle("rotations", (entry, entry))
    assert statements.read_bundle(whole, "rotations", "file") == (entry, entry)
    for count, fits in ((64, True), (65, False)):
        many = statements.write_bundle("rotations", (entry,) * count)
        if fits:
            assert len(statements.read_bundle(many, "rotations", "file")) == count
        else:
            with pytest.raises(EnvelopeError, match="file: more than 64 rotations"):
                statements.read_bundle(many, "rotations", "file")
    monkeypatch.setattr(statements, "MOST_STATEMENTS", 2)
    assert len(statements.read_bundle(whole, "rotations", "file")) == 2
    monkeypatch.setattr(statements, "MOST_STATEMENTS", 1)
    with pytest.raises(EnvelopeError, match="file: more than 1 rotations"):
        statements.read_bundle(whole, "rotations", "file")


@pytest.mark.parametrize(
    "data",
    [b"[]", b'{"format": 2, "rotations": [1]}', b'{"format": 1, "rotations": []}',
     b'{"format": 1, "rotations": {"a": 1}}', b'{"format": 1, "revocations": [1]}'],
)  # fmt: skip
def test_what_is_no_list_of_its_kind_is_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeError, match="file: is no list of rotations"):
        statements.read_bundle(data, "rotations", "file")


def test_a_list_is_laid_out_in_one_way_alone() -> None:
    whole = statements.write_bundle("rotations", (rotation(),))
    compact = json.dumps(json.loads(whole)).encode()
    with pytest.raises(EnvelopeError, match="file: is not laid out as lists of rotations are"):
        statements.read_bundle(compact, "rotations", "file")
    stamped = statements.write_bundle("rotations", (Sealed(b"envelope", b"stamp"),))
    # Lists that were handed out must be read for as long as what they speak of.
    assert stamped.decode() == (
        '{\n  "format": 1,\n  "rotations": [\n    {\n      "envelope": "ZW52ZWxvcGU=",\n'
        '      "timestamp": "c3RhbXA="\n    }\n  ]\n}\n'
    )
    assert statements.read_bundle(stamped, "rotations", "file") == (Sealed(b"envelope", b"stamp"),)


def test_a_list_of_a_megabyte_is_read_and_none_that_is_larger(tmp_path: Path) -> None:
    """The size is looked at first, so that no hostile file fills the memory."""
    path, found = tmp_path / "trainer.rotations.json", Found()
    for size, said in ((1_000_000, "is no list|JSON"), (1_000_001, "larger than the accepted")):
        path.write_bytes(b" " * size)
        with pytest.raises((EnvelopeError, SourceError), match=said):
            statements.rotations_of(path)
        found = Found()
        keys = FIRST.public_key(), SECOND.public_key()
        assert not leads_to(Snapshot(tmp_path), path.name, "trainer", *keys, NOBODY, found)
        assert ("larger than" in found.problems[0].reason) == (size > 1_000_000)


def test_rotations_are_read_from_beside_a_key_and_there_may_be_none(tmp_path: Path) -> None:
    path = tmp_path / "trainer-2.rotations.json"
    assert statements.rotations_of(path) == ()
    path.write_bytes(statements.write_bundle("rotations", (rotation(),)))
    assert len(statements.rotations_of(path)) == 1
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(SourceError):
        statements.rotations_of(path)


# What a caller's key leads to.

NOBODY = Trust({}, (), {}, {"trainer": frozenset(), "auditor": frozenset()})


def led(
    folder: Path,
    chain: tuple[Sealed, ...] | bytes | None,
    start: ec.EllipticCurvePrivateKey = FIRST,
    end: ec.EllipticCurvePrivateKey = THIRD,
    trust: Trust = NOBODY,
) -> tuple[bool, list[str], list[str]]:
    if chain is not None:
        data = chain if isinstance(chain, bytes) else statements.write_bundle("rotations", chain)
        (folder / "trainer.rotations.json").write_bytes(data)
    found = Found()
    leads = leads_to(
        Snapshot(folder), "trainer.rotations.json", "trainer", start.public_key(),
        end.public_key(), trust, found,
    )  # fmt: skip
    return leads, [str(problem) for problem in found.problems], found.statements


def test_the_callers_key_leads_to_the_signers_from_wherever_it_stands(tmp_path: Path) -> None:
    chain = (rotation(), rotation(SECOND, THIRD))
    leads, problems, said = led(tmp_path, chain)
    assert (leads, problems) == (True, [])
    assert said == [
        f"The trainer's key that you gave, {fingerprint(FIRST.public_key())}, was replaced by its "
        f"holder (2026-11-22, 2026-11-22); {fingerprint(THIRD.public_key())} follows from it."
    ]
    assert led(tmp_path, chain, SECOND)[0]
    assert led(tmp_path, chain, FIRST, SECOND)[0] is False
    assert led(tmp_path, chain, THIRD) == (False, [], [])
    assert led(tmp_path, chain, STRANGER) == (False, [], [])
    # A link by another breaks the chain, and what came before it counts for nothing more.
    broken = (rotation(), rotation(STRANGER, THIRD), rotation(SECOND, THIRD))
    assert led(tmp_path, broken) == (False, [], [])


def test_no_list_and_a_list_for_the_other_role_lead_nowhere(tmp_path: Path) -> None:
    assert led(tmp_path, None) == (False, [], [])
    other = (rotation(role="auditor"), rotation(SECOND, THIRD, role="auditor"))
    assert led(tmp_path, other) == (False, [], [])


def test_a_damaged_list_or_timestamp_is_named_and_leads_nowhere(tmp_path: Path) -> None:
    leads, problems, _ = led(tmp_path, b"none")
    assert leads is False
    assert len(problems) == 1
    assert problems[0].startswith("trainer.rotations.json: ")
    stamped = dataclasses.replace(rotation(), timestamp=base64.b64decode("AAAA"))
    leads, problems, said = led(tmp_path, (stamped, rotation(SECOND, THIRD)))
    assert (leads, said) == (False, [])
    assert len(problems) == 1
    assert problems[0].startswith("trainer.rotations.json: ")


@pytest.mark.parametrize(
    ("since", "trusted", "leads"),
    [
        (WHEN + datetime.timedelta(days=1), True, True),
        (WHEN - datetime.timedelta(days=1), True, False),
        (WHEN + datetime.timedelta(days=1), False, False),
    ],
)
def test_a_rotation_by_a_key_that_is_revoked_by_now_leads_on_where_a_trusted_time_is_older(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    since: datetime.datetime,
    trusted: bool,
    leads: bool,
) -> None:
    stamp = Timestamp(WHEN, "an authority", trusted)
    monkeypatch.setattr(timestamps, "check", lambda *_: stamp)
    revoked = {ISSUER: Revocation("trainer", ISSUER, since, "key-compromise", ISSUER)}
    trust = dataclasses.replace(NOBODY, revoked=revoked)
    stamped = dataclasses.replace(rotation(), timestamp=b"a stamp")
    assert led(tmp_path, (stamped,), FIRST, SECOND, trust)[0] is leads


# What a time is worth.

SINCE = WHEN
ISSUER = fingerprint(FIRST.public_key())
REVOKED = {ISSUER: Revocation("trainer", ISSUER, SINCE, "key-compromise", ISSUER)}


def refused(moment: datetime.datetime | None, revoked: dict[str, Revocation]) -> Any:
    found = Found()
    stamp = None if moment is None else Timestamp(moment, "an authority", True)
    trust = Trust({}, (), revoked, {"trainer": frozenset(), "auditor": frozenset()})
    answer = refuse_revoked(ISSUER, "model.sig", trust, stamp, found)
    return answer, [str(problem) for problem in found.problems], found.statements


def test_a_revoked_key_signs_nothing_but_what_a_time_shows_to_be_older() -> None:
    assert refused(None, {}) == (False, [], [])
    second = datetime.timedelta(seconds=1)
    said = f"model.sig: its key {ISSUER} is revoked since 2026-11-22T12:00:00Z (key-compromise)"
    older = f"{said}; the timestamp shows that it was signed before, so it holds."
    assert refused(SINCE - second, REVOKED) == (False, [], [older])
    at = f"{said}, and it was signed at 2026-11-22T12:00:00Z or shortly before"
    assert refused(SINCE, REVOKED) == (True, [at], [])
    without = f"{said}, and no timestamp that you trust shows that it was signed before"
    assert refused(None, REVOKED) == (True, [without], [])


@pytest.mark.parametrize("trusted", [True, False])
def test_a_time_is_relied_on_where_its_authority_is_trusted(trusted: bool) -> None:
    found = Found()
    stamp = Timestamp(WHEN, "an authority", trusted)
    assert trusted_time(stamp, "file", found) is (stamp if trusted else None)
    assert found.statements == [
        "file: signed before 2026-11-22T12:00:00Z, says an authority."
        if trusted
        else "file: the authority an authority says 2026-11-22T12:00:00Z; give its certificate "
        "(--tsa-root) to rely on that."
    ]
    assert trusted_time(None, "file", found) is None
    assert len(found.statements) == 1


def test_a_certificate_must_be_valid_when_it_signed_or_now_if_nobody_knows_when() -> None:
    chain = (certificates.self_signed(FIRST, "auditor", 30, WHEN),)
    long_ago = (certificates.self_signed(FIRST, "auditor", 30, WHEN.replace(year=2020)),)

    def told(chain: certificates.Chain, moment: datetime.datetime | None) -> list[str]:
        found = Found()
        stamp = None if moment is None else Timestamp(moment, "an authority", True)
        refuse_expired(chain, "report.pdf", stamp, found)
        return [str(problem) for problem in found.problems]

    assert told(chain, WHEN) == []
    (late,) = told(chain, WHEN + datetime.timedelta(days=31))
    assert late.startswith("report.pdf: the certificate of ")
    assert late.endswith(" expired on 2026-12-22")
    assert told(long_ago, WHEN.replace(year=2020)) == []
    (now,) = told(long_ago, None)
    assert now.endswith(
        " expired on 2020-12-22, and no timestamp that you trust shows that it was signed before"
    )


def test_a_key_that_was_given_counts_and_one_s_own_where_none_was() -> None:
    own = {"trainer": frozenset({"mine"}), "auditor": frozenset[str]()}
    given = Trust({"auditor": FIRST.public_key()}, (), {}, own)  # type: ignore[arg-type] # Literals.
    asked = [("trainer", "mine"), ("trainer", "theirs"), ("auditor", "theirs"), ("auditor", "mine")]
    found = [given.signer(role, key, "file", "now") for role, key in asked]  # type: ignore[arg-type] # Literals.
    assert [(one.pinned, one.own) for one in found] == [
        (False, True), (False, False), (True, False), (True, False),
    ]  # fmt: skip
    assert {(one.envelope, one.time) for one in found} == {("file", "now")}
    both = Trust({"trainer": FIRST.public_key()}, (), {}, own).signer("trainer", "mine", "file")  # type: ignore[arg-type] # Literals.
    assert (both.pinned, both.own, both.time) == (True, False, None)


# Lists of revoked keys.


def listed(path: Path, *since: datetime.datetime) -> Path:
    entries = []
    for moment in since:
        entry = Revocation("trainer", ISSUER, moment, "superseded", ISSUER)
        envelope = statements.write_revocation(entry, FIRST.public_key(), FIRST, (), WHEN)
        entries.append(Sealed(envelope))
    path.write_bytes(statements.write_bundle("revocations", tuple(entries)))
    return path


def test_of_several_dates_of_a_revocation_the_earliest_counts(tmp_path: Path) -> None:
    early, late = WHEN - datetime.timedelta(days=2), WHEN
    one, two = listed(tmp_path / "one", late, early), listed(tmp_path / "two", late)
    for paths in ((one,), (one, two), (two, one)):
        found = statements.read_lists(paths)
        assert {key: entry.since for key, entry in found.items()} == {ISSUER: early}
    assert statements.read_lists([two])[ISSUER].since == late
    assert statements.read_lists([]) == {}


def test_a_key_folder_has_a_list_of_each_role_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    assert statements.own_revocations(folder) == {}
    path = statements.list_path(folder, "trainer")
    assert path == folder / "trainer.revocations.json"
    listed(path, WHEN)
    assert set(statements.own_revocations(folder)) == {ISSUER}
    folder.chmod(0o777)
    with pytest.raises(KeyFileError, match="others may write to it"):
        statements.own_revocations(folder)
    folder.chmod(0o700)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(KeyFileError, match=f"^{folder}/trainer.revocations.json"):
        statements.own_revocations(folder)
    path.unlink()
    path.write_bytes(statements.write_bundle("rotations", (rotation(),)))
    with pytest.raises(EnvelopeError, match="is no list of revocations"):
        statements.own_revocations(folder)


def test_an_authority_without_a_name_is_called_that() -> None:
    def status(**name: str) -> Any:
        certificate = SimpleNamespace(subject=SimpleNamespace(native=name))
        return SimpleNamespace(signing_cert=certificate, trusted=True, timestamp=WHEN)

    root: Any = object()
    assert from_status(status(), ()) == Timestamp(WHEN, "unnamed", False)
    assert from_status(status(common_name="clock"), (root,)) == Timestamp(WHEN, "clock", True)


def test_a_key_that_signs_for_itself_signs_nobody_elses() -> None:
    made = certificates.self_signed(FIRST, "trainer", 30, WHEN)
    usage = made.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    allowed = {
        name
        for name in (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
            "key_agreement", "key_cert_sign", "crl_sign",
        )
        if getattr(usage.value, name)
    }  # fmt: skip
    assert allowed == {"digital_signature", "content_commitment"}
    constraints = made.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca) == (True, False)
    assert made.not_valid_before_utc == WHEN
    assert made.not_valid_after_utc == WHEN + datetime.timedelta(days=30)


# How far signatures reach.


def reach(*signers: Signer, **sequence: int) -> list[str]:
    found = Found(signers=list(signers), sequence=sequence)
    _judge_signers(found)
    return found.statements


def signer(role: Any, key: str, *, pinned: bool = True, own: bool = False) -> Signer:
    return Signer(role, key, f"{role}.json", pinned, None, own)


UNKNOWN = "The key of the {} was taken from the run itself: this proves integrity only. Give a key"
SAME = "Trainer and auditor signed with the same key: integrity, not independence."


def test_whose_key_is_unknown_whose_own_and_whose_the_same_is_told() -> None:
    assert reach() == []
    both = reach(signer("trainer", "a"), signer("auditor", "b"))
    assert len(both) == 1
    assert both[0].startswith("Trainer and auditor signed with different keys. If both keys are")
    assert reach(signer("trainer", "a"), signer("auditor", "a")) == [SAME]
    assert reach(signer("auditor", "a")) == []
    for role, other in (("trainer", "auditor"), ("auditor", "trainer")):
        said = reach(signer(role, "a", pinned=False), signer(other, "b"))
        assert said[0].startswith(UNKNOWN.format(role))
        assert len(said) == 2
    neither = reach(signer("trainer", "a", pinned=False), signer("auditor", "b", pinned=False))
    assert neither[0].startswith(UNKNOWN.format("trainer and the auditor"))
    own = reach(signer("trainer", "a", pinned=False, own=True), signer("auditor", "b"))
    assert own[0] == "Signed by your own key: the trainer's."
    numbered = reach(signer("auditor", "a"), **{"one.json": 3, "two.json": 1})
    assert numbered[0].startswith(
        "Of this run's signatures these are one.json number 3, two.json number 1. An earlier"
    )


def test_a_successor_that_did_not_consent_is_not_followed(tmp_path: Path) -> None:
    """Who has an old key could name anybody's key as its successor, and its works as its own."""
    claimed = rotation(FIRST, STRANGER, consent=False)
    leads, problems, said = led(tmp_path, (claimed,), FIRST, STRANGER)
    assert (leads, problems) == (False, [])
    assert "which did not consent" in said[0]
    assert led(tmp_path, (rotation(FIRST, STRANGER),), FIRST, STRANGER)[0]
    # A later link does not help an earlier one.
    chain = (rotation(consent=False), rotation(SECOND, THIRD))
    assert led(tmp_path, chain)[0] is False
    assert led(tmp_path, chain, SECOND)[0] is True


def test_consent_is_by_the_key_that_follows_to_this_very_statement(tmp_path: Path) -> None:
    good, other = rotation(), rotation(role="auditor")
    for consent in (
        seal(parse_envelope(good.envelope, "file").payload, FIRST),
        seal(parse_envelope(good.envelope, "file").payload, STRANGER),
        other.consent,
        b"junk",
    ):
        changed = dataclasses.replace(good, consent=consent)
        with pytest.raises(EnvelopeError, match=r"^file: "):
            read_rotation(changed, FIRST.public_key(), "file")
        assert led(tmp_path, (changed,), FIRST, SECOND)[0] is False
    assert read_rotation(good, FIRST.public_key(), "file").is_consented
    with pytest.raises(EnvelopeError, match="names another key as the successor"):
        statements.consented(good, STRANGER, "file")


def test_consent_is_kept_in_a_list_and_a_list_of_before_is_read() -> None:
    for sealed in (rotation(), rotation(consent=False)):
        data = statements.write_bundle("rotations", (sealed,))
        assert statements.read_bundle(data, "rotations", "file") == (sealed,)
        assert (b'"consent"' in data) == (sealed.consent is not None)


def test_a_revocation_needs_no_consent_since_its_issuer_signs_it() -> None:
    for consent in (True, False):
        entry = statements.Revocation(
            "trainer",
            fingerprint(FIRST.public_key()),
            WHEN,
            statements.REASONS[0],
            fingerprint(SECOND.public_key()),
        )
        data = statements.write_revocation(
            entry, FIRST.public_key(), SECOND, (rotation(consent=consent),), WHEN
        )
        assert read_revocation(data, "file") == entry


def test_a_rotation_names_the_key_that_signed_it_whole_or_as_before() -> None:
    sealed = rotation()
    signer = statements.signer_of(sealed, "file")
    assert signer is not None
    assert fingerprint(signer) == fingerprint(FIRST.public_key())
    before = rewritten(
        sealed.envelope, ROTATION_TYPE, FIRST, lambda s: s["predicate"].pop("previous_key")
    )
    assert statements.signer_of(Sealed(before), "file") is None
    assert not read_rotation(Sealed(before), FIRST.public_key(), "file").is_consented
