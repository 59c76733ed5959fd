"""What files say beside what was signed: each thing that does not hold is named by itself."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from reports.errors import PdfSignatureError, SourceError
from reports.files import Snapshot
from reports.signatures import signing
from reports.signatures.dsse import PUBLIC_TYPE, RUN_TYPE, SALTED, SHA256, Statement
from reports.signatures.inventory import EvidenceDigests, evidence_digests
from reports.signatures.keyring import SigningKey
from reports.signatures.keys import public_pem
from reports.signatures.verification import contents
from reports.signatures.verification.contents import About
from reports.signatures.verification.results import Found
from tests.reports.signing_keys import fresh

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
        "is about another model than model.safetensors in the same folder"
    ]
    assert said_of(report(hashes=[])) == [
        "is about another model than model.safetensors in the same folder"
    ]
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
    other = ["is about another model than model.safetensors in the same folder"]
    assert said(b".. run a-run .. model sha256:x ..") == other
    assert said(b".. run a-run .. model sha256:None", replace(ABOUT, hashes={})) == other


@pytest.mark.parametrize("verdict", [*contents._MEANING, "MAYBE"])
def test_each_verdict_is_told_with_what_it_means(verdict: str) -> None:
    found = Found()
    contents.say_verdict(verdict, None, found)
    meaning = contents._MEANING.get(verdict, "which is none")
    assert found.statements == [f"The audit's verdict is {verdict}; {meaning}."]
    assert (verdict == "PASS") == ("not a proof" in meaning)
    assert (verdict in ("FAIL", "NOT VERIFIED", "NOT AUDITED")) == ("valid signatures" in meaning)


@pytest.mark.parametrize(
    ("views", "begins"),
    [
        ({"third_party": 20.0, "server_worst_case": 20.0}, "The audit's verdict is PASS"),
        ({"third_party": 2.58e9, "server_worst_case": 2.58e9}, "No meaningful protection. An ε"),
        (
            {"third_party": 5.0, "server_worst_case": 20.1},
            "No meaningful protection against the server. An ε above 20",
        ),
        ({"third_party": 5.0, "server": None}, "The audit's verdict is PASS"),
    ],
)
def test_that_an_epsilon_protects_nobody_is_said_before_the_verdict(
    views: dict[str, float | None], begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = {"views": [{"key": key, "epsilon": epsilon} for key, epsilon in views.items()]}
    said = {"run": "a-run", "claims": claims, "verdict": "PASS"}
    (told,) = claimed(monkeypatch, claims=claims, judged=said)[1]
    assert told.startswith(begins)
    assert "The audit's verdict is PASS" in told


# Evidence, claims and reports of a whole run.


def test_the_public_envelope_names_no_evidence_and_the_form_before_numbers_no_findings(
    evidenced: tuple[Path, EvidenceDigests],
) -> None:
    run, digests = evidenced
    earlier = "https://dpfedadamw.org/attestation/run/v1"

    def said(statements: dict[str, Statement]) -> tuple[list[str], list[str]]:
        found = Found()
        contents.check_evidence(run, statements, found)
        return [str(problem) for problem in found.problems], found.statements

    public = {signing.PUBLIC_ENVELOPE: Statement({}, PUBLIC_TYPE, {})}
    assert said(public) == ([], [])
    trained = {"evidence": (SALTED, digests.trained)}
    judged = {"evidence": (SALTED, digests.judged)}
    assert said({signing.RUN_ENVELOPE: Statement(trained, earlier, {})}) == ([], [])
    assert len(said({signing.RUN_ENVELOPE: Statement(judged, earlier, {})})[0]) == 1
    # A digest without a salt would let anybody try what it is of.
    plain = {"evidence": (SHA256, digests.judged)}
    assert len(said({signing.RUN_ENVELOPE: Statement(plain, RUN_TYPE, {})})[0]) == 1
    (run / "evidence" / "salt").unlink()
    assert said(public) == (["evidence/salt: missing"], [])
    os.rename(run / "evidence", run.parent / "away")
    here = {"evidence": (SALTED, "0" * 64)}
    assert said({signing.PUBLIC_ENVELOPE: Statement(here, PUBLIC_TYPE, {})}) == ([], [])
    (run / "erasure.json").write_text('{"erased": "2026-11-22T12:00:00Z"}')
    assert said({signing.RUN_ENVELOPE: Statement(judged, RUN_TYPE, {})}) == (
        [], ["The evidence was erased on 2026-11-22T12:00:00Z, as erasure.json says."],
    )  # fmt: skip
    (run / "erasure.json").write_text("{")
    ((problem,), statements) = said({signing.RUN_ENVELOPE: Statement(judged, RUN_TYPE, {})})
    assert (problem.partition(" (")[0], statements) == ("erasure.json: not valid JSON", [])
    (run / "erasure.json").unlink()
    (run / "erasure.json").symlink_to(run / "spec.yaml")
    link = "erasure.json: is a link; a regular file is needed"
    assert said({signing.RUN_ENVELOPE: Statement(judged, RUN_TYPE, {})}) == ([link], [])


def claimed(
    monkeypatch: pytest.MonkeyPatch,
    verdict: str = "PASS",
    claims: Mapping[str, Any] = MappingProxyType({"views": (1, 2)}),
    **predicates: dict[str, Any],
) -> tuple[list[str], list[str]]:
    """What is found of attestations of a run that claims one thing and was found to pass."""
    names = {
        "trained": signing.TRAINING_ENVELOPE,
        "judged": signing.RUN_ENVELOPE,
        "public": signing.PUBLIC_ENVELOPE,
    }
    monkeypatch.setattr(contents.guarantee, "attested_claims", lambda _: dict(claims))
    value = SimpleNamespace(value=verdict)
    monkeypatch.setattr(contents.findings, "verdict", lambda *_: value)
    statements = {names[who]: Statement({}, RUN_TYPE, said) for who, said in predicates.items()}
    source: Any = SimpleNamespace(run="a-run", notes=("metrics.jsonl: ends: with X.",))
    found = Found()
    contents.check_claims(source, statements, found)
    return [str(problem) for problem in found.problems], found.statements


def test_each_attestation_says_what_the_ledger_and_the_audit_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {"run": "a-run", "claims": {"views": [1, 2]}, "verdict": "PASS"}
    note = "metrics.jsonl: ends: with X"
    passes = "The audit's verdict is PASS; no check contradicts the claim, which is not a proof."
    three = {"trained": {**said, "verdict": None}, "judged": said, "public": said}
    assert claimed(monkeypatch, **three) == ([note], [passes])
    assert claimed(monkeypatch, trained=said) == ([note], [])
    assert claimed(monkeypatch, public=said) == ([note], [passes])
    for who, name in (
        ("trained", "training.attestation.json"),
        ("judged", "attestation.json"),
        ("public", "attestation-public.json"),
    ):
        other = {**said, "run": "another"}
        assert claimed(monkeypatch, **{who: other})[0][1:] == [
            f"{name}: speaks of another run than the ledger, a-run"
        ]
        other = {**said, "claims": {"views": [1]}}
        assert claimed(monkeypatch, **{who: other})[0][1:] == [
            f"{name}: claims something else than the ledger"
        ]
        other = {**said, "verdict": "FAIL"}
        expected = [f"{name}: states another verdict than audit.json"] if who != "trained" else []
        assert claimed(monkeypatch, **{who: other})[0][1:] == expected
    assert claimed(monkeypatch, "FAIL", judged=said)[1] == [
        "The audit's verdict is FAIL; the guarantee is contradicted, and valid signatures do not "
        "mend that."
    ]


@pytest.mark.parametrize(
    ("signed", "holds"),
    [("Against a reader, ε = 2", True), ("Towards a reader, ε = 2", True), ("To a reader", False)],
)
def test_a_claim_may_be_in_the_words_that_earlier_runs_were_signed_with(
    monkeypatch: pytest.MonkeyPatch, signed: str, holds: bool
) -> None:
    said = {"run": "a-run", "claims": {"statement": signed}, "verdict": "PASS"}
    found = claimed(monkeypatch, claims={"statement": "Against a reader, ε = 2"}, judged=said)[0]
    assert (len(found) == 1) is holds


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with both reports in all their forms, that all say the same."""
    data = json.dumps(report()).encode()
    for stem in contents.REPORTS:
        (tmp_path / f"{stem}.json").write_bytes(data)
        for suffix in (".pdf", ".html"):
            (tmp_path / f"{stem}{suffix}").write_bytes(b"run a-run model sha256:m")
    monkeypatch.setattr(contents.pades, "attached", lambda *_: data)
    return tmp_path


