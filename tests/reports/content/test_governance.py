"""What people state of the processing stands in the report, and what they left out is listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from dpfedadamw.spec.section import keys_of
from dpfedadamw.spec.sections import GovernanceSpec, ReportSpec
from reports.content import wording
from reports.content.build import build
from reports.content.identity import Governance, governance
from reports.render.pages import document
from reports.source import load

MakeRun = Any  # the builder that conftest gives


def shown(run: Path) -> str:
    pages = document(build(run))
    found = next(section for section in pages.sections if section.identifier == "governance")
    return json.dumps(found.blocks, ensure_ascii=False)


def test_what_is_stated_is_shown_and_the_rest_is_listed_as_open(make_run: MakeRun) -> None:
    stated = {
        "purpose": "Reading postal codes.",
        "governance": {"controller": "Example Ltd.", "retention": None},
    }
    run = make_run(spec_extra={"report": stated})
    texts = {entry.field: entry.text for entry in build(run)[Governance].root}
    assert texts["purpose"] == "Reading postal codes."
    assert texts["governance.controller"] == "Example Ltd."
    assert texts["governance.retention"] is None
    page = shown(run)
    assert '["Controller", "Example Ltd."]' in page
    listed = page[page.index("Open: ") :]
    assert "retention" in listed
    assert "controller" not in listed


def test_nothing_is_open_where_all_is_stated(make_run: MakeRun) -> None:
    inner = dict.fromkeys(keys_of(GovernanceSpec), "Said.")
    outer = {
        name: "Said."
        for name in keys_of(ReportSpec)
        if name not in ("governance", "paper", "language")
    }
    run = make_run(spec_extra={"report": {**outer, "governance": inner}})
    assert "Open: " not in shown(run)


def test_every_key_of_the_spec_has_its_place_in_the_report() -> None:
    inner = {f"governance.{name}" for name in keys_of(GovernanceSpec)}
    outer = set(keys_of(ReportSpec)) - {"governance", "paper", "language"}
    assert {name for name, _ in wording.GOVERNANCE} == inner | outer


def test_a_run_from_before_there_was_governance_is_read(make_run: MakeRun) -> None:
    run = make_run()
    source = load(run)
    before = yaml.safe_dump(source.spec)
    assert all(entry.text is None for entry in governance(source, "internal").root)
    assert yaml.safe_dump(source.spec) == before
