"""A signed comparison: what its signature covers and names, and what a check of it notices."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import reports
from reports import build_report
from reports.extensions.comparison import compare
from reports.extensions.comparison import report as comparison_report
from reports.files import Snapshot
from reports.signatures import keyring, keys, signing
from reports.signatures.dsse import (
    COMPARISON_TYPE,
    Statement,
    check_signature,
    parse_envelope,
    parse_statement,
    seal,
    write_statement,
)
from reports.signatures.keyring import SigningKey
from reports.signatures.statements import Sealed, write_bundle
from reports.signatures.verification import Outcome, comparisons, verify_comparison
from reports.signatures.verification import comparisons as checks
from reports.signatures.verification.comparisons import NamedRun, is_comparison
from reports.signatures.verification.results import Found
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
        keyring.load_signing_key(role, create(role, place / "keys").private) for role in keys.ROLES
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
    more = ("more.txt", "a.txt", "z.txt", "b.txt")
    for name in more:
        (compared.folder / name).write_text("more")
    found = compared.problems()
    assert list(found) == ["comparison.html", *sorted(more)]
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
    assert "comparison is not signed" in page
    signed = comparison_report.write(compare([compared.run]), compared.folder, compared.auditor)
    assert compared.auditor.fingerprint in signed["html"].read_text("utf-8")


# What a signature over a comparison covers, without pages that anybody could read.

FORMS = {"json": b"{}", "pdf": b"pages", "html": b"page"}
RUNS = [
    NamedRun(
        "b-run", "PASS", "holds", {"model.safetensors": "2" * 64, "attestation.json": "1" * 64}
    ),
    NamedRun("a-run", "FAIL", "unsigned", {"model.safetensors": "3" * 64}),
]


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        comparisons.pades, "sign", lambda data, _key, name, _authority: data + name.encode()
    )


class Clock:
    """An authority that stamps whatever it is given."""

    def stamp(self, data: bytes) -> bytes:
        return b"stamp of " + hashlib.sha256(data).digest()


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize("audience", ["internal", "public"])
def test_every_form_the_key_and_what_leads_to_it_are_covered_by_name(audience: str) -> None:
    stem = "comparison" if audience == "internal" else "comparison-public"
    key = fresh("auditor")
    files = comparisons.sign(FORMS, RUNS, audience, key)
    envelope = f"{stem}.attestation.json"
    # What an earlier signature left is taken away.
    assert (files[f"{envelope}.tsr"], files["auditor.rotations.json"]) == (None, None)
    kept = {name: data for name, data in files.items() if data is not None}
    assert set(kept) == {
        f"{stem}.json", f"{stem}.pdf", f"{stem}.html", "auditor.pub", envelope,
    }  # fmt: skip
    assert kept[f"{stem}.pdf"] == b"pages" + f"{stem}.pdf".encode()
    sealed = parse_envelope(kept[envelope], "it")
    check_signature(sealed, key.public, "it")
    statement = parse_statement(sealed.payload, COMPARISON_TYPE, "it")
    assert list(statement.subjects) == sorted(set(kept) - {envelope})
    for name, (kind, digest) in statement.subjects.items():
        assert (kind, digest) == ("sha256", hashlib.sha256(kept[name]).hexdigest())
    assert statement.predicate["role"] == "auditor"
    assert statement.predicate["audience"] == audience
    assert [(one["run"], one["verdict"], one["signatures"], one["digests"]) for one in
            statement.predicate["runs"]] == [
        (one.run, one.verdict, one.signatures, dict(one.digests)) for one in RUNS
    ]  # fmt: skip


@pytest.mark.usefixtures("plainly")
def test_rotations_are_covered_and_the_envelope_is_stamped() -> None:
    key = dataclasses.replace(fresh("auditor"), rotations=(Sealed(b"a rotation"),))
    files = comparisons.sign(FORMS, RUNS, "internal", key, Clock())  # type: ignore[arg-type] # A stand-in.
    sealed = files["comparison.attestation.json"]
    assert sealed is not None
    assert files["comparison.attestation.json.tsr"] == Clock().stamp(sealed)
    statement = parse_statement(parse_envelope(sealed, "it").payload, COMPARISON_TYPE, "it")
    assert "auditor.rotations.json" in statement.subjects
    assert files["auditor.rotations.json"] == write_bundle("rotations", key.rotations)


@pytest.mark.parametrize(("audience", "mode"), [("internal", 0o600), ("public", 0o644)])
def test_files_are_written_for_their_readers_the_envelope_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audience: str, mode: int
) -> None:
    envelope = comparisons.ENVELOPES[audience]
    (tmp_path / "old").write_bytes(b"old")
    order, write = [], comparisons.write_atomic

    def noted(path: Path, data: bytes, mode: int) -> None:
        order.append(path.name)
        write(path, data, mode)

    monkeypatch.setattr(comparisons, "write_atomic", noted)
    files = {envelope: b"1", "z": b"2", f"{envelope}.tsr": b"3", "a": b"4", "old": None, "no": None}
    comparisons.write(tmp_path, files, audience)
    assert order == ["a", "z", envelope, f"{envelope}.tsr"]
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {name: data for name, data in files.items() if data is not None}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}


# Statements that no comparison makes, by the right key.


def rewritten(compared: Compared, change: Callable[[Statement], None]) -> list[str]:
    """What is said where the internal comparison's envelope is another, signed anew."""
    path = compared.folder / "comparison.attestation.json"
    statement = parse_statement(
        parse_envelope(path.read_bytes(), "it").payload, COMPARISON_TYPE, "it"
    )
    change(statement)
    path.write_bytes(seal(write_statement(statement), compared.auditor.private))
    found = verify_comparison(compared.folder, compared.keys / "auditor.pub").problems
    return [str(problem) for problem in found]


