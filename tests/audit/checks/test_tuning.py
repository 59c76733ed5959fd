"""What a run's spec, ledger and claim must say of how its hyper-parameters were chosen."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest

from audit.accounting.comparison import Comparison
from audit.accounting.registry import Range
from audit.accounting.selection import Law
from audit.checks.shared.claimed import (
    UNACCOUNTED,
    claimed_selection,
    law_of,
    selection_of,
    statement_faults,
    trial_faults,
)
from audit.errors import UntrustedFileError
from audit.reading.ledger_lines import Trial
from audit.untrusted.fields import FieldError

SECRET = bytes(range(32))
PRIVATE = {
    "tune": {"selection": "private", "mean_trials": 4.0, "shape": 1.0},
    "data": {"validation": {"fraction": 0.5, "public": True}},
}
DRAWN = next(many for many in range(1, 1000) if Law(4.0, 1.0).draws(SECRET, many))
COMMITTED = hashlib.sha256(b"commitment" + SECRET).hexdigest()


RIGHT = Trial(1, DRAWN, COMMITTED)


def bundle_of(spec=PRIVATE, trial=RIGHT, secret=lambda: SECRET):
    return SimpleNamespace(
        readable_spec=spec, header=SimpleNamespace(tuning=trial), tuning_secret=secret
    )


def faults(bundle):
    reasons, unreadable = [], []
    trial_faults(bundle, reasons, unreadable)
    return reasons, unreadable


def test_a_trial_that_the_law_draws_is_right():
    assert faults(bundle_of()) == ([], [])
    assert faults(bundle_of(spec={}, trial=None)) == ([], [])


@pytest.mark.parametrize(
    ("bundle", "says"),
    [
        (bundle_of(trial=None), "only one of spec and ledger"),
        (bundle_of(spec={}), "only one of spec and ledger"),
        (bundle_of(trial=Trial(1, DRAWN + 1, COMMITTED)), "not what the spec's law draws"),
        (bundle_of(trial=Trial(DRAWN + 1, DRAWN, COMMITTED)), "beyond the last"),
        (bundle_of(trial=Trial(1, DRAWN, "0" * 64)), "something else than committed to"),
        (
            bundle_of({**PRIVATE, "data": {"validation": {"fraction": 0.5, "public": False}}}),
            "does not say are public",
        ),
    ],
)
def test_any_other_is_a_fault(bundle, says):
    (reason,), unreadable = faults(bundle)
    assert says in reason
    assert not unreadable


def test_without_the_secret_the_draw_is_not_verified():
    def missing():
        raise UntrustedFileError("evidence/tuning", "is missing")

    reasons, (unreadable,) = faults(bundle_of(secret=missing))
    assert not reasons
    assert "what drew the number of trials cannot be read" in unreadable


@pytest.mark.parametrize(
    "tune",
    [
        {"selection": "secret"},
        {"selection": "private", "mean_trials": 1.0, "shape": 1.0},
        {"selection": "private", "mean_trials": 4.0, "shape": -1.0},
        {"selection": "private", "mean_trials": "4", "shape": 1.0},
        ["private"],
    ],
)
def test_a_section_that_is_none_is_an_error(tune):
    with pytest.raises(FieldError):
        law_of({"tune": tune})


def test_specs_from_before_searches_say_none():
    assert selection_of({}) == "none"


CLAIM = {
    "third_party": {"epsilon": {"rdp": 2.0}, "accountant": "rdp"},
    "tuning": {
        "one_trial": {"epsilon": {"pld": 1.0}, "accountant": "pld"},
        "server_all_trials": {"epsilon": {"pld": 3.0}, "accountant": "pld"},
    },
}


def compared(claim) -> Comparison:
    found = Comparison()
    claimed_selection(claim, Range(2.0, 2.01), lambda _: 1.0, lambda _: 3.0, found)
    return found


def test_the_claim_of_a_selection_states_three_numbers():
    assert compared(CLAIM) == Comparison()


@pytest.mark.parametrize(
    ("part", "view", "says"),
    [
        ("third_party", {"epsilon": {"pld": 1.0}, "accountant": "pld"}, "leaves it out"),
        (
            "third_party",
            {"epsilon": {"pld": 1.0, "rdp": 2.0}, "accountant": "rdp"},
            "by rdp alone",
        ),
        ("third_party", {"epsilon": {"rdp": 1.9}, "accountant": "rdp"}, "but costs 2"),
        ("third_party", {"epsilon": {"rdp": 2.5}, "accountant": "rdp"}, "overstated"),
        ("one_trial", {"epsilon": {"pld": 0.9}, "accountant": "pld"}, "one trial's epsilon"),
        ("server_all_trials", {"epsilon": {"pld": 1.0}, "accountant": "pld"}, "of all trials"),
    ],
)
def test_a_number_that_is_not_what_it_costs_is_a_fault(part, view, says):
    claim = {**CLAIM, "tuning": dict(CLAIM["tuning"])}
    (claim if part == "third_party" else claim["tuning"])[part] = view
    (reason,) = compared(claim).reasons
    assert says in reason


def test_towards_a_server_that_adds_the_noise_nothing_is_claimed_of_all_trials():
    found = Comparison()
    claimed_selection(CLAIM, Range(2.0, 2.01), lambda _: 1.0, None, found)
    (reason,) = found.reasons
    assert "without noise: none holds" in reason
    found = Comparison()
    alone = {"one_trial": CLAIM["tuning"]["one_trial"]}
    claimed_selection({**CLAIM, "tuning": alone}, Range(2.0, 2.01), lambda _: 1.0, None, found)
    assert found == Comparison()


def test_a_claim_without_the_selections_numbers_is_an_error():
    with pytest.raises(FieldError):
        compared({"third_party": CLAIM["third_party"]})


@pytest.mark.parametrize(
    ("selection", "said", "beside"),
    [
        ("none", "hyperparameters were not tuned on the private records", ()),
        ("private", "hyper-parameters were chosen by private selection: …", ()),
        ("public", "hyper-parameters were tuned on records that are public and …", ()),
        (
            "unaccounted",
            "hyper-parameters were chosen by looking at the private records, and …",
            (UNACCOUNTED,),
        ),
    ],
)
def test_the_claim_says_what_the_spec_tells_of_the_choice(selection, said, beside):
    reasons: list[str] = []
    spec = {"tune": {"selection": selection}}
    assert statement_faults(spec, {"assumptions": [said]}, reasons) == beside
    assert not reasons
    statement_faults(spec, {"assumptions": ["another choice of hyper-parameters"]}, reasons)
    assert bool(reasons) == (selection != "none")


@pytest.mark.parametrize(
    ("mean", "shape"), [(1.0000001, 1.0), (1.5, 0.5), (4.0, 0.0), (1e6, 100.0)]
)
def test_more_than_one_trial_is_made_on_average_by_any_shape(mean, shape):
    tune = {"selection": "private", "mean_trials": mean, "shape": shape}
    assert law_of({"tune": tune}) == Law(mean, shape)


@pytest.mark.parametrize("selection", ["none", "public", "unaccounted"])
def test_a_run_by_itself_has_no_law_of_trials(selection):
    assert law_of({"tune": {"selection": selection}}) is None
    assert selection_of({"tune": {"selection": selection}}) == selection
    assert law_of({}) is None


@pytest.mark.parametrize(
    ("mean", "shape", "said"),
    [
        (1.0, 1.0, "mean_trials is not above 1"),
        (0.5, 1.0, "mean_trials is not above 1"),
        (0.0, 1.0, "mean_trials is not above 0"),
        (4.0, -1e-9, "shape is not a number from 0"),
    ],
)
def test_a_law_of_one_trial_or_fewer_is_refused(mean, shape, said):
    with pytest.raises(FieldError, match=said):
        law_of({"tune": {"selection": "private", "mean_trials": mean, "shape": shape}})


def test_the_last_trial_is_one_of_them():
    assert faults(bundle_of(trial=Trial(DRAWN, DRAWN, COMMITTED))) == ([], [])


@pytest.mark.parametrize(
    ("validation", "right"),
    [
        ({"fraction": 0.1, "public": True}, True),
        ({"fraction": 0.1, "public": False}, False),
        ({"fraction": 0.1, "public": 1}, False),
        ({"fraction": 0.1}, False),
        ({"fraction": 0, "public": True}, False),
        ({"fraction": 0.0, "public": False}, False),
    ],
)
def test_trials_are_scored_on_some_records_that_are_said_to_be_public(validation, right):
    reasons, unreadable = faults(bundle_of({**PRIVATE, "data": {"validation": validation}}))
    said = "tuning: trials are scored on records that the spec does not say are public"
    assert (reasons, unreadable) == ([] if right else [said], [])


@pytest.mark.parametrize("missing", ["data", "validation", "fraction"])
def test_a_spec_that_does_not_say_what_trials_are_scored_on_is_refused(missing):
    spec = {"tune": PRIVATE["tune"], "data": {"validation": {"public": True}}}
    if missing == "data":
        del spec["data"]
    if missing == "validation":
        spec["data"] = {}
    with pytest.raises(FieldError, match=f"{missing} is missing"):
        faults(bundle_of(spec))


WORDS = [
    ("private", "private selection", "private selection"),
    ("public", "tuned on records that are public", "a search on public records"),
    (
        "unaccounted",
        "chosen by looking at the private records",
        "looking at the private records",
    ),
]


def silent(selection, *said):
    reasons: list[str] = []
    statement_faults({"tune": {"selection": selection}}, {"assumptions": list(said)}, reasons)
    return reasons


@pytest.mark.parametrize(("selection", "phrase", "word"), WORDS)
def test_one_assumption_of_many_tells_of_the_choice(selection, phrase, word):
    told = [f"the claim does not say that hyper-parameters were chosen by {word}"]
    assert silent(selection, "something else", f"it was {phrase}, so", "and more") == []
    assert silent(selection) == silent(selection, "something else") == told
    # Of each as many characters are read as a page has.
    assert silent(selection, "x" * (4096 - len(phrase)) + phrase) == []
    assert silent(selection, "x" * (4097 - len(phrase)) + phrase) == told
    # What tells of another choice does not tell of this one.
    others = [other for name, other, _ in WORDS if name != selection]
    assert silent(selection, *others) == told


def test_a_claim_lists_a_thousand_assumptions_at_most():
    phrase = "private selection"
    assert silent("private", *["x"] * 999, phrase) == []
    with pytest.raises(FieldError, match="assumptions is not a list of at most 1000 items"):
        silent("private", *["x"] * 1000, phrase)
    with pytest.raises(FieldError, match="assumptions is missing"):
        statement_faults({}, {}, [])
