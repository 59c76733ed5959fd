"""When does a claimed loss agree with the recomputed one?

Used by the checks "accounting" and "views" of both units, so that all compare alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from audit.accounting.budget import Budget, Steps, privacy_profile
from audit.accounting.registry import LossPair, Range, accountants
from audit.reading.ledger_lines import claimed_epsilons
from audit.untrusted import fields

# What the curve of δ, and numbers that are no claims, may be off.
RELATIVE, ABSOLUTE = 5e-3, 1e-3
# What a claim may lie below the auditor's own value, which errs upwards by less on a fine grid.
BELOW_RELATIVE, BELOW_ABSOLUTE = 1e-4, 1e-9
# A value that changes by less, as a share, when cells become a quarter as wide is final.
_SETTLED = 1e-5
_FINEST = 4
_LEAST_DELTA = 1e-9
_TAIL_SLACK = 1e-4
# Down to here a profile is computed, and a Gaussian is compared with it at so many ε. μ may lie
# above the least that covers our own curve by this share, and this much.
_END_OF_PROFILE, _POINTS, _ABOVE = 1e-10, 60, 0.05


AtFineness = Callable[[int], float]


def understates(claimed: float, recomputed: AtFineness) -> bool:
    """Whether a claimed ε lies below the recomputed one by more than rounding on grids explains.

    Every grid's value is an upper bound, so a coarse one suffices to accept a claim, and nearly all
    claims are accepted by it. It says that a claim is too low only where that is by far; between,
    cells become narrower until the claim is accepted or the value is settled. Where they cannot
    become so narrow, what the last step changed counts as the auditor's own uncertainty.

    Args:
        claimed: ε as it is claimed.
        recomputed: ε on a grid whose cells are 4^n times as narrow, for any whole n.
    """
    least = recomputed(0)
    if claimed >= _floor(least):
        return False
    if rounded_below(claimed, least):
        return True
    change = 0.0
    for fineness in range(1, _FINEST + 1):
        before, least = least, min(least, recomputed(fineness))
        if claimed >= _floor(least):
            return False
        change = before - least
        if change <= _SETTLED * least:
            break
    if change == 0.0:
        # The grid is as fine as it gets, or there is none.
        change = max(0.0, recomputed(-1) - least)
    return claimed < _floor(least - change)


def _floor(epsilon: float) -> float:
    return epsilon * (1.0 - BELOW_RELATIVE) - BELOW_ABSOLUTE


def rounded_below(printed: float, recomputed: float) -> bool:
    """Whether an ε that was printed with few digits lies below by more than they explain."""
    return printed < recomputed * (1.0 - RELATIVE) - ABSOLUTE


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
        if understates(claimed, recomputed.at):
            digits = 4 if rounded_below(claimed, least) else 7
            self.reasons.append(
                f"{where} is claimed as {claimed:.{digits}g} but costs {least:.{digits}g}"
            )
        elif overstates(claimed, most, 0.05):
            self.reasons.append(
                f"{where} is claimed as {claimed:.4g}, which is overstated: it costs {most:.4g}"
            )
        elif self.notes_high and overstates(claimed, most, 0.02):
            self.high.append(f"{where} is overstated ({claimed:.4g} for {most:.4g})")

    def numbers(self, where: str, part: Mapping[str, Any], spent: Budget) -> float:
        """Compare the loss of a client or view by each accountant; returns the promised one.

        Raises:
            FieldError: a number is none, or one that every claim states is missing.
        """
        stated = claimed_epsilons(part)
        for accountant in accountants():
            if accountant.expected or accountant.name in stated:
                claimed = fields.number(stated, accountant.name)
                recomputed = spent.by_accountant[accountant.name]
                self.compare(f"{where} epsilon by {accountant.name}", claimed, recomputed)
        self.unknown |= stated.keys() - spent.by_accountant.keys()
        return stated[accountants()[0].name]

    def headline(self, where: str, view: Mapping[str, Any], recomputed: AtFineness) -> float:
        """Compare what a view promises; returns it. By any other accountant nothing is verified.

        Args:
            where: what is claimed, in words.
            view: the claim's.
            recomputed: what it costs, on a grid of any fineness.

        Raises:
            FieldError: the view does not promise a number.
        """
        self.promised(where, view)
        leading, stated = accountants()[0].name, claimed_epsilons(view)
        self.unknown |= stated.keys() - {leading}
        claimed = fields.number(stated, leading)
        costs = recomputed(0)
        self.compare(where, claimed, Range(costs, costs, recomputed))
        return claimed

    def promised(self, where: str, view: Mapping[str, Any]) -> None:
        """The number that a view promises is the leading accountant's.

        Raises:
            FieldError: the view names no accountant.
        """
        leading = accountants()[0].name
        if fields.text(view, "accountant") != leading:
            self.reasons.append(f"{where}: its accountant is not {leading}")


def curve_fault(claim: Mapping[str, Any], history: Sequence[Steps], delta: float) -> str | None:
    """What is wrong with the claimed curves: the profile δ(ε), and the Gaussian that covers it.

    Neither may lie below the recomputed curve. Both are optional: claims of earlier versions have
    no Gaussian.

    Raises:
        FieldError: a point of the profile is not a pair of numbers in range, or μ is none.
    """
    if not history:
        return None
    if "profile" in claim:
        recomputed = _Curve(history, delta)
        for point in fields.sequence(claim, "profile", most=10_000):
            if not isinstance(point, list) or len(point) != 2:
                return "the privacy profile has a point that is not [epsilon, delta]"
            epsilon = fields.as_number(point[0], "an epsilon of the profile", least=0.0)
            claimed = fields.as_number(point[1], "a delta of the profile", least=0.0, most=1.0)
            if recomputed.lies_above(epsilon, max(claimed, _LEAST_DELTA)):
                return f"the privacy profile understates delta at epsilon = {epsilon:.4g}"
    if "gaussian_dp" in claim:
        if "tuning" in claim:
            return "gaussian_dp is that of one trial, and the run is the best of several"
        return _gaussian_fault(fields.mapping(claim, "gaussian_dp"), history)
    return None


def _gaussian_fault(stated: Mapping[str, Any], history: Sequence[Steps]) -> str | None:
    """What is wrong with the claimed μ of the Gaussian mechanism that covers a history."""
    mu, exact = fields.number(stated, "mu", least=0.0), fields.flag(stated, "exact")
    if exact != all(item.sampling_rate == 1.0 for item in history):
        return "gaussian_dp is exact if and only if every record is in every step"
    if exact:
        least = math.sqrt(sum(item.steps / item.noise_multiplier**2 for item in history))
        if abs(mu - least) > 1e-6 * least:
            return f"mu is claimed as {mu:.7g} but is {least:.7g}"
        complete = fields.number(stated, "misses_smaller_by") == 0.0
        return None if complete else "an exact mu holds for events of any probability"
    if fields.number(stated, "misses_smaller_by") < _END_OF_PROFILE:
        return f"a profile that ends at delta = {_END_OF_PROFILE:g} proves no mu for rarer events"
    recomputed = _Curve(history, _END_OF_PROFILE)
    end = recomputed.at(0).epsilon(_END_OF_PROFILE)
    epsilons = [float(epsilon) for epsilon in np.linspace(0.0, end, _POINTS)]
    for epsilon in epsilons:
        covered = max(_gaussian_delta(mu, epsilon), _END_OF_PROFILE)
        if recomputed.lies_above(epsilon, covered, min(ABSOLUTE, RELATIVE * end / 5.0)):
            return f"mu = {mu:.7g} understates delta at epsilon = {epsilon:.4g}"
    smaller = mu / (1.0 + _ABOVE) - _ABOVE
    coarse = recomputed.at(0)
    if smaller > 0.0 and all(
        _gaussian_delta(smaller, one) >= coarse.delta(one) for one in epsilons
    ):
        return f"mu is claimed as {mu:.4g}, which is overstated: {smaller:.4g} covers the curve"
    return None


class _Curve:
    """The recomputed δ(ε) of a history, accurate around a δ and above, on grids of any fineness."""

    def __init__(self, history: Sequence[Steps], delta: float) -> None:
        """Compose nothing yet."""
        self._history, self._delta = history, delta
        self._known: dict[int, LossPair] = {}

    def at(self, fineness: int) -> LossPair:
        """The curve on a grid whose cells are 4^fineness times as narrow."""
        if fineness not in self._known:
            self._known[fineness] = privacy_profile(self._history, self._delta, fineness)
        return self._known[fineness]

    def lies_above(self, epsilon: float, claimed: float, within: float = ABSOLUTE) -> bool:
        """Whether it lies above a claimed δ by more than rounding on grids explains.

        Every grid's curve is an upper bound. With little noise the coarse one lies far above.
        `within` is what ε may be off besides a share of itself.
        """
        shifted = epsilon * (1.0 + RELATIVE) + within
        # Our own curve charges cut tails to delta, up to a small share of the delta it is made for.
        stated = claimed + _TAIL_SLACK * self._delta
        return all(stated < self.at(fine).delta(shifted) * 0.99 for fine in range(_FINEST))


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of N(0, 1) and N(μ, 1) (Dong, Roth & Su 2022, Corollary 2.13)."""
    if mu == 0.0:
        return 0.0
    first, second = log_ndtr(mu / 2.0 - epsilon / mu), log_ndtr(-mu / 2.0 - epsilon / mu)
    if first == -math.inf:
        return 0.0
    return float(np.exp(first) * -np.expm1(min(epsilon + second - first, 0.0)))
