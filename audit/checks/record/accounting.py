"""Check "accounting": is the claimed ε what the ledger's charges really cost?

Recomputes every client's ε from the ledger alone with the auditor's own accountant (`accounting`
of this package) by every method and compares with the claim, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from audit.accounting.budget import (
    Budget,
    Steps,
    budget,
    dearest,
    epsilon_curve,
    merge,
    methods,
    rdp_estimate,
    together,
)
from audit.accounting.comparison import AtFineness, Comparison, curve_fault
from audit.accounting.sampling import cost_of, most_spent, queried
from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, register
from audit.checks.shared.claimed import judgement_on
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import Spend
from audit.untrusted import fields
from audit.untrusted.fields import FieldError

_MOST_POINTS = 40


def histories(ledger: Ledger, header: Header) -> Mapping[int, tuple[Steps, ...]]:
    """What every charged client's epsilon is composed of; each attempt counts.

    Of a rule that follows released values, that is the most it could have charged.
    """
    queries = queried(ledger)
    return {
        client: merge([*(event for _, event in events), *queries])
        for client, events in sorted(_events(ledger, header).items())
    }


def _events(ledger: Ledger, header: Header) -> dict[int, list[tuple[int, Steps]]]:
    """What each of every client's charges costs one of its records, with its round."""
    found: dict[int, list[tuple[int, Steps]]] = {}
    for spend, noise, steps in header.spending_bound.accounted(ledger.spends):
        paid = cost_of(replace(spend, noise_multiplier=noise, steps=steps))
        found.setdefault(spend.client, []).append((spend.round, paid))
    return found


def over_rounds(ledger: Ledger, header: Header) -> list[dict[str, Any]]:
    """ε against server and third party after up to 40 of the rounds, for the report's curve."""
    delta = _delta(header)
    last = max(1, ledger.rounds_to_finish)
    points = sorted({round(x) for x in np.linspace(1, last, min(last, _MOST_POINTS))})
    final = histories(ledger, header)
    beside = {item.kind: item.steps for item in queried(ledger)}
    done = {
        client: [beside.get(item.kind, 0) for item in history] for client, history in final.items()
    }
    kinds = {
        client: {item.kind: i for i, item in enumerate(history)}
        for client, history in final.items()
    }
    events = sorted(
        (
            (index, client, item)
            for client, charges in _events(ledger, header).items()
            for index, item in charges
        ),
        key=lambda event: event[0],
    )
    stages: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    server = [0.0] * len(points)
    position = 0
    for index, point in enumerate(points):
        while position < len(events) and events[position][0] < point:
            _, client, item = events[position]
            if item.steps:
                done[client][kinds[client][item.kind]] += item.steps
            position += 1
        # The quick Rényi value only picks the client; its ε is then computed tightly.
        leader = max(done, key=lambda client: _estimate(final[client], done[client], delta))
        if header.clients_per_person > 1:
            # Of a person at several clients, the dearest of whom the quick value picks as well.
            ranked = sorted(done, key=lambda one: -_estimate(final[one], done[one], delta))
            both = [
                replace(item, steps=count)
                for one in ranked[: header.clients_per_person]
                for item, count in zip(final[one], done[one], strict=True)
            ]
            server[index] = budget(both, delta).headline
            continue
        stages.setdefault(leader, []).append((index, tuple(done[leader])))
    for client, wanted in stages.items():
        curve = epsilon_curve(final[client], [counts for _, counts in wanted], delta)
        for (index, _), epsilon in zip(wanted, curve, strict=True):
            server[index] = epsilon
    most = most_spent(ledger, header)
    third = most.third_party(delta)
    return [
        {"round": point, "server": server[index], "third_party": third(point)}
        for index, point in enumerate(points)
    ]


def _estimate(history: Sequence[Steps], counts: Sequence[int], delta: float) -> float:
    return rdp_estimate(
        [replace(item, steps=count) for item, count in zip(history, counts, strict=True)],
        delta,
    )


def _delta(header: Header) -> float:
    if header.delta is None or header.delta >= 1.0:
        raise UnverifiedError("the ledger's header lacks a delta below 1")
    return header.delta


