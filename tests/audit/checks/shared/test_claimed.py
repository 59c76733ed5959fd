"""What a claim says beside each ε: of dp-accounting's number, and of how settings were chosen.

And the judgement on a comparison: what fails, what is not verified, and what stands beside a pass.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from audit.accounting.budget import Law, budget
from audit.accounting.comparison import Comparison
from audit.accounting.registry import Range
from audit.accounting.sampling import most_spent
from audit.checks.shared.claimed import (
    UNACCOUNTED,
    claimed_selection,
    due_of_records,
    judgement_on,
    law_of,
    selection_of,
    statement_faults,
    trial_faults,
)
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger_lines import Trial
from audit.untrusted.fields import FieldError
from audit.verdict import Severity
from tests.audit.checks.opened import changed, says
from tests.audit.synthetic_run import Settings, build_run

UNKNOWN = "epsilon by {} is claimed, which no accountant of the auditor recomputes"


@pytest.mark.parametrize(
    ("found", "verdict", "measurement", "severity"),
    [
        (Comparison(), "PASS", "fits", None),
        (Comparison(high=["a", "b"]), "PASS", "fits; but a; b", Severity.THEORETICAL),
        (Comparison(reasons=["wrong"]), "FAIL", "wrong", None),
        (Comparison(reasons=["wrong"], high=["a"]), "FAIL", "wrong", None),
        (Comparison(reasons=["wrong"], unknown={"x"}), "FAIL", "wrong", None),
        (Comparison(unknown={"x"}, high=["a"]), "NOT VERIFIED", UNKNOWN.format("x"), None),
        (
            # A set has no order of its own; whoever reads the finding again finds the same.
            Comparison(unknown={"f", "e", "d", "c", "b", "a"}),
            "NOT VERIFIED",
            "; ".join(UNKNOWN.format(name) for name in "abcdef"),
            None,
        ),
    ],
)
def test_losses_that_were_compared_are_judged(
    found: Comparison, verdict: str, measurement: str, severity: Severity | None
) -> None:
    judged = judgement_on(found, "fits", {"delta": 1e-5}, ("beside",))
    assert (judged.verdict.value, judged.measurement) == (verdict, measurement)
    assert judged.severity is severity
    assert judged.details == {"delta": 1e-5}
    assert judged.qualifications == ("beside",)


VIEWS = {"of_records": "server_worst_case", "of_clients": "third_party"}


def claimed_of(bundle: Bundle, view: str) -> float:
    return float((bundle.readable_ledger.claim or {})[view]["epsilon"]["pld"])


def noted(bundle: Bundle, view: str, number: Any, **more: Any) -> tuple[str, str]:
    """What "views" says of a run whose claim has such a number."""
    record = {"version": "0.6.0", "view": view, "accountant": "pld", "epsilon": number, **more}
    return says(changed(bundle, claim=lambda c: c.update(dp_accounting=record)), "views")


@pytest.fixture(params=sorted(VIEWS))
def run(request: pytest.FixtureRequest) -> tuple[Bundle, str]:
    return request.getfixturevalue(request.param), VIEWS[request.param]


def test_a_run_without_a_number_is_judged_as_before_and_it_is_said(run: tuple[Bundle, str]) -> None:
    verdict, text = says(run[0], "views")
    assert verdict == "PASS"
    assert "no number by dp-accounting was recorded" in text


@pytest.mark.parametrize(
    ("share", "verdict", "said"),
    [
        (1.0, "PASS", "dp-accounting 0.6.0 gives"),
        (1.0009, "PASS", "dp-accounting 0.6.0 gives"),
        # The claim is too low: what the auditor's own tolerance of 0.5 % lets pass.
        (1.0025, "FAIL", "the headline is claimed"),
        # The number is none that dp-accounting can have given, in either direction.
        (1.02, "FAIL", "is recorded as giving"),
        (0.98, "FAIL", "is recorded as giving"),
    ],
)
def test_a_claim_below_the_number_and_an_impossible_number_fail(
    run: tuple[Bundle, str], share: float, verdict: str, said: str
) -> None:
    bundle, view = run
    found = noted(bundle, view, claimed_of(bundle, view) * share)
    assert found[0] == verdict
    assert said in found[1]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"view": "server"}, "not for the claim's leading view"),
        ({"version": "0.6.0; and more"}, "version is not a text of the expected form"),
        ({"accountant": "opacus"}, "accountant is not one of pld, rdp"),
        ({"bound": "lower"}, "not correctly marked"),
        (
            {"number": None, "reason": "nobody knows"},
            "reason is not one of no event, too fine, too large",
        ),
        ({"number": None, "reason": "no event"}, "is recorded as having no event"),
        ({"number": "7"}, "epsilon is not a"),
        ({"number": -1.0}, "epsilon is not"),
    ],
)
def test_a_record_that_says_something_else_fails(
    run: tuple[Bundle, str], record: dict[str, Any], said: str
) -> None:
    bundle, view = run
    found = noted(bundle, **{"view": view, "number": claimed_of(bundle, view), **record})
    assert found[0] == "FAIL"
    assert said in found[1]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("too fine", "which reported too many steps for it"),
        ("too large", "whose double precision does not hold e^ε at this ε"),
    ],
)
def test_that_it_cannot_compute_the_number_is_told_and_no_failure(
    run: tuple[Bundle, str], reason: str, said: str
) -> None:
    bundle, view = run
    verdict, text = noted(bundle, view, None, reason=reason)
    assert verdict == "PASS"
    assert said in text


def test_of_batches_of_fixed_size_it_is_a_bound_from_below(tmp_path: Any) -> None:
    bundle = open_bundle(build_run(tmp_path / "run", Settings(sampling="fixed-size")))
    accountant = PLDAccountant()
    step = PoissonSampledDpEvent(12.0 / min(bundle.header.records), GaussianDpEvent(1.5 / 2.0))
    number = accountant.compose(step, 4 * 3).get_epsilon(1e-5)
    assert number < 0.98 * claimed_of(bundle, "server_worst_case")
    verdict, text = noted(bundle, "server_worst_case", number, bound="lower")
    assert verdict == "PASS"
    assert "a lower bound" in text
    assert noted(bundle, "server_worst_case", number)[0] == "FAIL"


def test_under_a_limit_it_is_that_of_the_rounds_that_fit(of_records: Bundle) -> None:
    most = most_spent(of_records.readable_ledger, of_records.header)
    costs = [budget(most.everything(count), 1e-5).headline for count in (1, 2, 3, 4)]
    limit = (costs[1] + costs[2]) / 2
    header = changed(of_records, header={"max_epsilon": limit}).header
    due = due_of_records(header, most, most.everything(1), 1e-5)
    # Two fit; by another accountant it may be one or three.
    assert (due.least, due.most) == pytest.approx((costs[0], costs[2]))


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
        (bundle_of(trial=Trial(1, DRAWN + 1, COMMITTED)), "not what the spec's distribution gives"),
        (bundle_of(trial=Trial(DRAWN + 1, DRAWN, COMMITTED)), "beyond the last"),
        (bundle_of(trial=Trial(1, DRAWN, "0" * 64)), "not drawn from the committed"),
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
    assert "the random bits behind the number of trials cannot be read" in unreadable


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
        ("third_party", {"epsilon": {"pld": 1.0}, "accountant": "pld"}, "must leave it out"),
        (
            "third_party",
            {"epsilon": {"pld": 1.0, "rdp": 2.0}, "accountant": "rdp"},
            "only by rdp",
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
    assert "without noise" in reason
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
