"""Every fault of the gallery, run end to end: the audit says FAIL, by the check that should."""

from __future__ import annotations

import pytest

from audit import auditor
from audit.checks import checks_for, checks_of
from audit.reading.units import CLIENT, RECORD
from tests.faults.fault import LARGE, failed, findings_of
from tests.faults.gallery import GALLERY, GROUPS
from tests.runs import failing

# Of each group those that the same checks catch stand together, so that a sample has some of each.
BY_LAW = [
    fault for group in GROUPS for fault in sorted(group.faults, key=lambda one: one.caught_by)
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("fault", BY_LAW, ids=lambda fault: fault.name)
def test_a_fault_is_caught_by_the_check_that_should(fault, tmp_path, monkeypatch):
    # Of the others nothing is asked here; the larger model below and the published table have all.
    def meant(header):
        return tuple(check for check in checks_for(header) if check.name in fault.caught_by)

    monkeypatch.setattr(auditor, "checks_for", meant)
    findings = findings_of(fault, tmp_path)
    assert findings["verdict"] == "FAIL"
    assert set(fault.caught_by) <= set(failed(findings)), failing(findings)
    said = {check["name"]: check["measurement"] for check in findings["checks"]}
    assert fault.says in said[fault.caught_by[0]]


@pytest.mark.slow
@pytest.mark.parametrize("fault", GALLERY, ids=lambda fault: fault.name)
def test_a_fault_of_a_larger_model_is_caught_by_the_check_that_should(fault, tmp_path):
    findings = findings_of(fault, tmp_path, LARGE)
    assert findings["verdict"] == "FAIL"
    assert set(fault.caught_by) <= set(failed(findings)), failing(findings)


def test_names_are_unique_and_descriptions_are_sentences():
    names = [fault.name for fault in GALLERY]
    assert len(set(names)) == len(names) >= 30
    for fault in GALLERY:
        assert fault.breaks
        assert fault.seen
        assert not fault.breaks.endswith(".")


def test_every_check_catches_a_fault():
    known = {check.name for check in (*checks_of(RECORD), *checks_of(CLIENT))}
    # Canaries are planted in audit runs alone, which have faults of their own, and what a
    # re-execution alone sees are forgeries (`test_forgeries`).
    elsewhere = {"canaries", "reexecution"}
    assert {check for fault in GALLERY for check in fault.caught_by} == known - elsewhere


def test_every_group_has_faults():
    assert all(group.faults for group in GROUPS)
