"""What a client's owner agrees to: ε after the spec's rounds, and the most that it can become.

A client pays for its spec's rounds and a small reserve, for crashes (`site.reserve`). It cannot
tell a server that crashed from one that only says so, so the reserve is part of what is promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpfedadamw.accounting.registry import claimed
from dpfedadamw.errors import PrivacyError
from dpfedadamw.run.headline import with_people
from dpfedadamw.units.plan import RunPlan

_UNITS = {
    "record": "one record",
    "person": "one person with all their records",
    "client": "one client with all its records",
}


@dataclass(frozen=True, kw_only=True)
class Promise:
    """ε of a client that takes part in every round, which is the most for any client.

    Attributes:
        against: From whom it protects.
        planned: ε after the spec's rounds.
        most: ε if all participations are asked for that the client pays for.
        of_person: Both for the person with most records, where single records are protected and
            the data name people; None where they do not, or no accountant covers it.
    """

    against: str
    planned: float
    most: float
    of_person: tuple[float, float] | None = None


def promises(plan: RunPlan, most_charges: int) -> tuple[Promise, ...]:
    """What holds, the reader that sees most first; at least one.

    Args:
        plan: The spec's.
        most_charges: Participations that a client pays for at most.

    Raises:
        PrivacyError: If no ε bounds so many participations.
    """
    most_rounds = max(1, most_charges)
    # What a lying server can make of it is held to neither limit nor target.
    longest = replace(plan, rounds=most_rounds, max_epsilon=None, target_epsilon=None)
    whole = _at_least_noise(longest, plan)
    whole.check_cost()
    claims = [one.expected_claim(1) for one in (plan, whole)]
    if plan.unit.noises_gradients:
        planned, most = (claimed(claim["server_worst_case"]) for claim in claims)
        of_person = None
        both = [
            with_people(one, claim).get("person", {}).get("epsilon")
            for one, claim in zip((plan, whole), claims, strict=True)
        ]
        if None not in both:
            of_person = both[0], max(both)
        return (
            Promise(
                against="the server",
                planned=planned,
                most=max(planned, most),
                of_person=of_person,
            ),
        )
    found = []
    if claims[0]["server"]["epsilon"] is not None:
        planned, most = (claimed(claim["server"]) for claim in claims)
        found.append(Promise(against="the server", planned=planned, most=max(planned, most)))
    planned, most = (claimed(claim["third_party"]) for claim in claims)
    found.append(
        Promise(
            against="anyone who sees the published models alone, if the server draws the clients"
            f"{' and adds the noise' if plan.noise_added_by == 'server' else ''} as the spec says",
            planned=planned,
            most=max(planned, most),
        )
    )
    return tuple(found)


def _at_least_noise(whole: RunPlan, plan: RunPlan) -> RunPlan:
    """What a client pays for at most, where noise may fall: every participation at the last noise.

    A server may leave out early rounds and ask for late ones, with less noise, several times.
    """
    if plan.adaptation is None or plan.adaptation.decay is None:
        return whole
    return replace(
        whole,
        noise_multiplier=plan.spending_bound.least_noise_multiplier,
        adaptation=replace(plan.adaptation, decay=None),
    )


def sentences(plan: RunPlan, most_charges: int, reproducible: bool) -> list[str]:
    """`promises` as lines for a client's owner.

    Args:
        plan: The spec's.
        most_charges: Participations that a client pays for at most.
        reproducible: Whether all randomness comes from a seed.

    Raises:
        PrivacyError: As `promises`.
    """
    try:
        found = promises(plan, most_charges)
    except PrivacyError as error:
        raise PrivacyError(f"{most_charges} participations: {error}") from None
    at, unit = plan.clients_per_person, _UNITS[plan.unit.name]
    if plan.unit.of_people:
        unit += f" at up to {at} clients" if at > 1 else " at one client"
    lines = [
        f"epsilon = {_rounded_up(one.planned)} against {one.against}, after the spec's "
        f"{plan.rounds} rounds. At most {_rounded_up(one.most)} if the server asks for all "
        f"{most_charges} participations that a client pays for (delta = {plan.claimed_delta:g}, "
        f"protects {unit}, {plan.adjacency} neighbours)"
        for one in found
    ]
    if plan.unit.name == "record" and plan.most_records is not None and plan.most_records > 1:
        lines.append(_of_person(found[0], plan.most_records))
    if plan.noise_added_by == "server":
        lines.append("no epsilon holds against the server: it sees clipped updates without noise")
    limit = plan.adaptation.step_limit if plan.adaptation else None
    if limit is not None:
        lines.append(f"the client also takes at most {limit} local steps in all")
    if reproducible:
        lines.append("none of this holds against anyone who knows the run's seed (reproducible)")
    return lines


def _of_person(promise: Promise, records: int) -> str:
    if promise.of_person is None:
        return f"a person with {records} records is protected less; no accountant says how much"
    planned, most = (_rounded_up(one) for one in promise.of_person)
    return (
        f"for a person with {records} records, and nobody has more, these are {planned} and {most}"
    )


def _rounded_up(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 100.0) / 100.0:.2f}"
