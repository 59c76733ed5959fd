"""Check "canaries": do planted records betray more than the claim allows?

Made for audit runs alone: the ledger's header says that canaries were planted. From what every
release said of them (`audit.canaries`) coins are guessed, and the right guesses bound ε from below.
What is found concerns planted records only, so that nothing of it is private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from audit.canaries.bounds import (
    CONFIDENCE,
    Bound,
    Outcome,
    canaries_needed,
    epsilon,
    judge,
)
from audit.canaries.client_views import client_views
from audit.canaries.guessing import guess
from audit.canaries.views import View, views
from audit.checks.base import AT_CLIENT_LEVEL, AT_RECORD_LEVEL, Check, Judgement, listed, register
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.canary_evidence import CanaryEvidence
from audit.reading.ledger import Canaries, Header, Ledger
from audit.statistics.intervals import FALSE_ALARM, binomial_p_value
from audit.verdict import Verdict

PLANTED = "audit run with {} planted canaries: its model is not for release"
_FAIR = 1e-6


Views = Callable[[CanaryEvidence, Ledger, Header, float], list[View]]
Missing = Callable[[CanaryEvidence, Ledger], str | None]


def _judge(see: Views, missing: Missing, bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    if header.canaries is None:
        raise UnverifiedError("the ledger's header names no canaries")
    said = (PLANTED.format(header.canaries.count),)
    if header.delta is None or header.delta >= 1.0:
        raise UnverifiedError("the ledger's header lacks a delta below 1")
    evidence = bundle.canaries()
    fault = _fault(evidence, header.canaries) or missing(evidence, ledger)
    if fault is not None:
        return Judgement(Verdict.NOT_VERIFIED, fault, qualifications=said)
    seen = see(evidence, ledger, header, header.delta)
    outcomes = [
        (
            view,
            judge(guess(view.scores, evidence.included), view.mechanism, header.delta, len(seen)),
        )
        for view in seen
    ]
    details: dict[str, Any] = {
        "canaries": header.canaries.count,
        "kind": header.canaries.kind,
        "unit": header.unit.name,
        "audited": header.canaries.audited,
        "confidence": CONFIDENCE,
        "false_alarm": FALSE_ALARM,
        "delta": header.delta,
        "views": [_details(view, outcome, header.delta) for view, outcome in outcomes],
    }
    contradicted = [
        f"{view.words}: {_words(outcome.bound)}, but the claim is "
        f"{epsilon(view.mechanism(1.0), header.delta):.2f}"
        for view, outcome in outcomes
        if outcome.contradicted
    ]
    if contradicted:
        text = f"contradicts the claim: {listed(contradicted)}"
        return Judgement(Verdict.FAIL, text, details, qualifications=said)
    if not any(outcome.can_contradict for _, outcome in outcomes):
        needed = min(
            (canaries_needed(view.mechanism, len(seen)) or 10**9 for view in seen), default=0
        )
        return Judgement(
            Verdict.NOT_VERIFIED,
            f"{header.canaries.count} canaries are too few: even if every guess were right they "
            f"could not contradict this claim; plant at least {needed}",
            details,
            qualifications=said,
        )
    told = [
        f"{view.words} {_of(outcome.bound.any_mechanism, outcome.ceiling.any_mechanism)}, for "
        f"these steps {_of(outcome.bound.these_steps, outcome.ceiling.these_steps)}, claimed "
        f"{epsilon(view.mechanism(1.0), header.delta):.2f}"
        + ("" if outcome.can_contradict else " (more than so many could contradict)")
        for view, outcome in outcomes
    ]
    text = (
        "not contradicted. Lower bounds on epsilon for any mechanism, and for these steps if the "
        f"noise alone is in question, of what {header.canaries.count} canaries could show at most: "
        + "; ".join(told)
    )
    return Judgement(Verdict.PASS, text, details, qualifications=said)


def _of(bound: float, ceiling: float) -> str:
    return f"{bound:.2f} of {ceiling:.2f}"


def _words(bound: Bound) -> str:
    return f"epsilon >= {bound.any_mechanism:.2f} ({bound.these_steps:.2f} of these steps)"


def _fault(evidence: CanaryEvidence, declared: Canaries) -> str | None:
    """Why the evidence cannot be judged, if it cannot."""
    planted = len(evidence.client)
    if planted != declared.count:
        return "the evidence has another number of canaries than the ledger's header"
    if binomial_p_value(int(evidence.included.sum()), planted, 0.5) < _FAIR:
        return "the coins that included the canaries are not fair, so that no bound holds"
    return None


def _missing_releases(evidence: CanaryEvidence, ledger: Ledger) -> str | None:
    """At client level: which round's release the evidence leaves out."""
    planted = len(evidence.client)
    seen = [number for number, _, canaries, _ in evidence.rows() if canaries.stop == planted]
    if sorted(seen) != [item.round for item in ledger.rounds]:
        return "the evidence has not every round's release"
    return None


def _missing_answers(evidence: CanaryEvidence, ledger: Ledger) -> str | None:
    """At record level: which answer to a client the evidence leaves out."""
    made: dict[tuple[int, int], int] = {}
    for number, _, canaries, _ in evidence.rows():
        key = (number, int(evidence.client[canaries.start]))
        made[key] = made.get(key, 0) + 1
    clients = set(evidence.client.tolist())
    for item in ledger.rounds:
        for client, queries in zip(item.clients, item.queries, strict=True):
            if client in clients and made.get((item.round, client), 0) != queries:
                return f"round {item.round}: the evidence has not every answer to client {client}"
    return None


def _details(view: View, outcome: Outcome, delta: float) -> dict[str, Any]:
    return {
        "view": view.name,
        "claimed_epsilon": epsilon(view.mechanism(1.0), delta),
        "epsilon_any_mechanism": outcome.bound.any_mechanism,
        "epsilon_these_steps": outcome.bound.these_steps,
        "ceiling_any_mechanism": outcome.ceiling.any_mechanism,
        "ceiling_these_steps": outcome.ceiling.these_steps,
        "noise_share_excluded": outcome.bound.noise_share,
        "contradicted": outcome.contradicted,
        "could_contradict": outcome.can_contradict,
        "guesses": [[one.made, one.correct] for one in outcome.guesses],
    }


CANARIES = Check(
    name="canaries",
    title="Is ε refuted by canaries?",
    units=AT_RECORD_LEVEL,
    place=140,
    claim="Whoever sees the releases cannot tell better whether a canary was in than the claimed "
    "privacy profile allows.",
    tolerance=f"a claim is contradicted where its own profile gives the right guesses a chance "
    f"below {FALSE_ALARM:g}, over all views and numbers of guesses; lower bounds are printed at "
    f"{CONFIDENCE:.0%} confidence each",
    power="the largest bound that so many canaries can show stands beside each bound; the "
    "documentation has a table of faults and numbers of canaries",
    limits="A claim that is not contradicted is not proved. What is judged is an audit run of the "
    "same spec, not the released model. The bound of these steps blames the noise alone. Gradient "
    "canaries pass sampler, clipping, sum and noise but no backward pass. The evidence is what "
    "the engine wrote.",
    rule=partial(_judge, views, _missing_answers),
    judges_no_claim=True,
    concerns=lambda header: header is not None and header.canaries is not None,
)
register(CANARIES)
CANARY_CLIENTS = replace(
    CANARIES, units=AT_CLIENT_LEVEL, rule=partial(_judge, client_views, _missing_releases)
)
register(CANARY_CLIENTS)
