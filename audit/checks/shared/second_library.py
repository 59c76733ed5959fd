"""Does the number that dp-accounting computed at a run's end bear out the claim?

The part of the check "views" for the claim's `dp_accounting`. The auditor does not load that
library: it holds the recorded number against its own accountant, and the claim against the number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from audit.accounting.budget import Steps, budget
from audit.accounting.comparison import ABSOLUTE, RELATIVE
from audit.accounting.registry import Range
from audit.accounting.sampling import MostSpent
from audit.reading.ledger import Header
from audit.reading.ledger_lines import claimed_headline
from audit.untrusted import fields

# How far a claim may lie below the number; its grid lifts it by less.
_BELOW, _A_LITTLE = 1e-3, 1e-4
_NO_EVENT = "no event"
_REASONS = {
    _NO_EVENT: "which has no event for what was composed",
    "too fine": "for which the steps are said to be too many",
}
NOT_RECORDED = "no number by dp-accounting was recorded"


def number_faults(
    claim: Mapping[str, Any],
    view: str,
    due: Range | None,
    reasons: list[str],
    is_lower_bound: bool = False,
) -> str:
    """Note where dp-accounting's number is none that it can have computed, or is above the claim.

    Args:
        claim: the ledger's claim.
        view: the view that leads it.
        due: what the auditor computes for the same events; None where dp-accounting has none.
        reasons: gets what is wrong.
        is_lower_bound: whether these events bound the claim's from below (see `as_poisson`).

    Returns:
        What was recorded, in words.

    Raises:
        FieldError: the record is damaged.
    """
    if "dp_accounting" not in claim:
        return NOT_RECORDED
    found = fields.mapping(claim, "dp_accounting")
    by = f"dp-accounting {fields.text(found, 'version', pattern='[0-9A-Za-z.+-]{1,40}')}"
    if fields.text(found, "view") != view:
        reasons.append(f"{by}: its number is not of the view that leads the claim")
        return by
    if found.get("epsilon") is None:
        reason = fields.choice(found, "reason", tuple(_REASONS))
        if reason == _NO_EVENT and due is not None:
            reasons.append(f"{by} is said to have no event for what was composed, and has one")
        return f"no number by {by}, {_REASONS[reason]}"
    number = fields.number(found, "epsilon", least=0.0)
    fields.choice(found, "accountant", ("pld", "rdp"))
    if (found.get("bound") is not None) != is_lower_bound:
        reasons.append(f"{by}: its number is not said to be what it is, an ε or a bound from below")
    if due is None:
        reasons.append(f"{by} is said to give {number:.4g} for what it has no event for")
    elif not (
        due.least * (1.0 - RELATIVE) - ABSOLUTE <= number <= due.most * (1.0 + RELATIVE) + ABSOLUTE
    ):
        reasons.append(f"{by} is said to give {number:.4g}, where {due.least:.4g} is right")
    claimed = claimed_headline(fields.mapping(claim, view))
    if claimed < number * (1.0 - _BELOW) - _A_LITTLE:
        reasons.append(f"the headline is claimed {claimed:.5g}, and {by} gives {number:.5g}")
    return f"{by} gives {number:.4g}" + (", a bound from below" if is_lower_bound else "")


def as_poisson(history: Sequence[Steps]) -> list[Steps]:
    """Poisson batches at the same noise, σ/2, which batches of fixed size cost no less than.

    Where all other gradients are -C along one direction, and the replaced one is C before and -C
    after, the sum is moved by 2C with probability q before, and never after.
    """
    return [replace(item, fixed_size=False) for item in history]


def due_of_records(
    header: Header, most: MostSpent, dearest: Sequence[Steps], delta: float
) -> Range:
    """What dp-accounting gives for the worst case towards the server, as the auditor computes it.

    Args:
        header: the ledger's header.
        most: the most that a client in every round can spend.
        dearest: what the client that spent most was charged; more than that only where rounds were
            repeated after a crash.
        delta: δ.
    """

    def cost(history: Sequence[Steps]) -> float:
        return budget(history, delta).headline

    limit, rounds = header.max_epsilon, header.rounds
    everything = most.everything(rounds)
    whole, spent = cost(everything), cost(dearest)
    if limit is not None and whole > limit:
        # The number is that of the rounds which fit; two accountants may differ in one of them.
        near = rounds_that_fit(most, rounds, limit, delta)
        least, greatest = (cost(as_poisson(most.everything(count))) for count in near)
        return Range(least, greatest)
    found = [cost(as_poisson(everything))]
    if limit is None and spent >= whole * (1.0 - RELATIVE):
        found.append(cost(as_poisson(dearest)))
    return Range(min(found), max(found))


def rounds_that_fit(most: MostSpent, rounds: int, limit: float, delta: float) -> tuple[int, int]:
    """How many rounds a limit on ε leaves room for: one less than is found here, and one more."""
    fit = _last(lambda count: budget(most.everything(count), delta).headline <= limit, rounds)
    return max(1, fit - 1), fit + 1


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The last number of rounds below `most` for which it holds, as it does up to some number."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