OTHERS = "comparison.attestation.json: names other runs, verdicts or digests than comparison.json"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: None, []),
        (
            lambda s: s.predicate.update(audience="public"),
            ["comparison.attestation.json: is not about the internal comparison"],
        ),
        (lambda s: s.predicate["runs"].pop(), [OTHERS]),
        (lambda s: s.predicate["runs"].append(s.predicate["runs"][0]), [OTHERS]),
        (lambda s: s.predicate["runs"].reverse(), [OTHERS]),
        (lambda s: s.predicate["runs"][0].update(run="another"), [OTHERS]),
        (lambda s: s.predicate["runs"][0].update(verdict="MAYBE"), [OTHERS]),
        (lambda s: s.predicate["runs"][1]["digests"].clear(), [OTHERS]),
        # The envelope may say more of a run than the tables do.
        (lambda s: s.predicate["runs"][1]["digests"].update({"attestation.json": "0" * 64}), []),
        (
            lambda s: s.predicate.update(role="trainer"),
            ["comparison.attestation.json: was not signed in the role of the auditor"],
        ),
        (
            lambda s: s.subjects.pop("comparison.html"),
            [
                "comparison.html: is not covered by comparison.attestation.json",
                "comparison.html: is not covered by the signature of a comparison",
            ],
        ),
        (
            lambda s: s.subjects.update({"../run/ledger.jsonl": ("sha256", "0" * 64)}),
            [
                "comparison.attestation.json: names ../run/ledger.jsonl, which is no file of a "
                "comparison"
            ],
        ),
        (
            lambda s: s.subjects.update({"comparison.json": ("hmacSha256", "0" * 64)}),
            [
                "comparison.attestation.json: names comparison.json, which is no file of a "
                "comparison"
            ],
        ),
        (
            lambda s: s.subjects.update({"comparison.json": ("sha256", "0" * 64)}),
            ["comparison.json: changed since comparison.attestation.json was signed"],
        ),
        (
            lambda s: s.subjects.update({"auditor.rotations.json": ("sha256", "0" * 64)}),
            ["auditor.rotations.json: missing"],
        ),
    ],
)
def test_a_statement_that_does_not_fit_its_comparison_is_named(
    compared: Compared, change: Callable[[Statement], None], said: list[str]
) -> None:
    found = rewritten(compared, change)
    assert len(found) == len(said), found
    for problem, start in zip(found, said, strict=True):
        assert problem.startswith(start)


@pytest.mark.parametrize("audience", ["internal", "public"])
def test_a_comparison_for_one_audience_is_one_by_itself(compared: Compared, audience: str) -> None:
    other = "comparison-public." if audience == "internal" else "comparison."
    for path in list(compared.folder.iterdir()):
        if path.name.startswith(other):
            path.unlink()
    assert is_comparison(Snapshot(compared.folder))
    assert verify_comparison(compared.folder, compared.keys / "auditor.pub").ok
    (compared.folder / "ledger.jsonl").write_bytes(b"")
    assert not is_comparison(Snapshot(compared.folder))


def test_data_and_pages_must_be_there_and_the_same(compared: Compared) -> None:
    (compared.folder / "comparison.json").unlink()
    assert "missing" in compared.problems()["comparison.json"]


# What is checked of each form, without pages.


def statement_of(audience: Any, *runs: dict[str, Any], **subjects: tuple[str, str]) -> Statement:
    return Statement(dict(subjects), COMPARISON_TYPE, {"audience": audience, "runs": list(runs)})


def shown(audience: Any, *rows: dict[str, Any]) -> bytes:
    """The data of a comparison, in which every other run stands in a group of its own."""
    groups = [{"entries": [{"runs": [row]} for row in rows[start::2]]} for start in range(2)]
    return json.dumps({"audience": audience, "groups": groups}).encode()


