"""A check is one file: it is found by being there, and reported in its place."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pkgutil import walk_packages
from types import SimpleNamespace

import pytest

import audit.checks
from audit.checks import (
    canaries,
    checks_for,
    checks_of,
    disclosure,
    initial_weights,
    integrity,
    noise,
    participation,
    partition,
    randomness,
    reexecution,
    register,
    second_moment,
    sensitivity,
    unaccounted_processing,
    weights,
)
from audit.checks.base import Check, Judgement, conclude, listed
from audit.checks.record import accounting, columns, spec_conformance, uploads, views
from audit.reading.units import CLIENT, EVERY_UNIT, LOOP, NONE, RECORD
from audit.verdict import Severity, Verdict

ORDER = {
    "record": (
        "integrity promise partition sensitivity noise-scale initial-weights columns uploads "
        "weights reexecution accounting views participation publication disclosure second-moment "
        "randomness outside-budget canaries"
    ),
    "client": (
        "integrity promise partition sensitivity participation coordinates noise-scale "
        "initial-weights uploads weights reexecution accounting views publication disclosure "
        "second-moment randomness outside-budget canaries"
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
    asked_for = ("canaries", "columns")
    assert checks_for(None) == tuple(c for c in checks_of(RECORD) if c.name not in asked_for)


# Where a unit is asked by a check of its own, which of its texts and answers are its own too.
WORDS = ("title", "meaning", "claim", "tolerance", "power", "limits")
OWN_WORDS = {
    "client": {
        "integrity": "claim judges_no_claim",
        "promise": "claim limits judges_no_claim",
        "sensitivity": "title meaning claim tolerance power limits",
        "noise-scale": "claim limits",
        "uploads": "title meaning claim tolerance power limits",
        "accounting": "meaning claim power limits",
        "views": "claim tolerance power limits",
        "participation": "title place meaning claim tolerance power limits",
        "second-moment": "meaning",
        "canaries": "",
    },
    "loop": {
        "integrity": "title claim power limits judges_no_claim",
        "promise": "title claim tolerance power limits judges_no_claim",
        "sensitivity": "claim tolerance power limits",
        "reexecution": "claim tolerance power limits concerns",
        "accounting": "title claim tolerance power limits",
        "randomness": "title place claim tolerance power limits",
        "outside-budget": "claim tolerance power limits",
    },
}


@pytest.mark.parametrize("unit", [CLIENT, LOOP], ids=lambda unit: unit.name)
def test_a_check_of_a_unit_of_its_own_has_words_and_a_rule_of_its_own(unit):
    of_records = {check.name: check for check in checks_of(RECORD)}
    found = {}
    for check in checks_of(unit):
        other = of_records.get(check.name, check)
        if other is not check:
            assert other.rule is not check.rule
            names = ("title", "place", *WORDS[1:], "judges_no_claim", "concerns")
            differ = [name for name in names if getattr(other, name) != getattr(check, name)]
            found[check.name] = " ".join(differ)
    assert found == OWN_WORDS[unit.name]


@pytest.mark.parametrize("unit", list(EVERY_UNIT.values()), ids=lambda unit: unit.name)
def test_every_text_of_a_check_says_something(unit):
    for check in checks_of(unit):
        for name in WORDS:
            # None but for a tolerance of none at all, and a power by its fewest words.
            assert len(getattr(check, name)) > 3, (check.name, name)
        assert check.severity is Severity.CRITICAL


def test_each_question_stands_in_the_file_that_is_named_after_it():
    """Under the names by which other modules and documents refer to it."""
    named = {
        "canaries": canaries.CANARIES, "disclosure": disclosure.DISCLOSURE,
        "noise-scale": noise.NOISE, "participation": participation.PARTICIPATION,
        "partition": partition.PARTITION, "publication": weights.PUBLICATION,
        "randomness": randomness.RANDOMNESS, "reexecution": reexecution.REEXECUTION,
        "second-moment": second_moment.SECOND_MOMENT, "sensitivity": sensitivity.SENSITIVITY,
        "outside-budget": unaccounted_processing.UNACCOUNTED_PROCESSING,
        "weights": weights.WEIGHTS, "accounting": accounting.ACCOUNTING,
        "initial-weights": initial_weights.INITIAL_WEIGHTS,
        "integrity": integrity.INTEGRITY, "promise": spec_conformance.SPEC_CONFORMANCE,
        "uploads": uploads.UPLOADS, "views": views.VIEWS, "columns": columns.COLUMNS,
    }  # fmt: skip
    assert {check.name: check for check in checks_of(RECORD)} == named
    assert canaries.CANARY_CLIENTS in checks_of(CLIENT)


def test_which_units_share_a_check():
    shared = {
        check.name: " ".join(sorted(one.name for one in check.units)) for check in checks_of(RECORD)
    }
    both = {name for name, units in shared.items() if units == "client none person record"}
    all_three = {
        name for name, units in shared.items() if units == "client loop none person record"
    }
    assert both == {
        "initial-weights", "partition", "reexecution", "publication", "randomness",
        "outside-budget",
    }  # fmt: skip
    assert all_three == {"weights", "disclosure"}
    assert shared["noise-scale"] == "loop none person record"
    rest = shared.keys() - both - all_three - {"noise-scale"}
    assert {shared[name] for name in rest} == {"none person record"}


def test_an_audit_run_is_asked_of_its_canaries_and_not_to_be_computed_again():
    plain = SimpleNamespace(unit=RECORD, canaries=None, column_queries=None)
    planted = SimpleNamespace(unit=RECORD, canaries=3, column_queries=None)
    learning = SimpleNamespace(unit=RECORD, canaries=None, column_queries=object())
    every = {check.name for check in checks_of(RECORD)}
    assert {check.name for check in checks_for(plain)} == every - {"canaries", "columns"}
    assert {check.name for check in checks_for(planted)} == every - {"reexecution", "columns"}
    assert {check.name for check in checks_for(learning)} == every - {"canaries"}


def test_a_run_that_claims_nothing_is_asked_only_what_is_judged_of_it():
    asked = []
    header = SimpleNamespace(unit=NONE)
    bundle = SimpleNamespace(header=header)
    for check in checks_of(NONE):
        own = replace(check, rule=lambda bundle, name=check.name: asked.append(name))
        found = own.judge(bundle)
        if found is not None:
            assert found.verdict is Verdict.NOT_APPLICABLE
            assert found.measurement == (
                "the run makes no privacy claim, so there is nothing to judge"
            )
    assert set(asked) == {"integrity", "promise", "weights", "canaries"}
    asked.clear()
    header.unit = RECORD
    for check in checks_of(RECORD):
        replace(check, rule=lambda bundle, name=check.name: asked.append(name)).judge(bundle)
    assert asked == [check.name for check in checks_of(RECORD)]


@pytest.mark.parametrize(
    ("reasons", "unreadable", "verdict", "said"),
    [
        ([], [], Verdict.PASS, "all is well"),
        ([], ["a", "a", "b"], Verdict.NOT_VERIFIED, "a; b"),
        (["x"], ["a"], Verdict.FAIL, "x"),
    ],
)
def test_a_reason_comes_before_what_could_not_be_read(reasons, unreadable, verdict, said):
    found = conclude("all is well", reasons, unreadable, details={"n": 1}, power="some")
    assert (found.verdict, found.measurement) == (verdict, said)
    assert (found.details, found.power) == ({"n": 1}, "some")


def test_six_reasons_are_spelled_out_and_the_rest_counted():
    assert listed(list("abcdef")) == "a; b; c; d; e; f"
    assert listed(list("abcdefg")) == "a; b; c; d; e; f; and 1 more"
    assert listed(list("aabbcdefghh")) == "a; b; c; d; e; f; and 2 more"


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
