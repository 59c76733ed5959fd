"""The check "views" on single records, by hand: what each view is made of, and what is told of it.

What a composition, a mixture or a selection costs has tests of its own (`tests/audit/accounting`);
here it is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.accounting.budget import Budget, Steps
from audit.accounting.comparison import Comparison
from audit.accounting.registry import Range
from audit.checks.record import views
from audit.checks.record.views import _claims, _reading, _selection
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header
from audit.reading.units import RECORD
from tests.audit.checks.opened import changed, judged

NAME = "views"
FORMS = {
    "third_party_noble": 3.0, "server_noble": 5.0, "equation_13": 1.0, "equation_14": 9.0,
    "delta_server": 0.25,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "ratio", "reading"),
    [
        ("equation_14", 9.0, 1.0 + 1e-12, "conservative"),
        ("equation_14", 9.0, math.nextafter(1.0 + 1e-12, 2.0), "double-counts"),
        ("equation_14", 9.0, 1.0 + 1.5e-12, "double-counts"),
        ("equation_14", 9.0, 1.0, "conservative"),
        ("equation_14", 1.0, 1.5, "double-counts"),
        ("server_noble", 2.0, 1.5, "conservative"),
        ("server_noble", math.nextafter(2.0, 0.0), 1.5, "understates"),
    ],
)
def test_only_the_last_equation_can_count_twice_and_only_where_fewer_take_part(
    name: str, value: float, ratio: float, reading: str
) -> None:
    assert _reading(name, value, 2.0, ratio) == reading


class Spent:
    """A run whose views cost what is given, and what was asked for."""

    def __init__(
        self,
        bundle: Bundle,
        monkeypatch: pytest.MonkeyPatch,
        *,
        at_server: float = 0.125,
        selected: Any = None,
        fault: str | None = None,
    ) -> None:
        self.formed: Any = None
        self.judged: Any = None
        self.finer: float | None = None
        self.notes_high: bool | None = None
        noted = self
        past = {0: "history of 0", 1: "history of 1", 2: "history of 2"}
        costs = {
            ("history of 0", 1e-5): 1.0,
            ("history of 1", 1e-5): 2.0,
            ("history of 2", 1e-5): 1.5,
            ("everything", 1e-5): 4.0,
            ("everything", min(at_server, 0.5)): 0.5,
        }
        most = SimpleNamespace(
            everything=lambda rounds: "everything" if rounds == 4 else None,
            third_party=lambda delta, fineness: (
                lambda rounds: 0.75 + fineness if (delta, rounds) == (1e-5, 4) else None
            ),
        )
        bound = SimpleNamespace(
            most_steps=lambda rounds: 10.0 * rounds + 2.0, least_noise=lambda index: 3.0 + index
        )

        def budget(history: Any, delta: float) -> Any:
            value = costs[history, delta]
            return Budget({"pld": Range(value, value)})

        def formed(*given: Any) -> dict[str, float]:
            noted.formed = given
            return FORMS

        def claims(*given: Any) -> None:
            # Each is asked for on a grid of some fineness.
            noted.judged = tuple(one(0) if callable(one) else one for one in given[:-1])
            noted.finer = given[3](1)
            noted.notes_high = given[-1].notes_high

        def delta_server(delta: float, share: float) -> float:
            assert (delta, share) == (1e-5, 0.6)
            return at_server

        def selection(bundle: Any, everything: Any, server: Budget, given: Any, own: Any) -> Any:
            assert (everything, server.headline, given) == ("everything", 2.0, most)
            assert own == [*past.values()]
            if fault is not None:
                raise views.FieldError(fault)
            return selected

        monkeypatch.setattr(views, "histories", lambda *_: past)
        monkeypatch.setattr(views, "most_spent", lambda *_: most)
        monkeypatch.setattr(views, "budget", budget)
        monkeypatch.setattr(views, "closed_forms", formed)
        monkeypatch.setattr(views, "server_delta", delta_server)
        monkeypatch.setattr(views, "_selection", selection)
        monkeypatch.setattr(views, "_claims", claims)
        monkeypatch.setattr(Header, "spending_bound", property(lambda _: bound))
        self.found = judged(bundle, NAME)


def test_each_view_is_made_of_what_ledger_and_spec_say(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = Spent(of_records, monkeypatch)
    # The share of the smallest client, the least noise, the mean of the most steps, T, N, S/N, δ.
    assert spent.formed == (0.2, 3.0 + 3, 42.0 / 4, 4, 5, 0.6, 1e-5)
    claim = of_records.readable_ledger.claim
    assert spent.judged == (claim, of_records.header, 4.0, 0.75, None, FORMS)
    assert spent.finer == 1.75
    assert spent.notes_high is False
    found = spent.found
    assert found.verdict.value == "PASS"
    assert found.measurement == (
        "at delta = 1e-05: server 2, a client in every round 4, third party 0.75. Closed forms "
        "match their formulas; compared with the composed numbers, third_party_noble conservative, "
        "server_noble conservative, equation_13 conservative, equation_14 double-counts; none of "
        "them is the headline; no number by dp-accounting was recorded"
    )
    assert {name: found.details[name] for name in found.details if name != "closed_forms"} == {
        "server": {"epsilon": {"pld": 2.0}},
        "server_worst_case": 4.0,
        "third_party": 0.75,
        "delta_server": 0.25,
    }
    rows = found.details["closed_forms"]
    assert [row.pop("formula").split(",")[0] for row in rows] == [
        "s*sqrt(l*T*K*log(2/delta)*log(2*T/delta)/N)/sigma",
        "third_party_noble*sqrt(N/l) = s*sqrt(T*K*log(2/delta)*log(2*T/delta))/sigma",
        "s*sqrt(T*K*log(2/delta)*log(2*T/delta))/sigma",
        "equation_13*sqrt(N/l)",
    ]
    third = {"towards": "third party", "compared_with": 0.75, "compared_at_delta": 1e-5}
    server = {"towards": "server", "compared_with": 0.5, "compared_at_delta": 0.125}
    assert rows == [
        {"name": "third_party_noble", "value": 3.0, "reading": "conservative", **third},
        {"name": "server_noble", "value": 5.0, "reading": "conservative", **server},
        {"name": "equation_13", "value": 1.0, "reading": "conservative", **third},
        {"name": "equation_14", "value": 9.0, "reading": "double-counts", **server},
    ]


@pytest.mark.parametrize(
    ("limit", "worst"), [(None, 4.0), (3.0, 3.0), (1.0, 2.0), (5.0, 4.0), (4.0, 4.0)]
)
def test_the_worst_case_lies_between_what_was_spent_and_what_was_allowed(
    of_records: Bundle, limit: float | None, worst: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = Spent(changed(of_records, header={"max_epsilon": limit}), monkeypatch)
    assert spent.found.details["server_worst_case"] == worst


@pytest.mark.parametrize(("at", "compared"), [(0.4, 0.4), (0.5, 0.5), (0.75, 0.5)])
def test_a_servers_bound_is_compared_at_its_delta_and_at_most_a_half(
    of_records: Bundle, at: float, compared: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Spent(of_records, monkeypatch, at_server=at).found.details["closed_forms"]
    assert [row["compared_at_delta"] for row in rows] == [1e-5, compared, 1e-5, compared]


def test_what_could_be_counted_twice_is_the_root_of_clients_over_their_share(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios: list[float] = []

    def rows(*given: Any) -> list[dict[str, Any]]:
        ratios.append(given[-1])
        return []

    monkeypatch.setattr(views, "_form_rows", rows)
    monkeypatch.setattr(views, "_claims", lambda *_: None)
    for clients, share in ((5, 0.6), (5, 0.2), (5, 1.0)):
        monkeypatch.setattr(views, "participation", lambda header, share=share: share)
        judged(changed(of_records, header={"clients": clients}), NAME)
    # The root of N/l.
    assert ratios == [pytest.approx(math.sqrt(5 / 0.6)), 5.0, pytest.approx(math.sqrt(5.0))]


def test_a_selection_is_told_with_what_one_trial_costs(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected = SimpleNamespace(chosen=Range(2.5, 2.75), all_trials=7.0)
    spent = Spent(of_records, monkeypatch, selected=selected)
    assert spent.judged[4] is selected
    assert (
        "third party 0.75, which is one trial's; 2.5 for the best of a random number of trials"
        in (spent.found.measurement)
    )
    assert (spent.found.details["third_party"], spent.found.details["one_trial"]) == (2.5, 0.75)
    rows = spent.found.details["closed_forms"]
    assert [row["compared_with"] for row in rows] == [2.5, 0.5, 2.5, 0.5]
    broken = Spent(of_records, monkeypatch, fault="tune is damaged")
    assert broken.found.verdict.value == "FAIL"
    assert broken.found.measurement == "claim: tune is damaged"
    assert "one_trial" not in broken.found.details


@dataclass(frozen=True)
class Item:
    """Steps of one kind."""

    steps: int


@dataclass(frozen=True)
class Listed:
    """Stands in for what a list of steps costs."""

    steps: list[int]

    def at(self, fineness: int) -> list[int]:
        """The steps themselves."""
        return self.steps


@pytest.mark.parametrize("of_a_person", [1, 3])
@pytest.mark.parametrize(
    ("law", "delta", "there"),
    [("a law", 1e-5, True), (None, 1e-5, False), ("a law", None, False)],
)
def test_a_selection_costs_what_its_law_and_all_of_its_trials_do(
    of_records: Bundle,
    law: str | None,
    delta: float | None,
    there: bool,
    of_a_person: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "law_of", lambda spec: law)
    monkeypatch.setattr(views, "budget", lambda every, delta: Listed([one.steps for one in every]))
    monkeypatch.setattr(views, "selection_cost", lambda *given: given)
    monkeypatch.setattr(views, "most_of_each", lambda past: past)
    monkeypatch.setattr(views, "covers", lambda *_: True)
    trials = SimpleNamespace(trials=3)
    header = {"delta": delta, "tuning": trials, "clients_per_person": of_a_person}
    # A third party saw what came of one of the four rounds twice.
    most: Any = SimpleNamespace(
        kinds=lambda rounds: [(Item(7), rounds)], seen=lambda rounds: rounds + 1
    )
    steps: Any = [Item(2), Item(5)]
    run = changed(of_records, header=header)
    found = _selection(run, steps, Listed([0, 0]), most, [])  # type: ignore[arg-type] # lists stand in
    assert (found is not None) is there
    if found is not None:
        # Of a person at several clients, all count in every round.
        taken = 0.6 if of_a_person == 1 else 1.0
        chosen: Any = found.chosen
        assert chosen == ([(Item(7 * of_a_person), 5)], taken, 1e-5, "a law")
        assert found.all_trials(0) == [6, 15]  # type: ignore[comparison-overlap]
        alone = changed(of_records, header={**header, "tuning": None})
        one = _selection(alone, steps, Listed([9, 9]), most, [])  # type: ignore[arg-type] # lists stand in
        assert one is not None
        assert one.all_trials(0) == [9, 9]  # type: ignore[comparison-overlap]
        least = _selection(alone, steps, Listed([0, 0]), most, [])  # type: ignore[arg-type] # lists stand in
        assert least is not None
        assert least.all_trials(0) == [2, 5]  # type: ignore[comparison-overlap]


# What the claim says of them.


class Compared:
    """What a claim is compared with, and what is told."""

    def __init__(
        self,
        bundle: Bundle,
        monkeypatch: pytest.MonkeyPatch,
        *,
        selected: Any = None,
        difference: float = 0.0,
        forms: dict[str, float] | None = None,
        **claim: Any,
    ) -> None:
        self.asked: list[Any] = []
        noted = self

        class Comparison:
            def __init__(self) -> None:
                self.reasons: list[str] = []

            def headline(self, where: str, part: Any, value: float) -> float:
                noted.asked.append((where, part["name"], value))
                return value

        def claimed_selection(*given: Any) -> None:
            noted.asked.append(("selection", *given[1:-1]))

        monkeypatch.setattr(views, "claimed_selection", claimed_selection)
        if difference:
            monkeypatch.setattr(views, "relative_difference", lambda *_: difference)
        comparison: Any = Comparison()
        given = {
            "server_worst_case": {"name": "worst"},
            "third_party": {"name": "third", "participation": 0.6},
            "view_headline": "server" if selected is None else "third-party",
            "closed_forms": dict(forms or {}),
            **claim,
        }
        _claims(given, bundle.header, 4.0, 0.75, selected, forms or {}, comparison)
        self.reasons = comparison.reasons


def test_a_claims_views_are_compared_one_by_one(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Compared(of_records, monkeypatch, forms=FORMS)
    assert plain.reasons == []
    assert plain.asked == [
        ("the server's worst case", "worst", 4.0),
        ("the third party's epsilon", "third", 0.75),
    ]
    selected = SimpleNamespace(chosen="chosen", all_trials=7.0)
    chosen = Compared(of_records, monkeypatch, selected=selected, tuning={}, forms=FORMS)
    assert chosen.reasons == []
    assert chosen.asked == [
        ("the server's worst case", "worst", 4.0),
        ("selection", "chosen", 0.75, 7.0),
    ]
    assert Compared(of_records, monkeypatch, tuning={}).reasons == [
        "the claim is of a selection, but the spec has none"
    ]


def test_the_headline_is_whom_the_claim_protects_from(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Compared(of_records, monkeypatch, view_headline="third-party").reasons
    assert wrong == ["the headline is not the server's view, the view that always holds"]
    selected = SimpleNamespace(chosen="chosen", all_trials=7.0)
    wrong = Compared(of_records, monkeypatch, selected=selected, view_headline="server").reasons
    assert wrong == [
        "the headline is not the third-party's view, the reader that a selection protects against"
    ]


@pytest.mark.parametrize(
    ("difference", "told"),
    [
        (1e-9, []),
        (math.nextafter(1e-9, 1.0), ["the third party's participation is not S/N"]),
        (1e-6, ["the third party's participation is not S/N"]),
        (
            math.nextafter(1e-6, 1.0),
            [
                "the third party's participation is not S/N",
                "the closed form equation_13 is not what its formula gives",
            ],
        ),
    ],
)
def test_participation_and_closed_forms_may_be_off_by_all_of_their_tolerance(
    of_records: Bundle, difference: float, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = {"equation_13": 1.0}
    assert Compared(of_records, monkeypatch, difference=difference, forms=forms).reasons == told


def test_no_bound_of_a_column_is_learnt_in_a_private_selection(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected = SimpleNamespace(chosen=Range(2.5, 2.75), all_trials=7.0)
    learnt = changed(of_records, ledger={"queries": ("a histogram",)})
    found = Spent(learnt, monkeypatch, selected=selected).found
    said = "bounds of columns were learnt in a trial of a private selection"
    assert (found.verdict.value, found.measurement.startswith(said)) == ("FAIL", True)
    assert Spent(learnt, monkeypatch).found.verdict.value == "PASS"


@pytest.mark.parametrize(
    ("records", "fixed_size", "rate", "refused"),
    [(3, True, 0.25, True), (3, False, 0.25, False), (3, True, 1.0, False), (1, True, 0.25, False)],
)
def test_no_epsilon_holds_for_several_records_in_batches_of_fixed_size(
    records: int, fixed_size: bool, rate: float, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = [Steps(rate, 40.0, 2, fixed_size)]
    monkeypatch.setattr(views, "names_people", lambda _: True)
    bundle: Any = SimpleNamespace(
        header=SimpleNamespace(
            unit=RECORD, rounds=1, max_epsilon=None, declared=lambda name: {"delta": 1e-5}[name]
        ),
        readable_spec={"data": {}},
        records=lambda: SimpleNamespace(rows=np.arange(records)),
        people=lambda: SimpleNamespace(stored=np.zeros(records, dtype=np.int64)),
    )
    most: Any = SimpleNamespace(everything=lambda rounds: step)
    comparison = Comparison()
    claim = {"person": {"records": records, "epsilon": 0.0}}
    views._person(bundle, claim, most, step, comparison)
    said = "an epsilon is claimed of a person with 3 records in batches of fixed size, which no"
    assert len(comparison.reasons) == 1
    assert comparison.reasons[0].startswith(said) is refused


@pytest.mark.parametrize(
    ("history", "bound"),
    [
        ([Steps(0.25, 1.0, 3, fixed_size=True)], "lower"),
        # Bounds of columns were learnt: histograms are no batches.
        ([Steps(0.25, 1.0, 3, fixed_size=True), Steps(1.0, 2.0, 1)], "lower"),
        ([Steps(1.0, 2.0, 1), Steps(0.25, 1.0, 3, fixed_size=True)], "lower"),
        ([Steps(0.25, 1.0, 3)], None),
        ([Steps(0.25, 1.0, 3), Steps(1.0, 2.0, 1)], None),
    ],
)
@pytest.mark.parametrize("noted", ["lower", None])
def test_dp_accountings_number_is_a_lower_bound_where_any_batch_has_a_fixed_size(
    history: list[Steps], bound: str | None, noted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "due_of_records", lambda *_: Range(0.5, 0.5))
    claim = {
        "server_worst_case": {"accountant": "pld", "epsilon": {"pld": 0.5}},
        "dp_accounting": {
            "version": "0.6.0", "view": "server_worst_case", "accountant": "pld", "epsilon": 0.5,
            **({} if noted is None else {"bound": noted}),
        },
    }  # fmt: skip
    header: Any = SimpleNamespace(rounds=4, declared=lambda name: {"delta": 1e-5}[name])
    most: Any = SimpleNamespace(everything=lambda rounds: history if rounds == 4 else None)
    reasons: list[str] = []
    said = views._second_library(claim, header, most, history, None, reasons)
    assert [("not correctly marked" in one) for one in reasons] == [True] * (noted != bound)
    assert said.endswith("a lower bound") == (bound == "lower")


@pytest.mark.parametrize(
    ("rows", "people", "covered"), [([0, 1, 2], 3, True), ([0, 1, 3], 3, False), ([], 3, False)]
)
def test_a_persons_records_are_counted_where_every_record_is_somebodys(
    rows: list[int], people: int, covered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "names_people", lambda _: True)
    bundle: Any = SimpleNamespace(
        header=SimpleNamespace(unit=RECORD),
        readable_spec={"data": {}},
        records=lambda: SimpleNamespace(rows=np.array(rows, dtype=np.int64)),
        people=lambda: SimpleNamespace(stored=np.zeros(people, dtype=np.int64)),
    )
    claim = {"person": {"records": 3, "epsilon": None, "reason": "too many"}}
    comparison = Comparison()

    def said() -> str:
        return views._person(bundle, claim, None, [], comparison)  # type: ignore[arg-type] # not read

    if covered:
        assert "no epsilon is stated for a person with 3 records" in said()
        assert comparison.reasons == []
    else:
        with pytest.raises(UnverifiedError, match=r"people\.npz does not cover"):
            said()
