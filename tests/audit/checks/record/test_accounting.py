"""The check "accounting" on single records, by hand: what is composed, and what a claim must say.

What a composition costs has tests of its own (`tests/audit/accounting`); here it is given, so that
each number of a claim is asked for at its boundary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from audit.accounting.budget import Budget
from audit.accounting.comparison import AtFineness
from audit.accounting.registry import Range
from audit.checks.record import accounting
from audit.checks.record.accounting import _client, _delta, _events, histories, over_rounds
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from tests.audit.checks.opened import changed, judged, says

NAME = "accounting"


@dataclass(frozen=True)
class Item:
    """Steps of one kind; two of them have no order."""

    kind: str
    steps: int


def header_of(**fields: Any) -> Any:
    return SimpleNamespace(
        **{"delta": 1e-5, "clients": 6, "records": (8,) * 6, "clients_per_person": 1, **fields}
    )


# What is composed.


def test_charges_are_composed_by_client_with_the_noise_and_steps_of_their_course(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass(frozen=True)
    class Spend:
        client: int
        round: int
        noise_multiplier: float = 1.0
        steps: int = 1

    spends = [Spend(4, 0), Spend(2, 0), Spend(4, 1), Spend(0, 3), Spend(4, 1)]
    bound = SimpleNamespace(
        accounted=lambda given: [
            (spend, 10.0 + place, 20 + place) for place, spend in enumerate(given)
        ]
    )
    monkeypatch.setattr(accounting, "cost_of", lambda one: (one.noise_multiplier, one.steps))
    monkeypatch.setattr(accounting, "merge", lambda items: ("merged", *items))
    ledger: Any = SimpleNamespace(spends=spends, queries=(), rounds=())
    found = _events(ledger, header_of(spending_bound=bound))
    assert found == {
        4: [(0, (10.0, 20)), (1, (12.0, 22)), (1, (14.0, 24))],
        2: [(0, (11.0, 21))],
        0: [(3, (13.0, 23))],
    }
    past = histories(ledger, header_of(spending_bound=bound))
    # By the numbers of the clients, whoever was charged first.
    assert list(past) == [0, 2, 4]
    assert past[4] == ("merged", (10.0, 20), (12.0, 22), (14.0, 24))


class Rounds:
    """A loss over rounds in which ε of a client is a hundred times its number, and its steps."""

    def __init__(
        self, events: Mapping[int, Sequence[tuple[int, Item]]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.curves: list[tuple[int, list[tuple[int, ...]]]] = []
        self.events = events
        final: dict[int, tuple[Item, ...]] = {}
        for client, charges in events.items():
            by_kind: dict[str, int] = {}
            for _, item in charges:
                if item.steps:
                    by_kind[item.kind] = by_kind.get(item.kind, 0) + item.steps
            final[client] = tuple(Item(kind, steps) for kind, steps in by_kind.items())

        def curve(history: Any, counts: list[tuple[int, ...]], delta: float) -> list[float]:
            assert delta == 1e-5
            client = next(one for one, its in final.items() if its is history)
            self.curves.append((client, counts))
            return [100.0 * client + sum(one) for one in counts]

        def estimate(items: list[Item], delta: float) -> float:
            assert delta == 1e-5
            return float(sum(item.steps for item in items))

        def most_spent(ledger: Any, header: Any) -> Any:
            assert (ledger, header) == (self.ledger, self.header)
            return SimpleNamespace(third_party=lambda delta: lambda point: delta + point)

        monkeypatch.setattr(accounting, "_events", lambda *_: events)
        monkeypatch.setattr(accounting, "histories", lambda *_: final)
        monkeypatch.setattr(accounting, "epsilon_curve", curve)
        monkeypatch.setattr(accounting, "rdp_estimate", estimate)
        monkeypatch.setattr(accounting, "most_spent", most_spent)
        self.ledger: Any = None
        self.header = header_of()

    def over(self, rounds: int) -> list[dict[str, Any]]:
        self.curves.clear()
        self.ledger = SimpleNamespace(rounds_to_finish=rounds, queries=())
        return over_rounds(self.ledger, self.header)


def test_after_each_round_the_client_that_spent_most_by_then_is_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Client 5 in rounds 0 and 2, twice in the latter; client 1 in round 1 alone.
    few = {
        5: [(0, Item("a", 2)), (2, Item("b", 3)), (2, Item("b", 1)), (3, Item("none", 0))],
        1: [(1, Item("a", 5))],
    }
    rounds = Rounds(few, monkeypatch)
    assert rounds.over(4) == [
        {"round": 1, "server": 502.0, "third_party": 1e-5 + 1},
        {"round": 2, "server": 105.0, "third_party": 1e-5 + 2},
        {"round": 3, "server": 506.0, "third_party": 1e-5 + 3},
        {"round": 4, "server": 506.0, "third_party": 1e-5 + 4},
    ]
    assert rounds.curves == [(5, [(2, 0), (2, 4), (2, 4)]), (1, [(5,)])]


def test_two_charges_of_one_client_in_one_round_are_counted_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twice = {3: [(0, Item("a", 2)), (0, Item("a", 4))], 2: [(0, Item("a", 5))]}
    assert [one["server"] for one in Rounds(twice, monkeypatch).over(1)] == [306.0]


@pytest.mark.parametrize(
    ("rounds", "points"),
    [(0, [1]), (1, [1]), (2, [1, 2]), (39, list(range(1, 40))), (40, list(range(1, 41)))],
)
def test_every_round_of_a_short_run_is_a_point(
    rounds: int, points: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Rounds({0: [(0, Item("a", 1))]}, monkeypatch).over(rounds)
    assert [one["round"] for one in found] == points


def test_a_long_run_has_forty_points_in_rising_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for rounds in (41, 1000):
        found = Rounds({0: [(0, Item("a", 1))]}, monkeypatch).over(rounds)
        step = (rounds - 1) / 39
        assert [one["round"] for one in found] == [round(1 + step * n) for n in range(40)]


@pytest.mark.parametrize("delta", [None, 1.0, 1.5])
def test_a_loss_needs_a_delta_below_one(delta: float | None) -> None:
    with pytest.raises(UnverifiedError, match="lacks a delta below 1"):
        _delta(header_of(delta=delta))
    assert _delta(header_of(delta=math.nextafter(1.0, 0.0))) < 1.0


# A client's claim.


def claimed(
    spends: Sequence[float] = (0.25, 0.5), delta: float = 0.5, records: int = 8, **entry: Any
) -> list[str]:
    """What is wrong with the claim of client 2, charged once in rounds 0 and 1 with these rates."""
    reasons: list[str] = []

    def numbers(where: str, part: Any, spent: Any) -> float:
        assert (where, spent) == ("client 2:", "what it spent")
        return 1.25

    comparison: Any = SimpleNamespace(numbers=numbers, reasons=reasons)
    charges: Any = [
        SimpleNamespace(round=place, sampling_rate=rate) for place, rate in enumerate(spends)
    ]
    given = {
        "client": 2, "steps": 7, "participations": len(spends), "records": records,
        "sampling_rate": spends[0] if spends else 0.0, "delta_records": delta * records, **entry,
    }  # fmt: skip
    history: Any = [Item("a", 3), Item("b", 4)]
    header = header_of(delta=delta, records=(1, 1, records, 1, 1, 1))
    spent: Any = "what it spent"
    assert _client(given, charges, history, spent, header, comparison) == 1.25
    assert all(one.startswith("client 2: the claim's ") for one in reasons)
    return [one.removeprefix("client 2: the claim's ") for one in reasons]


RATE = "sampling_rate is not the one charged"
PRODUCT = "delta_records is not delta times records"


def test_counts_of_a_clients_claim_are_exact() -> None:
    assert claimed() == []
    assert claimed(steps=8) == claimed(steps=6) == ["steps are not the 7 that it must count"]
    wrong = ["participations are not those charged"]
    assert claimed(participations=1) == claimed(participations=3) == wrong
    assert claimed(records=8) == []
    assert claimed(records=9, delta_records=4.5) == []


def test_a_charge_that_was_cut_short_counts_as_a_participation_or_not() -> None:
    reasons: list[str] = []
    comparison: Any = SimpleNamespace(numbers=lambda *_: 0.0, reasons=reasons)
    charges: Any = [SimpleNamespace(round=one, sampling_rate=0.25) for one in (0, 0, 3)]
    for participations, right in ((3, True), (2, True), (1, False), (4, False)):
        reasons.clear()
        entry = {
            "client": 0, "steps": 1, "participations": participations, "records": 8,
            "sampling_rate": 0.25, "delta_records": 8e-5,
        }  # fmt: skip
        history: Any = [Item("a", 1)]
        spent: Any = None
        _client(entry, charges, history, spent, header_of(), comparison)
        assert (reasons == []) is right


@pytest.mark.parametrize(
    ("rate", "told"),
    [
        (1e-9, False),
        (math.nextafter(1e-9, 1.0), True),
        (1.9e-9, True),
        (0.0, False),
        (0.5, True),
    ],
)
def test_a_sampling_rate_is_that_of_the_first_charge_to_nine_digits(
    rate: float, told: bool
) -> None:
    # Of a rate of 0 the difference is the number itself.
    assert claimed(spends=(0.0, 0.5), sampling_rate=rate) == ([RATE] if told else [])


def test_a_sampling_rate_may_be_off_to_neither_side() -> None:
    assert claimed(sampling_rate=0.25 + 2e-9) == claimed(sampling_rate=0.25 - 2e-9) == [RATE]
    assert claimed(sampling_rate=0.25 + 9e-10) == claimed(sampling_rate=0.25 - 9e-10) == []
    # Of a client that was never charged no rate is asked.
    assert claimed(spends=(), sampling_rate=0.75) == []


@pytest.mark.parametrize(
    ("records", "off", "told"),
    [
        (0, 1e-9, False),
        (0, math.nextafter(1e-9, 1.0), True),
        (0, 1.9e-9, True),
        (1, 9e-10, False),
        (1, 1.1e-9, True),
        # Above 1 relative to the product, here 4.
        (8, 3.9e-9, False),
        (8, -3.9e-9, False),
        (8, 4.1e-9, True),
        (8, -4.1e-9, True),
    ],
)
def test_delta_times_records_is_exact_to_nine_digits(records: int, off: float, told: bool) -> None:
    found = claimed(records=records, delta_records=0.5 * records + off)
    assert found == ([PRODUCT] if told else [])


# The claim of all.


class Costs:
    """A run whose clients cost what is given, and what its claim is held to."""

    def __init__(
        self, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, costs: Mapping[int, float]
    ) -> None:
        self.bundle = bundle
        self.profiled: list[Any] = []
        self.heading: float | None = None
        past = {client: (Item(f"of {client}", 1),) for client in costs}
        monkeypatch.setattr(accounting, "histories", lambda *_: past)
        monkeypatch.setattr(accounting, "over_rounds", lambda *_: "over rounds")
        monkeypatch.setattr(accounting, "_client", lambda entry, *_: entry["epsilon"])
        noted = self

        def budget(history: Any, delta: float) -> Any:
            assert delta == 1e-5
            of = next((one for one, its in past.items() if its is history), None)
            value = 0.0 if of is None else costs[of]
            return Budget({"pld": Range(value, value)})

        def curve_fault(claim: Any, history: Any, delta: float) -> str | None:
            noted.profiled.append(history[0].kind)
            return None

        class Comparison(accounting.Comparison):
            def headline(self, where: str, view: Any, recomputed: AtFineness) -> float:
                assert (where, recomputed(0)) == ("headline epsilon", max(costs.values()))
                return max(costs.values()) if noted.heading is None else noted.heading

        monkeypatch.setattr(accounting, "budget", budget)
        monkeypatch.setattr(accounting, "curve_fault", curve_fault)
        monkeypatch.setattr(accounting, "Comparison", Comparison)

    def claiming(self, *entries: Mapping[str, Any]) -> Any:
        clients = list(entries)
        return judged(
            changed(self.bundle, claim=lambda c: c["server"].update(clients=clients)), NAME
        )


def entry(client: int, epsilon: float = 1.0) -> dict[str, Any]:
    return {"client": client, "epsilon": epsilon}


CHARGED = {0: 1.0, 1: 2.5, 2: 2.0, 3: 0.5, 4: 1.5}


def test_the_profile_is_that_of_the_client_that_spent_most(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(of_records, monkeypatch, CHARGED)
    found = costs.claiming(*(entry(client, cost) for client, cost in CHARGED.items()))
    assert found.verdict.value == "PASS"
    assert costs.profiled == ["of 1"]
    assert "epsilon of 5 clients recomputed from 12 charges by" in found.measurement
    assert found.measurement.endswith("headline 2.5 at delta = 1e-05")
    many = {
        client: sum(spend.client == client for spend in of_records.readable_ledger.spends)
        for client in CHARGED
    }
    assert found.details == {
        "delta": 1e-5,
        "epsilon": 2.5,
        "clients": [
            {
                "client": client,
                "participations": many[client],
                "epsilon": {"pld": cost},
                "claimed": cost,
            }
            for client, cost in CHARGED.items()
        ],
        "over_rounds": "over rounds",
    }
    monkeypatch.setattr(accounting, "curve_fault", lambda *_: "the profile is another")
    found = costs.claiming(*(entry(client, cost) for client, cost in CHARGED.items()))
    assert (found.verdict.value, found.measurement) == ("FAIL", "the profile is another")


def test_the_claim_leaves_nobody_out_and_names_nobody_twice(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(of_records, monkeypatch, CHARGED)
    entries = [entry(client, cost) for client, cost in CHARGED.items()]
    found = costs.claiming(*entries[:1], *entries[2:4])
    # The first one is named.
    assert found.measurement == "the claim leaves out client 1, who took part"
    assert found.details["clients"][1]["claimed"] is None
    twice = costs.claiming(*entries, entries[3])
    assert twice.measurement == "client 3 is claimed twice"
    stranger = costs.claiming(*entries, entry(5))
    assert stranger.verdict.value == "FAIL"
    assert stranger.measurement.startswith("claim: client is not a whole number")
    # Of a claim that cannot be read none is listed.
    assert {row["claimed"] for row in stranger.details["clients"]} == {None}


@pytest.mark.parametrize(
    ("heading", "told"),
    [
        (2.5, False),
        (2.5 * (1.0 - 1e-9), False),
        (math.nextafter(2.5 * (1.0 - 1e-9), 0.0), True),
        (2.4, True),
        (3.0, False),
    ],
)
def test_the_headline_is_the_largest_of_the_clients_but_for_decimals(
    of_records: Bundle, heading: float, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = Costs(of_records, monkeypatch, CHARGED)
    costs.heading = heading
    found = costs.claiming(*(entry(client, cost) for client, cost in CHARGED.items()))
    said = "the headline epsilon is not the largest of the clients'"
    assert found.measurement == said if told else found.verdict.value == "PASS"


def test_a_client_that_was_never_charged_is_claimed_to_have_spent_nothing(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {client: cost for client, cost in CHARGED.items() if client != 3}
    spends = tuple(one for one in of_records.readable_ledger.spends if one.client != 3)
    run = changed(of_records, ledger={"spends": spends})
    costs = Costs(run, monkeypatch, some)
    asked: list[Any] = []

    def client(entry: Any, spends: Any, history: Any, spent: Any, *_: Any) -> float:
        asked.append((entry["client"], len(spends), len(history), spent.headline))
        return float(entry["epsilon"])

    monkeypatch.setattr(accounting, "_client", client)
    found = costs.claiming(*(entry(one, some.get(one, 0.0)) for one in range(5)))
    assert found.verdict.value == "PASS"
    assert (3, 0, 0, 0.0) in asked
    assert [row["client"] for row in found.details["clients"]] == [0, 1, 2, 4]


@pytest.mark.parametrize(("many", "read"), [(100_000, True), (100_001, False)])
def test_a_claim_has_a_hundred_thousand_entries_at_most(
    of_records: Bundle, many: int, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Costs(of_records, monkeypatch, CHARGED).claiming(*[{}] * many)
    limit = "claim: clients is not a list of at most 100000 items"
    assert found.measurement == ("claim: client is missing" if read else limit)


def test_without_a_claim_or_charges_nothing_is_verified(of_records: Bundle) -> None:
    said = ("NOT VERIFIED", "the ledger has no claim or no charges")
    assert says(changed(of_records, ledger={"claim": None}), NAME) == said
    assert says(changed(of_records, ledger={"spends": ()}), NAME) == said
