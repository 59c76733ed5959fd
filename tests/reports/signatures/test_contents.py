"""What files say beside what was signed: each thing that does not hold is named by itself."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reports.errors import SourceError
from reports.reading.snapshot import Snapshot
from reports.signatures import signing
from reports.signatures.dsse import PUBLIC_TYPE, RUN_TYPE, SALTED, SHA256, Statement
from reports.signatures.inventory import EvidenceDigests, evidence_digests
from reports.signatures.verification import contents
from reports.signatures.verification.contents import About
from reports.signatures.verification.results import Found

FILES = {"spec.yaml": b"spec", "model/part": b"part", "last.json": b"envelope"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with three files, the last of which is the envelope that covers the others."""
    folder = tmp_path / "run"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def subjects(*more: tuple[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    digests = {
        name: (SHA256, hashlib.sha256(data).hexdigest())
        for name, data in FILES.items()
        if name != "last.json"
    }
    return {**digests, **dict(more)}


def checked(run: Path, of: dict[str, tuple[str, str]], name: str = "last.json") -> list[str]:
    found = Found()
    statement = Statement(of, RUN_TYPE, {})
    contents.check_files(Snapshot(run), {name: statement}, name, found)
    return [str(problem) for problem in found.problems]


def test_files_that_are_as_they_were_signed_hold(run: Path) -> None:
    assert checked(run, subjects()) == []


def test_a_missing_a_changed_and_an_uncovered_file_are_told_apart(run: Path) -> None:
    gone = checked(run, subjects(("gone", (SHA256, "0" * 64))))
    assert gone == ["gone: missing, though last.json covers it"]
    other = checked(run, subjects(("spec.yaml", (SHA256, "0" * 64))))
    assert other == ["spec.yaml: changed since last.json was signed"]
    (run / "more").write_bytes(b"")
    assert checked(run, subjects()) == ["more: is not covered by last.json"]
    # An envelope covers neither itself nor its timestamp.
    (run / "more").rename(run / f"last.json{signing.STAMP_SUFFIX}")
    assert checked(run, subjects()) == []


def test_a_salted_digest_is_for_the_evidence_alone(run: Path) -> None:
    assert checked(run, subjects(("evidence", (SALTED, "0" * 64)))) == []
    salted = subjects(("spec.yaml", (SALTED, "0" * 64)))
    assert checked(run, salted) == ["spec.yaml: last.json gives only a salted digest"]


def test_a_subject_points_to_nothing_outside_the_folder(run: Path) -> None:
    outside = run.parent / "outside"
    outside.write_bytes(b"outside")
    digest = hashlib.sha256(b"outside").hexdigest()
    for name in ("../outside", str(outside)):
        assert checked(run, subjects((name, (SHA256, digest)))) == [
            f"{name}: missing, though last.json covers it"
        ]


def test_a_link_in_the_folder_is_named(run: Path) -> None:
    (run / "link").symlink_to(run / "spec.yaml")
    assert checked(run, subjects()) == ["link: is a link; a run holds regular files only"]


def test_a_file_that_cannot_be_read_any_more_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Snapshot, name: str) -> str:
        raise SourceError(f"{name}: cannot be read")

    monkeypatch.setattr(Snapshot, "sha256", refuses)
    assert checked(run, subjects()) == ["spec.yaml: cannot be read", "model/part: cannot be read"]


def test_a_folder_that_cannot_be_listed_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(folder: Path) -> Any:
        raise SourceError("run: cannot be listed (Permission denied)")

    monkeypatch.setattr(contents, "list_run", refuses)
    assert checked(run, subjects()) == ["run: cannot be listed (Permission denied)"]


def test_what_each_role_must_cover_is_asked_of_its_envelope(run: Path) -> None:
    said = checked(run, subjects(), signing.TRAINING_ENVELOPE)
    for name in signing.TRAINED_FILES:
        covered = name in subjects()
        assert (f"{name}: is not covered by {signing.TRAINING_ENVELOPE}" in said) is not covered


def test_what_is_public_names_nothing_that_is_withheld() -> None:
    def said(*names: str) -> list[str]:
        found = Found()
        statement = Statement(dict.fromkeys(names, (SHA256, "0" * 64)), PUBLIC_TYPE, {})
        contents._check_withheld(statement, found)
        return [str(problem) for problem in found.problems]

    assert said(*signing.PUBLIC_FILES, *signing.PUBLIC_EXTRAS) == []
    assert said("ledger.jsonl") == [
        f"{signing.PUBLIC_ENVELOPE}: names ledger.jsonl, which is not public"
    ]
    nothing = Found()
    contents._check_withheld(None, nothing)
    assert nothing.problems == []


# The evidence.


@pytest.fixture
def evidenced(run: Path) -> tuple[Path, EvidenceDigests]:
    """The folder with private evidence, and its salted digests."""
    (run / "evidence").mkdir()
    (run / "evidence" / "salt").write_bytes(bytes(32))
    (run / "evidence" / "round.npz").write_bytes(b"numbers")
    (run / "evidence" / "findings.json").write_bytes(b"{}")
    return run, evidence_digests(run)


def evidence(run: Path, **of: str | None) -> tuple[list[str], list[str]]:
    """Problems and statements where envelopes name these digests of the evidence."""
    found = Found()
    statements = {
        {"trained": signing.TRAINING_ENVELOPE, "judged": signing.RUN_ENVELOPE}[role]: Statement(
            {} if digest is None else {"evidence": (SALTED, digest)}, RUN_TYPE, {}
        )
        for role, digest in of.items()
    }
    contents.check_evidence(run, statements, found)
    return [str(problem) for problem in found.problems], found.statements


def test_the_auditors_digest_covers_the_findings_and_the_trainers_does_not(
    evidenced: tuple[Path, EvidenceDigests],
) -> None:
    run, digests = evidenced
    assert digests.trained != digests.judged
    right = {"trained": digests.trained, "judged": digests.judged}
    assert evidence(run, **right) == ([], [])
    changed = "evidence: changed since {} was signed, or its salt did"
    assert evidence(run, trained=digests.judged, judged=digests.trained)[0] == [
        changed.format(signing.TRAINING_ENVELOPE),
        changed.format(signing.RUN_ENVELOPE),
    ]
    (run / "evidence" / "findings.json").write_bytes(b"{} ")
    assert evidence(run, **right)[0] == [changed.format(signing.RUN_ENVELOPE)]


def test_evidence_that_no_envelope_names_and_evidence_that_is_away(
    evidenced: tuple[Path, EvidenceDigests],
) -> None:
    run, digests = evidenced
    assert evidence(run, trained=None, judged=digests.judged)[0] == [
        f"evidence: is not covered by {signing.TRAINING_ENVELOPE}"
    ]
    os.rename(run / "evidence", run.parent / "away")
    away = ["The evidence is not here, so its signed digest could not be checked."]
    assert evidence(run, judged=digests.judged) == ([], away)
    assert evidence(run, trained=None) == ([], [])
    (run / "evidence").symlink_to(run.parent / "away")
    problems, _ = evidence(run, judged=digests.judged)
    assert problems == ["evidence: a folder is needed, not a link"]


# Reports beside the model.

ABOUT = About("a-run", "PASS", {"model.safetensors": "m", "spec.yaml": "s"})


def report(**changes: Any) -> dict[str, Any]:
    identity = {
        "run": "a-run",
        "hashes": [
            {"file": "model.safetensors", "sha256": "m"},
            {"file": "spec.yaml", "sha256": "s"},
        ],
    }
    return {"identity": {**identity, **changes}, "verdict": {"value": "PASS"}}


def said_of(data: dict[str, Any], about: About = ABOUT) -> list[str]:
    found = Found()
    contents._report_data(json.dumps(data).encode(), "report.json", about, found)
    return [problem.reason for problem in found.problems]


def test_a_report_is_about_the_run_its_model_its_files_and_the_audits_verdict() -> None:
    assert said_of(report()) == []
    assert said_of(report(run="another")) == ["is about another run than a-run"]
    assert said_of({**report(), "verdict": {"value": "FAIL"}}) == [
        "states another verdict than the audit's, PASS"
    ]
    model = [{"file": "model.safetensors", "sha256": "x"}, {"file": "spec.yaml", "sha256": "s"}]
    assert said_of(report(hashes=model)) == [
        "is about another model than model.safetensors beside it"
    ]
    assert said_of(report(hashes=[])) == ["is about another model than model.safetensors beside it"]
    spec = [{"file": "model.safetensors", "sha256": "m"}, {"file": "spec.yaml", "sha256": "x"}]
    assert said_of(report(hashes=spec)) == ["was made with another spec.yaml"]


def test_of_a_digest_that_is_not_at_hand_nothing_is_known_where_not_all_are() -> None:
    further = [*report()["identity"]["hashes"], {"file": "ledger.jsonl", "sha256": "l"}]
    assert said_of(report(hashes=further)) == ["was made with another ledger.jsonl"]
    assert said_of(report(hashes=further), replace(ABOUT, complete=False)) == []


def test_pages_carry_run_and_model() -> None:
    def said(data: bytes, about: About = ABOUT) -> list[str]:
        found = Found()
        contents._report_pages(data, "report.pdf", about, found)
        return [problem.reason for problem in found.problems]

    assert said(b".. run a-run .. model sha256:m ..") == []
    assert said(b".. model sha256:m ..") == ["is about another run than a-run"]
    other = ["is about another model than model.safetensors beside it"]
    assert said(b".. run a-run .. model sha256:x ..") == other
    assert said(b".. run a-run .. model sha256:None", replace(ABOUT, hashes={})) == other


@pytest.mark.parametrize("verdict", [*contents._MEANING, "MAYBE"])
def test_each_verdict_is_told_with_what_it_means(verdict: str) -> None:
    found = Found()
    contents.say_verdict(verdict, found)
    meaning = contents._MEANING.get(verdict, "which is none")
    assert found.statements == [f"The audit's verdict is {verdict}; {meaning}."]
    assert (verdict == "PASS") == ("not a proof" in meaning)
    assert (verdict in ("FAIL", "NOT VERIFIED", "NOT AUDITED")) == ("valid signatures" in meaning)
