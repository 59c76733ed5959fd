"""The model's own signature: made by model-signing, checked with and without it."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports import KeyFileError, ReportError, build_report
from reports.files import Snapshot
from reports.signatures import bundles, keyring, keys, signing
from reports.signatures.dsse import seal
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import verify
from tests.reports.signing_keys import create, fresh

PASSPHRASE = "correct horse"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    made = create("trainer", tmp_path_factory.mktemp("keys"), PASSPHRASE)
    return keyring.load_signing_key("trainer", made.private, PASSPHRASE)


@pytest.fixture(scope="module")
def original(
    trainer: SigningKey,
    run_builder: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    pytest.importorskip("model_signing")
    run = run_builder(tmp_path_factory.mktemp("model") / "run", rounds=2, clients=3)
    build_report(run)
    bundle = bundles.sign_model(run, trainer, PASSPHRASE)
    signing.sign(run, trainer, trainer, bundle=bundle)
    return run


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def problems(run: Path) -> dict[str, str]:
    key = keys.load_public(run / "trainer.pub")
    return {entry.file: entry.reason for entry in bundles.check_bundle(Snapshot(run), key)}


def official(run: Path) -> int:
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(run)]
    command += ["--signature", str(run / "model.sig"), "--public_key", str(run / "trainer.pub")]
    command += ["--ignore_unsigned_files"]
    return subprocess.run(command, capture_output=True, timeout=120).returncode


@pytest.mark.slow
def test_the_librarys_own_command_accepts_it_and_refuses_another_model(run: Path) -> None:
    assert official(run) == 0
    (run / "model.safetensors").write_bytes(b"another model")
    assert official(run) != 0


def test_it_is_checked_here_without_the_library(run: Path) -> None:
    result = verify(run)
    assert result.is_intact
    assert ("trainer", "model.sig") in {(s.role, s.envelope) for s in result.signers}
    assert problems(run) == {}
    listed = json.loads((run / "model.sig").read_text())
    assert "evidence" not in json.dumps(listed)


@pytest.mark.parametrize("name", bundles.MODEL_FILES)
def test_a_changed_model_is_named(run: Path, name: str) -> None:
    (run / name).write_bytes((run / name).read_bytes() + b" ")
    assert problems(run) == {name: "changed since model.sig was signed"}


def test_a_bundle_by_another_key_is_named(run: Path, tmp_path: Path) -> None:
    other = keyring.load_signing_key("trainer", create("trainer", tmp_path / "k").private)
    (run / "model.sig").write_bytes(bundles.sign_model(run, other, None))
    assert "is not by the key" in problems(run)["model.sig"]


def test_another_key_signs_the_run_only_with_the_model_or_where_it_has_no_signature(
    run: Path, tmp_path: Path
) -> None:
    made = create("trainer", tmp_path / "keys")
    other = keyring.load_signing_key("trainer", made.private)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(
        ReportError, match=r"^model\.sig: the signature is not by the key .*signed by"
    ):
        signing.sign(run, other, other)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    signing.sign(run, other, other, bundle=bundles.sign_model(run, other, None))
    assert verify(run).is_intact
    signing.sign(run, other, other)
    assert verify(run).is_intact
    (run / "model.sig").unlink()
    signing.sign(run, other, other)
    assert verify(run).is_intact


def test_a_bundle_of_another_model_is_named(
    run: Path, trainer: SigningKey, run_builder: Callable[..., Path], tmp_path: Path
) -> None:
    other = run_builder(tmp_path / "other", rounds=2, clients=3, identifier="ffffffff")
    (run / "model.sig").write_bytes(bundles.sign_model(other, trainer, PASSPHRASE))
    assert problems(run) == {"model.safetensors": "changed since model.sig was signed"}


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"dsseEnvelope": 3}', b"\0" * 99])
def test_hostile_bundles_are_problems(run: Path, data: bytes) -> None:
    (run / "model.sig").write_bytes(data)
    assert set(problems(run)) == {"model.sig"}


def test_without_the_library_it_is_refused_in_one_line(
    trainer: SigningKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(ReportError, match=r"pip install 'dpfedadamw\[model-signing\]'"):
        bundles.sign_model(tmp_path, trainer, PASSPHRASE)


def test_a_run_without_a_model_is_refused_in_one_line(trainer: SigningKey, tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    with pytest.raises(ReportError, match=r"model\.sig: cannot be made") as caught:
        bundles.sign_model(tmp_path, trainer, PASSPHRASE)
    assert "\n" not in str(caught.value)


# Bundles that no library makes, by the right key.


def rewritten(run: Path, trainer: SigningKey, change: Callable[[Any], Any]) -> dict[str, str]:
    """What is said of a bundle whose statement is another, signed anew."""
    path = run / "model.sig"
    document = json.loads(path.read_text())
    envelope = document["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    sealed = json.loads(seal(json.dumps(statement).encode(), trainer.private))
    document["dsseEnvelope"] = {**envelope, **sealed}
    path.write_text(json.dumps(document))
    return problems(run)


def resources(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Other resources, with the subject that they make."""

    def apply(statement: Any) -> None:
        listed = statement["predicate"]["resources"]
        change(listed)
        digests = b"".join(bytes.fromhex(one["digest"]) for one in listed)
        statement["subject"][0]["digest"]["sha256"] = hashlib.sha256(digests).hexdigest()

    return apply


LACKS = "covers other files than model.json and model.safetensors"
ONCE = "SHA-256 of every file once is needed"
NOT_ITS = "its subject is not the files that it lists"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: None, None),
        (
            lambda s: s.update(predicateType="another"),
            f"predicateType must be {bundles.PREDICATE_TYPE}",
        ),
        (resources(lambda r: r.pop()), LACKS),
        (resources(lambda r: r.append({**r[0], "name": "further.json"})), LACKS),
        (resources(lambda r: r[0].update(name=r[1]["name"])), ONCE),
        (resources(lambda r: r[0].update(algorithm="sha512")), ONCE),
        (
            lambda s: s["predicate"]["resources"][0].update(digest="none"),
            "a digest is not hexadecimal",
        ),
        (lambda s: s["subject"][0]["digest"].update(sha256="0" * 64), NOT_ITS),
        (lambda s: s["subject"].append(s["subject"][0]), NOT_ITS),
        (lambda s: s.update(subject=[]), NOT_ITS),
        (lambda s: s.pop("predicate"), NOT_ITS),
    ],
)
def test_a_bundle_that_contradicts_itself_is_named(
    run: Path, trainer: SigningKey, change: Callable[[Any], Any], said: str | None
) -> None:
    assert rewritten(run, trainer, change) == ({} if said is None else {"model.sig": said})


def test_a_model_that_is_not_there_is_named(run: Path) -> None:
    (run / "model.json").unlink()
    found = problems(run)
    assert set(found) == {"model.json"}
    assert str(run) not in found["model.json"]


def test_a_key_in_hardware_signs_no_model(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"model\.sig: model-signing needs a key in a file"):
        bundles.sign_model(tmp_path, fresh("trainer"), None)
