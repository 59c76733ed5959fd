"""Single records: every number of the claim is recomputed, and named where it is another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from audit.accounting.budget import (
    Budget,
    Steps,
    budget,
    closed_forms,
    privacy_profile,
    server_delta,
)
from audit.accounting.registry import Range
from audit.accounting.sampling import most_spent
from audit.checks.record.accounting import histories, over_rounds
from audit.checks.record.views import _reading, _selection
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger_lines import Trial
from tests.audit.checks.opened import changed, judged, says
from tests.audit.synthetic_run import Settings, build_run

Claim = dict[str, Any]
DELTA = 1e-5


def faults(bundle: Bundle, check: str, claim: Callable[[Claim], object]) -> str:
    verdict, text = says(changed(bundle, claim=claim), check)
    return text if verdict == "FAIL" else verdict


def row(claim: Claim, place: int = 0) -> Claim:
    found: Claim = claim["server"]["clients"][place]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(steps=r["steps"] + 1), "the claim's steps are not the {steps} that it"),
        (
            lambda r: r.update(participations=r["participations"] + 1),
            "the claim's participations are not those charged",
        ),
        (
            lambda r: r.update(participations=r["participations"] - 1),
            "the claim's participations are not those charged",
        ),
        (lambda r: r.update(records=61), "the claim's records are not the header's"),
        (
            lambda r: r.update(sampling_rate=0.2 + 1.1e-9),
            "the claim's sampling_rate is not the one charged",
        ),
        (lambda r: r.update(sampling_rate=0.2 + 0.9e-9), None),
        (
            lambda r: r.update(delta_records=6e-4 + 1.1e-9),
            "the claim's delta_records is not delta times records",
        ),
        (lambda r: r.update(delta_records=6e-4 - 0.9e-9), None),
    ],
)
def test_each_number_of_a_clients_claim_is_recomputed(
    of_records: Bundle, change: Callable[[Claim], object], said: str | None
) -> None:
    steps = row(dict(of_records.readable_ledger.claim or {}))["steps"]
    found = faults(of_records, "accounting", lambda c: change(row(c)))
    if said is None:
        assert found == "PASS"
    else:
        assert found.startswith(f"client 0: {said.format(steps=steps)}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["server"]["clients"].append(row(c)), "client 0 is claimed twice"),
        (
            lambda c: c["server"]["clients"].pop(1),
            "the claim leaves out client 1, who took part",
        ),
        (
            lambda c: row(c).update(client=5),
            "claim: client is not a whole number from 0 to 4",
        ),
        (
            lambda c: c["server"]["epsilon"].update(pld=c["server"]["epsilon"]["pld"] * 0.99995),
            "the headline epsilon is not the largest of the clients'",
        ),
        (lambda c: c.pop("server"), "claim: server is missing"),
        (lambda c: row(c).pop("delta_records"), "claim: delta_records is missing"),
    ],
)
def test_the_claim_is_of_every_client_once_and_its_headline_the_largest(
    of_records: Bundle, change: Callable[[Claim], object], said: str
) -> None:
    assert faults(of_records, "accounting", change) == said


def test_a_claim_that_cannot_be_read_lists_no_claimed_losses(of_records: Bundle) -> None:
    run = changed(of_records, claim=lambda c: row(c, -1).pop("records"))
    details = judged(run, "accounting").details
    assert {entry["claimed"] for entry in details["clients"]} == {None}
    assert len(details["over_rounds"]) == 4


def test_the_profile_that_is_claimed_is_the_one_of_the_client_that_spent_most(
    of_records: Bundle,
) -> None:
    # Half of the chances at most: the profile of another client would pass as well.
    def lower(claim: Claim) -> None:
        claim["profile"] = [[x, y * 0.9] for x, y in claim["profile"]]

    assert "profile" in faults(of_records, "accounting", lower)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"header": {"delta": None}}, "the ledger's header lacks a delta below 1"),
        ({"header": {"delta": 1.0}}, "the ledger's header lacks a delta below 1"),
        ({"ledger": {"claim": None}}, "the ledger has no claim or no charges"),
        ({"ledger": {"spends": ()}}, "the ledger has no claim or no charges"),
    ],
)
def test_without_a_claim_charges_or_a_delta_below_one_nothing_is_verified(
    of_records: Bundle, how: dict[str, Any], said: str
) -> None:
    assert says(changed(of_records, **how), "accounting") == ("NOT VERIFIED", said)


def test_a_charge_of_a_client_that_there_is_not_is_not_accounted(of_records: Bundle) -> None:
    spends = of_records.readable_ledger.spends
    further = (*spends[:-1], replace(spends[-1], client=5))
    assert says(changed(of_records, ledger={"spends": further}), "accounting") == (
        "NOT VERIFIED",
        "a charge names a client that does not exist",
    )


def test_participations_may_be_counted_with_or_without_attempts_that_were_cut(
    tmp_path: Path,
) -> None:
    run = open_bundle(build_run(tmp_path / "run", Settings(second_attempt_of=1)))
    client = next(one.client for one in run.readable_ledger.spends if one.round == 1)
    rows = (run.readable_ledger.claim or {})["server"]["clients"]
    place = next(at for at, one in enumerate(rows) if one["client"] == client)
    charged = rows[place]["participations"]
    said = [
        faults(run, "accounting", lambda c, n=n: row(c, place).update(participations=n))
        for n in (charged, charged - 1, charged - 2, charged + 1)
    ]
    assert said[:2] == ["PASS", "PASS"]
    wrong = f"client {client}: the claim's participations are not those charged"
    assert said[2:] == [wrong, wrong]


def test_losses_over_rounds_are_those_of_the_client_that_spent_most_by_then(
    of_records: Bundle,
) -> None:
    ledger, header = of_records.readable_ledger, of_records.header
    rows = over_rounds(ledger, header)
    assert [entry["round"] for entry in rows] == [1, 2, 3, 4]
    for entry in rows:
        until = replace(
            ledger, spends=tuple(one for one in ledger.spends if one.round < entry["round"])
        )
        spent = [budget(history, DELTA).headline for history in histories(until, header).values()]
        assert entry["server"] == pytest.approx(max(spent), rel=2e-3)
    third = [entry["third_party"] for entry in rows]
    assert third == sorted(third)
    assert third[-1] == pytest.approx(judged(of_records, "views").details["third_party"])


def test_of_one_round_one_point_is_drawn(of_records: Bundle) -> None:
    ledger, header = of_records.readable_ledger, replace(of_records.header, rounds=1)
    spends = tuple(one for one in ledger.spends if one.round == 0)
    rows = over_rounds(replace(ledger, spends=spends, header=header), header)
    assert [entry["round"] for entry in rows] == [1]


def test_charges_are_accounted_with_the_noise_and_steps_that_the_course_allows(
    of_records: Bundle,
) -> None:
    ledger = of_records.readable_ledger
    bound: Any = SimpleNamespace(accounted=lambda spends: [(one, 9.0, 5) for one in spends[:2]])
    header: Any = SimpleNamespace(spending_bound=bound)
    first, second = ledger.spends[:2]
    assert histories(ledger, header) == {
        one.client: (Steps(one.sampling_rate, 9.0, 5),) for one in (first, second)
    }


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ("server_worst_case", "the server's worst case is claimed"),
        ("third_party", "the third party's epsilon is claimed"),
    ],
)
@pytest.mark.parametrize("times", [0.98, 1.1])
def test_a_view_is_claimed_neither_too_low_nor_far_too_high(
    of_records: Bundle, view: str, said: str, times: float
) -> None:
    def claim(c: Claim) -> None:
        stated = c[view]["epsilon"]
        stated["pld"] = stated["pld"] * times + (0.01 if times > 1.0 else 0.0)

    assert faults(of_records, "views", claim).startswith(said)


def test_what_a_view_claims_a_little_too_high_is_not_told(of_records: Bundle) -> None:
    def higher(claim: Claim) -> None:
        case = claim["server_worst_case"]["epsilon"]
        case["pld"] = case["pld"] * 1.03 + 0.01

    found = judged(changed(of_records, claim=higher), "views")
    assert (found.verdict.value, found.severity) == ("PASS", None)
    assert "overstated" not in found.measurement


def test_of_a_long_run_forty_points_are_drawn(of_records: Bundle) -> None:
    ledger, header = of_records.readable_ledger, replace(of_records.header, rounds=200)
    first = ledger.spends[0]
    spends = tuple(replace(first, round=index) for index in range(200))
    rows = over_rounds(replace(ledger, spends=spends, header=header), header)
    assert (len(rows), rows[0]["round"], rows[-1]["round"]) == (40, 1, 200)
    # q = B/R and σ = 1.5, three steps a round.
    for entry in (rows[0], rows[-1]):
        spent = budget([Steps(12.0 / first.records, 1.5, 3 * entry["round"])], DELTA).headline
        assert entry["server"] == pytest.approx(spent, rel=2e-3)


# Views.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["third_party"].update(participation=0.6 * (1 + 1.1e-9)),
            "the third party's participation is not S/N",
        ),
        (lambda c: c["third_party"].update(participation=0.6 * (1 + 0.9e-9)), "PASS"),
        (
            lambda c: c.update(view_headline="third-party"),
            "the headline is not the server's view, the view that always holds",
        ),
        (
            lambda c: c.update(tuning={}),
            "the claim is of a selection, but the spec has none",
        ),
        (
            lambda c: c["closed_forms"].update(
                server_noble=c["closed_forms"]["server_noble"] * (1 + 1.1e-6)
            ),
            "the closed form server_noble is not what its formula gives",
        ),
        (
            lambda c: c["closed_forms"].update(
                server_noble=c["closed_forms"]["server_noble"] * (1 + 0.9e-6)
            ),
            "PASS",
        ),
        (lambda c: c.pop("closed_forms"), "claim: closed_forms is missing"),
        (lambda c: c.pop("server_worst_case"), "claim: server_worst_case is missing"),
    ],
)
def test_each_view_of_the_claim_is_recomputed(
    of_records: Bundle, change: Callable[[Claim], object], said: str
) -> None:
    assert faults(of_records, "views", change) == said


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"header": {"delta": 1.0}}, "delta is not below 1"),
        ({"header": {"delta": None}}, "the ledger lacks a claim, charges, delta or sigma"),
        (
            {"header": {"noise_multiplier": None}},
            "the ledger lacks a claim, charges, delta or sigma",
        ),
        ({"ledger": {"claim": None}}, "the ledger lacks a claim, charges, delta or sigma"),
        ({"ledger": {"spends": ()}}, "the ledger lacks a claim, charges, delta or sigma"),
    ],
)
def test_views_of_a_run_that_says_too_little_are_not_verified(
    of_records: Bundle, how: dict[str, Any], said: str
) -> None:
    assert says(changed(of_records, **how), "views") == ("NOT VERIFIED", said)


def test_closed_forms_are_compared_with_the_view_for_which_they_are_printed(
    of_records: Bundle,
) -> None:
    details = judged(of_records, "views").details
    rows = {entry["name"]: entry for entry in details["closed_forms"]}
    share = 3
    at = min(server_delta(DELTA, share / 5), 0.5)
    assert details["delta_server"] == pytest.approx(server_delta(DELTA, share / 5))
    # Every round's three steps of the smallest client, whose rate is 12/60.
    every = budget([Steps(0.2, 1.5, 12)], at).headline
    forms = closed_forms(0.2, 1.5, 3, 4, 5, share / 5, DELTA)
    for name, towards in (
        ("third_party_noble", "third party"),
        ("server_noble", "server"),
        ("equation_13", "third party"),
        ("equation_14", "server"),
    ):
        entry = rows[name]
        assert entry["towards"] == towards
        assert entry["value"] == pytest.approx(forms[name])
        if towards == "server":
            assert entry["compared_with"] == pytest.approx(every)
            assert entry["compared_at_delta"] == at
        else:
            assert entry["compared_with"] == details["third_party"]
            assert entry["compared_at_delta"] == DELTA


@pytest.mark.parametrize(
    ("name", "value", "ratio", "reading"),
    [
        ("equation_14", 9.0, 1.5, "double-counts"),
        # Where all clients take part nothing is counted twice.
        ("equation_14", 9.0, 1.0, "conservative"),
        ("equation_14", 1.0, 1.0, "understates"),
        ("equation_13", 2.0, 1.5, "conservative"),
        ("equation_13", 1.9, 1.5, "understates"),
    ],
)
def test_a_closed_form_is_read_by_what_it_says_beside_the_composed_number(
    name: str, value: float, ratio: float, reading: str
) -> None:
    assert _reading(name, value, 2.0, ratio) == reading


def test_the_worst_case_is_a_client_in_every_round_up_to_what_the_run_allows(
    of_records: Bundle,
) -> None:
    whole = budget([Steps(0.2, 1.5, 12)], DELTA).headline
    details = judged(of_records, "views").details
    assert details["server_worst_case"] == pytest.approx(whole)
    server = details["server"]["epsilon"]["pld"]
    # A limit on ε bounds it, though not below what was spent.
    for limit, due in (
        (whole - 0.01, whole - 0.01),
        (whole + 1.0, whole),
        (server / 2.0, server),
    ):
        found = judged(changed(of_records, header={"max_epsilon": limit}), "views").details
        assert found["server_worst_case"] == pytest.approx(due)


def test_the_profile_of_a_client_that_spent_less_is_found(of_records: Bundle) -> None:
    past = histories(of_records.readable_ledger, of_records.header)
    least = min(past.values(), key=lambda history: budget(history, DELTA).headline)
    weaker = privacy_profile(least, DELTA)

    def lower(claim: Claim) -> None:
        claim["profile"] = [[x, weaker.delta(x)] for x, _ in claim["profile"]]

    assert "profile" in faults(of_records, "accounting", lower)


@pytest.mark.parametrize("kind", ["of_records", "noised_by_clients"])
def test_a_claim_lists_a_hundred_thousand_clients_at_most(
    kind: str, request: pytest.FixtureRequest
) -> None:
    def grow(claim: Claim) -> None:
        claim["server"]["clients"] = [row(claim)] * 100_001

    assert faults(request.getfixturevalue(kind), "accounting", grow) == (
        "claim: clients is not a list of at most 100000 items"
    )


def test_the_papers_delta_towards_the_server_is_a_half_at_most(of_records: Bundle) -> None:
    delta = 0.5
    assert 0.5 < server_delta(delta, 0.6) < 1.0
    run = changed(of_records, header={"delta": delta})
    rows = {entry["name"]: entry for entry in judged(run, "views").details["closed_forms"]}
    assert rows["server_noble"]["compared_at_delta"] == 0.5


def test_the_server_of_a_selection_has_seen_every_trial(of_records: Bundle) -> None:
    tune = {"selection": "private", "mean_trials": 3.0, "shape": 1.0}

    def costing(epsilon: float) -> Budget:
        return Budget({"pld": Range(epsilon, epsilon)})

    def all_trials(trials: int | None, server: float = 0.0, repeated: int | None = None) -> float:
        tuning = None if trials is None else Trial(1, trials, "0" * 64)
        run = changed(of_records, spec=lambda s: s.update(tune=tune), header={"tuning": tuning})
        most = most_spent(run.readable_ledger, run.header)
        spent = [(Steps(0.2, 1.5, 12 if repeated is None else repeated),), (Steps(0.1, 1.5, 12),)]
        found = _selection(run, [Steps(0.2, 1.5, 12)], costing(server), most, spent)
        assert found is not None
        return found.all_trials(0)

    for trials in (1, 2, 5):
        due = budget([Steps(0.2, 1.5, 12 * trials)], DELTA).headline
        assert all_trials(trials) == pytest.approx(due)
    assert all_trials(None) == all_trials(1)
    # What this run's own charges cost is the least.
    assert all_trials(1, server=99.0) == 99.0
    # Rounds that this run repeated count in addition to the other trials.
    for trials in (1, 3):
        due = budget([Steps(0.2, 1.5, 12 * (trials - 1) + 18)], DELTA).headline
        assert all_trials(trials, repeated=18) == pytest.approx(due)
    alone = changed(of_records)
    most = most_spent(alone.readable_ledger, alone.header)
    assert _selection(alone, [Steps(0.2, 1.5, 12)], costing(0.0), most, []) is None


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda c: c["third_party"].update(rounds=1), "third_party.rounds"),
        (lambda c: c.update(columns={"learnt": 0, "epsilon": 0.1}), "columns"),
        (lambda c: c.update(budget={"charged": 0.1}), "budget"),
        (lambda c: c.update(accountant_history=[]), "accountant_history"),
    ],
)
def test_what_no_check_of_single_records_reads_must_not_be_claimed(
    of_records: Bundle, change: Callable[[Claim], object], name: str
) -> None:
    said = faults(of_records, "views", change)
    assert said.startswith(f"the claim states {name}, which no check of this run compares")
