"""Accountants: what turns queries and δ into ε. Each is a file here that registers itself.

A claim states each ε as a mapping from the accountants' names to their numbers. One accountant
leads: its number is the promised one, and the others are listed with it. Views, claims, calibration
and the command line take whatever is registered, so a new accountant is one new file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Compositions, covers, merge
from dpfedadamw.registration import Registry

__all__ = [
    "ACCOUNTANTS",
    "LARGEST_EPSILON",
    "Accountant",
    "Leading",
    "accountants",
    "as_claimed",
    "check_epsilon",
    "claimed",
    "epsilons",
    "label_of",
    "leading",
]

# Beyond it the accountants of engine and auditor are not compared, and no run is begun.
LARGEST_EPSILON = 1_000_000.0


@dataclass(frozen=True)
class Leading:
    """What the accountant that leads every claim can do in addition to a plain ε.

    Attributes:
        mixture: ε of (what one participation costs, in how many rounds) where each round happens
            with a probability, at a δ; and, where there is a fourth argument, of the compositions
            in it too, which always happen.
        profile: points (ε, δ(ε)) of the whole curve.
    """

    mixture: Callable[..., float]
    profile: Callable[[Compositions], list[tuple[float, float]]]


@dataclass(frozen=True, kw_only=True)
class Accountant:
    """One way from compositions and δ to an ε that bounds the loss.

    Attributes:
        name: Its key wherever an ε is stated.
        label: Its name for people.
        source: Where it is published.
        samplings: The event kinds of the mechanisms that it covers.
        epsilon: ε of compositions at a δ; infinite if no finite ε holds.
        leads: What it can do as the accountant whose number is promised; None for any other.
    """

    name: str
    label: str
    source: str
    samplings: frozenset[str]
    epsilon: Callable[[Compositions, float], float]
    leads: Leading | None = None


ACCOUNTANTS = Registry(
    "accountant", __name__.rpartition(".")[0], Accountant, group="dpfedadamw.accountants"
)


def accountants() -> tuple[Accountant, ...]:
    """Return every accountant: the leading one, then the others by name."""
    return tuple(sorted(ACCOUNTANTS.values(), key=lambda one: (one.leads is None, one.name)))


def leading() -> tuple[Accountant, Leading]:
    """Return the accountant whose numbers are promised, and what it can do as such."""
    found = [(one, one.leads) for one in accountants() if one.leads is not None]
    if len(found) != 1:
        raise PrivacyError("exactly one accountant must lead the claims")
    return found[0]


def epsilons(
    composition: Compositions, delta: float, most: Compositions | None = None
) -> dict[str, float]:
    """Return the ε of compositions at a δ, by every accountant that covers them.

    Args:
        composition: What was done.
        delta: δ.
        most: What was foreseen. Where it covers the composition, its ε bounds this one, and the
            smaller of the two is returned: rounding on grids of their own never lifts a part
            above the whole, so that no run costs more than its forecast.

    Raises:
        PrivacyError: If δ is out of range, or the leading accountant does not cover them.
    """
    parts = merge(composition)
    kinds = {part.sampling for part in parts}
    covering = [one for one in accountants() if kinds <= one.samplings]
    if leading()[0] not in covering:
        raise PrivacyError(f"no accountant covers sampling {', '.join(sorted(kinds))}")
    found = {one.name: one.epsilon(parts, delta) for one in covering}
    if most is not None and covers(most, parts):
        whole = merge(most)
        found = {one.name: min(found[one.name], one.epsilon(whole, delta)) for one in covering}
    return found


# What the auditor allows a claim to be above its target, for accountants that round differently.
TARGET_ROOM, TARGET_ADDED = 1.005, 1e-3


def check_target(epsilon: float, target: float | None, reader: str) -> None:
    """Refuse a planned run that could spend more than the spec's target.

    Args:
        epsilon: The most that the run can spend.
        target: The spec's ``privacy.target_epsilon``; None where it has none.
        reader: Against whom it holds, for the message.

    Raises:
        PrivacyError: If it could.
    """
    if target is not None and not epsilon <= target * TARGET_ROOM + TARGET_ADDED:
        raise PrivacyError(
            f"privacy.target_epsilon: is {target:g}, but with the spec's noise_multiplier this run "
            f"could spend {epsilon:.4g} against {reader}; leave out noise_multiplier to have it "
            "solved for, or target_epsilon"
        )


def check_epsilon(epsilon: float, reader: str) -> None:
    """Refuse the ε of a planned run that is no guarantee.

    Args:
        epsilon: The most that the run can spend; infinite where no ε holds.
        reader: Against whom ε holds, for the message.

    Raises:
        PrivacyError: If it is infinite, or above `LARGEST_EPSILON`.
    """
    if not epsilon <= LARGEST_EPSILON:
        found = f"an epsilon of {epsilon:.3g}" if epsilon < math.inf else "no finite epsilon"
        raise PrivacyError(
            f"privacy: this run could spend {found} against {reader}, where {LARGEST_EPSILON:,.0f} "
            "is the most that is accounted for, far above any useful protection. Use a larger "
            "noise_multiplier, or fewer rounds, local steps or records in a batch"
        )


def as_claimed(epsilon: Mapping[str, float]) -> dict[str, Any]:
    """Return a claim's view: ε by accountant, and which of them is promised."""
    return {"epsilon": dict(epsilon), "accountant": leading()[0].name}


def claimed(view: Mapping[str, Any]) -> float:
    """Return the ε that a claim's view promises."""
    return float(view["epsilon"][view["accountant"]])


def headline(claim: Mapping[str, Any]) -> float | None:
    """Return the ε that a run claims first, or None of a run without privacy.

    Where single records are protected, against the server, of a client in every round; where whole
    clients are, against a third party. Of a private selection, that of publishing the best.

    Args:
        claim: The ledger's claim.
    """
    if claim.get("view_headline") == "none":
        return None
    third = "tuning" in claim or claim.get("view_headline") == "third-party"
    return claimed(claim["third_party" if third else "server_worst_case"])


def label_of(name: str) -> str:
    """Return an accountant's name for people; an unknown name as it is."""
    return ACCOUNTANTS[name].label if name in ACCOUNTANTS else name


def rounded_up(epsilon: float) -> str:
    """ε with three decimals: a claim is never shown smaller than it is."""
    return f"{math.ceil(epsilon * 1000 - 1e-6) / 1000:.3f}"
