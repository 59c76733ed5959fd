"""Check "views" at client level: what is claimed against whom, and is no claim too strong?

The third party's view leads. A server that adds the noise itself sees the clipped updates, so no
finite ε holds against it; and the closed forms of the record level say nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from audit.accounting.budget import Budget, Steps, budget, selection_cost
from audit.accounting.comparison import AtFineness, Comparison
from audit.accounting.registry import Range
from audit.checks.base import AT_CLIENT_LEVEL, Check, Judgement, register
from audit.checks.client.accounting import third_party_history, worst_uploads
from audit.checks.record.views import VIEWS
from audit.checks.shared.claimed import (
    NOT_RECORDED,
    claimed_selection,
    judgement_on,
    law_of,
    number_faults,
    unread_faults,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header
from audit.statistics.intervals import relative_difference
from audit.untrusted import fields
from audit.untrusted.fields import FieldError

TRUSTED_SERVER = (
    "no guarantee against the server: it adds the noise itself and sees the clipped updates"
)


def _selection(bundle: Bundle, delta: float) -> Range | None:
    """ε of the run's selection against a third party; None for a run by itself.

    Clients are drawn inside a round, so all rounds are in every trial. Rounds of this one that were
    charged again after a crash count, which bounds trials without them too.

    Raises:
        FieldError: the spec's section is damaged.
    """
    law = law_of(bundle.readable_spec)
    if law is None:
        return None
    rounds = [(item, 1) for item in third_party_history(bundle.readable_ledger)]
    return selection_cost(rounds, 1.0, delta, law)


def _all_trials(header: Header, delta: float, realised: Budget, own: float) -> AtFineness:
    """ε of all trials against the server: each client in every round of each, with all others.

    Who took part in the other trials is not in this run's files. An upload holds the less noise the
    more clients share it; queries of one Gaussian multiplier compose to one of its root. Where the
    winner spent more than that, since rounds of it were repeated after a crash, it counts instead.

    Args:
        header: the ledger's.
        delta: δ.
        realised: what the client that spent most in this trial did.
        own: the noise multiplier of the one query that this amounts to.
    """
    trials = header.tuning.trials if header.tuning is not None else 1
    one, sigma = header.clients * header.rounds, header.declared("noise_multiplier")
    uploads = one * (trials - 1) + max(float(one), (sigma / own) ** 2)
    every = budget([Steps(1.0, sigma / uploads**0.5, 1)], delta)
    return lambda fineness: max(every.at(fineness), realised.at(fineness))


def _claims(claim: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
    if fields.text(claim, "view_headline") != "third-party":
        reasons.append("the headline is not the third party's view")
    party = fields.mapping(claim, "third_party")
    share = header.clients_per_round / header.clients
    if relative_difference(fields.number(party, "participation"), share) > 1e-9:
        reasons.append("the third party's participation is not S/N")
    server = fields.mapping(claim, "server")
    if header.noise_added_by == "server":
        if server.get("epsilon") is not None or server.get("clients"):
            reasons.append(
                "an epsilon is claimed against the server, but none holds: it adds the noise and "
                "sees the clipped updates"
            )
    elif fields.text(server, "accountant") != "pld":
        reasons.append("the accountant against the server is not pld")
    unread_faults(claim, header, reasons)


def _judge(bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    delta = header.delta
    if ledger.claim is None or not ledger.round_spends or delta is None or delta >= 1.0:
        raise UnverifiedError("the ledger lacks a claim, charges or a delta below 1")
    by_clients = header.noise_added_by == "clients"
    third = budget(third_party_history(ledger), delta)
    uploads = worst_uploads(ledger) if by_clients else ()
    worst = budget(uploads, delta) if by_clients else None
    details: dict[str, Any] = {
        "noise_added_by": header.noise_added_by,
        "server": {"epsilon": worst.epsilon} if worst else None,
        "third_party": third.headline,
        "closed_forms": [],
    }
    qualifications = () if by_clients else (TRUSTED_SERVER,)
    comparison = Comparison(notes_high=False)
    party, of_selection, second = third.headline, "", NOT_RECORDED
    try:
        chosen = _selection(bundle, delta)
        if chosen is not None:
            details |= {"third_party": chosen.least, "one_trial": third.headline}
            party, of_selection = chosen.least, " for the best of a random number of trials"
        _claims(ledger.claim, header, comparison.reasons)
        if chosen is not None:
            own = uploads[0].noise_multiplier if uploads else math.inf
            every = _all_trials(header, delta, worst, own) if worst else None
            claimed_selection(ledger.claim, chosen, third.at, every, comparison)
        elif "tuning" in ledger.claim:
            comparison.reasons.append("the claim is of a selection, but the spec has none")
        due = chosen or Range(party, party)
        second = number_faults(ledger.claim, "third_party", due, comparison.reasons)
    except FieldError as error:
        comparison.reasons.append(f"claim: {error}")
    towards = (
        f"against the server {worst.headline:.4g}, without amplification by sampling"
        if worst
        else TRUSTED_SERVER
    )
    return judgement_on(
        comparison,
        f"at delta = {delta:g}: third party {party:.4g}{of_selection}, which is the headline; "
        f"{towards}; the closed forms of the record level do not apply and are not claimed; "
        f"{second}",
        details,
        qualifications,
    )


CLIENT_VIEWS = Check(
    name=VIEWS.name,
    title=VIEWS.title,
    units=AT_CLIENT_LEVEL,
    place=80,
    meaning="If it fails, a loss is stated against the wrong reader.",
    claim="The headline holds against a third party who sees models only. Against the server an "
    "epsilon is claimed only where the clients add the noise, and then without amplification. For "
    "the best of a random number of trials, the headline is that of the selection (Papernot & "
    "Steinke 2022, Theorem 2). The headline is not below the number that dp-accounting gave for it "
    "when the run ended, where one was recorded.",
    tolerance="views are compared exactly, participation to 1e-9; a selection's epsilon may be "
    "1e-4 of it too low, or 5 % and 0.01 too high. The headline may be 0.1 % and 0.0001 below "
    "dp-accounting's number, and that number may be off by 0.5 % and 0.001",
    power="a view exchanged for another; any epsilon against a server that adds the noise",
    limits="Whether the third party really learns nothing about who took part depends on what the "
    "server publishes. The server knows who took part, so against it the epsilon hides what a "
    "client's records say, not that the client took part. Clients that work together with the "
    "server, or leave out their noise, reduce what protects the others.",
    rule=_judge,
)
register(CLIENT_VIEWS)