def reports_found(folder: Path, stems: tuple[str, ...] = contents.REPORTS) -> list[str]:
    found = Found()
    contents.check_reports(Snapshot(folder), ABOUT, found, stems)
    return [str(problem) for problem in found.problems]


def test_of_the_first_report_data_and_pages_must_be_there_and_of_others_none(
    reported: Path,
) -> None:
    assert contents.REPORTS == ("report", "report-public")
    assert reports_found(reported) == []
    for suffix, missing in ((".json", True), (".pdf", True), (".html", False)):
        for stem in contents.REPORTS:
            path = reported / f"{stem}{suffix}"
            kept = path.read_bytes()
            path.unlink()
            said = [f"{path.name}: missing"] if missing and stem == "report" else []
            assert reports_found(reported) == said
            path.symlink_to("elsewhere")
            (problem,) = reports_found(reported)
            assert problem.startswith(f"{path.name}: ")
            assert str(reported) not in problem
            path.unlink()
            path.write_bytes(kept)
    (reported / "report.json").unlink()
    assert reports_found(reported, ("report-public", "report")) == []


def test_each_form_of_a_report_is_about_the_run(reported: Path) -> None:
    for stem in contents.REPORTS:
        for suffix in (".pdf", ".html"):
            path = reported / f"{stem}{suffix}"
            kept = path.read_bytes()
            path.write_bytes(b"run another model sha256:m")
            assert reports_found(reported) == [f"{path.name}: is about another run than a-run"]
            path.write_bytes(kept)
    (reported / "report.json").write_bytes(b"{")
    problems = reports_found(reported)
    assert {problem.split(":")[0] for problem in problems} == {"report.json", "report.pdf"}
    assert "report.pdf: carries other data than report.json in the same folder" in problems


