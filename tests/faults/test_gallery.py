"""Every fault of the gallery, run end to end: the audit says FAIL, by the check that should."""

from __future__ import annotations

import pytest

from audit import auditor
from audit.checks import checks_for, checks_of
from audit.reading.units import CLIENT, RECORD
from tests.faults.fault import LARGE, Fault, failed, findings_of
from tests.faults.gallery import GALLERY, GROUPS
from tests.runs import failing


def _one_of_each_check() -> set[str]:
    """Names of faults that together are caught by every check, of as many groups as can be."""
    group_of = {fault.name: group.title for group in GROUPS for fault in group.faults}
    chosen: list[Fault] = []
    for check in sorted({check for fault in GALLERY for check in fault.caught_by}):
        if not any(check in fault.caught_by for fault in chosen):
            seen = {group_of[fault.name] for fault in chosen}
            fitting = [fault for fault in GALLERY if check in fault.caught_by]
            chosen.append(min(fitting, key=lambda fault: group_of[fault.name] in seen))
    return {fault.name for fault in chosen}


QUICK = _one_of_each_check()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault.name in QUICK else [pytest.mark.thorough])
        for fault in GALLERY
    ],
    ids=lambda fault: fault.name,
)
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
