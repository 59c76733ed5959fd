"""A limit on ε: promised and noted alike, kept, and what ended the run where it ended early."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.accounting.budget import Steps, budget
from audit.accounting.comparison import ABSOLUTE, RELATIVE
from audit.checks.client.accounting import third_party_history
from audit.checks.record.accounting import histories
from audit.checks.shared import agreement
from audit.checks.shared.agreement import _repeated, _with_a_further_round, limit_faults
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Resume, Stopped
from audit.reading.ledger_lines import Adaptation, Decay, SharedBudget, SpendingBound
from audit.untrusted.fields import FieldError
from tests.audit.checks.opened import changed, says

DELTA = 1e-5


def limited(bundle: Bundle, promised: float | None, noted: float | None, **more: Any) -> str:
    run = changed(
        bundle,
        spec=lambda s: s["federation"].update(max_epsilon=promised),
        header={"max_epsilon": noted, **more.pop("header", {})},
        **more,
    )
    verdict, text = says(run, "promise")
    return text if verdict == "FAIL" else verdict


@pytest.mark.parametrize(
    ("promised", "noted", "said"),
    [
        (99.0, 99.0, "PASS"),
        (99.0, 99.0 * (1 + 0.9e-9), "PASS"),
        (99.0, 99.0 * (1 + 1.1e-9), "max_epsilon: the spec says 99.0, the ledger 99.0"),
        (99.0, None, "max_epsilon: the spec says 99.0, the ledger None"),
        (None, 99.0, "max_epsilon: the spec says None, the ledger 99.0"),
        (0.0, None, "max_epsilon is not above 0"),
    ],
)
def test_a_limit_is_the_specs(
    of_records: Bundle, promised: float | None, noted: float | None, said: str
) -> None:
    assert limited(of_records, promised, noted).startswith(said)


@pytest.mark.parametrize("kind", ["of_records", "of_clients"])
def test_the_claim_keeps_to_the_limit_without_any_tolerance(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    view = "server" if kind == "of_records" else "third_party"
    claimed = (bundle.readable_ledger.claim or {})[view]["epsilon"]["pld"]
    assert limited(bundle, claimed, claimed) == "PASS"
    less = claimed * (1 - 1.1e-9)
    assert limited(bundle, less, less) == (f"the claimed epsilon exceeds max_epsilon, {less:g}")


def test_only_a_limit_that_there_is_can_end_a_run(of_records: Bundle) -> None:
    stopped = {"ledger": {"stopped": Stopped(4, 9.0)}}
    assert limited(of_records, None, None, **stopped) == (
        "the claim says that a limit on epsilon ended the run, but there is none"
    )
    assert "the claim says that another limit on epsilon ended the run" in limited(
        of_records, 99.0, 99.0, **stopped
    )


def shortened(bundle: Bundle, rounds: int, limit: float) -> dict[str, Any]:
    read = bundle.readable_ledger
    return {
        "rounds": read.rounds[:rounds],
        "spends": tuple(one for one in read.spends if one.round < rounds),
        "round_spends": tuple(one for one in read.round_spends if one.round < rounds),
        "stopped": Stopped(rounds, limit),
        "claim": {**(read.claim or {}), "server": {"epsilon": {"pld": 0.01}, "accountant": "pld"},
                  "third_party": {"epsilon": {"pld": 0.01}, "accountant": "pld"}},
    }  # fmt: skip


EARLY = "the run ended after {} of {} rounds, although a further one would have kept to max_epsilon"


def boundary(further: float) -> tuple[float, float]:
    """Limits just at which a further round's cost still explains the end, and no longer does."""
    at = (further + ABSOLUTE) / (1.0 - RELATIVE)
    return at * 0.9999, at * 1.0001


def third_round(bundle: Bundle) -> float:
    """What a third round costs after two, at its most."""
    cut = replace(bundle.readable_ledger, **shortened(bundle, 2, 1.0))
    past = histories(cut, bundle.header)
    # Any client may be drawn for it, also one that took no part so far.
    return max(
        budget([*past.get(client, ()), Steps(12.0 / records, 1.5, 3)], DELTA).headline
        for client, records in enumerate(bundle.header.records)
    )


