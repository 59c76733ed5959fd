"""Check "accounting" at client level: is the claimed ε what the rounds cost, and against whom?

Against a third party every charged round, empty ones included, is a Poisson-subsampled Gaussian
over clients. Where the clients add the noise, the server sees single uploads and who made them:
each client composes its uploads without amplification.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from audit.accounting.budget import Budget, Steps, budget, dearest, epsilon_curve, merge, methods
from audit.accounting.comparison import Comparison, curve_fault
from audit.checks.base import AT_CLIENT_LEVEL, Check, Judgement, register
from audit.checks.record.accounting import ACCOUNTING
from audit.checks.shared.claimed import judgement_on, law_of
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header, Ledger
from audit.untrusted import fields
from audit.untrusted.fields import FieldError

_MOST_POINTS = 40


def third_party_history(ledger: Ledger) -> tuple[Steps, ...]:
    """All charged rounds as queries on the clients; each attempt counts."""
    return merge(
        [Steps(spend.sampling_rate, spend.noise_multiplier, 1) for spend in ledger.round_spends]
    )


def uploads(ledger: Ledger, rounds: int | None = None) -> Mapping[int, list[float]]:
    """Noise multipliers σ/√m of every client's uploads in the first `rounds` rounds (all: None).

    The multiplier is computed from σ and m again; what the ledger says of it is not trusted.
    """
    found: dict[int, list[float]] = {}
    for spend in ledger.round_spends:
        if rounds is None or spend.round < rounds:
            for client in spend.clients:
                share = spend.noise_multiplier / len(spend.clients) ** 0.5
                found.setdefault(client, []).append(share)
    return dict(sorted(found.items()))


def composed_multiplier(multipliers: list[float]) -> float:
    """Noise multiplier of the one Gaussian query that several on the same data amount to.

    Gaussian queries compose exactly: a client's shifts add up in squares, so 1/σ² = Σ 1/σ_j².
    """
    composed = np.sum(np.square(1.0 / np.asarray(multipliers))) ** -0.5
    # Clients with equal histories in another order share one computation.
    return float(f"{composed:.12g}")


def worst_uploads(ledger: Ledger, rounds: int | None = None) -> tuple[Steps, ...]:
    """The one query that the most exposed client's uploads in the first rounds amount to."""
    multipliers = [composed_multiplier(own) for own in uploads(ledger, rounds).values()]
    return (Steps(1.0, min(multipliers), 1),) if multipliers else ()


def server_budgets(ledger: Ledger, delta: float) -> dict[int, Budget]:
    """Loss of every client against the server that sees each of its noised uploads."""
    return {
        client: budget([Steps(1.0, composed_multiplier(own), 1)], delta)
        for client, own in uploads(ledger).items()
    }


def over_rounds(ledger: Ledger, header: Header, delta: float) -> list[dict[str, Any]]:
    """ε against third party and (where it is bounded) server after up to 40 of the rounds."""
    last = max(1, ledger.rounds_to_finish)
    points = sorted({round(x) for x in np.linspace(1, last, min(last, _MOST_POINTS))})
    history = third_party_history(ledger)
    counts = [
        [
            sum(
                (spend.sampling_rate, spend.noise_multiplier)
                == (item.sampling_rate, item.noise_multiplier)
                for spend in ledger.round_spends
                if spend.round < point
            )
            for item in history
        ]
        for point in points
    ]
    rows: list[dict[str, Any]] = []
    third = epsilon_curve(history, counts, delta)
    for point, epsilon in zip(points, third, strict=True):
        server: float | None = None
        if header.noise_added_by == "clients":
            server = budget(worst_uploads(ledger, point), delta).headline
        rows.append({"round": point, "server": server, "third_party": epsilon})
    return rows


def _third_party(
    claim: Mapping[str, Any],
    bundle: Bundle,
    spent: Budget,
    comparison: Comparison,
) -> None:
    """Compare the claim against a third party; that of a selection is for the check "views"."""
    ledger, header = bundle.readable_ledger, bundle.header
    party, reasons = fields.mapping(claim, "third_party"), comparison.reasons
    if law_of(bundle.readable_spec) is None:
        comparison.numbers("third party:", party, spent)
        comparison.promised("third party", party)
    if fields.integer(party, "rounds") != len(ledger.round_spends):
        reasons.append("the claim's rounds are not those that were charged")
    delta = header.declared("delta")
    product = delta * header.clients
    if abs(fields.number(party, "delta_clients") - product) > 1e-9 * max(1.0, product):
        reasons.append("the claim's delta_clients is not delta times clients")
    fault = curve_fault(claim, third_party_history(ledger), delta)
    if fault:
        reasons.append(fault)


