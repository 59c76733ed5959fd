"""Any byte of any signed file: changed, and the file is named; and parts of other runs are refused.

The run here has everything that can be signed: both reports, replaced keys, timestamps, and the
model's own bundle where the library is installed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports import build_report
from reports.signatures import bundles, keyring, keys, pades, signing
from reports.signatures.dsse import parse_envelope, seal
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import load_public
from reports.signatures.timestamps import Authority
from reports.signatures.verification import VerificationResult, verify
from tests.authority import LocalAuthority
from tests.reports.signing_keys import create


@dataclass(frozen=True)
class Whole:
    run: Path
    trainer: SigningKey
    auditor: SigningKey
    authority: LocalAuthority

    def verify(self, run: Path | None = None) -> VerificationResult:
        return verify(run or self.run, tsa_roots=[self.authority.root])

    def files(self) -> list[str]:
        found = (path for path in self.run.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.run).as_posix() for path in found)


@pytest.fixture(scope="module")
def whole(run_builder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    run = run_builder(folder / "run", rounds=2, clients=3)
    for audience in ("internal", "public"):
        build_report(run, audience)
    loaded = []
    for role in keys.ROLES:
        keyring.new(role, folder / "keys")
        keyring.rotate(role, folder / "keys")
        loaded.append(
            keyring.load_signing_key(role, keyring.current(role, folder / "keys").private)
        )
    trainer, auditor = loaded
    bundle = None
    if importlib.util.find_spec("model_signing") is not None:
        bundle = bundles.sign_model(run, trainer, None)
    authority = LocalAuthority(folder)
    with authority.serve() as url:
        signing.sign(run, trainer, auditor, Authority(url), bundle)
    return Whole(run, trainer, auditor, authority)


def named(result: VerificationResult) -> set[str]:
    return {problem.file for problem in result.problems}


def test_everything_that_can_be_signed_is_there_and_holds(whole: Whole) -> None:
    assert whole.verify().problems == ()
    expected = {
        "spec.yaml",
        "ledger.jsonl",
        "metrics.jsonl",
        "model.safetensors",
        "model.json",
        "audit.json",
        "report.json",
        "report.pdf",
        "report.html",
        "report-public.json",
        "report-public.pdf",
        "report-public.html",
        "VERIFY.md",
        "trainer.pub",
        "auditor.pub",
        "trainer.rotations.json",
        "auditor.rotations.json",
        "training.attestation.json",
        "training.attestation.json.tsr",
        "attestation.json",
        "attestation.json.tsr",
    }
    assert expected <= set(whole.files())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_byte_is_found_and_its_file_named(
    whole: Whole, part: int, data: st.DataObject
) -> None:
    """Files are drawn evenly, places within them too: 25 of them in each part."""
    name = data.draw(st.sampled_from(whole.files()))
    path = whole.run / name
    before = path.read_bytes()
    changed = bytearray(before)
    # Where draws are the same each time, another part still changes another byte.
    place = (data.draw(st.integers(0, len(before) - 1)) + part) % len(before)
    changed[place] ^= data.draw(st.integers(1, 255))
    try:
        path.write_bytes(bytes(changed))
        result = whole.verify()
    finally:
        path.write_bytes(before)
    assert not result.is_intact
    # Evidence is signed by one salted digest, so that it can be named as a whole only.
    assert name in named(result) or name.partition("/")[0] in named(result)
    assert all("\n" not in str(problem) for problem in result.problems)


@pytest.mark.parametrize("change", [b"\n", b" ", b"\r\n"])
def test_an_envelopes_layout_cannot_change_unnoticed(
    whole: Whole, tmp_path: Path, change: bytes
) -> None:
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    for name in ("attestation.json", "training.attestation.json"):
        (run / name).write_bytes((run / name).read_bytes() + change)
    assert {"attestation.json", "training.attestation.json"} <= named(whole.verify(run))


def test_the_attestation_names_the_pdf_as_it_was_signed(whole: Whole) -> None:
    import hashlib

    payload = parse_envelope((whole.run / "attestation.json").read_bytes(), "x").payload
    digests = {entry["name"]: entry["digest"] for entry in json.loads(payload)["subject"]}
    for name in ("report.pdf", "report-public.pdf"):
        data = (whole.run / name).read_bytes()
        assert digests[name] == {"sha256": hashlib.sha256(data).hexdigest()}
        assert pades.unsigned(data, name) != data


def test_a_pdf_signed_by_another_key_is_named_even_if_the_auditor_attests_it(
    whole: Whole, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    stranger = keyring.load_signing_key("auditor", create("auditor", tmp_path / "k").private)
    pages = pades.sign((run / "report.pdf").read_bytes(), stranger, "report.pdf")
    (run / "report.pdf").write_bytes(pages)
    resign_envelope_over(run, whole.auditor, "report.pdf")
    problems = {problem.file: problem.reason for problem in verify(run).problems}
    assert list(problems) == ["report.pdf"]
    assert f"is signed by {stranger.fingerprint}, not by the auditor" in problems["report.pdf"]


def test_a_pdf_without_a_signature_is_named_even_if_the_auditor_attests_it(
    whole: Whole, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    pages = pades.unsigned((run / "report.pdf").read_bytes(), "report.pdf")
    (run / "report.pdf").write_bytes(pages)
    resign_envelope_over(run, whole.auditor, "report.pdf")
    assert [str(problem) for problem in verify(run).problems] == ["report.pdf: is not signed"]


def resign_envelope_over(run: Path, key: SigningKey, name: str) -> None:
    """Let the auditor attest a file as it now is, without signing its pages."""
    import hashlib

    path = run / "attestation.json"
    text = parse_envelope(path.read_bytes(), path.name).payload.decode()
    digest = hashlib.sha256((run / name).read_bytes()).hexdigest()
    line = rf'(\{{"name": "{re.escape(name)}", "digest": \{{"sha256": ")[0-9a-f]{{64}}'
    changed, count = re.subn(line, rf"\g<1>{digest}", text)
    assert count == 1
    path.write_bytes(seal(changed.encode(), key.private))
    (run / "attestation.json.tsr").unlink()


def test_a_report_moved_beside_another_model_is_refused(
    whole: Whole, run_builder: Callable[..., Path], tmp_path: Path
) -> None:
    other = run_builder(tmp_path / "other", rounds=2, clients=3, identifier="ffffffff")
    build_report(other)
    signing.sign(other, whole.trainer, whole.auditor)
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    for name in ("report.json", "report.pdf"):
        shutil.copy(other / name, run / name)
    reasons = {str(problem) for problem in whole.verify(run).problems}
    for name in ("report.json", "report.pdf"):
        assert f"{name}: changed since attestation.json was signed" in reasons
        assert any(r.startswith(f"{name}: is about another run than") for r in reasons)


def test_an_attestation_of_another_run_is_refused(
    whole: Whole, run_builder: Callable[..., Path], tmp_path: Path
) -> None:
    other = run_builder(tmp_path / "other", rounds=2, clients=3, identifier="ffffffff")
    build_report(other)
    signing.sign(other, whole.trainer, whole.auditor)
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    for name in ("attestation.json", "training.attestation.json"):
        shutil.copy(other / name, run / name)
    reasons = {str(problem) for problem in whole.verify(run).problems}
    for name in ("attestation.json", "training.attestation.json"):
        assert any(r.startswith(f"{name}: speaks of another run than") for r in reasons)


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("attestation.json", "the auditor's signature is missing"),
        ("training.attestation.json", "the trainer's signature is missing"),
    ],
)
def test_whose_signature_is_missing_is_said(
    whole: Whole, tmp_path: Path, missing: str, says: str
) -> None:
    run = Path(shutil.copytree(whole.run, tmp_path / "run"))
    (run / missing).unlink()
    assert any(says in problem.reason for problem in verify(run).problems)


def test_whoever_trusts_the_first_keys_can_check_it(whole: Whole) -> None:
    folder = whole.trainer.location.parent
    first = [folder / f"{role}.pub" for role in keys.ROLES]
    assert verify(whole.run, *first).ok
    assert load_public(first[0]) != whole.trainer.public
