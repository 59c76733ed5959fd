"""Check "accounting" on a recorded loop: is the ε that it prints what its steps cost?

The auditor composes what the ledger charged, over all steps that were recorded, whoever counted
them. A loop that makes its accountant anew in each round, or counts what was no step, prints
another number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from audit.accounting.budget import Budget, budget, epsilon_curve, merge, methods
from audit.accounting.comparison import Comparison, overstates, understates
from audit.accounting.registry import Steps
from audit.accounting.sampling import cost_of
from audit.checks.base import Check, Judgement, register
from audit.checks.shared.compared import judgement_on
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Ledger
from audit.reading.ledger_lines import claimed_epsilons
from audit.reading.units import LOOP
from audit.untrusted import fields
from audit.untrusted.fields import FieldError

_MOST_POINTS = 40
# What Opacus calls its accountants, and by which of the auditor's their numbers are known.
_KNOWN = {"prv": "pld", "pld": "pld", "rdp": "rdp"}
NOTHING_STATED = "the loop states no epsilon: hand it to the recorder's close"


def _history(ledger: Ledger) -> list[Steps]:
    return [cost_of(spend) for spend in ledger.spends]


def _counted(claim: Mapping[str, Any], ledger: Ledger, reasons: list[str]) -> None:
    """What the loop's own accountant counted is what was charged."""
    if "accountant_history" not in claim:
        return
    told: Counter[tuple[float, float]] = Counter()
    for entry in fields.sequence(claim, "accountant_history"):
        if not isinstance(entry, list) or len(entry) != 3:
            raise FieldError("accountant_history has an entry that is not three numbers")
        noise, rate = (fields.as_number(one, "accountant_history", least=0.0) for one in entry[:2])
        told[_rounded(noise, rate)] += fields.as_integer(entry[2], "accountant_history")
    paid: Counter[tuple[float, float]] = Counter()
    for spend in ledger.spends:
        paid[_rounded(spend.noise_multiplier, spend.sampling_rate)] += spend.steps
    if told == paid:
        return
    made, counted = sum(paid.values()), sum(told.values())
    if made != counted:
        reasons.append(f"the loop's accountant counted {counted} steps, and {made} were made")
    else:
        reasons.append("the loop's accountant counted another noise or rate than was used")


def _rounded(noise: float, rate: float) -> tuple[float, float]:
    return float(f"{noise:.9g}"), float(f"{rate:.9g}")


def _stated(claim: Mapping[str, Any], spent: Budget, comparison: Comparison) -> tuple[str, float]:
    view = fields.mapping(claim, "server")
    if not view:
        raise UnverifiedError(NOTHING_STATED)
    name, epsilon = next(iter(claimed_epsilons(view).items()))
    known = spent.by_accountant.get(_KNOWN.get(name, ""))
    # A number that is too high protects nobody less.
    if known is not None and overstates(epsilon, known.most, 0.05):
        comparison.high.append(
            f"epsilon by {name} is overstated ({epsilon:.4g} for {known.most:.4g})"
        )
    if understates(epsilon, spent.at):
        comparison.reasons.append(
            f"epsilon by {name} is stated as {epsilon:.4g} and the steps cost {spent.headline:.4g}"
        )
    return name, epsilon


def over_steps(ledger: Ledger, delta: float) -> list[dict[str, Any]]:
    """ε after up to 40 of the steps, for the report's curve."""
    history = _history(ledger)
    kinds = {item.kind: place for place, item in enumerate(merge(history))}
    counts, curve, points = [0] * len(kinds), [], []
    every = max(1, -(-len(history) // _MOST_POINTS))
    for made, item in enumerate(history, start=1):
        counts[kinds[item.kind]] += item.steps
        if made % every == 0 or made == len(history):
            points.append(made)
            curve.append(tuple(counts))
    found = epsilon_curve(merge(history), curve, delta)
    return [
        {"round": made, "server": epsilon, "third_party": epsilon}
        for made, epsilon in zip(points, found, strict=True)
    ]


def _judge(bundle: Bundle) -> Judgement:
    ledger, delta = bundle.readable_ledger, bundle.header.declared("delta")
    if delta >= 1.0:
        raise UnverifiedError("delta is not below 1")
    if ledger.claim is None or not ledger.spends:
        raise UnverifiedError("the ledger has no claim or no charges")
    spent = budget(_history(ledger), delta)
    comparison = Comparison()
    details: dict[str, Any] = {
        "delta": delta,
        "epsilon": spent.headline,
        "steps": len(ledger.spends),
    }
    name, epsilon = "", 0.0
    try:
        _counted(ledger.claim, ledger, comparison.reasons)
        name, epsilon = _stated(ledger.claim, spent, comparison)
    except FieldError as error:
        comparison.reasons.append(f"claim: {error}")
    except UnverifiedError:
        if not comparison.reasons:
            raise
    details |= {"stated": epsilon, "accountant": name, "by_accountant": spent.epsilon}
    details["over_rounds"] = over_steps(ledger, delta)
    return judgement_on(
        comparison,
        f"{len(ledger.spends)} charged steps cost epsilon = {spent.headline:.4g} at delta = "
        f"{delta:g}, composed again by {methods()}; the loop states {epsilon:.4g} by {name}, "
        "which is not less"
        + (", and its accountant counted these steps" * ("accountant_history" in ledger.claim)),
        details,
    )


ACCOUNTING = Check(
    name="accounting",
    title="Is the epsilon that the loop prints what its steps cost?",
    units=(LOOP,),
    place=70,
    meaning="If it fails, the stated loss is not what the ledger's queries cost.",
    claim="The stated epsilon covers every step that was recorded, and the loop's own accountant "
    "counted these steps, at their noise and rate.",
    tolerance="A stated number may lie below the auditor's tight one by 1e-4 of it. One that "
    "is more than 5 % and 0.01 too high, by an accountant that the auditor has too, is told and "
    "does not fail. What the loop's accountant counted is compared exactly.",
    power="steps that were not counted, or counted twice; another noise, rate or formula, where "
    "it changes epsilon by about 1 %",
    limits="What is composed are the charges as the recorder wrote them; other checks tie them to "
    "what ran. Training that the recorder was not attached to is not in the ledger, nor is tuning.",
    rule=_judge,
)
register(ACCOUNTING)