def _server(
    claim: Mapping[str, Any],
    ledger: Ledger,
    header: Header,
    spent: Mapping[int, Budget],
    comparison: Comparison,
) -> dict[int, float]:
    """Compare the claims against the server; returns the claimed ε of each client."""
    server, reasons = fields.mapping(claim, "server"), comparison.reasons
    charged = uploads(ledger)
    rounds: dict[int, set[int]] = {}
    for spend in ledger.round_spends:
        for client in spend.clients:
            rounds.setdefault(client, set()).add(spend.round)
    claimed: dict[int, float] = {}
    for entry in fields.sequence(server, "clients", most=100_000):
        client = fields.integer(entry, "client", most=header.clients - 1)
        where = f"client {client}:"
        if client in claimed or client not in spent:
            reasons.append(f"{where} has a claim twice, or did not take part")
            continue
        claimed[client] = comparison.numbers(where, entry, spent[client])
        known = (len(charged[client]), len(rounds[client]))
        if fields.integer(entry, "participations") not in known:
            reasons.append(f"{where} the claim's participations are not those charged")
    missing = [client for client in spent if client not in claimed]
    if missing:
        reasons.append(f"the claim leaves out client {missing[0]}, who took part")
    largest = partial(dearest, spent.values())
    headline = comparison.headline("epsilon against the server", server, largest)
    if claimed and headline < max(claimed.values()) * (1.0 - 1e-9):
        reasons.append("the epsilon against the server is not the largest of the clients'")
    return claimed


def _judge(bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    delta = header.delta
    if ledger.claim is None or not ledger.round_spends or delta is None or delta >= 1.0:
        raise UnverifiedError("the ledger lacks a claim, charges or a delta below 1")
    if any(client >= header.clients for one in ledger.round_spends for client in one.clients):
        raise UnverifiedError("a charge names a client that does not exist")
    by_clients = header.noise_added_by == "clients"
    third = budget(third_party_history(ledger), delta)
    spent = server_budgets(ledger, delta) if by_clients else {}
    comparison = Comparison()
    claimed: dict[int, float] = {}
    try:
        _third_party(ledger.claim, bundle, third, comparison)
        if by_clients:
            claimed = _server(ledger.claim, ledger, header, spent, comparison)
    except FieldError as error:
        comparison.reasons.append(f"claim: {error}")
    counts = {client: len(own) for client, own in uploads(ledger).items()}
    details = {
        "delta": delta,
        "epsilon": third.headline,
        "third_party": {"epsilon": third.epsilon, "rounds": len(ledger.round_spends)},
        "clients": [
            {
                "client": client,
                "participations": counts[client],
                "epsilon": result.epsilon,
                "claimed": claimed.get(client),
            }
            for client, result in spent.items()
        ],
        "over_rounds": over_rounds(ledger, header, delta),
    }
    towards = (
        f", and of {len(spent)} clients against the server from their single uploads"
        if by_clients
        else ""
    )
    return judgement_on(
        comparison,
        f"epsilon against a third party recomputed from {len(ledger.round_spends)} charged rounds "
        f"by {methods()}{towards}: nothing understated, headline {third.headline:.4g} at delta = "
        f"{delta:g}",
        details,
    )


CLIENT_ACCOUNTING = Check(
    name=ACCOUNTING.name,
    title=ACCOUNTING.title,
    units=AT_CLIENT_LEVEL,
    place=70,
    meaning="If it fails, the stated loss is not what the ledger's rounds cost.",
    claim="Against a third party epsilon follows from all charged rounds as Poisson-subsampled "
    "Gaussians over clients. Against the server, where clients add the noise, from each client's "
    "uploads as plain Gaussians of multiplier sigma over the root of m.",
    tolerance=ACCOUNTING.tolerance,
    power="a noise multiplier, participation or number of rounds wrong by about 0.02 %; an "
    "epsilon rounded down in its fourth digit; any amplification by sampling against the server",
    limits="The mechanism charged is taken from the ledger; other checks tie it to what ran. The "
    "server is assumed to see every upload and who took part, but no other client's noise.",
    rule=_judge,
)
register(CLIENT_ACCOUNTING)
