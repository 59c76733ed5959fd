"""Keys in hardware, with SoftHSM as the token: they sign everything and never leave it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from reports import KeyFileError, build_report
from reports.signatures import bundles, signing
from reports.signatures.trust import hardware, signer
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
    key = signer.load("auditor", token, "5678")
    trainer = fresh("trainer")
    signing.sign(run, trainer, key)
    result = verify(run)
    assert result.is_intact
    assert {entry.fingerprint for entry in result.signers if entry.role == "auditor"} == {
        key.fingerprint
    }


def test_the_key_never_leaves_its_token(token: str) -> None:
    private = signer.load("auditor", token, "5678").private
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
        signer.load("auditor", address.format(token=token, module=MODULE), pin)
    assert "\n" not in str(caught.value)
    assert pin not in str(caught.value)


def test_a_wrong_or_missing_pin_is_one_line(token: str) -> None:
    # In a process of its own, because this one has unlocked the token.
    loading = "from reports.signatures.trust import signer; signer.load('auditor', *sys.argv[1:])"
    script = f"import sys; {loading}"
    for pin, message in (("0000", "auditor: pin incorrect"), ("", "PIN was given")):
        command = [sys.executable, "-c", script, token, *([pin] if pin else [])]
        done = subprocess.run(command, capture_output=True, timeout=60)
        last = done.stderr.decode().strip().splitlines()[-1]
        assert "KeyFileError: pkcs11:token=Audit room;object=auditor: " in last
        assert message in last


def test_two_keys_of_one_token_can_be_used_at_once(token: str) -> None:
    first, second = signer.load("trainer", token, "5678"), signer.load("auditor", token, "5678")
    for key in (first, second):
        signature = key.private.sign(b"content", ec.ECDSA(hashes.SHA256()))
        key.public.verify(signature, b"content", ec.ECDSA(hashes.SHA256()))


def test_the_models_bundle_needs_a_key_in_a_file(token: str, tmp_path: Path) -> None:
    key = signer.load("trainer", token, "5678")
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
        signer.load("auditor", ADDRESS, None)