def data_found(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    statement: Statement,
    data: bytes,
    attached: bytes | None = None,
) -> tuple[list[str], list[str]]:
    for kind, content in (("json", data), ("pdf", b"pages")):
        (folder / f"comparison.{kind}").write_bytes(content)

    def carried(pages: bytes, where: str, name: str) -> bytes:
        assert (pages, where, name) == (b"pages", "comparison.pdf", "comparison.json")
        return data if attached is None else attached

    monkeypatch.setattr(checks.pades, "attached", carried)
    found = Found()
    envelope = "comparison.attestation.json"
    checks._check_data(Snapshot(folder), statement, envelope, "internal", found)
    return [str(problem) for problem in found.problems], found.statements


ONE = {"run": "a", "verdict": "PASS", "digests": {"model": "1", "ledger": "2"}}
TWO = {"run": "b", "verdict": "FAIL", "digests": {"model": "3"}}
ROW_ONE = {"run": "a", "audit": "PASS", "hashes": {"model": "1"}}
ROW_TWO = {"run": "b", "audit": "FAIL", "hashes": {"model": "3"}}


def test_envelope_data_and_pages_speak_of_the_same_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = statement_of("internal", ONE, TWO)
    data = shown("internal", ROW_ONE, ROW_TWO)
    told = [
        "comparison.attestation.json names 2 runs by their digests. What holds of each is for its "
        "own signatures to say: check each run with dpfedadamw verify, and compare its digests."
    ]
    assert data_found(tmp_path, monkeypatch, said, data) == ([], told)
    assert data_found(tmp_path, monkeypatch, said, data, b"other") == (
        ["comparison.pdf: carries other data than comparison.json in the same folder"], told,
    )  # fmt: skip
    about = ["comparison.attestation.json: is not about the internal comparison"]
    other = statement_of("public", ONE, TWO)
    assert data_found(tmp_path, monkeypatch, other, data)[0] == about
    other_data = shown("public", ROW_ONE, ROW_TWO)
    assert data_found(tmp_path, monkeypatch, said, other_data)[0] == about
    for rows in (
        (ROW_ONE,),
        (ROW_TWO, ROW_ONE),
        (ROW_ONE, {**ROW_TWO, "run": "c"}),
        (ROW_ONE, {**ROW_TWO, "audit": "PASS"}),
        ({**ROW_ONE, "hashes": {"model": "9"}}, ROW_TWO),
        ({**ROW_ONE, "hashes": {"model": "1", "more": "1"}}, ROW_TWO),
    ):
        assert data_found(tmp_path, monkeypatch, said, shown("internal", *rows))[0] == [OTHERS]


def test_data_or_pages_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = statement_of("internal", ONE, TWO)
    problems, told = data_found(tmp_path, monkeypatch, said, b"{")
    assert ([one.split(":")[0] for one in problems], told) == (["comparison.json"], [])
    (tmp_path / "comparison.pdf").unlink()
    found = Found()
    (tmp_path / "comparison.json").write_bytes(shown("internal"))
    checks._check_data(Snapshot(tmp_path), said, "it", "internal", found)
    assert [str(one) for one in found.problems] == ["comparison.pdf: missing"]


def test_each_form_is_covered_and_nothing_else_named(tmp_path: Path) -> None:
    def found_of(**subjects: tuple[str, str]) -> list[str]:
        found = Found()
        statement = statement_of("internal", **subjects)
        checks._check_files(Snapshot(tmp_path), statement, "it", "comparison", found)
        return [str(problem) for problem in found.problems]

    names = ["auditor.pub", "comparison.html", "comparison.json", "comparison.pdf"]
    for name in (*names, "auditor.rotations.json"):
        (tmp_path / name).write_bytes(name.encode())
    right = {
        name: ("sha256", hashlib.sha256(name.encode()).hexdigest())
        for name in (*names, "auditor.rotations.json")
    }
    assert found_of() == [f"{name}: is not covered by it" for name in names]
    assert found_of(**right) == []
    # One that is wrong does not end the check of those behind it.
    wrong = {"more": ("sha256", "0" * 64), **right, "comparison.pdf": ("sha256", "0" * 64)}
    assert found_of(**wrong) == [
        "it: names more, which is no file of a comparison",
        "comparison.pdf: changed since it was signed",
    ]


def test_an_envelope_that_does_not_hold_does_not_end_the_check_of_the_other(
    compared: Compared,
) -> None:
    (compared.folder / "comparison.attestation.json").write_bytes(b"{}")
    path = compared.folder / "comparison-public.html"
    path.write_bytes(path.read_bytes() + b"\n")
    found = compared.problems()
    assert "payloadType must be" in found["comparison.attestation.json"]
    assert found["comparison-public.html"] == (
        "changed since comparison-public.attestation.json was signed"
    )


def test_the_libraries_that_made_a_comparison_are_named() -> None:
    tools = comparisons.predicate(RUNS, "internal")["tools"]
    assert tools == {name: metadata.version(name) for name in ("cryptography", "pyhanko", "typst")}
