"""The model's own signature: made by model-signing, checked with and without it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reports import ReportError, build_report
from reports.reading.snapshot import Snapshot
from reports.signatures import bundles, keys, signing
from reports.signatures.trust import signer
from reports.signatures.trust.signer import SigningKey
from reports.signatures.verification import verify
from tests.reports.signing_keys import create

PASSPHRASE = "correct horse"


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    made = create("trainer", tmp_path_factory.mktemp("keys"), PASSPHRASE)
    return signer.load("trainer", made.private, PASSPHRASE)


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
    other = signer.load("trainer", create("trainer", tmp_path / "k").private)
    (run / "model.sig").write_bytes(bundles.sign_model(run, other, None))
    assert "is not by the key" in problems(run)["model.sig"]


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