def test_a_run_ends_early_where_a_further_round_could_exceed_the_limit(
    of_records: Bundle,
) -> None:
    def said(limit: float) -> str:
        return limited(of_records, limit, limit, ledger=shortened(of_records, 2, limit))

    explained, early = boundary(third_round(of_records))
    assert said(explained) == "PASS"
    assert said(early).startswith(EARLY.format(2, 4))


def test_a_run_that_was_cut_off_may_end_early_at_its_target(of_records: Bundle) -> None:
    def said(target: float | None, noted: float, *resumes: Resume) -> str:
        ledger = shortened(of_records, 2, 1.0)
        run = changed(
            of_records,
            spec=lambda s: s["privacy"].update(target_epsilon=target),
            ledger={**ledger, "stopped": Stopped(2, target_epsilon=noted), "resumes": resumes},
        )
        verdict, text = says(run, "promise")
        return text if verdict == "FAIL" else verdict

    explained, early = boundary(third_round(of_records))
    once = Resume(10, 2, None)
    assert said(explained, explained, once) == "PASS"
    assert said(early, early, once) == (
        "the run ended after 2 of 4 rounds, although a further one would have kept to "
        f"target_epsilon, {early:g}"
    )
    assert said(explained, 0.9 * explained, once) == (
        "the claim says that another limit on epsilon ended the run"
    )
    no_limit = "the claim says that a limit on epsilon ended the run, but there is none"
    assert said(None, explained, once) == no_limit
    # Without an interruption the target is kept to by all the rounds of the spec.
    assert no_limit in said(explained, explained)


def test_a_run_with_a_limit_does_not_end_at_its_target(of_records: Bundle) -> None:
    stopped = {
        "ledger": {"stopped": Stopped(4, target_epsilon=99.0), "resumes": (Resume(18, 4, None),)}
    }
    assert "another limit on epsilon ended the run" in limited(of_records, 99.0, 99.0, **stopped)


def test_a_run_that_was_cut_off_may_end_at_a_target_below_its_limit(of_records: Bundle) -> None:
    explained, early = boundary(third_round(of_records))
    once = (Resume(10, 2, None),)

    def said(target: float | None, limit: float, resumes: tuple[Resume, ...] = once) -> str:
        def promises(spec: dict[str, Any]) -> None:
            spec["privacy"].update(target_epsilon=target)
            spec["federation"].update(max_epsilon=limit)

        stopped = Stopped(2, target_epsilon=target or explained)
        verdict, text = says(
            changed(
                of_records,
                spec=promises,
                header={"max_epsilon": limit},
                ledger={**shortened(of_records, 2, 1.0), "stopped": stopped, "resumes": resumes},
            ),
            "promise",
        )
        return text if verdict == "FAIL" else verdict

    assert said(explained, 2.0 * explained) == "PASS"
    assert f"have kept to target_epsilon, {early:g}" in said(early, 2.0 * early)
    another = "the claim says that another limit on epsilon ended the run"
    # The limit is the lower one, or there is no target.
    assert another in said(explained, 0.5 * explained)
    assert another in said(None, 2.0 * explained)
    assert "there is none" in said(explained, 2.0 * explained, ())


def test_where_clients_are_drawn_independently_everybody_counts_as_in_every_round(
    of_records: Bundle,
) -> None:
    def said(limit: float, *resumes: Resume) -> str:
        ledger = {**shortened(of_records, 2, limit), "resumes": resumes}
        run = changed(
            of_records,
            spec=lambda s: s["federation"].update(max_epsilon=limit, client_sampling="poisson"),
            header={"max_epsilon": limit, "client_sampling": "poisson"},
            ledger=ledger,
        )
        verdict, text = says(run, "promise")
        return text if verdict == "FAIL" else verdict

    # The smallest client, whose rate is 12/60, in three rounds of three steps.
    explained, early = boundary(budget([Steps(0.2, 1.5, 9)], DELTA).headline)
    assert said(explained) == "PASS"
    assert said(early).startswith(EARLY.format(2, 4))
    # A round that was begun twice has been paid twice.
    explained, early = boundary(budget([Steps(0.2, 1.5, 12)], DELTA).headline)
    assert said(explained, Resume(10, 2, None)) == "PASS"
    assert said(early, Resume(10, 2, None)).startswith(EARLY.format(2, 4))


