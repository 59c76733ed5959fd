"""What a run costs the record, person or client for which it costs most, as a budget composes it.

Runs are composed by their events, never by adding up their ε. At record level a record belongs to
one client of each run, and to another client in another partition, so each run counts with what it
can have cost a record of any of its clients. A person is at several clients of each run, and is
charged for as many of the dearest. At client level a round costs every client the same.

The view is the one that a spec's target ε holds in: the server's at record level, a third party's
at client level. What a third party learns at record level follows from what the server sees, so it
costs at most as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dpfedadamw.accounting.client_level import third_party_compositions
from dpfedadamw.accounting.record_level import queries_from_ledger, spends_from_ledger
from dpfedadamw.accounting.registry import epsilons, leading
from dpfedadamw.accounting.worst_case import Adaptation, NoiseDecay, SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, merge
from dpfedadamw.units.plan import RunPlan

Cost = tuple[Composition, ...]

Entries = Sequence[Mapping[str, Any]]
# What JSON may have for the fields of a composition.
_TYPES: dict[str, tuple[type, ...]] = {
    "noise_multiplier": (float, int),
    "sampling_rate": (float, int),
    "steps": (int,),
    "queries_per_step": (int,),
    "sampling": (str,),
}


def charged(entries: Entries) -> Cost:
    """What the spends of a ledger cost at most one record, one person, or one client.

    Args:
        entries: All of a ledger, or its beginning; the first is the header. Where the run's course
            followed releases, spends count as the most that they could have been.
    """
    spends = [entry for entry in entries if entry["kind"] == "spend"]
    queries = queries_from_ledger(entries)
    if not spends:
        return queries
    if entries[0]["unit"] == "client":
        return third_party_compositions(spends)
    counted = _bound(entries[0]).accounted(entries)
    cost = dearest((*spend.compositions, *queries) for spend in spends_from_ledger(counted))
    return _times(cost, int(entries[0].get("clients_per_person", 1)))


def reserved(plan: RunPlan, entries: Entries = (), completed: int = 0) -> Cost:
    """The most that a run can have cost when it is over, known before it goes on.

    Args:
        plan: The run's plan.
        entries: Its ledger so far; none before it begins.
        completed: Rounds that are not run again.
    """
    before = charged(entries) if entries else ()
    if entries:
        plan = replace(plan, rounds=plan.most_rounds(entries, completed))
    rest = _remaining(plan, completed)
    if not queries_from_ledger(entries):
        rest = (*rest, *plan.spending_bound.queries)
    limit = plan.adaptation.step_limit if plan.adaptation else None
    whole = merge((*before, *rest)) if before or rest else ()
    if limit is None:
        return whole
    # It is one client's; a person is at several, all of whose steps are counted.
    limit *= plan.clients_per_person
    return tuple(replace(part, steps=min(part.steps, limit)) for part in whole)


def dearest(clients: Iterable[Sequence[Composition]]) -> Cost:
    """A cost that is at least that of every client's compositions.

    For each noise it has the largest sampling rate and the most steps of any client. A lower rate,
    and fewer steps, cost less together with whatever else is composed; which client's own ε is
    largest says nothing of that.
    """
    found: dict[tuple[float, str], Composition] = {}
    for compositions in clients:
        own: dict[tuple[float, str], Composition] = {}
        for part in merge(compositions):
            key = (part.step_noise_multiplier, part.sampling)
            one = own.get(key)
            own[key] = part if one is None else _larger(one, part, one.steps + part.steps)
        for key, part in own.items():
            other = found.get(key)
            found[key] = part if other is None else _larger(other, part, 0)
    return merge(tuple(found.values())) if found else ()


def composed(costs: Iterable[Cost], delta: float) -> dict[str, float]:
    """The ε of several runs on one data set after one another, by accountant.

    Args:
        costs: What each of them costs.
        delta: The budget's δ, which is that of all runs together.
    """
    parts = [part for cost in costs for part in cost]
    return epsilons(parts, delta) if parts else {leading()[0].name: 0.0}


def epsilon_of(costs: Iterable[Cost], delta: float) -> float:
    """The ε of several runs that counts: the leading accountant's."""
    return composed(costs, delta)[leading()[0].name]


def to_plain(cost: Cost) -> list[dict[str, Any]]:
    """A cost as JSON types."""
    return [asdict(part) for part in cost]


def from_plain(plain: Any) -> Cost:
    """The cost that `to_plain` wrote.

    Raises:
        PrivacyError: If it is none.
    """
    try:
        found = tuple(Composition(**part) for part in plain)
        if not all(
            type(getattr(part, name)) in kinds for part in found for name, kinds in _TYPES.items()
        ):
            raise TypeError
    except TypeError:
        raise PrivacyError("is no list of compositions") from None
    return found


def _times(cost: Cost, clients: int) -> Cost:
    """What so many clients cost together, none of which costs more."""
    return tuple(replace(part, steps=part.steps * clients) for part in cost)


def _larger(one: Composition, other: Composition, steps: int) -> Composition:
    return replace(
        one,
        sampling_rate=max(one.sampling_rate, other.sampling_rate),
        steps=max(one.steps, other.steps, steps),
    )


def _remaining(plan: RunPlan, completed: int) -> Cost:
    """The most that the rounds after the completed ones can cost."""
    if plan.unit.noises_updates:
        rounds, rate = plan.rounds - completed, plan.participation
        kind = "full" if rate == 1.0 else "poisson"
        return (Composition(plan.noise_multiplier, rate, rounds, 1, kind),) if rounds > 0 else ()
    # Of the fewest records the largest share is drawn, in as many steps as of any other.
    per_round = plan.composition(plan.smallest_client)
    bound = plan.spending_bound
    done = dict(_rounds_by_noise(replace(bound, rounds=completed), per_round))
    left = [
        replace(part, steps=part.steps * (rounds - done.get(part, 0)))
        for part, rounds in _rounds_by_noise(bound, per_round)
        if rounds > done.get(part, 0)
    ]
    return _times(merge(left), plan.clients_per_person) if left else ()


def _rounds_by_noise(
    bound: SpendingBound, per_round: Composition
) -> tuple[tuple[Composition, int], ...]:
    return bound.each_round(per_round) if bound.rounds else ()


def _bound(header: Mapping[str, Any]) -> SpendingBound:
    """The most that a run could spend, as its ledger's header declares it."""
    declared = header.get("adaptation")
    adaptation = None
    if declared is not None:
        decay = NoiseDecay(**declared["decay"]) if declared["decay"] else None
        adaptation = Adaptation(**{**declared, "decay": decay})
    return SpendingBound(
        int(header["rounds"]),
        int(header["local_steps"]),
        float(header["noise_multiplier"]),
        adaptation,
    )
