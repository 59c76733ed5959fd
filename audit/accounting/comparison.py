"""When does a claimed loss agree with the recomputed one?

Used by the checks "accounting" and "views" of both units, so that all compare alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from audit.accounting.budget import Budget, Steps, privacy_profile
from audit.accounting.registry import Range, accountants
from audit.reading import claims
from audit.untrusted import fields

RELATIVE, ABSOLUTE = 5e-3, 1e-3
_LEAST_DELTA = 1e-9
_TAIL_SLACK = 1e-4


def understates(claimed: float, recomputed: float) -> bool:
    """Whether a claimed ε lies below the recomputed one by more than the numerical tolerance."""
    return claimed < recomputed * (1.0 - RELATIVE) - ABSOLUTE


def overstates(claimed: float, recomputed: float, relative: float) -> bool:
    """Whether a claimed ε lies above the recomputed one by more than this share (and 0.01)."""
    return claimed > recomputed * (1.0 + relative) + 0.01


@dataclass
class Comparison:
    """What comes of comparing claimed losses with recomputed ones.

    Attributes:
        reasons: a sentence for each that is wrong.
        high: a sentence for each that is only a little too high.
        unknown: accountants by which a loss is claimed and of which the auditor has none.
        notes_high: whether what is only a little too high is to be told at all.
    """

    reasons: list[str] = field(default_factory=list)
    high: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    notes_high: bool = True

    def compare(self, where: str, claimed: float, recomputed: Range) -> None:
        """Compare one claimed loss with the recomputed one; `where` says what is claimed."""
        least, most = recomputed.least, recomputed.most
        if understates(claimed, least):
            self.reasons.append(f"{where} is claimed {claimed:.4g} but costs {least:.4g}")
        elif overstates(claimed, most, 0.05):
            self.reasons.append(
                f"{where} is claimed {claimed:.4g}, overstated: it costs {most:.4g}"
            )
        elif self.notes_high and overstates(claimed, most, 0.02):
            self.high.append(f"{where} is overstated ({claimed:.4g} for {most:.4g})")

    def numbers(self, where: str, part: Mapping[str, Any], spent: Budget) -> float:
        """Compare the loss of a client or view by each accountant; returns the promised one.

        Raises:
            FieldError: a number is none, or one that every claim states is missing.
        """
        stated = claims.epsilons(part)
        for accountant in accountants():
            if accountant.expected or accountant.name in stated:
                claimed = fields.number(stated, accountant.name)
                recomputed = spent.by_accountant[accountant.name]
                self.compare(f"{where} epsilon by {accountant.name}", claimed, recomputed)
        self.unknown |= stated.keys() - spent.by_accountant.keys()
        return stated[accountants()[0].name]

    def headline(self, where: str, view: Mapping[str, Any], recomputed: float) -> float:
        """Compare what a view promises; returns it. By any other accountant nothing is verified.

        Raises:
            FieldError: the view does not promise a number.
        """
        self.promised(where, view)
        leading, stated = accountants()[0].name, claims.epsilons(view)
        self.unknown |= stated.keys() - {leading}
        claimed = fields.number(stated, leading)
        self.compare(where, claimed, Range(recomputed, recomputed))
        return claimed

    def promised(self, where: str, view: Mapping[str, Any]) -> None:
        """The number that a view promises is the leading accountant's.

        Raises:
            FieldError: the view names no accountant.
        """
        leading = accountants()[0].name
        if fields.text(view, "accountant") != leading:
            self.reasons.append(f"{where}: its accountant is not {leading}")


def profile_fault(claim: Mapping[str, Any], history: Sequence[Steps], delta: float) -> str | None:
    """What is wrong with the claimed curve δ(ε), which must not lie below the recomputed one.

    Raises:
        FieldError: a point of it is not a pair of numbers in range.
    """
    if "profile" not in claim or not history:
        return None
    pair = privacy_profile(history, delta)
    for point in fields.sequence(claim, "profile", most=10_000):
        if not isinstance(point, list) or len(point) != 2:
            return "the privacy profile has a point that is not [epsilon, delta]"
        epsilon = fields.as_number(point[0], "an epsilon of the profile", least=0.0)
        claimed = fields.as_number(point[1], "a delta of the profile", least=0.0, most=1.0)
        shifted = pair.delta(epsilon * (1.0 + RELATIVE) + ABSOLUTE)
        # Our own curve charges cut tails to delta, up to a small share of the delta it is made for.
        if max(claimed, _LEAST_DELTA) + _TAIL_SLACK * delta < shifted * 0.99:
            return f"the privacy profile understates delta at epsilon = {epsilon:.4g}"
    return None
