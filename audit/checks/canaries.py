"""Check "canaries": do planted records betray more than the claim allows?

Made for audit runs alone: the ledger's header says that canaries were planted. From what every
release said of them (`audit.canaries`) two things are made. All scores together are held against
the law that the ledger's steps give them (`e_values`): that tells noise, clipping and rate. And
coins are guessed, and the right guesses bound ε from below: that holds for any mechanism. Of the
level the first has a tenth, which costs it little, and the second the rest. What is found concerns
planted records only, so that nothing of it is private.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.canaries import secrets
from audit.canaries.bounds import (
    CONFIDENCE,
    Bound,
    Outcome,
    canaries_needed,
    epsilon,
    judge,
)
from audit.canaries.e_values import Evaluation, Scores, judge_scores
from audit.canaries.guessing import guess
from audit.canaries.views import View, client_observations, client_views, observations, views
from audit.checks.base import AT_CLIENT_LEVEL, AT_RECORD_LEVEL, Check, Judgement, listed, register
from audit.errors import UnverifiedError
from audit.protection import claimed_text, lower_bound_text
from audit.reading.bundle import Bundle
from audit.reading.canary_evidence import CanaryEvidence
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import Canaries
from audit.statistics.intervals import FALSE_ALARM, binomial_p_value
from audit.verdict import Verdict

PLANTED = "audit run with {} planted canaries: its model is not for release"
_FAIR = 1e-6
# By kind, and what is protected.
_WHAT = {
    ("gradient", "record"): "gradients far above the clipping norm in the places of records",
    ("gradient", "client"): "updates far above the clipping norm in the places of clients",
    ("gradient", "person"): "people whose records' gradients are far above the clipping norm",
    ("input", "record"): "crafted records in the places of others",
    ("input", "person"): "people with crafted records in the places of others",
    ("secret", "record"): "texts with a secret code in the places of others",
    ("secret", "person"): "people whose texts hold a secret code in the places of others",
    ("label", "record"): "records with wrong labels, a retired kind",
}
# Of the level.
_SHARE_OF_SCORES = 0.1
# Scores that show half the noise are enough for a verdict.
_LEAST_SEEN = 0.5
_LEAST_RATIO, _MOST_RATIO = 1 / 32, 32.0


Views = Callable[[CanaryEvidence, Ledger, Header, float], list[View]]
Observe = Callable[[CanaryEvidence, Ledger, Header], Scores | str]
Missing = Callable[[CanaryEvidence, Ledger], str | None]


@dataclass(frozen=True)
class _Seen:
    """What the releases of an audit run betrayed.

    Attributes:
        canaries: how many were planted, and of which kind.
        delta: δ of the claim.
        outcomes: each view, with what guesses in it show.
        scores: what all scores together show; None where they have no law.
        no_scores: why not; empty where they have one.
        needed: how many canaries could contradict the claim by guesses.
    """

    canaries: Canaries
    delta: float
    outcomes: list[tuple[View, Outcome]]
    scores: Evaluation | None
    no_scores: str
    needed: int

    @property
    def tells_something(self) -> bool:
        """Whether so many canaries could have contradicted the claim at all."""
        seeing = self.scores is not None and self.scores.seen >= _LEAST_SEEN
        return seeing or any(outcome.can_contradict for _, outcome in self.outcomes)


def _judge(see: Views, observe: Observe, missing: Missing, bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    canaries = header.canaries
    if canaries is None:
        raise UnverifiedError("the ledger's header names no canaries")
    said = (PLANTED.format(canaries.count),)
    if header.delta is None or header.delta >= 1.0:
        raise UnverifiedError("the ledger's header lacks a delta below 1")
    evidence = bundle.canaries()
    fault = _fault(evidence, canaries, header.clients_per_person) or missing(evidence, ledger)
    if fault is not None:
        return Judgement(Verdict.NOT_VERIFIED, fault, qualifications=said)
    views_seen = see(evidence, ledger, header, header.delta)
    seen = _look(views_seen, observe(evidence, ledger, header), evidence.coins, header)
    details = _all_details(seen, header)
    known = ""
    if evidence.known is not None:
        details["secrets"] = secrets.details(evidence.known, evidence.coins)
        known = f"{secrets.words(details['secrets'])} "
    what = _WHAT.get((canaries.kind, header.unit.name), "canaries")
    planted = f"Planted: {canaries.count} {what}, each there by a fair coin."
    refuted = _refutations(seen, details)
    if refuted:
        text = f"{'; '.join(refuted)}. {planted} {known}".rstrip()
        return Judgement(Verdict.FAIL, text, details, qualifications=said)
    if not seen.tells_something:
        return Judgement(
            Verdict.NOT_VERIFIED,
            f"{canaries.count} canaries are too few: even if every guess were right they could not "
            "contradict this claim, and their scores could not reveal noise of half its size. "
            f"{known}Plant at least {seen.needed}",
            details,
            qualifications=said,
        )
    text = (
        f"not contradicted. {planted} Scores: {_fits(seen, details)} Guesses give lower bounds on "
        "epsilon, for any mechanism and for these steps with only the noise in doubt. Next to each "
        f"stands the most that {canaries.count} canaries could show: {'; '.join(_bounds(seen))}. "
        f"{known}Not shown: that nothing else leaks, or anything about the released model, which "
        "was trained without canaries."
    )
    return Judgement(Verdict.PASS, text, details, qualifications=said)


def _look(
    seen: list[View], observed: Scores | str, included: NDArray[np.bool_], header: Header
) -> _Seen:
    """Test the scores, and guess the coins in each view; the level is shared out among all."""
    assert header.canaries is not None
    delta = header.declared("delta")
    scores, shared = None, float(len(seen))
    if not isinstance(observed, str):
        scores = judge_scores(observed, _SHARE_OF_SCORES * FALSE_ALARM, 1.0 - CONFIDENCE)
        shared = len(seen) / (1.0 - _SHARE_OF_SCORES)
    outcomes = [
        (view, judge(guess(view.scores, included), view.mechanism, delta, shared)) for view in seen
    ]
    found = _Seen(
        header.canaries, delta, outcomes, scores, observed if isinstance(observed, str) else "", 0
    )
    if found.tells_something:
        return found
    needed = min(canaries_needed(view.mechanism, shared) or 10**9 for view in seen)
    return replace(found, needed=needed)


def _all_details(seen: _Seen, header: Header) -> dict[str, Any]:
    details: dict[str, Any] = {
        "canaries": seen.canaries.count,
        "kind": seen.canaries.kind,
        "unit": header.unit.name,
        "audited": seen.canaries.audited,
        "confidence": CONFIDENCE,
        "false_alarm": FALSE_ALARM,
        "delta": seen.delta,
        "views": [_details(view, outcome, seen.delta) for view, outcome in seen.outcomes],
    }
    if seen.scores is None:
        details["scores_missing"] = seen.no_scores
    else:
        details["scores"] = _score_details(seen.scores, seen.outcomes[0][0], seen.delta)
    return details


def _refutations(seen: _Seen, details: dict[str, Any]) -> list[str]:
    """What contradicts the ledger or the claim."""
    refuted: list[str] = []
    scores = seen.scores
    if scores is not None and scores.contradicted:
        shown = f"noise of {scores.noise:.3g} times the ledger's"
        interval = scores.noise_interval
        if interval is None or interval[0] <= 1.0 <= interval[1]:
            shown += f", and {scores.contribution:.3g} times the clipping norm from a canary"
        refuted.append(
            f"the ledger's steps do not explain the {scores.scores} scores, which show "
            f"{shown}: {_bound_words(details['scores'])}"
        )
    contradicted = [
        f"{view.words}: {_words(outcome.bound)}, but the claim is "
        f"{claimed_text(epsilon(view.mechanism(1.0), seen.delta))}"
        for view, outcome in seen.outcomes
        if outcome.contradicted
    ]
    if contradicted:
        refuted.append(f"contradicts the claim: {listed(contradicted)}")
    return refuted


def _bounds(seen: _Seen) -> list[str]:
    """What guesses in each view bound, of what so many could."""
    return [
        f"{view.words} {_of(outcome.bound.any_mechanism, outcome.ceiling.any_mechanism)}, for "
        f"these steps {_of(outcome.bound.these_steps, outcome.ceiling.these_steps)}, claimed "
        f"{claimed_text(epsilon(view.mechanism(1.0), seen.delta))}"
        + ("" if outcome.can_contradict else " (more than so many could contradict)")
        for view, outcome in seen.outcomes
    ]


def _fits(seen: _Seen, details: dict[str, Any]) -> str:
    scores = seen.scores
    if scores is None:
        return f"not tested: {seen.no_scores}."
    found = details["scores"]
    text = f"the ledger's steps explain the {scores.scores} scores"
    if scores.noise_interval is not None:
        low, high = scores.noise_interval
        text += f", with noise between {low:.3f} and {high:.3f} times the ledger's"
    return (
        f"{text}; {_bound_words(found)}. Noise at most {scores.seen:.2f} times the ledger's would "
        "have been seen in 999 of 1,000 runs."
    )


def _bound_words(found: dict[str, Any]) -> str:
    return (
        f"epsilon >= {lower_bound_text(found['epsilon_these_steps'])} of these steps if a canary "
        "adds the clipping norm, "
        f"{lower_bound_text(found['epsilon_any_contribution'])} whatever it adds, "
        f"claimed {claimed_text(found['claimed_epsilon'])}"
    )


def _score_details(scores: Evaluation, view: View, delta: float) -> dict[str, Any]:
    interval = scores.noise_interval

    def at(ratio: float) -> float:
        # So much more noise than claimed says nothing of privacy lost.
        least = max(ratio, _LEAST_RATIO)
        return epsilon(view.mechanism(least), delta) if least < _MOST_RATIO else 0.0

    any_contribution = at(scores.largest_ratio)
    return {
        "scores": scores.scores,
        "log10_e_value": scores.log10_e_value,
        "contradicted": scores.contradicted,
        "noise": scores.noise,
        "contribution": scores.contribution,
        "noise_interval": list(interval) if interval is not None else None,
        "claimed_epsilon": epsilon(view.mechanism(1.0), delta),
        "epsilon_these_steps": at(interval[1]) if interval is not None else any_contribution,
        "epsilon_any_contribution": any_contribution,
        "noise_seen": scores.seen,
    }


def _of(bound: float, ceiling: float) -> str:
    return f"{lower_bound_text(bound)} of {lower_bound_text(ceiling)}"


def _words(bound: Bound) -> str:
    these_steps = lower_bound_text(bound.these_steps)
    return f"epsilon >= {lower_bound_text(bound.any_mechanism)} ({these_steps} of these steps)"


def _fault(evidence: CanaryEvidence, declared: Canaries, most_clients: int) -> str | None:
    """Why the evidence cannot be judged, if it cannot."""
    if evidence.planted != declared.count:
        return "the evidence has a different number of canaries from the ledger's header"
    if max(map(len, evidence.clients_of_each())) > most_clients:
        return "a canary is at more clients than the claim counts"
    if binomial_p_value(int(evidence.coins.sum()), evidence.planted, 0.5) < _FAIR:
        return "the coins that included the canaries are not fair, so no bound holds"
    return None


def _missing_releases(evidence: CanaryEvidence, ledger: Ledger) -> str | None:
    """At client level: which round's release the evidence leaves out."""
    planted = len(evidence.client)
    seen = [number for number, _, canaries, _ in evidence.rows() if canaries.stop == planted]
    if sorted(seen) != [item.round for item in ledger.rounds]:
        return "the evidence lacks a round's release"
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
                return f"round {item.round}: the evidence lacks an answer to client {client}"
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
    title="Do canaries refute the claimed ε?",
    units=AT_RECORD_LEVEL,
    place=140,
    meaning="If it fails, planted records show different noise or a larger effect than the ledger "
    "says, or were recognised more often than the claim allows.",
    claim="Nobody who sees the releases can tell whether a canary was included better than the "
    "claimed privacy profile allows.",
    tolerance=f"a claim is contradicted where the law of the ledger's steps gives the scores, or "
    f"its own profile the right guesses, a chance below {FALSE_ALARM:g}. The chance counts both, "
    f"all views and all numbers of guesses. Lower bounds are printed at {CONFIDENCE:.0%} "
    "confidence each",
    power="the finding names the noise that the scores would have revealed and, next to each "
    "bound, the largest bound that so many canaries can show by guesses. The documentation has a "
    "table of faults and numbers of canaries",
    limits="A claim that is not contradicted is not proved. The check judges an audit run of the "
    "same spec, not the released model. The bounds of these steps assume the ledger's sampling and "
    "Gaussian noise. Gradient canaries pass sampler, clipping, sum and noise but no backward pass. "
    "The evidence is what the engine wrote.",
    rule=partial(_judge, views, observations, _missing_answers),
    judges_no_claim=True,
    concerns=lambda header: header is not None and header.canaries is not None,
)
register(CANARIES)
CANARY_CLIENTS = replace(
    CANARIES,
    units=AT_CLIENT_LEVEL,
    rule=partial(_judge, client_views, client_observations, _missing_releases),
)
register(CANARY_CLIENTS)
