"""A check is one file: it is found by being there, and reported in its place."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages

import pytest

import audit.checks
from audit.checks import checks_for, checks_of, register
from audit.checks.base import Check, Judgement
from audit.reading.units import CLIENT, EVERY_UNIT, LOOP, NONE, RECORD
from audit.verdict import Severity, Verdict

ORDER = {
    "record": (
        "integrity promise partition sensitivity noise-scale uploads weights reexecution "
        "accounting views participation publication disclosure second-moment randomness "
        "outside-budget canaries"
    ),
    "client": (
        "integrity promise partition sensitivity participation coordinates noise-scale uploads "
        "weights reexecution accounting views publication disclosure second-moment randomness "
        "outside-budget canaries"
    ),
    "loop": (
        "integrity promise sampling sensitivity noise-scale steps weights reexecution accounting "
        "disclosure randomness outside-budget"
    ),
}


@pytest.mark.parametrize("unit", [RECORD, CLIENT, LOOP], ids=lambda unit: unit.name)
def test_the_checks_of_a_unit_stand_in_the_order_of_the_report(unit):
    assert " ".join(check.name for check in checks_of(unit)) == ORDER[unit.name]


def test_a_run_without_a_claim_is_asked_what_a_run_on_records_is():
    assert checks_of(NONE) == checks_of(RECORD)
    assert checks_for(None) == tuple(c for c in checks_of(RECORD) if c.name != "canaries")


def test_what_a_run_without_a_claim_is_still_held_to():
    asked = {check.name for check in checks_of(NONE) if check.judges_no_claim}
    assert asked == {"integrity", "promise", "weights", "canaries"}


def test_a_finding_has_the_words_of_its_judgement_and_else_those_of_its_check():
    check = checks_of(RECORD)[0]
    plain = check.finding(Judgement(Verdict.PASS, "measured"))
    assert (plain.tolerance, plain.power, plain.severity, plain.measurement) == (
        check.tolerance, check.power, check.severity, "measured",
    )  # fmt: skip
    own = Judgement(
        Verdict.PASS, "measured", tolerance="none", power="all", severity=Severity.THEORETICAL
    )
    found = check.finding(own)
    assert (found.tolerance, found.power, found.severity) == ("none", "all", Severity.THEORETICAL)


def test_every_file_of_the_folder_registers_a_check():
    registered = {check for unit in EVERY_UNIT.values() for check in checks_of(unit)}
    for found in walk_packages(audit.checks.__path__, "audit.checks."):
        if found.ispkg or found.name == "audit.checks.base" or ".shared." in found.name:
            continue
        module = import_module(found.name)
        own = {value for value in vars(module).values() if isinstance(value, Check)}
        assert own & registered, found.name


def test_a_name_or_a_place_is_given_once():
    taken = checks_of(RECORD)[0]
    with pytest.raises(ValueError, match="share a name or a place"):
        register(replace(taken, place=7))
    with pytest.raises(ValueError, match="share a name or a place"):
        register(replace(taken, name="another"))
