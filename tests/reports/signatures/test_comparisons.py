"""A signed comparison: what its signature covers and names, and what a check of it notices."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import reports
from reports import build_report
from reports.comparison import compare
from reports.reading.snapshot import Snapshot
from reports.render import comparison_report
from reports.signatures import keys, signing
from reports.signatures.dsse import COMPARISON_TYPE, parse_envelope, parse_statement
from reports.signatures.trust import signer
from reports.signatures.trust.signer import SigningKey
from reports.signatures.verification import Outcome, verify_comparison
from reports.signatures.verification.comparisons import is_comparison
from tests.reports import drawings
from tests.reports.signing_keys import create, fresh

MakeRun = Callable[..., Path]
undrawn = drawings.undrawn


@dataclass(frozen=True)
class Compared:
    """A run, and a folder with a signed comparison of it and another, for both audiences."""

    run: Path
    folder: Path
    keys: Path
    auditor: SigningKey

    def problems(self) -> dict[str, str]:
        found = verify_comparison(self.folder, self.keys / "auditor.pub")
        return {problem.file: problem.reason for problem in found.problems}


@pytest.fixture(scope="module")
def original(run_builder: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    place = tmp_path_factory.mktemp("compared")
    run = run_builder(place / "run", rounds=2, clients=3)
    other = run_builder(place / "other", rounds=2, clients=3, private=False, identifier="2b3c4d5e")
    trainer, auditor = (
        signer.load(role, create(role, place / "keys").private) for role in keys.ROLES
    )
    for audience in ("internal", "public"):
        build_report(run, audience)
    signing.sign(run, trainer, auditor)
    for audience in ("internal", "public"):
        comparison_report.write(compare([run, other], audience), place / "out", auditor)
    return Compared(run, place / "out", place / "keys", auditor)


@pytest.fixture
def compared(original: Compared, tmp_path: Path) -> Compared:
    folder = Path(shutil.copytree(original.folder, tmp_path / "out"))
    return Compared(original.run, folder, original.keys, original.auditor)


def predicate(folder: Path, name: str) -> dict[str, Any]:
    payload = parse_envelope((folder / name).read_bytes(), name).payload
    return parse_statement(payload, COMPARISON_TYPE, name).predicate


def test_it_holds_for_who_knows_the_key_and_its_signer_is_unknown_to_others(
    compared: Compared,
) -> None:
    assert verify_comparison(compared.folder, compared.keys / "auditor.pub").ok
    unknown = verify_comparison(compared.folder)
    assert unknown.outcome is Outcome.SIGNER_UNKNOWN
    assert any("names 2 runs by their digests" in text for text in unknown.statements)
    assert is_comparison(Snapshot(compared.folder))
    assert not is_comparison(Snapshot(compared.run))


@pytest.mark.parametrize("audience", ["internal", "public"])
def test_it_names_each_run_by_its_model_and_by_its_own_attestation(
    compared: Compared, audience: str
) -> None:
    stem = "comparison" if audience == "internal" else "comparison-public"
    attestation = "attestation.json" if audience == "internal" else "attestation-public.json"
    name = f"{stem}.attestation.json"
    said = predicate(compared.folder, name)
    signed = next(run for run in said["runs"] if run["signatures"] == "holds")
    for file in ("model.safetensors", attestation):
        digest = hashlib.sha256((compared.run / file).read_bytes()).hexdigest()
        assert signed["digests"][file] == digest
    assert ("ledger.jsonl" in signed["digests"]) == (audience == "internal")
    folder = Path(reports.__file__).parent / "schema"
    schema = json.loads((folder / "comparison-attestation.schema.json").read_text("utf-8"))
    payload = json.loads(parse_envelope((compared.folder / name).read_bytes(), name).payload)
    jsonschema.Draft202012Validator(schema).validate(payload)
    signed["digests"]["audit.json"] = "0" * 64
    payload["predicate"] = said
    assert jsonschema.Draft202012Validator(schema).is_valid(payload) == (audience == "internal")


@pytest.mark.parametrize(
    "name",
    ["comparison.json", "comparison.pdf", "comparison-public.html", "auditor.pub"],
)
def test_a_changed_file_is_named(compared: Compared, name: str) -> None:
    path = compared.folder / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert name in compared.problems()


def test_a_missing_file_and_one_too_many_are_named(compared: Compared) -> None:
    (compared.folder / "comparison.html").unlink()
    (compared.folder / "more.txt").write_text("more")
    found = compared.problems()
    assert set(found) == {"comparison.html", "more.txt"}
    assert "not covered" in found["more.txt"]


def test_a_signature_by_another_key_does_not_hold(compared: Compared) -> None:
    other = fresh("auditor")
    comparison_report.write(compare([compared.run]), compared.folder, other)
    assert "auditor.pub" in compared.problems()


def test_pages_of_another_comparison_under_the_same_key_are_noticed(compared: Compared) -> None:
    """Each form holds by itself; what they say must agree."""
    comparison_report.write(
        compare([compared.run]), compared.folder.with_name("one"), compared.auditor
    )
    for name in ("comparison.json", "comparison.pdf", "comparison.html"):
        shutil.copy(compared.folder.with_name("one") / name, compared.folder / name)
    found = verify_comparison(compared.folder, compared.keys / "auditor.pub").problems
    reasons = [problem.reason for problem in found if problem.file == "comparison.attestation.json"]
    assert reasons == ["names other runs, verdicts or digests than comparison.json"]


def test_what_is_written_unsigned_leaves_no_signature_of_something_else(
    compared: Compared,
) -> None:
    comparison_report.write(compare([compared.run]), compared.folder)
    assert not (compared.folder / "comparison.attestation.json").exists()
    page = (compared.folder / "comparison.html").read_text("utf-8")
    assert "signed by nobody" in page
    signed = comparison_report.write(compare([compared.run]), compared.folder, compared.auditor)
    assert compared.auditor.fingerprint in signed["html"].read_text("utf-8")
