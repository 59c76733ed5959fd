"""A key that is ready to sign: with certificate and history, and neither too old nor too new."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from reports.errors import KeyFileError, SourceError
from reports.signatures import certificates, hardware, inspection, keyring, statements
from reports.signatures.keys import KeyFiles
from reports.signatures.statements import Revocation, Sealed
from tests.reports.signing_keys import create

NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
SECOND, DAY = datetime.timedelta(seconds=1), datetime.timedelta(days=1)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noon."""
    monkeypatch.setattr(certificates, "now", lambda: NOON)


def dated(made: KeyFiles, start: datetime.datetime, days: int) -> None:
    """Give a key a certificate of other dates."""
    private = keyring.load_private(made.private)
    chain = (certificates.self_signed(private, "trainer", days, start),)
    made.private.with_suffix(".crt").write_bytes(certificates.chain_pem(chain))


def test_a_key_in_a_file_brings_its_certificate_and_its_rotations(tmp_path: Path) -> None:
    assert keyring.HARDWARE_SCHEME == "pkcs11:"
    assert (keyring.CERTIFICATE_SUFFIX, keyring.ROTATIONS_SUFFIX) == (".crt", ".rotations.json")
    keyring.new("trainer", tmp_path)
    made = keyring.rotate("trainer", tmp_path)
    key = keyring.load_signing_key("trainer", str(made.private))
    assert (key.role, key.fingerprint, key.location) == (
        "trainer", made.fingerprint, made.private,
    )  # fmt: skip
    assert key.chain == certificates.load_chain(tmp_path / "trainer-2.crt")
    assert key.rotations == statements.rotations_of(tmp_path / "trainer-2.rotations.json")
    assert len(key.rotations) == 1


def test_a_key_without_a_certificate_signs_one_for_itself(tmp_path: Path) -> None:
    made = create("auditor", tmp_path)
    key = keyring.load_signing_key("auditor", made.private)
    (certificate,) = key.chain
    assert certificates.common_name(certificate) == "dpfedadamw auditor"
    assert certificate.not_valid_before_utc == NOON
    assert key.rotations == ()
    (tmp_path / "auditor.crt").symlink_to(tmp_path / "none")
    with pytest.raises((KeyFileError, SourceError)):
        keyring.load_signing_key("auditor", made.private)


def test_a_certificate_of_another_key_is_refused(tmp_path: Path) -> None:
    made = keyring.new("auditor", tmp_path)
    other = certificates.self_signed(ec.generate_private_key(ec.SECP256R1()), "auditor")
    (tmp_path / "auditor.crt").write_bytes(certificates.chain_pem((other,)))
    with pytest.raises(KeyFileError, match=r"auditor\.crt: its first certificate is not for"):
        keyring.load_signing_key("auditor", made.private)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (NOON - 30 * DAY, None),
        (NOON + 300 * SECOND, None),
        (
            NOON + 301 * SECOND,
            "is valid only from 2026-11-22, and this machine's clock says 2026-11-22 12:00 UTC; "
            "set the clock right",
        ),
        (
            NOON - 30 * DAY - SECOND,
            "expired on 2026-11-22; make a successor with: dpfedadamw keys rotate",
        ),
    ],
)
def test_a_certificate_signs_from_its_first_moment_to_its_last(
    tmp_path: Path, start: datetime.datetime, said: str | None
) -> None:
    made = keyring.new("trainer", tmp_path)
    dated(made, start, 30)
    if said is None:
        keyring.load_signing_key("trainer", made.private)
    else:
        with pytest.raises(KeyFileError) as caught:
            keyring.load_signing_key("trainer", made.private)
        name = "the certificate of dpfedadamw trainer"
        assert str(caught.value) == f"{made.private}: {name} {said}"


def test_a_revoked_key_signs_no_more(tmp_path: Path) -> None:
    made = keyring.new("trainer", tmp_path)
    keyring.revoke("trainer", tmp_path, None, "superseded")
    with pytest.raises(KeyFileError, match=r"revoked since 2026-11-22 \(superseded\) and signs no"):
        keyring.load_signing_key("trainer", made.private)


def test_a_key_in_hardware_is_opened_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    own = certificates.self_signed(private, "clinic", 30, NOON)
    asked: list[Any] = []
    for chain in ((own,), ()):
        monkeypatch.setattr(
            hardware,
            "open_key",
            lambda *given, chain=chain: asked.append(given) or (private, chain),
        )
        key = keyring.load_signing_key("auditor", "pkcs11:token=a;object=b", "1234")
        (certificate,) = key.chain
        name = "dpfedadamw clinic" if chain else "dpfedadamw auditor"
        assert certificates.common_name(certificate) == name
        assert (key.location, key.rotations) == (None, ())
    assert asked == [("pkcs11:token=a;object=b", "1234")] * 2
    late = certificates.self_signed(private, "clinic", 1, NOON - 9 * DAY)
    monkeypatch.setattr(hardware, "open_key", lambda *_: (private, (late,)))
    with pytest.raises(KeyFileError, match="expired on 2026-11-14; make a successor"):
        keyring.load_signing_key("auditor", "pkcs11:token=a;object=b")


# What a key folder tells of itself.


def described(folder: Path) -> dict[str, dict[str, Any]]:
    return {one.name: inspection.to_json(one) for one in inspection.inspect(folder)}


