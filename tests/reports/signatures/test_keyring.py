"""A key folder: which files are keys, which of them signs, which number is free, who may revoke."""

from __future__ import annotations

import datetime
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import EnvelopeError, KeyFileError
from reports.signatures import certificates, keyring, keys, statements
from reports.signatures.keyring import Generation
from reports.signatures.keys import KeyFiles, fingerprint, load_private, load_public
from reports.signatures.statements import Sealed

NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
SECOND, DAY = datetime.timedelta(seconds=1), datetime.timedelta(days=1)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noon."""
    monkeypatch.setattr(certificates, "now", lambda: NOON)


def chain_of(made: KeyFiles) -> certificates.Chain:
    return certificates.load_chain(made.private.with_suffix(".crt"))


def bundle_of(made: KeyFiles) -> tuple[Sealed, ...]:
    return statements.rotations_of(made.private.with_suffix(".rotations.json"))


def public_of(made: KeyFiles) -> ec.EllipticCurvePublicKey:
    return load_public(made.public)


def test_the_files_of_a_key_are_named_by_role_and_number(tmp_path: Path) -> None:
    for number, stem in ((1, "trainer"), (2, "trainer-2"), (10, "trainer-10")):
        one = Generation("trainer", number, tmp_path)
        assert one.stem == stem
        assert [one.private, one.public, one.certificate, one.rotations] == [
            tmp_path / f"{stem}{suffix}" for suffix in (".key", ".pub", ".crt", ".rotations.json")
        ]


@pytest.mark.parametrize(
    ("files", "numbers"),
    [
        ({}, []),
        ({"trainer.pub": 1}, [1]),
        ({"trainer-10.pub": 1, "trainer-9.pub": 1, "trainer.pub": 0}, [1, 9, 10]),
        ({"trainer-9999.pub": 1, "trainer-10000.pub": 1}, [9999]),
        ({"trainer-0.pub": 1, "trainer-01.pub": 1, "trainer-.pub": 1}, []),
        ({"auditor.pub": 1, "xtrainer.pub": 1, "trainer.pub.old": 1, "trainer_pub": 1}, []),
        # A first key without its public half counts once there is something in it.
        ({"trainer.key": 1}, [1]),
        ({"trainer.key": 0}, []),
        ({"trainer.key": 0, "trainer.pub": 0}, [1]),
        ({"trainer-2.key": 1, "auditor.key": 1}, []),
    ],
)
def test_a_folder_holds_the_keys_whose_public_half_is_there(
    tmp_path: Path, files: dict[str, int], numbers: list[int]
) -> None:
    for name, size in files.items():
        (tmp_path / name).write_bytes(bytes(size))
    found = keyring.generations("trainer", tmp_path)
    assert found == tuple(Generation("trainer", number, tmp_path) for number in numbers)
    newest = Generation("trainer", numbers[-1], tmp_path) if numbers else None
    assert keyring.current("trainer", tmp_path) == newest


def test_a_folder_that_is_none_has_no_keys_and_one_that_others_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("none", "file"):
        assert keyring.generations("trainer", tmp_path / name) == ()
    keyring.new("trainer", tmp_path / "keys")
    (tmp_path / "keys").chmod(0o777)
    with pytest.raises(KeyFileError, match="others may write to it"):
        keyring.generations("trainer", tmp_path / "keys")
    (tmp_path / "keys").chmod(0o700)

    def refuses(_: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuses)
    with pytest.raises(KeyFileError, match=r"keys: cannot be listed \(Permission denied\)$"):
        keyring.generations("trainer", tmp_path / "keys")


def test_a_holders_own_keys_are_all_that_have_a_public_half(tmp_path: Path) -> None:
    assert keyring.own_fingerprints("trainer", tmp_path) == frozenset()
    first = keyring.new("trainer", tmp_path)
    second = keyring.rotate("trainer", tmp_path)
    keyring.new("auditor", tmp_path)
    both = {first.fingerprint, second.fingerprint}
    assert keyring.own_fingerprints("trainer", tmp_path) == both
    first.public.unlink()
    assert keyring.own_fingerprints("trainer", tmp_path) == {second.fingerprint}


def test_a_new_key_is_of_one_of_two_roles_for_ten_years_and_encrypted_where_asked(
    tmp_path: Path,
) -> None:
    role: Any = "judge"
    with pytest.raises(KeyFileError, match="role 'judge': must be one of trainer, auditor"):
        keyring.new(role, tmp_path)
    made = keyring.new("trainer", tmp_path, "word")
    (certificate,) = chain_of(made)
    assert certificates.common_name(certificate) == "dpfedadamw trainer"
    assert certificate.not_valid_before_utc == NOON
    assert certificate.not_valid_after_utc == NOON + 3650 * DAY
    assert fingerprint(load_private(made.private, "word").public_key()) == made.fingerprint
    assert bundle_of(made) == ()
    for days in (1, 36_500):
        other = keyring.new("auditor", tmp_path / str(days), days=days)
        assert chain_of(other)[0].not_valid_after_utc == NOON + days * DAY


def stored(folder: Path) -> tuple[Path, ec.EllipticCurvePrivateKey]:
    private = ec.generate_private_key(ec.SECP256R1())
    path = folder / "own.pem"
    plain = serialization.NoEncryption()
    path.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    path.chmod(0o600)
    return path, private


def test_certificates_that_are_brought_along_are_for_the_key(tmp_path: Path) -> None:
    path, _ = stored(tmp_path)
    other = certificates.self_signed(ec.generate_private_key(ec.SECP256R1()), "auditor")
    (tmp_path / "chain.pem").write_bytes(certificates.chain_pem((other,)))
    with pytest.raises(KeyFileError, match=r"chain\.pem: its first certificate is not for the key"):
        keyring.bring("auditor", tmp_path / "keys", path, tmp_path / "chain.pem")


def test_a_key_that_is_brought_along_has_its_own_certificates_while_they_are_valid(
    tmp_path: Path,
) -> None:
    path, private = stored(tmp_path)
    made = keyring.bring("auditor", tmp_path / "a", path)
    assert made.fingerprint == fingerprint(private.public_key())
    (certificate,) = chain_of(made)
    assert certificates.common_name(certificate) == "dpfedadamw auditor"
    certificates.check_chain((certificate,), private.public_key(), "it")
    assert bundle_of(made) == ()
    for start, days, said in (
        (NOON - 30 * DAY, 30, None),
        (NOON - 31 * DAY, 30, "expired on 2026-11-21"),
        (NOON + DAY, 30, "is valid only from 2026-11-23"),
    ):
        chain = (certificates.self_signed(private, "auditor", days, start),)
        (tmp_path / "chain.pem").write_bytes(certificates.chain_pem(chain))
        folder = tmp_path / f"{start:%m-%d}"
        if said is None:
            assert chain_of(keyring.bring("auditor", folder, path, tmp_path / "chain.pem")) == chain
        else:
            with pytest.raises(KeyFileError, match=rf"chain\.pem: the certificate of .* {said}$"):
                keyring.bring("auditor", folder, path, tmp_path / "chain.pem")
            assert not folder.exists()


class Clock:
    """An authority that stamps what it is asked to."""

    def stamp(self, data: bytes) -> bytes:
        return b"stamp over " + data[:9]


def test_a_successor_is_vouched_for_by_each_key_before_it(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"no trainer key to replace; make one with: keys new$"):
        keyring.rotate("trainer", tmp_path)
    first = keyring.new("trainer", tmp_path, "one")
    second = keyring.rotate("trainer", tmp_path, "one", "two", 9)
    clock: Any = Clock()
    third = keyring.rotate("trainer", tmp_path, "two", authority=clock)
    assert [made.private.name for made in (first, second, third)] == [
        "trainer.key", "trainer-2.key", "trainer-3.key",
    ]  # fmt: skip
    load_private(second.private, "two")
    load_private(third.private)
    assert chain_of(second)[0].not_valid_after_utc == NOON + 9 * DAY
    assert chain_of(third)[0].not_valid_after_utc == NOON + 3650 * DAY
    (step,) = bundle_of(second)
    assert bundle_of(third)[0] == step
    (_, last) = bundle_of(third)
    assert step.timestamp is None
    assert last.timestamp == b"stamp over " + last.envelope[:9]
    for sealed, signer, following in ((step, first, second), (last, second, third)):
        said = statements.read_rotation(sealed, public_of(signer), "it")
        assert (said.role, said.previous, said.created) == ("trainer", signer.fingerprint, NOON)
        assert fingerprint(said.following) == following.fingerprint


def test_a_chain_of_rotations_ends_where_no_reader_would_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring.new("trainer", tmp_path)
    monkeypatch.setattr(statements, "MOST_STATEMENTS", 2)
    for _ in range(2):
        made = keyring.rotate("trainer", tmp_path)
    assert len(bundle_of(made)) == 2
    with pytest.raises(KeyFileError, match=r"trainer-3\.rotations\.json: no more than 2 rotations"):
        keyring.rotate("trainer", tmp_path)


# Which number is free.


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({}, "trainer"),
        # What a full disk or a killed process left behind is never written over.
        ({"trainer.key": 0}, "trainer-2"),
        ({"trainer.key": 0, "trainer-2.key": 1}, "trainer-3"),
        ({"trainer.key": 0, "trainer-2.key": 0}, "trainer-3"),
        ({"trainer.key": 0, "trainer.pub": 1}, "trainer-2"),
        ({"trainer.key": 0, "trainer.pub": 1, "trainer-2.key": 1}, "trainer-3"),
        ({"trainer-2.key": 0, "trainer-2.pub": 1}, "trainer-3"),
        ({"trainer.key": 1}, None),
        ({"trainer.key": 1, "trainer.pub": 1}, None),
        ({"trainer.pub": 1}, None),
    ],
)
def test_a_first_key_takes_a_number_of_which_nothing_is_there(
    tmp_path: Path, files: dict[str, int], name: str | None
) -> None:
    public = keys.public_pem(ec.generate_private_key(ec.SECP256R1()).public_key())
    for file, size in files.items():
        content = public if file.endswith(".pub") else b"key" * size
        (tmp_path / file).write_bytes(content)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    if name is None:
        said = r"trainer\.key: exists and is never overwritten; replace it with: dpfedadamw keys ro"
        with pytest.raises(KeyFileError, match=said):
            keyring.new("trainer", tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    else:
        assert keyring.new("trainer", tmp_path).private.stem == name
        assert {one: (tmp_path / one).read_bytes() for one in before} == before


def test_a_successor_takes_a_number_of_which_nothing_is_there(tmp_path: Path) -> None:
    keyring.new("trainer", tmp_path)
    (tmp_path / "trainer-2.key").write_bytes(b"left")
    assert keyring.rotate("trainer", tmp_path).private.name == "trainer-3.key"
    assert (tmp_path / "trainer-2.key").read_bytes() == b"left"


def test_a_fresh_start_follows_a_revoked_key_alone(tmp_path: Path) -> None:
    keyring.new("trainer", tmp_path)
    keyring.revoke("trainer", tmp_path, None, "superseded")
    with pytest.raises(KeyFileError, match="is revoked, so it cannot vouch for a successor"):
        keyring.rotate("trainer", tmp_path)
    second = keyring.new("trainer", tmp_path)
    assert (second.private.name, bundle_of(second)) == ("trainer-2.key", ())
    with pytest.raises(KeyFileError, match=r"trainer-2\.key: exists and is never overwritten"):
        keyring.new("trainer", tmp_path)


# Who may revoke, and since when.


def test_a_key_is_revoked_from_now_or_before_and_no_later(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no trainer key"):
        keyring.revoke("trainer", tmp_path, None, "superseded")
    made = keyring.new("trainer", tmp_path, "word")
    for reason, since, said in (
        ("bored", None, "^reason 'bored': must be one of key-compromise, superseded, "),
        ("superseded", NOON + SECOND, "^since: 2026-11-22T12:00:01Z lies in the future$"),
    ):
        with pytest.raises(KeyFileError, match=said):
            keyring.revoke("trainer", tmp_path, None, reason, since, "word")
    path, entry = keyring.revoke("trainer", tmp_path, None, "superseded", NOON, "word")
    assert path == tmp_path / "trainer.revocations.json"
    name = made.fingerprint
    assert entry == statements.Revocation("trainer", name, NOON, "superseded", name)
    # The same again says nothing; an earlier date does.
    for since in (NOON, None):
        with pytest.raises(KeyFileError, match="is revoked already, since 2026-11-22T12:00:00Z"):
            keyring.revoke("trainer", tmp_path, None, "superseded", since, "word")
    keyring.revoke("trainer", tmp_path, None, "key-compromise", NOON - SECOND, "word")
    assert [one.since for one in map(read, statements.read_entries(path))] == [
        NOON, NOON - SECOND,
    ]  # fmt: skip
    known = statements.own_revocations(tmp_path)
    assert {key: one.since for key, one in known.items()} == {name: NOON - SECOND}


def read(sealed: Sealed) -> statements.Revocation:
    return statements.read_revocation(sealed.envelope, "it")


def test_of_two_revocations_at_once_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = keyring.new("auditor", tmp_path), keyring.rotate("auditor", tmp_path)
    write = keyring.write_atomic

    def slowly(path: Path, data: bytes) -> None:
        time.sleep(0.3)
        write(path, data)

    monkeypatch.setattr(keyring, "write_atomic", slowly)
    with ThreadPoolExecutor(2) as pool:
        publics = [public_of(first), public_of(second)]
        list(pool.map(lambda one: keyring.revoke("auditor", tmp_path, one, "superseded"), publics))
    known = statements.own_revocations(tmp_path)
    assert known.keys() == {first.fingerprint, second.fingerprint}


def test_a_full_list_of_revocations_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [keyring.new("auditor", tmp_path), keyring.rotate("auditor", tmp_path)]
    path, _ = keyring.revoke("auditor", tmp_path, public_of(made[0]), "superseded")
    whole = path.read_bytes()
    for limit, most in (("MOST_STATEMENTS", 1), ("MOST_LIST_BYTES", len(whole) + 1)):
        with monkeypatch.context() as patch:
            patch.setattr(statements, limit, most)
            with pytest.raises(KeyFileError, match=r"revocations\.json: holds 1 revocations"):
                keyring.revoke("auditor", tmp_path, None, "key-compromise")
            assert path.read_bytes() == whole
            assert statements.own_revocations(tmp_path).keys() == {made[0].fingerprint}
    keyring.revoke("auditor", tmp_path, None, "key-compromise")


def test_without_a_date_a_key_is_revoked_from_now(tmp_path: Path) -> None:
    keyring.new("auditor", tmp_path)
    assert keyring.revoke("auditor", tmp_path, None, "unspecified")[1].since == NOON


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_present_key_revokes_itself_and_those_that_it_followed_from(
    tmp_path: Path, number: int
) -> None:
    made = [keyring.new("trainer", tmp_path)]
    made += [keyring.rotate("trainer", tmp_path) for _ in range(2)]
    revoked = made[number]
    path, entry = keyring.revoke("trainer", tmp_path, public_of(revoked), "superseded")
    assert (entry.key, entry.issuer) == (revoked.fingerprint, made[2].fingerprint)
    (sealed,) = statements.read_entries(path)
    assert read(sealed) == entry
    present = Generation("trainer", 3, tmp_path)
    _, key, chain = keyring._who_may_revoke(present, public_of(revoked), None)
    assert fingerprint(key) == revoked.fingerprint
    assert chain == bundle_of(made[2])[number:] if number < 2 else chain == ()


def test_a_key_that_nobody_followed_from_revokes_itself(tmp_path: Path) -> None:
    first = keyring.new("trainer", tmp_path)
    keyring.revoke("trainer", tmp_path, None, "superseded", NOON)
    second = keyring.new("trainer", tmp_path)
    _, entry = keyring.revoke("trainer", tmp_path, public_of(first), "superseded", NOON - DAY)
    assert (entry.key, entry.issuer) == (first.fingerprint, first.fingerprint)
    _, entry = keyring.revoke("trainer", tmp_path, None, "superseded")
    assert (entry.key, entry.issuer) == (second.fingerprint, second.fingerprint)
    stranger = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(KeyFileError, match=r"is no trainer key of .* so none has a say over it"):
        keyring.revoke("trainer", tmp_path, stranger, "superseded")


def test_a_revocation_that_no_reader_would_believe_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring.new("trainer", tmp_path)
    write, stranger = statements.write_revocation, ec.generate_private_key(ec.SECP256R1())
    monkeypatch.setattr(
        statements,
        "write_revocation",
        lambda entry, key, _, chain, issued: write(entry, key, stranger, chain, issued),
    )
    with pytest.raises(EnvelopeError, match="has no say over"):
        keyring.revoke("trainer", tmp_path, None, "superseded")
    assert not (tmp_path / "trainer.revocations.json").exists()
