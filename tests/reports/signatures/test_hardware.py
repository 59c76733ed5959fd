"""Keys in hardware, with SoftHSM as the token: they sign everything and never leave it."""

from __future__ import annotations

import copy
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from reports import KeyFileError, build_report
from reports.signatures import bundles, certificates, hardware, keyring, signing
from reports.signatures.verification import verify
from tests.reports.signing_keys import fresh

MODULES = [
    Path("/usr/lib/softhsm/libsofthsm2.so"),
    Path("/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so"),
    Path("/usr/lib64/pkcs11/libsofthsm2.so"),
]
MODULE = next((path for path in MODULES if path.exists()), None)
ADDRESS = "pkcs11:token=Audit%20room;object=auditor"


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a token that holds a P-256 key and an RSA key."""
    pkcs11 = pytest.importorskip("pkcs11")
    if MODULE is None or shutil.which("softhsm2-util") is None:
        pytest.skip("SoftHSM is not installed")
    folder = tmp_path_factory.mktemp("softhsm")
    (folder / "tokens").mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder / 'tokens'}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        command = ["softhsm2-util", "--init-token", "--free", "--label", "Audit room"]
        command += ["--so-pin", "1234", "--pin", "5678"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        library = pkcs11.lib(str(MODULE))
        with library.get_token(token_label="Audit room").open(user_pin="5678", rw=True) as session:
            from pkcs11.util.ec import encode_named_curve_parameters

            curve = session.create_domain_parameters(
                pkcs11.KeyType.EC,
                {pkcs11.Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")},
                local=True,
            )
            curve.generate_keypair(store=True, label="auditor")
            session.generate_keypair(pkcs11.KeyType.RSA, 2048, store=True, label="rsa")
        yield f"{ADDRESS}?module-path={MODULE}"


def test_a_token_signs_what_a_file_signs(
    token: str, run_builder: Callable[..., Path], tmp_path: Path
) -> None:
    run = run_builder(tmp_path / "run", rounds=2, clients=3)
    build_report(run)
    key = keyring.load_signing_key("auditor", token, "5678")
    trainer = fresh("trainer")
    signing.sign(run, trainer, key)
    result = verify(run)
    assert result.is_intact
    assert {entry.fingerprint for entry in result.signers if entry.role == "auditor"} == {
        key.fingerprint
    }


def test_the_key_never_leaves_its_token(token: str) -> None:
    private = keyring.load_signing_key("auditor", token, "5678").private
    with pytest.raises(KeyFileError, match="cannot leave"):
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    with pytest.raises(KeyFileError, match="cannot leave"):
        private.private_numbers()
    with pytest.raises(KeyFileError, match="SHA-256"):
        private.sign(b"x", ec.ECDSA(hashes.SHA384()))


@pytest.mark.parametrize(
    ("address", "pin", "message"),
    [
        ("pkcs11:token=None;object=auditor?module-path={module}", "5678", "No token matching"),
        ("pkcs11:token=Audit%20room;object=none?module-path={module}", "5678", "object=none"),
        ("pkcs11:token=Audit%20room;object=rsa?module-path={module}", "5678", "no P-256 key"),
        (
            "pkcs11:token=Audit%20room;object=auditor?module-path=/none.so",
            "5678",
            "cannot open shared object",
        ),
        ("pkcs11:token=Audit%20room;object=auditor", "5678", "DPFEDADAMW_PKCS11_MODULE"),
    ],
)
def test_what_is_wrong_with_a_token_is_one_line(
    token: str, address: str, pin: str, message: str
) -> None:
    with pytest.raises(KeyFileError, match=message) as caught:
        keyring.load_signing_key("auditor", address.format(token=token, module=MODULE), pin)
    assert "\n" not in str(caught.value)
    assert pin not in str(caught.value)


def test_a_wrong_or_missing_pin_is_one_line(token: str) -> None:
    # In a process of its own, because this one has unlocked the token.
    loading = "keyring.load_signing_key('auditor', *sys.argv[1:])"
    script = f"import sys; from reports.signatures import keyring; {loading}"
    for pin, message in (("0000", "auditor: pin incorrect"), ("", "PIN was given")):
        command = [sys.executable, "-c", script, token, *([pin] if pin else [])]
        done = subprocess.run(command, capture_output=True, timeout=60)
        last = done.stderr.decode().strip().splitlines()[-1]
        assert "KeyFileError: pkcs11:token=Audit room;object=auditor: " in last
        assert message in last


def test_two_keys_of_one_token_can_be_used_at_once(token: str) -> None:
    first, second = (
        keyring.load_signing_key("trainer", token, "5678"),
        keyring.load_signing_key("auditor", token, "5678"),
    )
    for key in (first, second):
        signature = key.private.sign(b"content", ec.ECDSA(hashes.SHA256()))
        key.public.verify(signature, b"content", ec.ECDSA(hashes.SHA256()))


def test_the_models_bundle_needs_a_key_in_a_file(token: str, tmp_path: Path) -> None:
    key = keyring.load_signing_key("trainer", token, "5678")
    with pytest.raises(KeyFileError, match="needs a key in a file"):
        bundles.sign_model(tmp_path, key, None)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("pkcs11:object=auditor", "lacks token"),
        ("pkcs11:token=Audit", "lacks object"),
        ("pkcs11:token=A;object=b?pin-value=1234", "'pin-value' is not used"),
        ("pkcs11:token=;object=b", "'token' is not used"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, message: str) -> None:
    with pytest.raises(KeyFileError, match=message) as caught:
        hardware.parse_address(address)
    assert "1234" not in str(caught.value)


def test_without_the_library_hardware_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pkcs11", None)
    with pytest.raises(KeyFileError, match=r"pip install 'dpfedadamw\[pkcs11\]'"):
        keyring.load_signing_key("auditor", ADDRESS, None)


# Without a token.

PRIVATE = ec.generate_private_key(ec.SECP256R1())
OWN = certificates.self_signed(PRIVATE, "auditor")


class Handle:
    """What a token lends: it signs digests, or says why it does not."""

    error: Exception | None = None

    def sign(self, digest: bytes, mechanism: Any) -> bytes:
        if self.error is not None:
            raise self.error
        assert mechanism.name == "ECDSA"
        assert digest == hashlib.sha256(b"data").digest()
        r, s = decode_dss_signature(PRIVATE.sign(b"data", ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def test_a_token_is_handed_a_digest_and_its_signature_is_written_as_a_files_is() -> None:
    pkcs11 = pytest.importorskip("pkcs11")
    handle = Handle()
    key = hardware.HardwareKey(handle, PRIVATE.public_key())
    algorithm = ec.ECDSA(hashes.SHA256())
    PRIVATE.public_key().verify(key.sign(b"data", algorithm), b"data", algorithm)
    assert key.public_key() == PRIVATE.public_key()
    assert (key.curve.name, key.key_size) == ("secp256r1", 256)
    assert copy.copy(key) is key
    assert copy.deepcopy([key])[0] is key
    for leaves in (key.exchange, key.private_numbers, key.private_bytes):
        with pytest.raises(KeyFileError, match="the private key cannot leave its token"):
            leaves()
    for error, said in (
        (pkcs11.exceptions.DeviceRemoved(), "device removed"),
        (pkcs11.exceptions.GeneralError("the card was bent"), "the card was bent"),
    ):
        handle.error = error
        with pytest.raises(KeyFileError, match=rf"^pkcs11: the token does not sign \({said}\)$"):
            key.sign(b"data", algorithm)


class Session:
    """An open token with one key, and certificates under the same label."""

    def __init__(self, *chain: Any) -> None:
        self.handle, self.chain = Handle(), chain

    def get_key(self, kind: Any, label: str) -> Any:
        import pkcs11

        assert (kind, label) == (pkcs11.ObjectClass.PRIVATE_KEY, "key")
        return self.handle

    def get_objects(self, wanted: dict[Any, Any]) -> list[Any]:
        import pkcs11

        assert wanted == {
            pkcs11.Attribute.CLASS: pkcs11.ObjectClass.CERTIFICATE,
            pkcs11.Attribute.LABEL: "key",
        }
        der = serialization.Encoding.DER
        return [{pkcs11.Attribute.VALUE: one.public_bytes(der)} for one in self.chain]


ANY = "pkcs11:token=Audit;object=key"


def test_a_key_comes_with_the_first_certificate_under_its_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pkcs11")
    asked: list[Any] = []

    def opens(*given: Any) -> Session:
        asked.append(given)
        return Session(OWN, certificates.self_signed(PRIVATE, "trainer"))

    monkeypatch.setattr(hardware, "_open", opens)
    monkeypatch.setenv("DPFEDADAMW_PKCS11_MODULE", "/set/module.so")
    key, chain = hardware.open_key(ANY, "1234")
    assert chain == (OWN,)
    assert key.public_key() == PRIVATE.public_key()
    hardware.open_key(f"{ANY}?module-path=/named/module.so", None)
    assert asked == [("/set/module.so", "Audit", "1234"), ("/named/module.so", "Audit", None)]


def test_a_key_without_a_certificate_has_its_public_half_on_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pkcs11 = pytest.importorskip("pkcs11")
    point = PRIVATE.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    monkeypatch.setattr("pkcs11.util.ec.encode_ec_public_key", lambda found: found)

    def session(content: bytes) -> Any:
        def get_key(kind: Any, label: str) -> bytes:
            assert (kind, label) == (pkcs11.ObjectClass.PUBLIC_KEY, "key")
            return content

        return SimpleNamespace(get_key=get_key)

    found = hardware._public(session(point), "key", ())
    assert found == PRIVATE.public_key()
    with pytest.raises(KeyFileError, match="pkcs11: key is no P-256 key"):
        hardware._public(session(b"junk"), "key", ())


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)]
)
def test_a_certificate_for_a_key_of_another_kind_is_refused(key: Any) -> None:
    pytest.importorskip("pkcs11")
    certificate: Any = SimpleNamespace(public_key=key.public_key)
    with pytest.raises(KeyFileError, match="pkcs11: key is no P-256 key"):
        hardware._public(None, "key", (certificate,))


def test_why_a_token_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pkcs11 = pytest.importorskip("pkcs11")
    where = "pkcs11:token=Audit;object=key"
    monkeypatch.delenv("DPFEDADAMW_PKCS11_MODULE", raising=False)
    with pytest.raises(
        KeyFileError, match=rf"^{where}: give \?module-path=.* or set DPFEDADAMW_PK"
    ):
        hardware.open_key(ANY, None)
    address = f"{ANY}?module-path=/m.so"
    wrong = pkcs11.exceptions.PinIncorrect()
    for error, pin, said in (
        (wrong, "1234", "pin incorrect"),
        (wrong, None, r"pin incorrect; no PIN was given \(DPFEDADAMW_PIN\)"),
        (OSError("no file"), "1234", r"/m\.so is no usable PKCS#11 module"),
        (RuntimeError("no library"), None, r"/m\.so is no usable PKCS#11 module"),
    ):

        def opens(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(hardware, "_open", opens)
        with pytest.raises(KeyFileError, match=f"^{where}: {said}$"):
            hardware.open_key(address, pin)
    # Whose certificate is on the token is checked as that in a file is.
    other = certificates.self_signed(ec.generate_private_key(ec.SECP256R1()), "office")
    checked: list[Any] = []
    monkeypatch.setattr(hardware, "_open", lambda *_: Session(other))
    monkeypatch.setattr(hardware, "check_chain", lambda *given: checked.append(given))
    hardware.open_key(address, None)
    assert checked == [((other,), other.public_key(), where)]


def test_a_token_that_was_unlocked_before_is_not_unlocked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pkcs11 = pytest.importorskip("pkcs11")
    import pyhanko.sign.pkcs11 as library

    asked: list[tuple[str, str, Any]] = []

    def opens(module: str, token_criteria: Any, user_pin: Any = "none") -> str:
        asked.append((module, token_criteria.label, user_pin))
        if user_pin == "1234":
            raise pkcs11.UserAlreadyLoggedIn
        return "session"

    monkeypatch.setattr(library, "open_pkcs11_session", opens)
    assert hardware._open("/m.so", "Audit", "1234") == "session"
    assert hardware._open("/m.so", "Audit", None) == "session"
    assert asked == [
        ("/m.so", "Audit", "1234"), ("/m.so", "Audit", "none"), ("/m.so", "Audit", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("address", "fields"),
    [
        ("pkcs11:token=A;object=b", {"token": "A", "object": "b"}),
        ("token=A;object=b", {"token": "A", "object": "b"}),
        (
            "pkcs11:;token=Audit%20room;;object=b%3Bc?&module-path=/a%3Db.so&",
            {"token": "Audit room", "object": "b;c", "module-path": "/a=b.so"},
        ),
        (
            "pkcs11:token=A;object=b?module-path=/a.so&module-path=/c.so",
            {"token": "A", "object": "b", "module-path": "/c.so"},
        ),
        ("pkcs11:token=A=B;object=b", {"token": "A=B", "object": "b"}),
    ],
)
def test_an_address_has_its_parts_by_name(address: str, fields: dict[str, str]) -> None:
    assert hardware.parse_address(address) == fields