def _client(
    entry: Any,
    spends: Sequence[Spend],
    history: Sequence[Steps],
    spent: Budget,
    header: Header,
    comparison: Comparison,
) -> float:
    client = fields.integer(entry, "client")
    where = f"client {client}:"
    claimed, reasons = comparison.numbers(where, entry, spent), comparison.reasons
    steps = sum(item.steps for item in history)
    rounds = {spend.round for spend in spends}
    if fields.integer(entry, "steps") != steps:
        reasons.append(f"{where} the claim's steps are not the {steps} that it must count")
    if fields.integer(entry, "participations") not in (len(spends), len(rounds)):
        reasons.append(f"{where} the claim's participations are not those charged")
    records = header.records[client]
    if fields.integer(entry, "records") != records:
        reasons.append(f"{where} the claim's records are not the header's")
    if spends and abs(fields.number(entry, "sampling_rate") - spends[0].sampling_rate) > 1e-9:
        reasons.append(f"{where} the claim's sampling_rate is not the one charged")
    product = _delta(header) * records
    if abs(fields.number(entry, "delta_records") - product) > 1e-9 * max(1.0, product):
        reasons.append(f"{where} the claim's delta_records is not delta times records")
    return claimed


def _judge(bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    delta = _delta(header)
    if ledger.claim is None or not ledger.spends:
        raise UnverifiedError("the ledger has no claim or no charges")
    if any(spend.client >= header.clients for spend in ledger.spends):
        raise UnverifiedError("a charge names a client that does not exist")
    charges: dict[int, list[Spend]] = {}
    for spend in ledger.spends:
        charges.setdefault(spend.client, []).append(spend)
    past = histories(ledger, header)
    spent = {client: budget(history, delta) for client, history in past.items()}
    comparison = Comparison()
    reasons = comparison.reasons
    rows: list[dict[str, Any]] = []
    several = header.clients_per_person
    leader = max(spent, key=lambda client: spent[client].headline)
    leads = past[leader]
    at: AtFineness = partial(dearest, spent.values())
    if several > 1:
        leads = together(list(past.values()), several, delta)
        at = budget(leads, delta).at
    largest = at(0)
    queries = queried(ledger)
    # A claim's steps are those of rounds.
    of_rounds = {
        client: [event for _, event in events] for client, events in _events(ledger, header).items()
    }
    try:
        server = fields.mapping(ledger.claim, "server")
        claimed: dict[int, float] = {}
        for entry in fields.sequence(server, "clients", most=100_000):
            client = fields.integer(entry, "client", most=header.clients - 1)
            if client in claimed:
                reasons.append(f"client {client} is claimed twice")
            spends = charges.get(client, [])
            result = spent.get(client, budget(queries, delta))
            history = of_rounds.get(client, ())
            claimed[client] = _client(entry, spends, history, result, header, comparison)
        missing = [client for client in spent if client not in claimed]
        if missing:
            reasons.append(f"the claim leaves out client {missing[0]}, who took part")
        headline = comparison.headline("headline epsilon", server, at)
        if claimed and headline < max(claimed.values()) * (1.0 - 1e-9):
            reasons.append("the headline epsilon is not the largest of the clients'")
        fault = curve_fault(ledger.claim, leads, delta)
        if fault:
            reasons.append(fault)
    except FieldError as error:
        claimed = {}
        reasons.append(f"claim: {error}")
    for client, result in spent.items():
        rows.append(
            {
                "client": client,
                "participations": len(charges[client]),
                "epsilon": result.epsilon,
                "claimed": claimed.get(client),
            }
        )
    of = f" of the {several} dearest clients together" if several > 1 else ""
    details = {
        "delta": delta,
        "epsilon": largest,
        "clients": rows,
        "over_rounds": over_rounds(ledger, header),
    }
    return judgement_on(
        comparison,
        f"epsilon of {len(spent)} clients recomputed from {len(ledger.spends)} charges by "
        f"{methods()}: nothing understated, headline {largest:.4g}{of} at delta = {delta:g}",
        details,
    )


ACCOUNTING = Check(
    name="accounting",
    title="Is the claimed epsilon what the ledger's charges cost?",
    units=AT_RECORD_LEVEL,
    place=70,
    meaning="If it fails, the stated loss is not what the ledger's queries cost.",
    claim="Every client's epsilon follows from its charges, and the headline is the largest.",
    tolerance="A claim may be 1e-4 of the recomputed value too low. If a claim is close, the grid "
    "is refined until the auditor's own error, which is upwards, is a tenth of that. A claim may "
    "be 2 % and 0.01 too high; more than 5 % fails. Rényi values may be those over whole orders "
    "alone. The profile may be below the recomputed curve by 0.5 % and 0.001 in epsilon and 1 % in "
    "delta.",
    power="a noise multiplier, rate or step count wrong by about 0.02 %; an epsilon rounded down "
    "in its fourth digit",
    limits="The mechanism charged is taken from the ledger; other checks tie it to what ran. "
    "Tuning on private data before the run is not in the ledger.",
    rule=_judge,
)
register(ACCOUNTING)
