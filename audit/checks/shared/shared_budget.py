"""Did a run keep to the budget of its data set, as far as the run itself can show?

The part of the check "promise" for the spec's section `budget`. What other runs spent is not in a
run's files; what this one spent must fit the whole budget, at the budget's δ, and the ε that the
claim says is charged to it lies between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from audit.accounting.budget import Steps, budget, dearest
from audit.accounting.comparison import understates
from audit.checks.shared.agreement import differs
from audit.reading.ledger import Ledger, SharedBudget
from audit.untrusted import fields


def budget_faults(
    spec: Mapping[str, Any],
    ledger: Ledger,
    charged: Iterable[Sequence[Steps]],
    reasons: list[str],
) -> None:
    """Note where a budget is not the spec's, or the run alone spent more than it.

    Args:
        spec: the spec.
        ledger: the ledger, with a header.
        charged: what each client was charged; at client level all rounds, once.
        reasons: gets what is wrong.

    Raises:
        FieldError: the spec or the claim lacks a field, or has it wrong.
    """
    assert ledger.header is not None
    promised, noted = _promised(spec), ledger.header.budget
    if promised is None or noted is None:
        if promised is not noted:
            reasons.append("budget: only one of spec and ledger names one")
        return
    if differs(promised.epsilon, noted.epsilon) or differs(promised.delta, noted.delta):
        reasons.append("budget: the ledger's is not the spec's")
        return
    each = [budget(history, noted.delta) for history in charged]
    spent = partial(dearest, each)
    if understates(noted.epsilon, spent):
        reasons.append(
            f"budget: the run alone cost {spent(0):.5g} at delta = {noted.delta:g}, more than the "
            f"{noted.epsilon:g} that all runs may spend"
        )
    if ledger.claim is None:
        return
    stated = fields.mapping(ledger.claim, "budget")
    if stated.get("charged") is None:
        return
    total = fields.number(stated, "charged", least=0.0)
    if understates(total, spent):
        reasons.append(f"budget: {total:.4g} is said to be charged to it, less than this run cost")
    if total > noted.epsilon:
        reasons.append(f"budget: {total:.4g} is charged to it, more than the {noted.epsilon:g}")


def _promised(spec: Mapping[str, Any]) -> SharedBudget | None:
    section = spec.get("budget")
    if section is None:
        return None
    section = fields.mapping(spec, "budget")
    if section.get("file") is None:
        return None
    return SharedBudget(fields.positive(section, "epsilon"), fields.positive(section, "delta"))
