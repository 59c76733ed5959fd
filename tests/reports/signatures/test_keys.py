"""Signing keys: created once, readable by their owner only, refused with one clear line."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from reports import KeyFileError, ReportError
from reports.signatures import certificates, keys
from tests.reports.signing_keys import create


def test_a_key_pair_can_be_created_and_loaded(tmp_path: Path) -> None:
    made = create("trainer", tmp_path / "keys")
    assert made.private.name == "trainer.key"
    assert made.public.name == "trainer.pub"
    assert stat.S_IMODE(made.private.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    private, public = keys.load_private(made.private), keys.load_public(made.public)
    assert keys.fingerprint(private.public_key()) == keys.fingerprint(public) == made.fingerprint
    assert made.fingerprint.startswith("SHA256:")
    assert len(made.fingerprint) == len("SHA256:") + 43


def test_a_passphrase_encrypts_the_key(tmp_path: Path) -> None:
    made = create("auditor", tmp_path, "correct horse")
    assert b"ENCRYPTED" in made.private.read_bytes()
    keys.load_private(made.private, "correct horse")
    for passphrase, message in (("wrong", "wrong passphrase"), (None, "a passphrase is needed")):
        with pytest.raises(KeyFileError, match=message):
            keys.load_private(made.private, passphrase)


def test_an_unneeded_or_empty_passphrase_is_said(tmp_path: Path) -> None:
    made = create("auditor", tmp_path)
    with pytest.raises(KeyFileError, match="it has no passphrase"):
        keys.load_private(made.private, "anything")
    with pytest.raises(KeyFileError, match="is empty"):
        create("trainer", tmp_path, "")


@pytest.mark.parametrize(
    ("passphrase", "said"),
    [
        # What the environment has of bytes that are no UTF-8.
        (os.fsdecode(b"\xff"), "passphrase: is no text in UTF-8; choose another one"),
        ("é" * 512, "passphrase: has 1,024 bytes; at most 1,023 can protect a key"),
    ],
)
def test_a_passphrase_that_no_key_can_have_is_refused_in_one_line(
    tmp_path: Path, passphrase: str, said: str
) -> None:
    made = create("auditor", tmp_path, "é" * 511)
    keys.load_private(made.private, "é" * 511)
    with pytest.raises(KeyFileError, match=f"^{said}$"):
        keys.load_private(made.private, passphrase)
    with pytest.raises(KeyFileError, match=f"^{said}$"):
        create("trainer", tmp_path / "none", passphrase)
    assert not (tmp_path / "none").exists()


def test_a_key_is_not_stored_where_it_cannot_be_kept(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    deep = tmp_path / "not" / "made" / "yet"
    assert keys.store(private, deep, "trainer").private.parent == deep
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(KeyFileError, match=r"inner: no key can be written \(Not a directory\)"):
        keys.store(private, tmp_path / "file" / "inner", "trainer")
    deep.chmod(0o777)
    with pytest.raises(KeyFileError, match="others may write to it"):
        keys.store(private, deep, "auditor")
    assert {path.name for path in deep.iterdir()} == {"trainer.key", "trainer.pub"}
    with pytest.raises(KeyFileError, match=r"trainer\.pub: cannot be written"):
        keys.complete(tmp_path / "none" / "trainer.key", private.public_key())


def test_half_a_pair_that_vanished_meanwhile_is_no_further_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = keys.create

    def fills_the_disk(path: Path, content: bytes, mode: int) -> None:
        if path.suffix == ".pub":
            (tmp_path / "trainer.key").unlink()
            raise OSError(28, "No space left on device")
        write(path, content, mode)

    monkeypatch.setattr(keys, "create", fills_the_disk)
    with pytest.raises(KeyFileError, match=r"no key can be written \(No space left on device\)"):
        create("trainer", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_key_file_holds_no_key(tmp_path: Path) -> None:
    (tmp_path / "trainer.key").touch(0o600)
    with pytest.raises(KeyFileError, match=r"trainer\.key: is empty, so it holds no key"):
        keys.load_private(tmp_path / "trainer.key")


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    made = create("trainer", tmp_path)
    before = made.private.read_bytes()
    with pytest.raises(KeyFileError, match="never overwritten"):
        create("trainer", tmp_path)
    made.private.unlink()
    with pytest.raises(KeyFileError, match="never overwritten"):
        create("trainer", tmp_path)
    assert not made.private.exists()
    assert before


def test_a_public_half_that_a_killed_process_did_not_write_is_written_once(tmp_path: Path) -> None:
    made = create("trainer", tmp_path)
    whole = made.public.read_bytes()
    made.public.unlink()
    public = keys.load_private(made.private).public_key()
    keys.complete(made.private, public)
    assert made.public.read_bytes() == whole
    made.public.write_bytes(b"another's")
    keys.complete(made.private, public)
    assert made.public.read_bytes() == b"another's"


def test_a_public_half_that_another_process_wrote_first_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = keys.create

    def overtaken(path: Path, content: bytes, mode: int) -> None:
        if path.suffix == ".pub":
            write(path, content, mode)
        write(path, content, mode)

    monkeypatch.setattr(keys, "create", overtaken)
    made = create("trainer", tmp_path)
    assert made.private.is_file()
    assert keys.fingerprint(keys.load_public(made.public)) == made.fingerprint


def test_a_key_folder_of_another_user_is_refused_and_one_of_roots_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.refuse_open(tmp_path)
    mine = os.geteuid()
    status = tmp_path.stat
    for owner, refused in ((mine, False), (0, False), (4_711, True)):
        found = SimpleNamespace(st_uid=owner, st_mode=status().st_mode)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", lambda _, found=found: found)
            if refused:
                with pytest.raises(KeyFileError, match=r"another user \(number 4711\)"):
                    keys.refuse_open(tmp_path)
            else:
                keys.refuse_open(tmp_path)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o722])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"others may write to it \(mode {mode:04o}\)"):
        keys.refuse_open(tmp_path)


@pytest.mark.parametrize("mode", [0o700, 0o500, 0o755, 0o711, 0o744])
def test_a_folder_to_which_its_owner_alone_may_write_is_taken(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    keys.refuse_open(tmp_path)
    keys.refuse_open(tmp_path / "none")


def test_what_is_public_of_a_key_is_for_all_to_read_and_for_its_owner_to_write(
    tmp_path: Path,
) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    made = keys.store(private, tmp_path / "k", "trainer", beside={"trainer.crt": b"certificate"})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "k").iterdir()}
    assert modes == {"trainer.key": 0o600, "trainer.pub": 0o644, "trainer.crt": 0o644}
    assert (tmp_path / "k" / "trainer.crt").read_bytes() == b"certificate"
    made.public.unlink()
    keys.complete(made.private, private.public_key())
    assert stat.S_IMODE(made.public.stat().st_mode) == 0o644


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o610])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    made = create("trainer", tmp_path)
    made.private.chmod(mode)
    with pytest.raises(KeyFileError, match="others may read it"):
        keys.load_private(made.private)


def test_other_keys_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no such key"):
        keys.load_private(tmp_path / "none.key")
    with pytest.raises(KeyFileError, match="not a regular file"):
        keys.load_public(tmp_path)
    for other in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())):
        path = tmp_path / "other.key"
        path.write_bytes(
            other.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        path.chmod(0o600)
        with pytest.raises(KeyFileError, match="not a P-256 key"):
            keys.load_private(path)
        path.chmod(0o644)
        with pytest.raises(KeyFileError, match="no public key"):
            keys.load_public(path)
        public = other.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        path.write_bytes(public)
        with pytest.raises(KeyFileError, match="not a P-256 public key"):
            keys.load_public(path)


def test_every_error_is_one_line_of_the_base_class(tmp_path: Path) -> None:
    path = tmp_path / "junk.key"
    path.write_bytes(b"\x00junk\n")
    path.chmod(0o600)
    with pytest.raises(ReportError) as caught:
        keys.load_private(path)
    assert "\n" not in str(caught.value)


def test_the_default_directory_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPFEDADAMW_KEYS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys.default_directory() == tmp_path / "dpfedadamw" / "keys"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert keys.default_directory() == Path.home() / ".config" / "dpfedadamw" / "keys"
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "mine"))
    assert keys.default_directory() == tmp_path / "mine"


@pytest.mark.parametrize("chosen", ["~no-such-user/keys", None])
def test_without_a_home_folder_a_way_out_is_told(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    for name in ("DPFEDADAMW_KEYS", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    if chosen is None:
        monkeypatch.setattr(Path, "home", lambda: Path("~no-such-user").expanduser())
    else:
        monkeypatch.setenv("DPFEDADAMW_KEYS", chosen)
    place = "keys" if chosen is None else f"DPFEDADAMW_KEYS={chosen}"
    with pytest.raises(KeyFileError, match=f"^{place}: there is no such home folder; set DPFED"):
        keys.default_directory()


def test_of_the_two_forms_of_a_signature_the_lower_ends_at_half_the_order() -> None:
    half = ec.SECP256R1().group_order // 2
    for s, low in ((1, True), (half, True), (half + 1, False), (2 * half, False)):
        assert keys.has_low_s(encode_dss_signature(1, s)) is low


def test_a_fingerprint_has_all_of_its_43_characters_whatever_it_ends_in() -> None:
    private = (ec.derive_private_key(number, ec.SECP256R1()) for number in range(1, 400))
    found = {keys.fingerprint(key.public_key()).removeprefix("SHA256:") for key in private}
    assert len(found) == 399
    assert {len(text) for text in found} == {43}


def test_a_fingerprint_is_of_a_public_key_of_any_kind_or_of_a_certificates(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    path = tmp_path / "file"
    certificate = certificates.self_signed(private, "auditor")
    for content in (keys.public_pem(private.public_key()), certificates.chain_pem((certificate,))):
        path.write_bytes(content)
        path.chmod(0o644)
        assert keys.public_fingerprint(path) == keys.fingerprint(private.public_key())
    for content in (b"junk", b"-----BEGIN CERTIFICATE-----\njunk\n-----END CERTIFICATE-----\n"):
        path.write_bytes(content)
        with pytest.raises(KeyFileError, match="file: holds no public key or certificate"):
            keys.public_fingerprint(path)
    with pytest.raises(KeyFileError, match="none: no such key"):
        keys.public_fingerprint(tmp_path / "none")


@pytest.mark.parametrize("passphrase", ["word", None])
def test_what_is_no_key_is_told_as_that_and_not_as_a_wrong_passphrase(
    tmp_path: Path, passphrase: str | None
) -> None:
    path = tmp_path / "junk.key"
    path.write_bytes(b"junk")
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match=r"junk\.key: no private key in PKCS#8 PEM form"):
        keys.load_private(path, passphrase)


def test_every_signature_is_the_lower_of_its_two_forms_and_holds() -> None:
    private = ec.derive_private_key(7, ec.SECP256R1())
    half = ec.SECP256R1().group_order // 2
    for number in range(24):
        data = bytes([number])
        made = keys.sign(private, data)
        private.public_key().verify(made, data, ec.ECDSA(hashes.SHA256()))
        assert decode_dss_signature(made)[1] <= half
        assert keys.has_low_s(made)


def test_a_fingerprint_is_the_digest_of_the_key_in_either_writing() -> None:
    public = ec.derive_private_key(7, ec.SECP256R1()).public_key()
    der = public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashlib.sha256(der).digest()
    assert keys.fingerprint_digest(public) == digest.hex()
    assert keys.fingerprint(public) == f"SHA256:{base64.b64encode(digest).decode()[:43]}"
    assert keys.ROLES == ("trainer", "auditor")


def test_of_a_key_file_sixteen_kibibytes_are_read(tmp_path: Path) -> None:
    made = create("trainer", tmp_path)
    whole = made.public.read_bytes().rstrip()
    made.public.write_bytes(whole.rjust(16_384, b"\n"))
    assert keys.fingerprint(keys.load_public(made.public)) == made.fingerprint
    made.public.write_bytes(whole.rjust(16_385, b"\n"))
    with pytest.raises(KeyFileError, match=r"trainer\.pub: no public key in PEM form"):
        keys.load_public(made.public)
