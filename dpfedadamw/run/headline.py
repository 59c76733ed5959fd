"""What a claim's headline is the ε of, so that dp-accounting can compute it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpfedadamw.accounting.client_level import third_party_compositions
from dpfedadamw.accounting.dp_accounting_check import Composed, checked
from dpfedadamw.accounting.epsilon_limit import rounds_that_fit
from dpfedadamw.accounting.record_level import (
    queries_from_ledger,
    rounds_released,
    spends_from_ledger,
)
from dpfedadamw.accounting.registry import claimed, leading
from dpfedadamw.accounting.several import epsilon_of_records, together
from dpfedadamw.accounting.trade_off import f_dp
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, covers
from dpfedadamw.units.plan import RunPlan

Entries = Sequence[Mapping[str, Any]]
MOST_RECORDS_PUBLIC = (
    "person: the largest number of records that one person has is taken to be public; the claim "
    "itself is on single records"
)
MOST_RECORDS_KEPT = (
    "person: no person has more training records than data.most_records_per_person; which are kept "
    "follows from their number and the spec's seed, and whom each is about, the data say"
)


def with_dp_accounting(
    plan: RunPlan, claim: Mapping[str, Any], entries: Entries = ()
) -> dict[str, Any]:
    """Return a claim, and with it what dp-accounting says of its headline.

    Args:
        plan: The run's plan.
        claim: Its claim, or the one that is expected.
        entries: The ledger; empty before a run.
    """
    if not plan.private:
        return dict(claim)
    return {**claim, "dp_accounting": checked(claim, composed(plan, claim, entries))}


def composed(plan: RunPlan, claim: Mapping[str, Any], entries: Entries = ()) -> Composed:
    """Return what the headline of a plan's claim is the ε of (`registry.headline`).

    It tells no more of who took part than the headline does, which is public.

    Args:
        plan: The run's plan.
        claim: Its claim, or the one that is expected.
        entries: The ledger; empty before a run.
    """
    if plan.unit.noises_updates:
        spends = [entry for entry in entries if entry["kind"] == "spend"]
        parts = third_party_compositions(spends) if spends else (_all_rounds(plan),)
        return Composed("third_party", parts, plan.trials)
    if plan.trials is not None:
        # What hides a trial's participants is a mixture, and dp-accounting has no event for one.
        whole = plan.participation == 1.0 or plan.clients_per_person > 1
        most = _most(plan, entries) if whole else ()
        return Composed("third_party", most, plan.trials)
    return Composed("server_worst_case", _beyond_the_plan(plan, claim, entries) or _most(plan))


def f_dp_of(plan: RunPlan, claim: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return μ and the trade-off curve of what the headline of an expected claim is the ε of.

    Args:
        plan: The run's plan.
        claim: The claim that is expected.

    Returns:
        See `trade_off.f_dp`; None without privacy, and for the best of several trials, whose whole
        profile no accountant gives.
    """
    if not plan.private or plan.trials is not None:
        return None
    found = composed(plan, claim)
    return {"view": found.view, **f_dp(found.parts)}


def epsilon_by_records(
    plan: RunPlan, claim: Mapping[str, Any], counts: Sequence[int]
) -> dict[int, float]:
    """Return the ε of a person by how many records they have, with every client in every round.

    Args:
        plan: The run's plan.
        claim: The claim that is expected.
        counts: k, one or more.

    Raises:
        PrivacyError: If the plan protects no records, or no accountant covers several.
    """
    if not plan.unit.noises_gradients or plan.unit.of_people:
        raise PrivacyError(
            "--records-per-person: only for privacy.unit record; units client and person cover all "
            "records already, and unit none has no epsilon"
        )
    if plan.trials is not None:
        raise PrivacyError(
            "for the best of several trials no accountant covers several records of one person; "
            "leave tune out"
        )
    parts, delta = composed(plan, claim).parts, float(claim["delta"])
    one = claimed(claim["server_worst_case"])
    return {k: one if k == 1 else epsilon_of_records(parts, k, delta) for k in sorted(set(counts))}


def with_people(plan: RunPlan, claim: Mapping[str, Any], entries: Entries = ()) -> dict[str, Any]:
    """Return a claim on single records, and with it what it means for the person with most of them.

    Where the data name no people, it is returned as it is.

    Args:
        plan: The run's plan.
        claim: Its claim, or the one that is expected.
        entries: The ledger; empty before a run.
    """
    most = plan.most_records
    if most is None or plan.unit.name != "record" or plan.trials is not None:
        return dict(claim)
    person: dict[str, Any] = {"records": most}
    bound = MOST_RECORDS_KEPT if plan.keeps_most_records else MOST_RECORDS_PUBLIC
    notes = [*claim["assumptions"], bound]
    try:
        if most == 1:
            person["epsilon"] = claimed(claim["server_worst_case"])
        else:
            parts = composed(plan, claim, entries).parts
            person["epsilon"] = epsilon_of_records(parts, most, float(claim["delta"]))
    except PrivacyError as error:
        person["reason"] = str(error)
    return {**claim, "person": person, "assumptions": notes}


def _most(plan: RunPlan, entries: Entries = ()) -> tuple[Composition, ...]:
    """The most that a client can spend in all the rounds that its limit on ε leaves room for.

    As a third party sees it where there are entries: with the rounds that were run again.
    """
    part = plan.composition(plan.smallest_client)
    rounds = max(_rounds(plan, part), rounds_released(entries))
    return replace(plan.spending_bound, rounds=rounds).of_person(part)


def _all_rounds(plan: RunPlan) -> Composition:
    """All rounds as queries on the clients."""
    rate = plan.participation
    kind = "full" if rate == 1.0 else "poisson"
    one = Composition(plan.noise_multiplier, rate, 1, 1, kind)
    return replace(one, steps=_rounds(plan, one))


def _rounds(plan: RunPlan, one: Composition) -> int:
    if plan.max_epsilon is None:
        return plan.rounds
    return rounds_that_fit(plan.spending_bound, one, plan.max_epsilon, plan.claimed_delta)


def _beyond_the_plan(
    plan: RunPlan, claim: Mapping[str, Any], entries: Entries
) -> tuple[Composition, ...]:
    """What a client was charged whose ε is the worst case: rounds were repeated after a crash.

    Empty where the plan's is. A limit on ε is never exceeded, and what was spent below it is
    nobody's business.
    """
    if plan.max_epsilon is not None or not entries:
        return ()
    if claimed(claim["server"]) < claimed(claim["server_worst_case"]):
        return ()
    spends, by = spends_from_ledger(plan.spending_bound.accounted(entries)), leading()[0].name
    if plan.clients_per_person > 1:
        parts = together(spends, plan.clients_per_person, plan.claimed_delta).parts
        return () if covers(_most(plan), parts) else parts
    # Spends and the claim's clients are those that were charged, by number.
    pairs = zip(spends, claim["server"]["clients"], strict=True)
    dearest = max(pairs, key=lambda pair: float(pair[1]["epsilon"][by]), default=None)
    if dearest is None:
        return ()
    parts = (*dearest[0].compositions, *queries_from_ledger(entries))
    return () if covers(_most(plan), parts) else parts
