"""Words for the budget that all runs on a data set share: what it is, and what is left of it."""

from __future__ import annotations

from reports import formatting
from reports.content.parts import INTERNAL
from reports.files import mapping, number
from reports.source import RunSource


def statement(source: RunSource, audience: str) -> str:
    """A sentence on the budget, with a space before it; empty for a run without one.

    What is left tells what other runs spent, and what this one's clients took part in, so it is for
    the internal report alone.
    """
    declared = mapping(source.header.get("budget"))
    epsilon, delta = number(declared.get("epsilon")), number(declared.get("delta"))
    if epsilon is None or delta is None:
        return ""
    kept = (
        f" The run kept to a budget of ε = {formatting.plain(epsilon)} at δ = "
        f"{formatting.plain(delta)} for all runs on these data together"
    )
    if audience != INTERNAL:
        return f"{kept}."
    charged = number(mapping(source.claim.get("budget")).get("charged"))
    if charged is None:
        return f"{kept}; what is left of it was not known when the run ended."
    left = max(0.0, epsilon - charged)
    return (
        f"{kept}; when it ended, ε = {formatting.epsilon(charged)} of it was spent or reserved, "
        f"and {formatting.plain(left)} was left."
    )
