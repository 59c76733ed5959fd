"""When does a claimed loss agree with the recomputed one?

Used by the checks "accounting" and "views" of both units, so that all compare alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from audit.accounting.budget import Steps, privacy_profile
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


def compare(
    where: str, claimed: float, recomputed: float, upper: float, reasons: list[str], high: list[str]
) -> None:
    """Compare a claimed loss with the recomputed one.

    Args:
        where: what is claimed, for the message.
        claimed: the claim.
        recomputed: least honest value.
        upper: greatest honest value.
        reasons: gets a sentence if the claim is wrong.
        high: gets a sentence if it is only a little too high.
    """
    if understates(claimed, recomputed):
        reasons.append(f"{where} is claimed {claimed:.4g} but costs {recomputed:.4g}")
    elif overstates(claimed, upper, 0.05):
        reasons.append(f"{where} is claimed {claimed:.4g}, overstated: it costs {upper:.4g}")
    elif overstates(claimed, upper, 0.02):
        high.append(f"{where} is overstated ({claimed:.4g} for {upper:.4g})")


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