def test_pages_without_data_inside_are_named(
    reported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attached(_: bytes, where: str) -> bytes:
        raise PdfSignatureError(f"{where}: carries no report.json")

    monkeypatch.setattr(contents.pades, "attached", attached)
    assert reports_found(reported) == [
        "report.pdf: carries no report.json", "report-public.pdf: carries no report.json",
    ]  # fmt: skip


ONE, TWO = fresh("auditor"), fresh("trainer")


@pytest.mark.parametrize(
    ("auditor", "trainer", "states", "rotated", "said"),
    [
        (ONE, TWO, {"auditor": "another key", "keys": [ONE.fingerprint]}, False, None),
        (
            ONE,
            TWO,
            {"auditor": "another key", "keys": [ONE.fingerprint, TWO.fingerprint]},
            False,
            None,
        ),
        (ONE, TWO, {"auditor": "another key", "keys": [TWO.fingerprint]}, False, "another"),
        (ONE, TWO, {"auditor": "another key", "keys": []}, False, "another"),
        (ONE, TWO, {"auditor": "another key"}, False, "another"),
        (ONE, TWO, {"auditor": "another key", "keys": [TWO.fingerprint]}, True, None),
        (ONE, TWO, {"auditor": "the same key", "keys": [TWO.fingerprint]}, False, None),
        (ONE, TWO, {}, False, None),
        (ONE, ONE, {"auditor": "another key", "keys": [ONE.fingerprint]}, False, "one key"),
        (ONE, ONE, {"auditor": "another key", "keys": [ONE.fingerprint]}, True, "one key"),
        (ONE, ONE, {"auditor": "another key", "keys": [TWO.fingerprint]}, True, "another"),
        (None, TWO, {"auditor": "another key", "keys": []}, False, None),
        (ONE, None, {"auditor": "another key", "keys": []}, False, None),
    ],
)
def test_an_audit_is_called_independent_by_the_key_that_signed(
    tmp_path: Path,
    auditor: SigningKey | None,
    trainer: SigningKey | None,
    states: dict[str, Any],
    rotated: bool,
    said: str | None,
) -> None:
    for role, key in (("auditor", auditor), ("trainer", trainer)):
        if key is not None:
            (tmp_path / f"{role}.pub").write_bytes(public_pem(key.public))
    if rotated:
        (tmp_path / "auditor.rotations.json").write_bytes(b"")
    found = Found()
    data = json.dumps({"trust": states}).encode()
    contents._check_independence(Snapshot(tmp_path), "report.json", data, found)
    expected = {
        None: [],
        "another": ["calls its audit independent, but names another auditor’s key than signed"],
        "one key": ["calls its audit independent, but one key signed as trainer and auditor"],
    }[said]
    assert [problem.reason for problem in found.problems] == expected


def test_whose_keys_cannot_be_read_is_not_said_twice(tmp_path: Path) -> None:
    data = json.dumps({"trust": {"auditor": "another key", "keys": []}}).encode()
    for role in ("auditor", "trainer"):
        (tmp_path / f"{role}.pub").write_bytes(b"junk")
    for content in (data, b"{"):
        found = Found()
        contents._check_independence(Snapshot(tmp_path), "report.json", content, found)
        assert found.problems == []


def test_what_reports_must_be_about_is_the_run_its_public_verdict_and_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def verdict(source: Any, audience: str) -> Any:
        asked.append((source, audience))
        return SimpleNamespace(value="NOT VERIFIED")

    monkeypatch.setattr(contents.findings, "verdict", verdict)
    source: Any = SimpleNamespace(run="a-run", hashes={"spec.yaml": "s"})
    assert contents.about(source) == About("a-run", "NOT VERIFIED", {"spec.yaml": "s"}, True)
    assert asked == [(source, "public")]


def test_what_is_open_or_left_over_is_named_and_a_long_name_is_cut(run: Path) -> None:
    (run / ".unfinished").mkdir()
    (run / "checkpoint").mkdir()
    # A lock alone is what every command leaves that was killed, or holds while it is at work.
    (run / ".unfinished" / "lock").touch()
    assert [one.split(":")[0] for one in checked(run, subjects())] == ["checkpoint"]
    (run / ".unfinished" / "lock").rename(run / ".unfinished" / "report.json")
    found = checked(run, subjects())
    assert [one.split(":")[0] for one in found] == [".unfinished", "checkpoint"]
    (run / ".unfinished" / "report.json").unlink()
    for name in (".unfinished", "checkpoint"):
        (run / name).rmdir()
    public = Statement(subjects(), PUBLIC_TYPE, {})
    gathered = Found()
    both = {"last.json": Statement(subjects(), RUN_TYPE, {}), signing.PUBLIC_ENVELOPE: public}
    contents.check_files(Snapshot(run), both, "last.json", gathered)
    said = [str(problem) for problem in gathered.problems]
    for name in signing.PUBLIC_FILES:
        assert f"{name}: is not covered by attestation-public.json" in said
    assert "attestation-public.json: names spec.yaml, which is not public" in said
    # Where the last envelope does not hold, nothing is known of what it covers.
    (run / "more").write_bytes(b"")
    gathered = Found()
    contents.check_files(Snapshot(run), {}, "last.json", gathered)
    assert gathered.problems == []


def test_what_is_wrong_of_one_file_does_not_end_the_check_of_those_behind_it(run: Path) -> None:
    wrong = {
        "other": (SALTED, "0" * 64),
        "gone": (SHA256, "0" * 64),
        "spec.yaml": (SHA256, "0" * 64),
    }
    for name in ("m", "a", "z", "c", "k"):
        (run / name).write_bytes(b"")
    assert checked(run, wrong) == [
        "other: last.json gives only a salted digest",
        "gone: missing, though last.json covers it",
        "spec.yaml: changed since last.json was signed",
        *(
            f"{name}: is not covered by last.json"
            for name in ("a", "c", "k", "m", "model/part", "z")
        ),
    ]


def test_each_form_of_a_report_meets_the_checks_that_it_needs(
    reported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[str, str, bytes]] = []
    for check in ("_check_attachment", "_check_independence"):

        def notes(_: Any, name: str, data: bytes, __: Any, check: str = check) -> None:
            called.append((check, name, data))

        monkeypatch.setattr(contents, check, notes)
    (reported / "report.html").write_bytes(b"run a-run model sha256:m as a page")
    assert reports_found(reported, ("report",)) == []
    assert called == [
        ("_check_independence", "report.json", (reported / "report.json").read_bytes()),
        ("_check_attachment", "report", (reported / "report.pdf").read_bytes()),
    ]
    (reported / "report.json").unlink()
    (reported / "report.pdf").write_bytes(b"run another")
    assert reports_found(reported, ("report",)) == [
        "report.json: missing", "report.pdf: is about another run than a-run",
    ]  # fmt: skip
