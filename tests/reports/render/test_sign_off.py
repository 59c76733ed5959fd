"""The annex on which a person signs off a report: what it names, asks, and where it may lie."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from reports import Auditing, ReportError, build_report
from reports.content.build import build
from reports.render import sign_off
from reports.sections.meaning import Meaning
from reports.signatures import pades
from tests.reports.signing_keys import fresh

pikepdf = pytest.importorskip("pikepdf", reason="pikepdf is not installed")

MakeRun = Any  # the builder that conftest gives


@pytest.fixture
def run(make_run: MakeRun) -> Path:
    stated = {"purpose": "Reading postal codes.", "governance": {"controller": "Example Ltd."}}
    made = Path(make_run(spec_extra={"report": stated}))
    build_report(made)
    return made


def test_it_names_the_report_by_its_digests_and_says_what_is_open(
    run: Path, tmp_path: Path
) -> None:
    target = tmp_path / "annex.pdf"
    sign_off.write(run, target)
    with pikepdf.open(target) as pages:
        found = json.loads(pages.attachments["sign-off.json"].get_file().read_bytes())
        with pages.open_metadata() as metadata:
            assert metadata["pdfaid:part"] == "3"
            assert metadata["pdfuaid:part"] == "1"
    assert found["files"] == {
        name: hashlib.sha256((run / name).read_bytes()).hexdigest()
        for name in ("report.pdf", "report.json", "model.safetensors")
    }
    assert found["stated"] == {
        "Controller": "Example Ltd.",
        "Purpose of the processing": "Reading postal codes.",
    }
    assert "Retention" in found["open"]
    assert "Controller" not in found["open"]
    assert found["promise"] == build(run)[Meaning].promise
    assert target.stat().st_mode & 0o777 == 0o600


def test_it_can_be_signed_where_the_report_cannot(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "annex.pdf"
    sign_off.write(run, target)
    signed = pades.sign(target.read_bytes(), fresh("auditor"), target.name)
    assert pades.check(signed, target.name).key is not None


def test_it_lies_outside_the_run_and_replaces_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="lies in the run"):
        sign_off.write(run, run / "annex.pdf")
    target = tmp_path / "annex.pdf"
    target.write_text("mine")
    with pytest.raises(ReportError, match="exists and is never overwritten"):
        sign_off.write(run, target)
    assert target.read_text() == "mine"


def test_the_public_annex_is_about_the_public_report(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"report-public\.pdf"):
        sign_off.write(run, tmp_path / "early.pdf", "public")
    assert not (tmp_path / "early.pdf").exists()
    build_report(run, "public")
    sign_off.write(run, tmp_path / "annex.pdf", "public")
    assert (tmp_path / "annex.pdf").stat().st_mode & 0o777 == 0o644


def test_it_says_of_the_audit_what_the_report_says(run: Path, tmp_path: Path) -> None:
    for name, stated, words in (
        ("own", None, "The trainer’s own audit"),
        (
            "other",
            Auditing("SHA256:theirs", "SHA256:ours", one_hand=False),
            "The independent audit",
        ),
    ):
        build_report(run, auditing=stated)
        sign_off.write(run, tmp_path / f"{name}.pdf")
        with pikepdf.open(tmp_path / f"{name}.pdf") as pages:
            found = json.loads(pages.attachments["sign-off.json"].get_file().read_bytes())
        assert found["audit"].startswith(words)