def test_a_round_of_whole_clients_costs_one_query_more(of_clients: Bundle) -> None:
    def said(limit: float) -> str:
        return limited(of_clients, limit, limit, ledger=shortened(of_clients, 20, limit))

    cut = replace(of_clients.readable_ledger, **shortened(of_clients, 20, 1.0))
    assert sum(one.steps for one in third_party_history(cut)) == 20
    explained, early = boundary(budget([Steps(0.25, 1.5, 21)], 1e-3).headline)
    assert said(explained) == "PASS"
    assert said(early).startswith(EARLY.format(20, 24))


def test_rounds_that_may_have_begun_unseen_are_counted_at_every_cut(of_records: Bundle) -> None:
    read = of_records.readable_ledger

    def repeated(*resumes: tuple[int, int]) -> int:
        return _repeated(replace(read, resumes=tuple(Resume(*one, None) for one in resumes)))

    # Rounds end in lines 5, 9, 13 and 17.
    assert repeated() == 0
    assert repeated((7, 1)) == 1
    # Round 0 had ended and ran again.
    assert repeated((7, 0)) == 2
    assert repeated((7, 1), (8, 1)) == 2
    assert repeated((7, 1), (11, 1)) == 3


# A budget of all runs on the same data.


def budgeted(
    bundle: Bundle, promised: dict[str, Any], noted: SharedBudget | None, **more: Any
) -> str:
    run = changed(
        bundle, spec=lambda s: s.update(budget=promised), header={"budget": noted}, **more
    )
    verdict, text = says(run, "promise")
    return text if verdict == "FAIL" else verdict