def test_each_key_of_a_folder_is_described(tmp_path: Path) -> None:
    assert inspection.inspect(tmp_path / "none") == ()
    auditor = keyring.new("auditor", tmp_path)
    first = keyring.new("trainer", tmp_path, "word", days=9)
    second = keyring.rotate("trainer", tmp_path, "word")
    found = described(tmp_path)
    assert list(found) == ["trainer", "trainer-2", "auditor"]
    assert found["trainer"] == {
        "name": "trainer",
        "role": "trainer",
        "state": "replaced",
        "fingerprint": first.fingerprint,
        "algorithm": "ECDSA P-256, SHA-256",
        "created": "2026-11-22",
        "certificate": "self-signed, valid until 2026-12-01",
        "protection": "encrypted with a passphrase, mode 0600",
        "revoked": None,
        "follows": None,
    }
    assert found["trainer-2"] == {
        **found["trainer"],
        "name": "trainer-2",
        "state": "in use",
        "fingerprint": second.fingerprint,
        "certificate": "self-signed, valid until 2036-11-19",
        "protection": "not encrypted, mode 0600",
        "follows": first.fingerprint,
    }
    assert (found["auditor"]["state"], found["auditor"]["fingerprint"]) == (
        "in use", auditor.fingerprint,
    )  # fmt: skip
    keyring.revoke("auditor", tmp_path, None, "key-compromise", NOON - DAY)
    one = described(tmp_path)["auditor"]
    assert (one["state"], one["revoked"]) == (
        "revoked", "since 2026-11-21T12:00:00Z, key-compromise",
    )  # fmt: skip


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o601])
def test_who_else_may_read_a_key_is_told(tmp_path: Path, mode: int) -> None:
    made = keyring.new("trainer", tmp_path, "word")
    made.private.chmod(mode)
    assert described(tmp_path)["trainer"]["protection"] == (
        f"encrypted with a passphrase, and OTHERS MAY READ IT (mode {mode:04o}): run chmod 600"
    )
    made.private.unlink()
    assert described(tmp_path)["trainer"]["protection"].startswith("cannot be read (")


def test_a_key_that_was_half_written_or_has_no_certificate_is_described(tmp_path: Path) -> None:
    made = keyring.new("trainer", tmp_path)
    made.public.unlink()
    (tmp_path / "trainer.crt").unlink()
    found = described(tmp_path)["trainer"]
    assert (found["fingerprint"], found["state"]) == (made.fingerprint, "in use")
    assert (found["created"], found["certificate"]) == (
        None, "none; one is made for each signature",
    )  # fmt: skip
    (tmp_path / "trainer.crt").symlink_to("nowhere")
    with pytest.raises(KeyFileError, match=rf"^{tmp_path}/trainer\.crt: "):
        inspection.inspect(tmp_path)


def test_the_issuer_and_the_end_of_a_certificate_are_told(tmp_path: Path) -> None:
    made = keyring.new("trainer", tmp_path)
    dated(made, NOON - 9 * DAY, 2)
    assert described(tmp_path)["trainer"]["certificate"] == (
        "self-signed, the certificate of dpfedadamw trainer expired on 2026-11-15"
    )
    assert described(tmp_path)["trainer"]["created"] == "2026-11-13"


def test_of_a_key_that_followed_from_one_elsewhere_that_is_told(tmp_path: Path) -> None:
    keyring.new("trainer", tmp_path)
    keyring.rotate("trainer", tmp_path)
    third = keyring.rotate("trainer", tmp_path)
    second = keyring.Generation("trainer", 2, tmp_path)
    follows = described(tmp_path)["trainer-3"]["follows"]
    assert follows == described(tmp_path)["trainer-2"]["fingerprint"]
    # A file that is no key is not the one that it followed from.
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    for path in (third.private, third.public, third.private.with_suffix(".rotations.json")):
        path.rename(tmp_path / "elsewhere" / path.name)
    assert second.public.exists()
    only = described(tmp_path / "elsewhere")
    assert only["trainer-3"]["follows"] == "a key that is not in this folder"


# Lists of revoked keys.


def test_a_list_of_four_megabytes_is_read_and_none_that_is_larger(tmp_path: Path) -> None:
    path = tmp_path / "trainer.revocations.json"
    for size, said in ((4_000_000, None), (4_000_001, "larger than the accepted 4000000 bytes")):
        path.write_bytes(b" " * size)
        with pytest.raises(Exception, match=said) as caught:
            statements.read_entries(path)
        assert ("larger" in str(caught.value)) == bool(said)
    assert str(caught.value) == f"{path}: larger than the accepted 4000000 bytes"


def test_of_several_dates_the_earliest_counts_and_every_key_does(tmp_path: Path) -> None:
    entries = []
    one, two = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    for key, since in ((one, NOON), (two, NOON - DAY), (one, NOON - DAY), (one, NOON + DAY)):
        name = certificates.fingerprint(key.public_key())
        entry = Revocation("trainer", name, since, "superseded", name)
        made = statements.write_revocation(entry, key.public_key(), key, (), NOON)
        entries.append(Sealed(made))
    path = statements.list_path(tmp_path, "auditor")
    assert path == tmp_path / "auditor.revocations.json"
    path.write_bytes(statements.write_bundle("revocations", tuple(entries)))
    found = statements.read_lists([path])
    assert {key: entry.since for key, entry in found.items()} == {
        certificates.fingerprint(key.public_key()): NOON - DAY for key in (one, two)
    }
    assert statements.own_revocations(tmp_path) == found


def test_of_two_reasons_from_one_date_on_the_first_that_was_given_counts(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = certificates.fingerprint(key.public_key())
    entries = []
    for reason in ("superseded", "key-compromise"):
        entry = Revocation("trainer", name, NOON, reason, name)
        made = statements.write_revocation(entry, key.public_key(), key, (), NOON)
        entries.append(Sealed(made))
    path = tmp_path / "list.json"
    path.write_bytes(statements.write_bundle("revocations", tuple(entries)))
    assert statements.read_lists([path])[name].reason == "superseded"
