"""Words for runs whose steps or noise change from round to round, or that end early.

Used by the section on the mechanism and by the units. What a run may change is
public before it begins; what it did change is not told here.
"""

from __future__ import annotations

from typing import Any

from reports import formatting
from reports.files import integer, mapping, number


def follows_releases(header: dict[str, Any]) -> bool:
    """Whether steps or noise heeded what was released earlier in the run."""
    return mapping(header.get("adaptation")).get("follows_releases") is True


def local_steps(header: dict[str, Any]) -> str:
    """Local steps of a round in words, such as "5" or "at most 10"."""
    section = mapping(header.get("adaptation"))
    if integer(section.get("step_limit")) is None:
        return formatting.count(integer(header.get("local_steps")))
    return f"at most {formatting.count(integer(section.get('most_local_steps')))}"


def early_end(claim: dict[str, Any], header: dict[str, Any]) -> str:
    """A sentence on a limit on ε, and on the rounds it left out, with a space before it."""
    limit = number(header.get("max_epsilon"))
    if limit is None:
        return ""
    kept = f" No round begins that could take ε beyond {formatting.plain(limit)} (max_epsilon)"
    rounds = integer(mapping(claim.get("stopped")).get("rounds"))
    if rounds is None:
        return f"{kept}; it did not end this run early."
    planned = formatting.count(integer(header.get("rounds")))
    return f"{kept}, and so the run ended after {formatting.count(rounds)} of {planned} rounds."


def held(header: dict[str, Any], epsilon: float | None) -> str:
    """What follows the method of a view whose ε is the limit at which a run ends."""
    limit = number(header.get("max_epsilon"))
    return ", held to max_epsilon" if limit is not None and epsilon == limit else ""


def statement(header: dict[str, Any]) -> str:
    """Sentences on what adapts, with a space before them; empty for most runs."""
    section = mapping(header.get("adaptation"))
    if not section:
        return ""
    sentences = []
    limit, decay = integer(section.get("step_limit")), mapping(section.get("decay"))
    if limit is not None:
        sentences.append(
            f"The number of local steps changes from round to round; all rounds together take at "
            f"most {formatting.count(limit)}, the most that the budget affords a client in every "
            "round."
        )
    if decay:
        first, floor = number(header.get("noise_multiplier")), number(decay.get("floor"))
        least = first * floor if first is not None and floor is not None else None
        sentences.append(
            f"σ is that of the first round; it may fall by the factor "
            f"{formatting.plain(number(decay.get('factor')))} once every "
            f"{formatting.count(integer(decay.get('patience')))} rounds, and never below "
            f"{formatting.plain(least)}."
        )
    if follows_releases(header):
        sentences.append(
            "The choice follows values that were released before, so every ε here is that of the "
            "most that could have been spent."
        )
    return "".join(f" {sentence}" for sentence in sentences)