@pytest.mark.parametrize("kind", ["of_records", "of_clients"])
def test_a_run_fits_the_budget_of_all_runs_by_itself(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    ledger, delta = bundle.readable_ledger, bundle.header.delta or 0.0
    past = (
        list(histories(ledger, bundle.header).values())
        if kind == "of_records"
        else [third_party_history(ledger)]
    )
    spent = max(budget(history, delta).headline for history in past)

    def said(epsilon: float, charged: float | None = None, **other: float) -> str:
        promised = {"file": "spent.db", "epsilon": epsilon, "delta": delta, **other}
        return budgeted(
            bundle,
            promised,
            SharedBudget(epsilon, delta),
            claim=lambda c: c.update(budget={"charged": charged}),
        )

    # The accountants' own difference is granted.
    assert said(spent) == "PASS"
    assert said(spent * 0.999).startswith("budget: the run alone cost")
    assert said(99.0, delta=delta * 2) == "budget: the ledger's is not the spec's"
    whole = 2.0 * spent
    # What is charged lies between what this run cost and the whole.
    assert said(whole, charged=whole) == "PASS"
    assert "is charged to it, more than the" in said(whole, charged=whole * 1.0001)
    assert said(whole, charged=0.0) == (
        "budget: 0 is stated as charged to it, less than this run cost"
    )
    assert "charged is not a number from 0" in said(whole, charged=-1.0)
    low = spent * (1.0 - 1e-3)
    assert said(whole, charged=spent) == "PASS"
    assert "is stated as charged to it, less than this run cost" in said(whole, low)


def test_a_budget_without_a_file_is_none(of_records: Bundle) -> None:
    nothing = {"file": None, "epsilon": None, "delta": None}
    assert budgeted(of_records, nothing, None) == "PASS"
    assert budgeted(of_records, nothing, SharedBudget(9.0, DELTA)) == (
        "budget: only one of spec and ledger names one"
    )
    promised = {"file": "spent.db", "epsilon": 99.0, "delta": DELTA}
    assert "the ledger's is not the spec's" in budgeted(
        of_records, promised, SharedBudget(99.0 * (1 + 1.1e-9), DELTA)
    )
    no_claim = budgeted(of_records, promised, SharedBudget(99.0, DELTA), ledger={"claim": None})
    assert no_claim == "there is no claim"


# What a further round would cost, by what it is composed of; the costs are made up here.


DECLARED = {"delta": DELTA, "noise_multiplier": 1.5, "expected_batch_size": 12.0}


def a_header(**changes: Any) -> Any:
    said = {
        "unit": SimpleNamespace(name="record"), "client_sampling": "fixed", "adaptation": None,
        "spending_bound": SpendingBound(10, 3, 1.5, None), "records": (60, 24),
        "sampling": "poisson",
        "sampling_rate": None, "max_epsilon": 4.0, "rounds": 10, "clients": 8,
        "clients_per_round": 2, "clients_per_person": 1,
    }  # fmt: skip
    return SimpleNamespace(**{**said, **changes}, declared=DECLARED.__getitem__)


def a_ledger(*queries: int, rounds: int = 2, **changes: Any) -> Any:
    said = {
        "spends": tuple(SimpleNamespace(queries_per_step=each) for each in queries or (1,)),
        "queries": (),
        "rounds": (), "resumes": (), "stopped": Stopped(rounds, 4.0),
        "claim": {"server": {"epsilon": {"pld": 1.0}, "accountant": "pld"}},
    }  # fmt: skip
    return SimpleNamespace(**{**said, **changes})


def further(header: Any, ledger: Any, charged: dict[int, list[Steps]]) -> list[list[Steps]]:
    return list(_with_a_further_round(ledger, header, charged))


BEFORE = Steps(0.2, 1.5, 5)


def test_a_further_round_is_one_more_of_the_dearest_kind_for_every_client() -> None:
    # Batches of 12 of 60 and of 24 records, three steps each.
    one, other = Steps(0.2, 1.5, 3), Steps(0.5, 1.5, 3)
    assert further(a_header(), a_ledger(), {0: [BEFORE]}) == [[BEFORE, one], [other]]
    # Two queries on a batch are one of a root of two less noise; the most that were charged count.
    halved = [replace(each, noise_multiplier=1.5 / 2**0.5) for each in (one, other)]
    for queries in ((1, 2), (2, 1)):
        found = further(a_header(), a_ledger(*queries), {})
        assert found == [[halved[0]], [halved[1]]]
    stated = further(a_header(sampling_rate=0.25), a_ledger(), {})
    assert [history[0].sampling_rate for history in stated] == [0.25, 0.25]
    fixed = further(a_header(sampling="fixed-size"), a_ledger(), {})
    assert fixed[0] == [Steps(0.2, 0.75, 3, fixed_size=True)]
    with pytest.raises(UnverifiedError, match="no accounting"):
        further(a_header(sampling=None), a_ledger(), {})


def test_a_client_without_records_has_nothing_to_lose_by_a_further_round() -> None:
    found = further(a_header(records=(0, 60)), a_ledger(), {})
    assert found == [[Steps(0.2, 1.5, 3)]]
    assert further(a_header(records=(0, 0)), a_ledger(), {}) == []


def test_a_further_round_has_the_least_noise_that_it_can_have() -> None:
    decay = Decay(0.5, 1, 0.01)
    bound = SpendingBound(10, 3, 1.5, Adaptation(3, None, True, decay))
    for rounds in (2, 3, 5):
        # Round 0 is the first and tells of no slope, so that after so many one less have.
        ((one,),) = further(
            a_header(spending_bound=bound, records=(60,)), a_ledger(rounds=rounds), {}
        )  # fmt: skip
        assert one.noise_multiplier == bound.least_noise(rounds) == 1.5 * 0.5 ** (rounds - 1)
        assert one.noise_multiplier != bound.least_noise(rounds - 1)


@pytest.mark.parametrize(
    ("limit", "steps"), [(None, 7), (100, 7), (13, 7), (12, 7), (11, 6), (6, 1), (5, 0), (3, 0)]
)
def test_no_more_steps_follow_than_the_limit_leaves(limit: int | None, steps: int) -> None:
    adaptation = Adaptation(7, limit, False, None)
    header = a_header(
        adaptation=adaptation, spending_bound=SpendingBound(10, 3, 1.5, adaptation), records=(60,)
    )  # fmt: skip
    (found,) = further(header, a_ledger(), {0: [BEFORE]})
    assert found == [BEFORE, Steps(0.2, 1.5, steps)]


def test_whole_clients_are_drawn_for_one_round_more() -> None:
    header = a_header(unit=SimpleNamespace(name="client"))
    found = further(header, a_ledger(), {0: [BEFORE], 5: []})
    assert found == [[BEFORE, Steps(0.25, 1.5, 1)], [Steps(0.25, 1.5, 1)]]


def test_independent_draws_count_every_round_that_was_begun(
    monkeypatch: pytest.MonkeyPatch, of_records: Bundle
) -> None:
    asked: list[int] = []

    def everything(begun: int) -> list[Steps]:
        asked.append(begun)
        return [BEFORE]

    most = SimpleNamespace(everything=everything)
    monkeypatch.setattr(agreement, "most_spent", lambda *_: most)
    header = a_header(client_sampling="poisson")
    assert further(a_header(clients_per_person=2), a_ledger(rounds=6), {}) == [[BEFORE]]
    assert asked.pop() == 7
    assert further(header, a_ledger(rounds=4), {}) == [[BEFORE]]
    resumes = (Resume(10, 1, None), Resume(11, 1, None))
    rounds = of_records.readable_ledger.rounds[:2]
    again = a_ledger(rounds=4, resumes=resumes)
    again.rounds = rounds
    assert further(header, again, {}) == [[BEFORE]]
    # The fifth is begun; two cuts after two rounds, at the second, repeated two and one.
    assert asked == [5, 5 + 3]


@pytest.mark.parametrize(
    ("costs", "early"),
    [
        ((4.0 * (1.0 - 5e-3) - 1e-3, 0.0), True),
        ((float(np.nextafter(4.0 * (1.0 - 5e-3) - 1e-3, 9.0)), 0.0), False),
        ((0.0, 9.0), False),
        ((9.0, 9.0), False),
        ((0.0, 0.0), True),
    ],
)
def test_any_client_s_further_round_explains_an_end(
    monkeypatch: pytest.MonkeyPatch, costs: tuple[float, float], early: bool
) -> None:
    """The accountants' own difference is granted, to the last bit."""

    def cost(history: list[Steps], delta: float) -> Any:
        assert delta == DELTA
        return SimpleNamespace(headline=costs[history[-1].sampling_rate == 0.5])

    monkeypatch.setattr(agreement, "budget", cost)
    reasons: list[str] = []
    ledger = a_ledger(header=a_header())
    limit_faults({"federation": {"max_epsilon": 4.0}}, ledger, "server", {}, reasons)
    assert [reason.split(", although")[0] for reason in reasons] == (
        ["the run ended after 2 of 10 rounds"] if early else []
    )


@pytest.mark.parametrize(
    ("claimed", "exceeds"),
    [
        (4.0 * (1.0 + 1e-9), False),
        (float(np.nextafter(4.0 * (1.0 + 1e-9), 9.0)), True),
        (0.1, False),
    ],
)
def test_a_claim_may_exceed_its_limit_by_how_it_is_written(claimed: float, exceeds: bool) -> None:
    reasons: list[str] = []
    claim = {"server": {"epsilon": {"pld": claimed}, "accountant": "pld"}}
    ledger = a_ledger(header=a_header(), stopped=None, claim=claim)
    limit_faults({"federation": {"max_epsilon": 4.0}}, ledger, "server", {}, reasons)
    assert reasons == ["the claimed epsilon exceeds max_epsilon, 4"] * exceeds
    # Without a claim there is nothing to exceed it, and nothing that ended it.
    reasons.clear()
    none = a_ledger(header=a_header(), claim=None)
    limit_faults({"federation": {"max_epsilon": 4.0}}, none, "server", {}, reasons)
    assert reasons == []
    with pytest.raises(FieldError, match="federation is missing"):
        limit_faults({}, none, "server", {}, reasons)
