"""A key's life: made, brought along, replaced, revoked; and what a reader makes of it."""

from __future__ import annotations

import datetime
import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import reports
from reports import KeyFileError, build_report
from reports.errors import EnvelopeError, TimestampError
from reports.signatures import bundles, certificates, inspection, keyring, keys, signing, statements
from reports.signatures.dsse import parse_envelope
from reports.signatures.keys import fingerprint, load_public
from reports.signatures.statements import Sealed
from reports.signatures.timestamps import Authority
from reports.signatures.verification import VerificationResult, results, verify
from tests.authority import NOW, LocalAuthority
from tests.reports.signatures.test_pades import chain_of
from tests.reports.signing_keys import create, fresh

SCHEMAS = Path(reports.__file__).parent / "schema"
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> LocalAuthority:
    return LocalAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` reads the caller's own revocations: here there are none unless a test makes them."""
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "own"))


@dataclass(frozen=True)
class Case:
    run: Path
    keys: Path

    def public(self, name: str) -> Path:
        return self.keys / f"{name}.pub"

    def sign(self, authority: Authority | None = None) -> None:
        newest = {role: keyring.current(role, self.keys) for role in keys.ROLES}
        loaded = {role: keyring.load_signing_key(role, newest[role].private) for role in keys.ROLES}
        signing.sign(self.run, loaded["trainer"], loaded["auditor"], authority)


@pytest.fixture(scope="module")
def reported(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = run_builder(tmp_path_factory.mktemp("life") / "run", rounds=2, clients=3)
    build_report(run)
    return run


@pytest.fixture
def case(reported: Path, tmp_path: Path) -> Case:
    """A run with a report, and a key folder with two keys; nothing is signed yet."""
    run = Path(shutil.copytree(reported, tmp_path / "run"))
    for role in keys.ROLES:
        keyring.new(role, tmp_path / "keys")
    return Case(run, tmp_path / "keys")


def dated(folder: Path, role: str, days: int, start: datetime.datetime) -> None:
    """Give a key a certificate of other dates."""
    private = keys.load_private(folder / f"{role}.key")
    chain = (certificates.self_signed(private, role, days, start),)
    (folder / f"{role}.crt").write_bytes(certificates.chain_pem(chain))


def named(result: VerificationResult) -> set[str]:
    return {problem.file for problem in result.problems}


def test_a_new_key_has_a_certificate_and_tight_modes(tmp_path: Path) -> None:
    made = keyring.new("trainer", tmp_path / "k", days=30)
    assert stat.S_IMODE(made.private.stat().st_mode) == 0o600
    chain = certificates.parse_chain((tmp_path / "k" / "trainer.crt").read_bytes(), "crt")
    certificates.check_chain(chain, load_public(made.public), "crt")
    assert chain[0].not_valid_after_utc - chain[0].not_valid_before_utc == 30 * DAY
    assert {p.name for p in (tmp_path / "k").iterdir()} == {
        "trainer.key",
        "trainer.pub",
        "trainer.crt",
    }


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_days_out_of_range_are_refused_before_anything_is_written(
    tmp_path: Path, days: int
) -> None:
    with pytest.raises(KeyFileError, match="between 1 and 36500"):
        keyring.new("trainer", tmp_path / "k", days=days)
    assert not (tmp_path / "k").exists()


def test_nothing_that_makes_a_key_overwrites_one(case: Case) -> None:
    before = {path: path.read_bytes() for path in case.keys.iterdir()}
    with pytest.raises(KeyFileError, match="never overwritten; replace it with"):
        keyring.new("trainer", case.keys)
    with pytest.raises(KeyFileError, match="never overwritten"):
        keyring.bring("trainer", case.keys, case.keys / "auditor.key")
    (case.keys / "trainer-2.crt").write_text("mine")
    with pytest.raises(KeyFileError, match="never overwritten"):
        keyring.rotate("trainer", case.keys)
    (case.keys / "trainer-2.crt").unlink()
    assert {path: path.read_bytes() for path in case.keys.iterdir()} == before


def test_an_existing_key_and_its_chain_can_be_brought_along(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    own = tmp_path / "own.pem"
    own.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    own.chmod(0o600)
    chain = chain_of(private)
    (tmp_path / "chain.pem").write_bytes(certificates.chain_pem(chain))
    made = keyring.bring("auditor", tmp_path / "k", own, tmp_path / "chain.pem", "word")
    assert b"ENCRYPTED" in made.private.read_bytes()
    loaded = keyring.load_signing_key("auditor", made.private, "word")
    assert loaded.chain == chain
    assert loaded.fingerprint == fingerprint(private.public_key())


def test_a_chain_of_another_key_or_in_disorder_is_refused(tmp_path: Path) -> None:
    made = keyring.new("auditor", tmp_path / "k")
    private = keys.load_private(made.private)
    (tmp_path / "chain.pem").write_bytes(
        certificates.chain_pem(chain_of(ec.generate_private_key(ec.SECP256R1())))
    )
    with pytest.raises(KeyFileError, match="not for the key"):
        keyring.bring("trainer", tmp_path / "k", made.private, tmp_path / "chain.pem")
    leaf, _ = chain_of(private)
    _, other = chain_of(private)
    (tmp_path / "chain.pem").write_bytes(certificates.chain_pem((leaf, other)))
    with pytest.raises(KeyFileError, match="was not issued by"):
        keyring.bring("trainer", tmp_path / "k", made.private, tmp_path / "chain.pem")
    with pytest.raises(KeyFileError, match="cannot be read"):
        keyring.bring("trainer", tmp_path / "k", made.private, tmp_path / "none.pem")


def test_a_replaced_key_is_followed_by_whoever_trusts_the_first(case: Case) -> None:
    keyring.rotate("auditor", case.keys)
    keyring.rotate("auditor", case.keys)
    case.sign()
    for name in ("auditor", "auditor-2", "auditor-3"):
        result = verify(case.run, case.public("trainer"), case.public(name))
        assert result.is_intact, name
        assert any("was replaced by its holder" in text for text in result.statements) == (
            name != "auditor-3"
        )
    assert verify(case.run).is_intact


def test_a_rotation_of_before_is_followed_once_the_new_key_signs_again(case: Case) -> None:
    """It was signed by the old key alone. A key that signs with it consents."""
    keyring.rotate("auditor", case.keys)
    path = keyring.current("auditor", case.keys).rotations
    (whole,) = statements.rotations_of(path)
    before = Sealed(whole.envelope, whole.timestamp)
    path.write_bytes(statements.write_bundle("rotations", (before,)))
    case.sign()
    assert verify(case.run, case.public("trainer"), case.public("auditor")).is_intact
    # As earlier versions signed: nothing of the run shows that the new key's holder agrees.
    loaded = keyring.load_signing_key("auditor", keyring.current("auditor", case.keys).private)
    trainer = keyring.load_signing_key("trainer", case.keys / "trainer.key")
    signing.sign(case.run, trainer, replace(loaded, rotations=(before,)))
    result = verify(case.run, case.public("trainer"), case.public("auditor"))
    assert "auditor.pub" in named(result)
    assert any("which did not consent" in text for text in result.statements)
    assert verify(case.run, case.public("trainer"), case.public("auditor-2")).is_intact


@pytest.mark.sampled(2)
@pytest.mark.parametrize("given", ["auditor", "auditor-2"])
def test_memory_goes_with_a_replaced_key(case: Case, tmp_path: Path, given: str) -> None:
    memory = tmp_path / "memory" / "verified.json"
    trainer = case.public("trainer")
    case.sign()
    case.sign()
    assert verify(case.run, trainer, case.public("auditor"), memory=memory).ok
    earlier = Path(shutil.copytree(case.run, tmp_path / "earlier"))
    keyring.rotate("auditor", case.keys)
    case.sign()
    assert verify(case.run, trainer, case.public(given), memory=memory).ok
    result = verify(earlier, trainer, case.public("auditor"), memory=memory)
    assert named(result) >= {"attestation.json"}
    assert "an earlier state was put back" in str(result.problems)


def test_a_thief_of_a_revoked_key_does_not_reach_what_is_remembered_of_its_successor(
    case: Case, tmp_path: Path
) -> None:
    """The thief names a key of his own as the successor, which the reader knows for other works."""
    memory = tmp_path / "memory" / "verified.json"
    case.sign()
    copy = Path(shutil.copytree(case.run, tmp_path / "copy"))
    stolen = keys.load_private(case.keys / "auditor.key")
    keyring.rotate("auditor", case.keys)
    listed, _ = keyring.revoke("auditor", case.keys, stolen.public_key(), "key-compromise")
    case.sign()
    thief = fresh("auditor")
    step = Sealed(statements.write_rotation("auditor", stolen, thief.public, NOW))
    step = statements.consented(step, thief.private, "step")
    for _ in range(9):
        signing.sign(copy, auditor=replace(thief, rotations=(step,)))
    own = tmp_path / "thief.pub"
    own.write_bytes(keys.public_pem(thief.public))
    given = {"revocations": [listed], "memory": memory}
    assert verify(copy, case.public("trainer"), own, **given).ok
    seen = results.read_memory(memory).states
    known = {key for run in seen.values() for key in run["attestation.json"]}
    assert known == {thief.fingerprint}
    assert verify(case.run, case.public("trainer"), case.public("auditor-2"), **given).ok


def test_whoever_trusts_the_new_key_does_not_trust_the_old_one(case: Case) -> None:
    case.sign()
    keyring.rotate("auditor", case.keys)
    result = verify(case.run, None, case.public("auditor-2"))
    assert named(result) >= {"auditor.pub", "attestation.json", "report.pdf"}


def test_a_chain_that_a_stranger_forged_leads_nowhere(case: Case) -> None:
    stranger = ec.generate_private_key(ec.SECP256R1())
    newest = keyring.current("auditor", case.keys)
    target = load_public(newest.public)
    forged = statements.write_rotation("auditor", stranger, target, certificates.now())
    newest.rotations.write_bytes(statements.write_bundle("rotations", (Sealed(forged),)))
    case.sign()
    other = create("auditor", case.keys / "other")
    result = verify(case.run, None, other.public)
    assert "auditor.pub" in named(result)
    assert verify(case.run).is_intact


def test_a_chain_for_the_other_role_leads_nowhere(case: Case) -> None:
    old = keys.load_private(case.keys / "trainer.key")
    newest = keyring.current("auditor", case.keys)
    said = statements.write_rotation("trainer", old, load_public(newest.public), NOW)
    newest.rotations.write_bytes(statements.write_bundle("rotations", (Sealed(said),)))
    case.sign()
    assert "auditor.pub" in named(verify(case.run, None, case.public("trainer")))


def test_a_revoked_key_is_refused_and_named(case: Case) -> None:
    case.sign()
    path, entry = keyring.revoke("auditor", case.keys, None, "key-compromise")
    assert entry.issuer == entry.key
    result = verify(case.run, revocations=[path])
    assert named(result) == {"attestation.json", "report.pdf"}
    assert all("revoked since" in problem.reason for problem in result.problems)
    assert [entry.role for entry in result.signers] == ["trainer"]
    assert verify(case.run).is_intact


def test_the_callers_own_list_counts_without_being_named(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.sign()
    keyring.revoke("trainer", case.keys, None, "superseded")
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(case.keys))
    assert named(verify(case.run)) == {"training.attestation.json"}


def test_a_revoked_trainer_takes_the_models_own_signature_along(case: Case) -> None:
    pytest.importorskip("model_signing")
    loaded = [keyring.load_signing_key(role, case.keys / f"{role}.key") for role in keys.ROLES]
    bundle = bundles.sign_model(case.run, loaded[0], None)
    signing.sign(case.run, *loaded, bundle=bundle)
    path, _ = keyring.revoke("trainer", case.keys, None, "key-compromise")
    assert named(verify(case.run, revocations=[path])) == {
        "training.attestation.json",
        "model.sig",
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("signed", "revoked", "holds"),
    [(5, 3, True), (3, 5, False), (3, 3, False)],
)
def test_a_trusted_time_decides_what_a_revoked_key_signed(
    case: Case, authority: LocalAuthority, signed: int, revoked: int, holds: bool
) -> None:
    authority.moment = NOW - signed * DAY
    dated(case.keys, "auditor", days=90, start=NOW - 30 * DAY)
    with authority.serve() as url:
        case.sign(Authority(url))
    since = NOW - revoked * DAY
    path, _ = keyring.revoke("auditor", case.keys, None, "key-compromise", since)
    result = verify(case.run, revocations=[path], tsa_roots=[authority.root])
    assert result.is_intact == holds
    assert named(result) == (set() if holds else {"attestation.json", "report.pdf"})
    # The same time from an authority that the reader does not trust helps nobody.
    assert not verify(case.run, revocations=[path]).is_intact


def test_a_rotation_by_a_revoked_key_leads_nowhere_unless_it_was_timestamped_before(
    case: Case, authority: LocalAuthority
) -> None:
    keyring.rotate("auditor", case.keys)
    old = load_public(case.public("auditor"))
    case.sign()
    path, entry = keyring.revoke("auditor", case.keys, old, "key-compromise")
    assert entry.issuer == fingerprint(load_public(case.public("auditor-2")))
    result = verify(case.run, None, case.public("auditor"), [path])
    assert {"auditor.rotations.json", "auditor.pub"} <= named(result)
    assert verify(case.run, None, case.public("auditor-2"), [path]).is_intact


def test_a_rotation_that_was_timestamped_before_still_leads_on(
    case: Case, authority: LocalAuthority
) -> None:
    authority.moment = NOW - 9 * DAY
    with authority.serve() as url:
        keyring.rotate("auditor", case.keys, authority=Authority(url))
    case.sign()
    old = load_public(case.public("auditor"))
    path, _ = keyring.revoke("auditor", case.keys, old, "superseded", NOW - DAY)
    given = verify(case.run, None, case.public("auditor"), [path], [authority.root])
    assert given.is_intact
    assert not verify(case.run, None, case.public("auditor"), [path]).is_intact


def test_a_revoked_key_signs_no_more_and_vouches_for_none(case: Case) -> None:
    keyring.revoke("auditor", case.keys, None, "key-compromise")
    with pytest.raises(KeyFileError, match=r"is revoked since .* signs no more"):
        keyring.load_signing_key("auditor", case.keys / "auditor.key")
    with pytest.raises(KeyFileError, match="cannot vouch"):
        keyring.rotate("auditor", case.keys)
    fresh = keyring.new("auditor", case.keys)
    assert fresh.private.name == "auditor-2.key"
    assert not (case.keys / "auditor-2.rotations.json").exists()
    case.sign()
    assert verify(case.run).is_intact


def test_a_copy_of_a_revoked_key_in_another_folder_or_a_token_signs_no_more(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "backup" / "auditor.key"
    copied.parent.mkdir(mode=0o700)
    shutil.copy(case.keys / "auditor.key", copied)
    private = keys.load_private(copied)
    monkeypatch.setattr("reports.signatures.hardware.open_key", lambda *_: (private, ()))
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(case.keys))
    places = (copied, "pkcs11:token=Audit;object=auditor")
    for location in places:
        assert keyring.load_signing_key("auditor", location).location in (copied, None)
    keyring.revoke("auditor", case.keys, None, "key-compromise")
    for location in places:
        with pytest.raises(KeyFileError, match=r"is revoked since .* signs no more") as caught:
            keyring.load_signing_key("auditor", location)
        assert str(caught.value).startswith(f"{location}: this key is revoked")
    others = tmp_path / "others"
    others.mkdir()
    others.chmod(0o777)
    for unusable in ("~nobody-of-this-name/keys", str(others)):
        monkeypatch.setenv("DPFEDADAMW_KEYS", unusable)
        assert keyring.load_signing_key("auditor", copied).location == copied


def test_a_revocation_is_made_once_and_may_only_move_back(case: Case) -> None:
    _, first = keyring.revoke("trainer", case.keys, None, "unspecified", NOW - DAY)
    with pytest.raises(KeyFileError, match="revoked already"):
        keyring.revoke("trainer", case.keys, None, "unspecified")
    path, _ = keyring.revoke("trainer", case.keys, None, "key-compromise", NOW - 9 * DAY)
    assert statements.read_lists([path])[first.key].since == NOW - 9 * DAY
    with pytest.raises(KeyFileError, match="in the future"):
        keyring.revoke("auditor", case.keys, None, "unspecified", NOW + 2 * DAY)
    with pytest.raises(KeyFileError, match="must be one of"):
        keyring.revoke("auditor", case.keys, None, "boredom")


def test_nobody_can_revoke_the_key_of_another(case: Case, tmp_path: Path) -> None:
    victim = load_public(case.public("auditor"))
    with pytest.raises(KeyFileError, match="has a say over it"):
        keyring.revoke("trainer", case.keys, victim, "key-compromise")
    stranger = ec.generate_private_key(ec.SECP256R1())
    entry = statements.Revocation(
        "auditor", fingerprint(victim), NOW, "key-compromise", fingerprint(stranger.public_key())
    )
    forged = statements.write_revocation(entry, victim, stranger, (), NOW)
    path = tmp_path / "forged.json"
    path.write_bytes(statements.write_bundle("revocations", (Sealed(forged),)))
    case.sign()
    with pytest.raises(EnvelopeError, match="has no say over"):
        verify(case.run, revocations=[path])


def test_a_changed_list_is_the_callers_error(case: Case) -> None:
    path, _ = keyring.revoke("trainer", case.keys, None, "unspecified")
    text = path.read_bytes()
    for position in range(0, len(text), 7):
        changed = bytearray(text)
        changed[position] ^= 1 + position % 31
        path.write_bytes(bytes(changed))
        with pytest.raises((EnvelopeError, KeyFileError)) as caught:
            statements.read_lists([path])
        assert "\n" not in str(caught.value)
    with pytest.raises(KeyFileError, match="missing"):
        verify(case.run, revocations=[case.keys / "none.json"])


def test_rotations_and_revocations_fit_their_schemas(case: Case) -> None:
    keyring.rotate("auditor", case.keys)
    old = load_public(case.public("auditor"))
    path, _ = keyring.revoke("auditor", case.keys, old, "superseded")
    for file, kind in (
        (case.keys / "auditor-2.rotations.json", "rotation"),
        (path, "revocation"),
    ):
        (sealed,) = statements.read_bundle(file.read_bytes(), f"{kind}s", file.name)
        said = json.loads(parse_envelope(sealed.envelope, file.name).payload)
        schema = json.loads((SCHEMAS / f"key-{kind}.schema.json").read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.Draft202012Validator(schema).validate(said)
        assert said["predicateType"] == schema["$id"]


def test_an_authority_that_fails_leaves_no_successor(case: Case, authority: LocalAuthority) -> None:
    before = sorted(case.keys.iterdir())
    with pytest.raises(TimestampError):
        keyring.rotate("auditor", case.keys, authority=Authority("http://127.0.0.1:9/"))
    assert sorted(case.keys.iterdir()) == before


def test_an_expired_certificate_signs_no_more(case: Case) -> None:
    dated(case.keys, "auditor", days=1, start=NOW - 3 * DAY)
    with pytest.raises(KeyFileError, match=r"expired on .* make a successor"):
        case.sign()


def test_what_was_signed_before_the_certificate_expired_holds_under_a_trusted_time_only(
    case: Case, authority: LocalAuthority
) -> None:
    authority.moment = NOW - 5 * DAY
    private = keys.load_private(case.keys / "auditor.key")
    early = certificates.self_signed(private, "auditor", days=4, start=NOW - 6 * DAY)
    key = keyring.SigningKey("auditor", private, (early,))
    trainer = keyring.load_signing_key("trainer", case.keys / "trainer.key")
    with authority.serve() as url:
        signing.sign(case.run, trainer, key, Authority(url))
    assert verify(case.run, tsa_roots=[authority.root]).is_intact
    result = verify(case.run)
    assert [(p.file, "expired on" in p.reason) for p in result.problems] == [("report.pdf", True)]


def test_who_issued_the_certificate_is_said_and_left_to_the_reader(case: Case) -> None:
    private = keys.load_private(case.keys / "auditor.key")
    key = keyring.SigningKey("auditor", private, chain_of(private))
    signing.sign(case.run, keyring.load_signing_key("trainer", case.keys / "trainer.key"), key)
    result = verify(case.run)
    assert result.is_intact
    assert any("for Auditors Ltd, issued by Authority." in text for text in result.statements)


def test_an_envelope_has_no_certificate_to_expire(case: Case) -> None:
    private = keys.load_private(case.keys / "auditor.key")
    early = certificates.self_signed(private, "auditor", days=1, start=NOW - 6 * DAY)
    trainer = keyring.load_signing_key("trainer", case.keys / "trainer.key")
    signing.sign(case.run, trainer, keyring.SigningKey("auditor", private, (early,)))
    assert named(verify(case.run)) == {"report.pdf"}


def test_a_folder_is_shown_without_opening_a_private_key(tmp_path: Path) -> None:
    folder = tmp_path / "k"
    keyring.new("trainer", folder, "word")
    keyring.rotate("trainer", folder, "word", "other")
    keyring.new("auditor", folder)
    keyring.revoke("auditor", folder, None, "superseded")
    (folder / "auditor.key").chmod(0o644)
    first, second, third = inspection.inspect(folder)
    assert (first.name, first.state, first.follows) == ("trainer", "replaced", None)
    assert (second.name, second.state, second.follows) == (
        "trainer-2",
        "in use",
        first.fingerprint,
    )
    assert first.protection == "encrypted with a passphrase, mode 0600"
    assert third.state == "revoked"
    assert third.revoked is not None
    assert third.revoked.endswith("superseded")
    assert "OTHERS MAY READ IT" in third.protection
    assert first.certificate.startswith("self-signed, valid until 20")
    assert first.created == f"{certificates.now():%Y-%m-%d}"
    assert inspection.inspect(tmp_path / "none") == ()
    assert "PRIVATE" not in json.dumps([inspection.to_json(entry) for entry in (first, third)])


def test_a_certificate_that_an_office_issued_or_that_is_a_link_is_shown_as_that(
    tmp_path: Path,
) -> None:
    made = keyring.new("auditor", tmp_path)
    path = tmp_path / "auditor.crt"
    path.write_bytes(certificates.chain_pem(chain_of(keys.load_private(made.private))))
    assert inspection.inspect(tmp_path)[0].certificate.startswith("issued by Authority, valid unt")
    path.rename(tmp_path / "elsewhere")
    assert inspection.inspect(tmp_path)[0].created is None
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match=r"auditor\.crt"):
        inspection.inspect(tmp_path)


@pytest.mark.parametrize("halves", [(), (".pub", ".crt")])
def test_an_empty_key_file_is_no_key_and_a_fresh_one_is_made_beside_it(
    tmp_path: Path, halves: tuple[str, ...]
) -> None:
    """A disk that was full, or a process that was killed, cuts a key file to zero bytes."""
    if halves:
        keyring.new("trainer", tmp_path)
    for path in tmp_path.iterdir():
        if path.suffix not in halves:
            path.unlink()
    empty = tmp_path / "trainer.key"
    empty.touch(0o600)
    if halves:
        lost = keyring.current("trainer", tmp_path)
        with pytest.raises(KeyFileError, match=r"is empty, so it holds no key; .* keys new"):
            keyring.load_signing_key("trainer", lost.private)
        with pytest.raises(KeyFileError, match=r"is empty, so it holds no key; .* keys new"):
            keyring.rotate("trainer", tmp_path)
    else:
        assert keyring.current("trainer", tmp_path) is None
    made = keyring.new("trainer", tmp_path)
    assert made.private.name == "trainer-2.key"
    assert empty.read_bytes() == b""
    assert keyring.current("trainer", tmp_path).private == made.private
    assert keyring.load_signing_key("trainer", made.private).fingerprint == made.fingerprint
    assert [entry.name for entry in inspection.inspect(tmp_path)][-1] == "trainer-2"


def test_half_a_successor_does_not_stop_the_next_rotation(tmp_path: Path) -> None:
    keyring.new("trainer", tmp_path)
    half = tmp_path / "trainer-2.key"
    half.write_bytes(b"killed before the public half was written")
    made = keyring.rotate("trainer", tmp_path)
    assert made.private.name == "trainer-3.key"
    assert half.read_bytes().startswith(b"killed")
    assert keyring.current("trainer", tmp_path).private == made.private


def test_a_key_of_the_future_blames_the_clock_and_not_the_key(case: Case) -> None:
    tomorrow = certificates.now() + DAY
    dated(case.keys, "trainer", 30, tomorrow)
    with pytest.raises(KeyFileError, match=r"clock says .*; set the clock right") as caught:
        keyring.load_signing_key("trainer", case.keys / "trainer.key")
    assert "rotate" not in str(caught.value)


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuses)
    with pytest.raises(KeyFileError, match=r": cannot be listed \(Permission denied\)"):
        keyring.generations("trainer", tmp_path)


def test_roles_reasons_and_times_that_there_are_not_are_refused(case: Case) -> None:
    with pytest.raises(KeyFileError, match="role 'judge': must be one of trainer, auditor"):
        keyring.new("judge", case.keys)  # type: ignore[arg-type] # as from a command line
    with pytest.raises(KeyFileError, match="reason 'bored': must be one of "):
        keyring.revoke("trainer", case.keys, None, "bored")
    later = certificates.now() + DAY
    with pytest.raises(KeyFileError, match="lies in the future"):
        keyring.revoke("trainer", case.keys, None, statements.REASONS[0], later)
    assert not statements.list_path(case.keys, "trainer").exists()


def test_without_a_key_there_is_none_to_replace_or_to_revoke(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no trainer key to replace; make one with: keys new"):
        keyring.rotate("trainer", tmp_path / "none")
    with pytest.raises(KeyFileError, match=r"no trainer key$"):
        keyring.revoke("trainer", tmp_path / "none", None, statements.REASONS[0])


def test_a_certificate_that_has_expired_is_not_brought_along(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    keys.store(private, tmp_path / "theirs", "old", None)
    long_ago = certificates.now() - 400 * DAY
    chain = (certificates.self_signed(private, "trainer", 30, long_ago),)
    file = tmp_path / "old.crt"
    file.write_bytes(certificates.chain_pem(chain))
    with pytest.raises(KeyFileError, match=r"old\.crt: "):
        keyring.bring("trainer", tmp_path / "k", tmp_path / "theirs" / "old.key", file)
    assert keyring.current("trainer", tmp_path / "k") is None


def test_a_chain_of_rotations_ends_at_the_number_that_readers_take(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "MOST_STATEMENTS", 2)
    keyring.rotate("trainer", case.keys)
    keyring.rotate("trainer", case.keys)
    with pytest.raises(KeyFileError, match="no more than 2 rotations"):
        keyring.rotate("trainer", case.keys)
    assert keyring.current("trainer", case.keys).number == 3


def test_an_older_key_that_nobody_followed_revokes_itself(case: Case) -> None:
    """Made afresh after a revocation: the new key has no say over the old one."""
    old = load_public(case.public("trainer"))
    reason = statements.REASONS[0]
    keyring.revoke("trainer", case.keys, None, reason)
    keyring.new("trainer", case.keys)
    newest = keyring.current("trainer", case.keys)
    assert newest.number == 2
    before = statements.own_revocations(case.keys)[fingerprint(old)].since
    _, entry = keyring.revoke("trainer", case.keys, old, reason, before - DAY)
    assert entry.issuer == entry.key == fingerprint(old)
    assert entry.since == before - DAY
    stranger = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(KeyFileError, match="so none has a say over it"):
        keyring.revoke("trainer", case.keys, stranger, reason)


def test_numbers_of_keys_are_counted_to_four_digits(tmp_path: Path) -> None:
    folder = tmp_path / "k"
    folder.mkdir(mode=0o700)
    for name in ("trainer", "trainer-2", "trainer-9999", "trainer-0", "trainer-10000", "xtrainer"):
        (folder / f"{name}.pub").write_bytes(b"")
    assert [one.number for one in keyring.generations("trainer", folder)] == [1, 2, 9999]
    stems = [one.stem for one in keyring.generations("trainer", folder)]
    assert stems == ["trainer", "trainer-2", "trainer-9999"]
