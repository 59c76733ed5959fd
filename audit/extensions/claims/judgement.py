"""The verdict on a claim: which readings it covers, in neutral words.

Joins `claim` and `readings`. A verdict says how a printed number relates to what its own settings
give; it says nothing about intentions, nor about the part of a paper that is not a privacy claim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from audit.accounting.comparison import rounded_below
from audit.extensions.claims.claim import Claim
from audit.extensions.claims.readings import Reading, plain_keys, readings, value_of
from audit.verdict import clean_numbers

_SAME = 0.02
_LEAST_SIGMA, _MOST_SIGMA = 0.05, 1e4


class ClaimVerdict(Enum):
    """How a claimed ε relates to its readings."""

    CONSERVATIVE = "CONSERVATIVE"
    CONSISTENT = "CONSISTENT"
    UNDERSTATED = "UNDERSTATED"
    NOT_DETERMINABLE = "NOT DETERMINABLE"


@dataclass(frozen=True)
class ClaimJudgement:
    """What is said of a claim.

    Attributes:
        claim: the claim.
        verdict: the outcome.
        reason: the outcome in one sentence.
        readings: what follows under each reading; empty where too little is stated.
        relevant: keys of the readings that count for the verdict.
        implied: noise multiplier that each reading would need for the claimed ε, where only that
            is missing.
    """

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    readings: tuple[Reading, ...]
    relevant: frozenset[str]
    implied: Mapping[str, float]

    @property
    def holds(self) -> bool:
        """Whether some reading that bounds the stated view is covered."""
        return self.verdict in (ClaimVerdict.CONSERVATIVE, ClaimVerdict.CONSISTENT)

    def to_json(self) -> dict[str, Any]:
        """The judgement, ready for JSON; ε without a bound is null."""
        claim = self.claim
        return {
            "format": 1,
            "claim": claim.name,
            "source": {"paper": claim.paper, "where": claim.where, "says": claim.says},
            "unit": claim.unit,
            "adjacency": claim.adjacency,
            "delta": claim.delta,
            "claimed": {
                "epsilon": claim.epsilon,
                "times_one_query": claim.times_one_query,
                "towards": claim.towards,
                "accountant": claim.accountant,
                "conversion": claim.conversion,
            },
            "verdict": self.verdict.value,
            "reason": self.reason,
            "missing": list(claim.missing),
            "supposed": dict(claim.supposed),
            "readings": [
                {
                    "name": one.key,
                    "means": one.means,
                    "towards": one.towards,
                    "accountant": one.accountant,
                    "value": clean_numbers(one.value),
                    "bounds": one.bounds,
                    "counts": one.key in self.relevant,
                    "relation": relation(claim, one),
                }
                for one in self.readings
            ],
            "implied_noise_multiplier": clean_numbers(dict(self.implied)),
            "remarks": list(claim.remarks),
        }


def claimed_value(claim: Claim) -> float | None:
    """The number claimed, ε or a multiple; None where none is stated."""
    return claim.epsilon if claim.epsilon is not None else claim.times_one_query


def relation(claim: Claim, reading: Reading) -> str:
    """Whether the claim covers a reading, equals it or lies below it."""
    value = claimed_value(claim)
    if value is None:
        return "-"
    if rounded_below(value, reading.value):
        return "below"
    return "equal" if value <= reading.value * (1.0 + _SAME) else "covers"


def judge_claim(claim: Claim) -> ClaimJudgement:
    """Judge one claim."""
    filled = claim.filled()
    if filled.missing:
        reason = f"not stated: {_words(claim.missing)}"
        implied = _implied(filled)
        return ClaimJudgement(
            claim, ClaimVerdict.NOT_DETERMINABLE, reason, (), frozenset(), implied
        )
    found = readings(filled)
    bounds = [one for one in found if one.bounds]
    # Where every client is in every round, a third party has no view of its own.
    relevant = [one for one in bounds if claim.towards in (one.towards, "unstated")] or bounds
    verdict, reason = _compare(claim, relevant)
    others = [one for one in found if not one.bounds and relation(claim, one) == "equal"]
    if others and verdict is ClaimVerdict.UNDERSTATED:
        reason += f"; equals {_shown(others[0])}, which is not a bound"
    if claim.missing:
        unstated = _words(claim.missing)
        supposed = ", ".join(f"{name} = {value:g}" for name, value in claim.supposed.items())
        reason = f"not stated: {unstated}; supposing {supposed} it would be {verdict.value}: " + (
            reason
        )
        verdict = ClaimVerdict.NOT_DETERMINABLE
    keys = frozenset(one.key for one in relevant)
    return ClaimJudgement(claim, verdict, reason, found, keys, {})


def _compare(claim: Claim, relevant: Sequence[Reading]) -> tuple[ClaimVerdict, str]:
    value = claimed_value(claim)
    if not relevant:
        return ClaimVerdict.NOT_DETERMINABLE, "no reading of the stated settings bounds this view"
    ordered = sorted(relevant, key=lambda one: one.value)
    if value is None:
        least, most = _shown(ordered[0]), _shown(ordered[-1])
        return (
            ClaimVerdict.NOT_DETERMINABLE,
            f"not stated: epsilon; readings range from {least} to {most}",
        )
    covered = [one for one in ordered if relation(claim, one) in ("covers", "equal")]
    below = [one for one in ordered if relation(claim, one) == "below"]
    if len(below) == len(ordered):
        return (
            ClaimVerdict.UNDERSTATED,
            f"{value:g} is below every reading; the smallest is {_shown(ordered[0])}",
        )
    if not below:
        return (
            ClaimVerdict.CONSERVATIVE,
            f"{value:g} covers all {len(ordered)} readings; the largest is {_shown(ordered[-1])}",
        )
    how = "equals" if relation(claim, covered[-1]) == "equal" else "covers"
    return (
        ClaimVerdict.CONSISTENT,
        f"{value:g} {how} {_shown(covered[-1])} ({len(covered)} of {len(ordered)} readings); it is "
        f"below {_shown(below[0])} and those that cost more",
    )


def _implied(claim: Claim) -> dict[str, float]:
    """The noise multiplier that the plainest readings need, where nothing else is missing."""
    if claim.missing != ("noise_multiplier",) or claim.epsilon is None:
        return {}
    keys = plain_keys(replace(claim, noise_multiplier=1.0))
    return {key: _solve(claim, key, claim.epsilon) for key in keys}


def _solve(claim: Claim, key: str, target: float) -> float:
    """The least noise multiplier, to 0.1 %, at which a reading is not above the claimed ε."""

    def fits(sigma: float) -> bool:
        return value_of(replace(claim, noise_multiplier=sigma), key) <= target

    low = high = 1.0
    while not fits(high) and high < _MOST_SIGMA:
        low, high = high, high * 2.0
    while fits(low) and low > _LEAST_SIGMA:
        low, high = low / 2.0, low
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _shown(reading: Reading) -> str:
    value = "no finite epsilon" if math.isinf(reading.value) else f"{reading.value:.4g}"
    return f"{reading.key} = {value}"


def _words(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)
